"""What a store lists now, as parts: whole, or only what a plan needs to see."""

from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cached_property

from semel.clients.objects import Object, Store
from semel.declare.context import Context
from semel.errors import TerminalError
from semel.sources import Refusal
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import Listing, Part

_PASSED_OVER = ("_", ".")
"""Parts of keys that begin so are notes of those who write, as _SUCCESS is, and no records."""


@dataclass(frozen=True, kw_only=True)
class ObjectPart(Part):
    """An object as it was listed. `etag`: what each read of it names."""

    etag: str
    modified: datetime


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Which keys are listed. `folders`: those below one of these; None: all. `after`: those that
    are greater; None: all.
    """

    folders: tuple[str, ...] | None = None
    after: str | None = None

    def __contains__(self, key: str) -> bool:
        within = self.folders is None or key.startswith(tuple(f"{f}/" for f in self.folders))
        return within and (self.after is None or _order(key) > _order(self.after))


@dataclass(frozen=True, kw_only=True)
class ObjectListing(Listing):
    """The objects of a scope, oldest first; with source.ordered by their keys."""

    found: list[ObjectPart]
    scope: Scope

    @cached_property
    def names(self) -> set[str]:
        """All keys that are shown."""
        return {part.name for part in self.found} | {refused.name for refused in self.refused}


def _order(key: str) -> bytes:
    """Stores order keys by their bytes."""
    return key.encode()


# Keeps OB3.
def list_objects(context: Context, store: Store, scope: Scope) -> ObjectListing:
    """Errors as of `Store.list`. TerminalError: two objects have one key, or one has no etag."""
    declared, found, refused, seen = context.declared, [], [], set()
    for folder in ("",) if scope.folders is None else scope.folders:
        for page in store.list(folder, scope.after):
            for one in page:
                if not _is_read(one, declared.pattern):
                    continue
                if one.key in seen:
                    raise TerminalError(
                        f"below {declared.url} are two objects that the client calls {one.key!r}: "
                        "the key of one begins or ends with a slash; remove or rename that one"
                    )
                seen.add(one.key)
                part = part_of(one)
                if declared.interval_from:
                    when = declared.times.of(one.key, one.modified)
                    if when is None:
                        refused.append(_without_time(part, declared.interval_from))
                        continue
                    part = replace(part, when=when)
                found.append(part)
    if declared.ordered:
        found.sort(key=lambda part: _order(part.name))
    else:
        found.sort(key=lambda part: (part.modified, part.name))
    return ObjectListing(found=found, refused=refused, complete=True, scope=scope)


def _is_read(found: Object, pattern: str) -> bool:
    hidden = any(part.startswith(_PASSED_OVER) for part in found.key.split("/"))
    return bool(found.size) and not hidden and fnmatchcase(found.key, pattern)


def _without_time(part: Part, rule: str) -> Refusal:
    why = f"its key does not follow {rule!r}, so it has no interval; narrow source.pattern"
    return refusal(part, "interval", why)


def part_of(found: Object) -> ObjectPart:
    """An object as a part, without its time. TerminalError: it has no etag."""
    # A key is a source partition for ever, so it is the identity too. Two slashes part names in
    # the ledger's queries, and an etag may have some.
    if not found.etag:
        raise TerminalError(
            f"the store gives {found.key!r} no etag, so nobody could tell that it was replaced; "
            "read it from a store that does"
        )
    stamp = f"{found.size}:{found.etag}".replace("/", "|")
    return ObjectPart(
        name=found.key,
        identity=found.key,
        fingerprint=stamp,
        length=found.size,
        when=None,
        etag=found.etag,
        modified=found.modified,
    )
