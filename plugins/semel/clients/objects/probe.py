"""Check that a store refuses conditional puts and keeps metadata, as a sink needs it."""

import secrets

from semel.clients.objects import Store
from semel.declare.parts import RESERVED_PREFIX
from semel.errors import TerminalError

_MARK = {"semelprobe": "probe"}


# Keeps OB11, DL9.
def check_conditional_puts(store: Store, *, replaces: bool) -> None:
    """Raises TerminalError if the store lets a second put overwrite a first, loses metadata, or,
    with `replaces`, lets a put replace another version than it names. Deletes its probe object.
    """
    key = f"{RESERVED_PREFIX}/probe-{secrets.token_hex(8)}"
    try:
        # A put of which the first answer was lost is refused, too.
        created = store.create(key, b"first", _MARK) or store.get(key)[0] == b"first"
        if not created or store.create(key, b"second", _MARK):
            raise TerminalError(
                f"{store.place} does not refuse a second put of one key (If-None-Match: *), so "
                "semel cannot write there exactly once. Use a store that does, such as S3 or MinIO "
                "from 2024 on"
            )
        first, about = store.head(key)
        if about != about | _MARK:
            raise TerminalError(
                f"{store.place} does not keep an object's metadata, by which semel recognizes its "
                "own objects. Use a store that does"
            )
        if replaces:
            try:
                store.replace(key, b"newer", _MARK, first.etag, first.version)
            except FileNotFoundError:
                if store.get(key)[0] != b"newer":
                    raise
            try:
                store.replace(key, b"older", _MARK, first.etag, first.version)
            except FileNotFoundError:
                return
            raise TerminalError(
                f"{store.place} does not refuse to replace an object that has changed meanwhile "
                "(If-Match), so an older marker could replace a newer one. Use a store that does, "
                "such as S3 or MinIO from 2024 on"
            )
    finally:
        store.remove(key)
