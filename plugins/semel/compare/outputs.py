"""The rows of two outputs, as keys and hashes: by what a row is matched, and its content."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import duckdb
import pyarrow as pa

from semel import limits
from semel.archive.marker import Marker
from semel.audit import fast
from semel.compare.engine import Engine, zoneless
from semel.errors import CorruptionError
from semel.formats.output import columns_in_files, rows_of
from semel.formats.pieces import gathered, pieces
from semel.model.batch import Claim
from semel.model.manifest import Kind, MarkedFile
from semel.pipeline import Spec
from semel.pipeline.opening import open_sink
from semel.sinks import MiscountError, Sink

_POSITION = ("_semel_source", "_semel_offset")
_NULL = "CAST(NULL AS BIGINT)"

SinkOf = Callable[[Spec], Sink]
"""Gives the sink of a batch that is in none of the folders, by its spec."""

Row = dict[str, str | None]
"""The texts of a row's values, by column."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What of the rows is compared. `by`: what they are matched by: id, position or row.

    `content`: the columns whose values count; those in `as_text` are not of one type everywhere.
    """

    by: str
    content: tuple[str, ...]
    as_text: frozenset[str]

    @classmethod
    def of(cls, spec: Spec, live: Iterable[Marker], other: Iterable[Marker]) -> "Columns":
        """Those of two outputs."""
        schemas = [[columns_in_files(m) for m in side] for side in (live, other)]
        every = [schema for side in schemas for schema in side]
        in_all = set.intersection(*(set(schema.names) for schema in every))
        types: dict[str, set[pa.DataType]] = {}
        for schema in every:
            for one in schema:
                types.setdefault(one.name, set()).add(one.type)
        by = "row"
        if spec.record_id and set(spec.record_id) <= in_all:
            by = "id"
        elif spec.by_position and set(_POSITION) <= in_all:
            by = "position"
        words = {name: kind.word for name, kind in spec.column_types().items()}
        loose = not spec.sink.in_folder  # A table may keep a JSON value in other words.
        return cls(
            by=by,
            content=tuple(
                name
                for name in types
                if name not in _POSITION and not (loose and words.get(name) == "json")
            ),
            as_text=frozenset(name for name, kinds in types.items() if len(kinds) > 1),
        )


@dataclass
class Outputs:
    """Puts rows into an engine, and finds them again. `files`: where rows came from, by number."""

    engine: Engine
    spec: Spec
    columns: Columns
    files: list[tuple[Marker, MarkedFile | None]] = field(default_factory=list)

    def add(
        self, side: int, marker: Marker, *, numbered: bool, sink_of: SinkOf = open_sink
    ) -> None:
        """The rows of a batch. `numbered`: with its number; that of the batch path is none."""
        braces = self._braces(marker) | {
            "side": side,
            "batch": marker.batch_id if numbered else _NULL,
        }
        files = list(marker.of_kind(Kind.DATA)) if marker.sink is not None else [None]
        for file in files:
            self.files.append((marker, file))
            braces["file"] = len(self.files) - 1
            for table in tables_of(marker, file, sink_of):
                self._insert(marker, table, braces)

    def examples(
        self, at: int, contents: list[int], sink_of: SinkOf
    ) -> dict[tuple[str, int], Row]:
        """Rows of a file with these contents, one for each key and content."""
        marker, file = self.files[at]
        names = [n for n in columns_in_files(marker).names if n not in _POSITION]
        braces = {**self._braces(marker), "columns": ", ".join(map(_as_text, names))}
        found: dict[tuple[str, int], Row] = {}
        for table in tables_of(marker, file, sink_of):
            for key, content, *texts in self.engine.look(
                "examples", table, braces, contents=contents
            ):
                found.setdefault((key, content), dict(zip(names, texts, strict=True)))
        return found

    def add_apart(self, side: int, marker: Marker, *, letters: bool = True) -> None:
        """The decisions of a batch, and its dead letters where these are still such."""
        batch = marker.batch_id if side == 0 else _NULL
        identity = fast.identity(marker.spec, lambda name: f"record_id.{fast.column(name)}")
        for kind, statement, columns in (
            (Kind.DECISIONS, "insert_decisions", ["reason", "record_id"]),
            (Kind.DEAD_LETTERS, "insert_letters", ["reason"]),
        ):
            for file in marker.of_kind(kind) if letters or kind is Kind.DECISIONS else ():
                wanted = ["source_partition_id", "offset", *columns]
                for some in _parquet(marker, file, wanted):
                    if kind is Kind.DECISIONS:
                        ids = zoneless(pa.Table.from_struct_array(some.column("record_id")))
                        some = some.set_column(3, "record_id", ids.to_struct_array())
                    braces = {"side": side, "batch": batch, "key": identity}
                    self.engine.insert(statement, some, braces)

    def add_claims(self, batch_id: int, claims: list[Claim]) -> None:
        """The ranges that a batch of the live path read."""
        columns = [(c.source_partition_id, c.start, c.end) for c in claims]
        part, first, behind = zip(*columns, strict=True)
        batch = [batch_id] * len(claims)
        table = {"batch": batch, "part": part, "first": first, "behind": behind}
        self.engine.insert("insert_claims", pa.table(table))

    def _insert(self, marker: Marker, table: pa.Table, braces: dict[str, object]) -> None:
        try:
            self.engine.insert("insert_output", table, braces)
        except duckdb.Error as error:
            raise _unreadable(marker, error) from error

    def _braces(self, marker: Marker) -> dict[str, object]:
        names, columns = set(columns_in_files(marker).names), self.columns
        part, pos = (
            fast.column(name) if name in names else _NULL for name in _POSITION
        )
        shown = [
            _as_text(name) if name in columns.as_text else fast.column(name)
            for name in columns.content
            if name in names
        ]
        # A column that a batch does not have counts as null, at its place.
        places = iter(shown)
        values = [next(places) if name in names else "NULL" for name in columns.content]
        content = f"hash({', '.join(values)})" if values else "CAST(0 AS UBIGINT)"
        keyless = f"chr(1) || CAST({content} AS VARCHAR)"
        key = keyless
        if columns.by == "id":
            identity = fast.identity(self.spec, partial(fast.in_output, marker.spec))
            key = f"COALESCE({identity}, {keyless})"
        elif columns.by == "position":
            key = f"COALESCE({part} || ':' || {pos}, {keyless})"
        return {"key": key, "content": content, "part": part, "pos": pos}


def _as_text(name: str) -> str:
    return f"CAST({fast.column(name)} AS VARCHAR)"


def tables_of(
    marker: Marker, file: MarkedFile | None, sink_of: SinkOf
) -> Iterator[pa.Table]:
    """The rows of one file of a batch; of a batch in a table, all.

    CorruptionError: a file cannot be read.
    """
    if file is None:
        with suppress(MiscountError):  # What is missing is a difference, and is shown as one.
            yield from sink_of(marker.spec).rows(marker)
        return
    try:
        yield from gathered(rows_of(marker, file), limits.AUDIT_CHUNK_BYTES)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(marker, error, file) from error


def _parquet(marker: Marker, file: MarkedFile, columns: list[str]) -> Iterator[pa.Table]:
    try:
        found = (pa.Table.from_batches([some]) for some in pieces(marker.path_of(file), columns))
        yield from gathered(found, limits.AUDIT_CHUNK_BYTES)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(marker, error, file) from error


def _unreadable(
    marker: Marker, error: Exception, file: MarkedFile | None = None
) -> CorruptionError:
    what = repr(str(marker.path_of(file))) if file else "its output"
    why = str(error).splitlines()[0]
    return CorruptionError(
        f"batch {marker.batch_id} of {marker.pipeline}: {what} cannot be read: {why}",
        next=f"semel audit {marker.pipeline}",
    )
