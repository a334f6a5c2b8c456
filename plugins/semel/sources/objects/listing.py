"""What a store lists now, as parts: whole, or only what a plan needs to see."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.clients.objects import Object, Store
from semel.declare.context import Context
from semel.errors import TerminalError
from semel.formats.table import source_format
from semel.sources import PRIVATE, TABLE_LOG, Refusal, delta_table_error
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import PartListing, SealedPart


@dataclass(frozen=True, kw_only=True)
class ObjectPart(SealedPart):
    """An object as it was listed. `etag`: what each read of it names. `doubtful`: the last plan
    refused it.
    """

    etag: str
    modified: datetime
    doubtful: bool = False


@dataclass(frozen=True, kw_only=True)
class KeyScope:
    """Which keys are listed. `folders`: those below one of these; None: all. `after`: those that
    are greater; None: all.
    """

    folders: tuple[str, ...] | None = None
    after: str | None = None

    def __contains__(self, key: str) -> bool:
        within = self.folders is None or key.startswith(tuple(f"{f}/" for f in self.folders))
        return within and (self.after is None or key > self.after)


_COLUMNS = pa.schema({
    "name": pa.large_string(), "length": pa.int64(), "etag": pa.large_string(),
    "modified": pa.timestamp("us", "UTC"), "when": pa.timestamp("us", "UTC"),
})  # fmt: skip
_ROWS_AT_ONCE, _PAGES_AT_ONCE = 10_000, 50


class ObjectParts(Sequence[ObjectPart]):
    """Listed objects as columns, in their order: a million take 150 MB so, not a gigabyte, and most
    are settled, so that nobody asks for more than how they look.
    """

    def __init__(self, rows: pa.Table, order: Sequence[str]) -> None:
        """`rows`: of _COLUMNS. `order`: the columns that they are ordered by."""
        self.names = rows.column("name")
        self._rows = rows
        self._order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in order])

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[ObjectPart]:
        for at in range(0, len(self), _ROWS_AT_ONCE):
            yield from self[at : at + _ROWS_AT_ONCE]

    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, slice):
            at = range(len(self))[at]
            return self[at : at + 1][0]
        return _parts(self._rows.take(self._order[at]))

    def some(self, places: pa.Array) -> list[ObjectPart]:
        """Those at some places."""
        return _parts(self._rows.take(self._order.take(places)))

    def looks(self) -> Iterator[str]:
        """As `Shown.looks`, without an object for each."""
        for at in range(0, len(self), _ROWS_AT_ONCE):
            rows = self._rows.take(self._order[at : at + _ROWS_AT_ONCE])
            name, length = rows["name"], rows["length"].cast(pa.large_string())
            etag = pc.replace_substring(rows["etag"], "/", "|")
            colon, slashes = pa.scalar(":", pa.large_string()), pa.scalar("//", pa.large_string())
            look = pc.binary_join_element_wise(length, etag, colon)
            yield from pc.binary_join_element_wise(name, name, look, slashes).to_pylist()


@dataclass(frozen=True, kw_only=True)
class ObjectListing(PartListing):
    """The objects of a scope, oldest first; with source.ordered by their keys."""

    items: ObjectParts
    scope: KeyScope

    def signatures(self) -> Iterator[str]:
        """By the columns."""
        return self.items.looks()

    def items_at(self, places: list[int]) -> list[ObjectPart]:
        return self.items.some(pa.array(places, pa.uint64()))

    def shows(self, names: Collection[str]) -> set[str]:
        """Which of these are shown."""
        asked = pa.array(names, pa.large_string())
        found = self.items.names.filter(pc.is_in(self.items.names, asked))
        return {*found.to_pylist(), *(refused.name for refused in self.refusals)}


# Keeps OB3.
def list_objects(context: Context, store: Store, scope: KeyScope) -> ObjectListing:
    """Errors as of `Store.list`. TerminalError: two objects have one key, or one has no etag."""
    declared, refused = context.declared, []
    pages: list[pa.RecordBatch] = []
    chunks: list[pa.RecordBatch] = []
    tables: set[str] = set()
    for folder in ("",) if scope.folders is None else scope.folders:
        for page in store.list(folder, scope.after):
            rows = []
            for one in page:
                if f"/{TABLE_LOG}/" in f"/{one.key}":
                    tables.add(f"/{one.key}".partition(f"/{TABLE_LOG}/")[0])
                if not _is_read(one, declared.pattern):
                    continue
                when = None
                if declared.interval_from:
                    when = declared.times.of(one.key, one.modified)
                    if when is None:
                        refused.append(_without_time(part_of(one), declared.interval_from))
                        continue
                rows.append((one.key, one.size, _etag(one), one.modified, when))
            columns = zip(*rows, strict=True) if rows else [()] * len(_COLUMNS)
            pages.append(pa.record_batch(list(map(pa.array, columns, _COLUMNS.types)), _COLUMNS))
            if len(pages) == _PAGES_AT_ONCE:
                chunks.append(pa.concat_batches(pages))
                pages = []
    columns = [[chunk.column(at) for chunk in (*chunks, *pages)] for at in range(len(_COLUMNS))]
    del chunks, pages
    # One after the other, so that two copies are there of one column at most.
    whole = [pa.concat_arrays([pa.array([], kind), *columns.pop(0)]) for kind in _COLUMNS.types]
    table = pa.table(whole, schema=_COLUMNS)
    pa.default_memory_pool().release_unused()
    _check_once(declared.url, whole[0])
    if source_format(declared.format).sealed:
        _check_tables(context, whole[0], {*tables, *_tables_above(store, scope)})
    found = ObjectParts(table, ("name",) if declared.ordered else ("modified", "name"))
    return ObjectListing(items=found, refusals=refused, complete=True, scope=scope)


# Keeps P32.
def _check_tables(context: Context, names: pa.Array, tables: set[str]) -> None:
    """TerminalError: one of the objects lies in a Delta table."""
    for table in sorted(tables):
        below = pc.any(pc.starts_with(names, f"{table}/".removeprefix("/"))).as_py()
        if below:
            raise delta_table_error(context.declared.url.rstrip("/") + table)


def _tables_above(store: Store, scope: KeyScope) -> Iterator[str]:
    """The Delta tables in which a scope lies, or whose log it does not list."""
    if scope == KeyScope():
        return
    folders = {f"/{folder}" for folder in scope.folders or ()}
    above = {folder[:at] for folder in folders for at, sign in enumerate(folder) if sign == "/"}
    for folder in sorted({"", *above}):
        if next(iter(store.list(f"{folder}/{TABLE_LOG}".removeprefix("/"))), []):
            yield folder


def _check_once(url: str, names: pa.Array) -> None:
    order = pc.sort_indices(names)
    for at in range(0, len(names), _ROWS_AT_ONCE):
        some = names.take(order[at : at + _ROWS_AT_ONCE + 1])
        for name in some[1:].filter(pc.equal(some[1:], some[:-1])):
            raise TerminalError(
                f"below {url} are two objects that the client calls {name.as_py()!r}: the key of "
                "one begins or ends with a slash; remove or rename that one"
            )


def _is_read(found: Object, pattern: str) -> bool:
    private = PRIVATE.search(found.key) and not PRIVATE.search(pattern)
    return bool(found.size) and not private and fnmatchcase(found.key, pattern)


def _without_time(part: SealedPart, rule: str) -> Refusal:
    why = f"its key does not follow {rule!r}, so it has no interval; narrow source.pattern"
    return refusal(part, "interval", why)


def part_of(found: Object) -> ObjectPart:
    """An object as a part, without its time. TerminalError: it has no etag."""
    return _part(found.key, found.size, _etag(found), found.modified, None)


def _etag(found: Object) -> str:
    if not found.etag:
        raise TerminalError(
            f"the store gives {found.key!r} no etag, so nobody could tell that it was replaced; "
            "read it from a store that does"
        )
    return found.etag


def _parts(rows: pa.Table) -> list[ObjectPart]:
    return [_part(*row) for row in zip(*rows.to_pydict().values(), strict=True)]


def _part(
    key: str, length: int, etag: str, modified: datetime, when: datetime | None
) -> ObjectPart:
    # A key is a source partition for ever, so it is the identity too. Two slashes part names in
    # the ledger's queries, and an etag may have some.
    return ObjectPart(
        name=key,
        identity=key,
        fingerprint=f"{length}:{etag}".replace("/", "|"),
        length=length,
        when=when,
        etag=etag,
        modified=modified,
    )
