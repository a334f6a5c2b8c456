"""Lists the objects of a store as parts: all, or only those that a plan needs."""

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
    """An object as it was listed. Each read names its `etag`. `doubtful`: the last plan refused it."""

    etag: str
    modified: datetime
    doubtful: bool = False


@dataclass(frozen=True, kw_only=True)
class KeyScope:
    """The keys to list. `folders`: only keys below these. `start_after`: only greater keys. None
    means all keys.
    """

    folders: tuple[str, ...] | None = None
    start_after: str | None = None

    def __contains__(self, key: str) -> bool:
        within = self.folders is None or key.startswith(tuple(f"{f}/" for f in self.folders))
        return within and (self.start_after is None or key > self.start_after)


_COLUMNS = pa.schema({
    "name": pa.large_string(), "length": pa.int64(), "etag": pa.large_string(),
    "modified": pa.timestamp("us", "UTC"), "when": pa.timestamp("us", "UTC"),
})  # fmt: skip
_ROWS_AT_ONCE, _PAGES_AT_ONCE = 10_000, 50


class ObjectParts(Sequence[ObjectPart]):
    """Listed objects as columns, in their order. A million objects take 150 MB instead of
    a gigabyte; most are settled, so a plan needs only their signatures.
    """

    def __init__(self, rows: pa.Table, order: Sequence[str]) -> None:
        """`rows` has _COLUMNS. `order` names the columns to sort by."""
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

    def at_places(self, places: pa.Array) -> list[ObjectPart]:
        """The objects at these places of the order."""
        return _parts(self._rows.take(self._order.take(places)))

    def signatures(self) -> Iterator[str]:
        """As `SourceListing.signatures`, without a Python object for each part."""
        for at in range(0, len(self), _ROWS_AT_ONCE):
            rows = self._rows.take(self._order[at : at + _ROWS_AT_ONCE])
            name, length = rows["name"], rows["length"].cast(pa.large_string())
            etag = pc.replace_substring(rows["etag"], "/", "|")
            colon, slashes = pa.scalar(":", pa.large_string()), pa.scalar("//", pa.large_string())
            fingerprint = pc.binary_join_element_wise(length, etag, colon)
            yield from pc.binary_join_element_wise(name, name, fingerprint, slashes).to_pylist()


@dataclass(frozen=True, kw_only=True)
class ObjectListing(PartListing):
    """The objects of a scope: oldest first, or by key with source.ordered."""

    items: ObjectParts
    scope: KeyScope

    def signatures(self) -> Iterator[str]:
        return self.items.signatures()

    def items_at(self, places: list[int]) -> list[ObjectPart]:
        return self.items.at_places(pa.array(places, pa.uint64()))

    def listed_names(self, names: Collection[str]) -> set[str]:
        """Those of `names` that the listing has, also refused ones."""
        wanted = pa.array(names, pa.large_string())
        listed = self.items.names.filter(pc.is_in(self.items.names, wanted))
        return {*listed.to_pylist(), *(refused.name for refused in self.refusals)}


# Keeps OB3.
def list_objects(context: Context, store: Store, scope: KeyScope) -> ObjectListing:
    """List the objects of a scope. Errors as in `Store.list`. Raises TerminalError if two objects
    have the same key, or an object lacks an etag.
    """
    declared, refused = context.declared, []
    pages: list[pa.RecordBatch] = []
    chunks: list[pa.RecordBatch] = []
    tables: set[str] = set()
    for folder in ("",) if scope.folders is None else scope.folders:
        for page in store.list(folder, scope.start_after):
            rows = []
            for item in page:
                if f"/{TABLE_LOG}/" in f"/{item.key}":
                    tables.add(f"/{item.key}".partition(f"/{TABLE_LOG}/")[0])
                if not _is_selected(item, declared.pattern):
                    continue
                when = None
                if declared.interval_from:
                    when = declared.times.time_of(item.key, item.modified)
                    if when is None:
                        refused.append(_refuse_untimed(object_part(item), declared.interval_from))
                        continue
                rows.append((item.key, item.size, _etag(item), item.modified, when))
            columns = zip(*rows, strict=True) if rows else [()] * len(_COLUMNS)
            pages.append(pa.record_batch(list(map(pa.array, columns, _COLUMNS.types)), _COLUMNS))
            if len(pages) == _PAGES_AT_ONCE:
                chunks.append(pa.concat_batches(pages))
                pages = []
    columns = [[chunk.column(at) for chunk in (*chunks, *pages)] for at in range(len(_COLUMNS))]
    del chunks, pages
    # One column at a time, so that memory holds two copies of one column at most.
    arrays = [pa.concat_arrays([pa.array([], kind), *columns.pop(0)]) for kind in _COLUMNS.types]
    table = pa.table(arrays, schema=_COLUMNS)
    pa.default_memory_pool().release_unused()
    _check_unique(declared.url, arrays[0])
    if source_format(declared.format).sealed:
        _check_tables(context, arrays[0], {*tables, *_tables_above(store, scope)})
    parts = ObjectParts(table, ("name",) if declared.ordered else ("modified", "name"))
    return ObjectListing(items=parts, refusals=refused, complete=True, scope=scope)


# Keeps P32.
def _check_tables(context: Context, names: pa.Array, tables: set[str]) -> None:
    """Raises TerminalError if an object belongs to a Delta table."""
    for table in sorted(tables):
        below = pc.any(pc.starts_with(names, f"{table}/".removeprefix("/"))).as_py()
        if below:
            raise delta_table_error(context.declared.url.rstrip("/") + table)


def _tables_above(store: Store, scope: KeyScope) -> Iterator[str]:
    """The Delta tables that contain a scope, which may leave out their log."""
    if scope == KeyScope():
        return
    folders = {f"/{folder}" for folder in scope.folders or ()}
    above = {folder[:at] for folder in folders for at, sign in enumerate(folder) if sign == "/"}
    for folder in sorted({"", *above}):
        if next(iter(store.list(f"{folder}/{TABLE_LOG}".removeprefix("/"))), []):
            yield folder


def _check_unique(url: str, names: pa.Array) -> None:
    order = pc.sort_indices(names)
    for at in range(0, len(names), _ROWS_AT_ONCE):
        keys = names.take(order[at : at + _ROWS_AT_ONCE + 1])
        for key in keys[1:].filter(pc.equal(keys[1:], keys[:-1])):
            raise TerminalError(
                f"{url} has two objects that semel cannot distinguish, both {key.as_py()!r}: the "
                "key of one begins or ends with a slash. Nothing was planned. Rename that one"
            )


def _is_selected(item: Object, pattern: str) -> bool:
    private = PRIVATE.search(item.key) and not PRIVATE.search(pattern)
    return bool(item.size) and not private and fnmatchcase(item.key, pattern)


def _refuse_untimed(part: SealedPart, rule: str) -> Refusal:
    why = f"its key does not follow {rule!r}, so its interval is unknown. Narrow source.pattern"
    return refusal(part, "interval", why)


def object_part(item: Object) -> ObjectPart:
    """An object as a part, without its time. Raises TerminalError if it lacks an etag."""
    return _part(item.key, item.size, _etag(item), item.modified, None)


def _etag(item: Object) -> str:
    if not item.etag:
        raise TerminalError(
            f"the store lists {item.key!r} without an etag, so semel could not notice that it was "
            "replaced. Nothing was planned. Use a store that supports etags"
        )
    return item.etag


def _parts(rows: pa.Table) -> list[ObjectPart]:
    return [_part(*row) for row in zip(*rows.to_pydict().values(), strict=True)]


def _part(
    key: str, length: int, etag: str, modified: datetime, when: datetime | None
) -> ObjectPart:
    # A key stays the same source partition, so it is the identity too. The ledger's queries
    # separate names by two slashes, which an etag may contain.
    return ObjectPart(
        name=key,
        identity=key,
        fingerprint=f"{length}:{etag}".replace("/", "|"),
        length=length,
        when=when,
        etag=etag,
        modified=modified,
    )
