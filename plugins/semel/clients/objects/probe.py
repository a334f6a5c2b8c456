"""Whether a store keeps what a sink counts on: a conditional put is refused, metadata comes back."""

import secrets

from semel.clients.objects import Store
from semel.declare.parts import RESERVED_PREFIX
from semel.errors import TerminalError

_MARK = {"semelprobe": "probe"}


# Keeps OB11, DL9.
def prove(store: Store, *, replaces: bool) -> None:
    """Try the put that refuses a second one; and with `replaces` the one that refuses to replace
    what is not there any more. The probe is deleted. TerminalError: this store does not.
    """
    key = f"{RESERVED_PREFIX}/probe-{secrets.token_hex(8)}"
    try:
        if not store.create(key, b"first", _MARK) or store.create(key, b"second", _MARK):
            raise TerminalError(
                f"{store.place} does not refuse a second put of one key (If-None-Match: *), so "
                "nothing there is exactly once; take a store that does, as S3 and MinIO from 2024 "
                "on do"
            )
        first, about = store.head(key)
        if about != about | _MARK:
            raise TerminalError(
                f"{store.place} does not keep metadata with an object, by which semel knows its "
                "own; take a store that does"
            )
        if replaces:
            store.replace(key, b"newer", _MARK, first.etag, first.version)
            try:
                store.replace(key, b"older", _MARK, first.etag, first.version)
            except FileNotFoundError:
                return
            raise TerminalError(
                f"{store.place} does not refuse to replace an object that has changed meanwhile "
                "(If-Match), so an older copy of a marker would replace a newer one; take a store "
                "that does, as S3 and MinIO from 2024 on do"
            )
    finally:
        store.remove(key)
