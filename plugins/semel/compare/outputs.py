"""The rows of two outputs, as keys and hashes: by what a row is matched, and its content."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import duckdb
import pyarrow as pa

from semel import limits
from semel.archive.marker import Marker
from semel.audit import fast
from semel.clients.duck import DuckEngine, zoneless
from semel.clients.sql import column
from semel.compare.path import BatchPathOutput
from semel.declare.aggregate import Aggregate
from semel.errors import CorruptionError, first_line
from semel.formats.output import columns_in_files, rows_of
from semel.formats.pieces import gathered, pieces
from semel.model.manifest import Kind, MarkedFile
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.sinks import MiscountError, Sink
from semel.stage import combine

_POSITION = ("_semel_source", "_semel_offset")
_NULL = "CAST(NULL AS BIGINT)"

Output = Marker | BatchPathOutput
"""A batch's output, or the batch path's, which has no number."""

SinkOf = Callable[[Spec], Sink]
"""Gives the sink of a batch that is in none of the folders, by its spec."""

Row = dict[str, str | None]
"""The texts of a row's values, by column."""


@dataclass(kw_only=True)
class Outputs:
    """Puts rows into an engine, and finds them again.

    `by`: what rows are matched by: id, position, window or row. `content`: the columns whose values
    count; those in `as_text` are not of one type everywhere, and in `as_folder` null and the empty
    text are one. `files`: where rows came from, by
    number.
    """

    engine: DuckEngine
    spec: Spec
    by: str
    content: tuple[str, ...]
    as_text: frozenset[str]
    as_folder: frozenset[str]
    files: list[tuple[Output, MarkedFile | pa.Table | None]] = field(default_factory=list)

    @classmethod
    def of(cls, engine: DuckEngine, spec: Spec, outputs: Iterable[Output]) -> Self:
        """What rows of all these outputs can be matched by."""
        outputs = list(outputs)
        schemas = [columns_in_files(made) for made in outputs]
        in_all = set.intersection(*(set(schema.names) for schema in schemas))
        types: dict[str, set[pa.DataType]] = defaultdict(set)
        for schema in schemas:
            for one in schema:
                types[one.name].add(one.type)
        by = "row"
        if spec.aggregate is not None:
            by = "window"
        elif not spec.by_position and set(spec.record_id) <= in_all:
            by = "id"
        elif spec.by_position and set(_POSITION) <= in_all:
            by = "position"
        left_out = set(_POSITION)
        if not spec.sink.in_folder and spec.aggregate is None:
            # A table may keep a JSON value in other words.
            json = {name for name, kind in spec.column_types().items() if kind.word == "json"}
            left_out |= {n for n in json & types.keys() if all(map(pa.types.is_string, types[n]))}
        return cls(
            engine=engine,
            spec=spec,
            by=by,
            content=tuple(name for name in types if name not in left_out),
            as_text=frozenset(name for name, kinds in types.items() if len(kinds) > 1),
            as_folder=frozenset(
                name for made in outputs for name in made.spec.sink.folders
                if made.spec.aggregate is None and {*types.get(name, ())} == {pa.string()}
            ),
        )

    def add(self, side: int, outputs: Sequence[Output], sink_of: SinkOf = open_sink) -> None:
        """The rows of some outputs."""
        if self.by == "window":
            self._add_windows(side, outputs, sink_of)
            return
        for made in outputs:
            self._add(side, made, sink_of)

    def _add(self, side: int, made: Output, sink_of: SinkOf) -> None:
        braces = self._braces(made) | {"side": side, "batch": made.batch_id or _NULL}
        for file in _files(made):
            braces["file"] = len(self.files)
            self.files.append((made, file))
            with _corruption_if_unreadable(made, file):
                for table in _rows(made, file, sink_of):
                    self.engine.run("insert_output", table, braces)

    def _add_windows(self, side: int, outputs: Sequence[Output], sink_of: SinkOf) -> None:
        """The partial rows of all outputs of a side, merged: of which batch they are is lost."""
        held = _PartialRows(self.spec.aggregate)
        for made in outputs:
            for file in _files(made):
                with _corruption_if_unreadable(made, file):
                    for table in _rows(made, file, sink_of):
                        names = made.sink_schema.names
                        held.add(table.select(names).cast(made.sink_schema))
        if (whole := held.merge()) is None:
            return
        self.files.append((outputs[0], whole))
        where = {"side": side, "batch": _NULL, "file": len(self.files) - 1}
        self.engine.run("insert_output", zoneless(whole), self._braces(outputs[0]) | where)

    def examples(
        self, at: int, contents: list[int], sink_of: SinkOf
    ) -> dict[tuple[str, int], Row]:
        """Rows of a file with these contents, one for each key and content."""
        made, file = self.files[at]
        names = [n for n in columns_in_files(made).names if n not in _POSITION]
        braces = {**self._braces(made), "columns": ", ".join(map(_as_text, names))}
        found: dict[tuple[str, int], Row] = {}
        with _corruption_if_unreadable(made, file):
            for table in _rows(made, file, sink_of):
                some = self.engine.run("examples", table, braces, contents=contents).fetchall()
                for key, content, *texts in some:
                    found.setdefault((key, content), dict(zip(names, texts, strict=True)))
        return found

    def add_apart(self, side: int, made: Output, *, letters: bool = True) -> None:
        """The decisions of an output, and its dead letters where these are still such."""
        braces = {"side": side, "batch": made.batch_id or _NULL}
        identity = fast.identity(made.spec, lambda name: column(f"record_id.{name}"))
        for file in made.of_kind(Kind.DECISIONS):
            self._add_apart(made, file, ["record_id"], {**braces, "letter": False, "key": identity})
        for file in made.of_kind(Kind.DEAD_LETTERS) if letters else ():
            self._add_apart(made, file, [], {**braces, "letter": True, "key": "NULL"})

    def _add_apart(
        self, made: Output, file: MarkedFile, more: list[str], braces: dict[str, object]
    ) -> None:
        columns = ["source_partition_id", "offset", "reason", *more]
        with _corruption_if_unreadable(made, file):
            some = (pa.Table.from_batches([rows]) for rows in pieces(made.path_of(file), columns))
            for table in gathered(some, limits.AUDIT_CHUNK_BYTES):
                self.engine.run("insert_apart", table.flatten(), braces)

    def _braces(self, made: Output) -> dict[str, object]:
        names = set(columns_in_files(made).names)
        part, pos = (column(name) if name in names else _NULL for name in _POSITION)
        # A column that a batch does not have counts as null, at its place.
        values = [
            "NULL" if name not in names
            else _as_text(name) if name in self.as_text
            else f"COALESCE({column(name)}, '')" if name in self.as_folder
            else column(name)
            for name in self.content
        ]  # fmt: skip
        content = f"hash({', '.join(values)})" if values else "CAST(0 AS UBIGINT)"
        key = keyless = f"chr(1) || CAST({content} AS VARCHAR)"
        if self.by == "window":
            own = (f"{column(n)} := {column(n)}" for n in self.spec.aggregate.key_of_parts)
            key = f"CAST(to_json(struct_pack({', '.join(own)})) AS VARCHAR)"
        if self.by == "id":
            identity = fast.identity(self.spec, partial(fast.output_expression, made.spec))
            key = f"COALESCE({identity}, {keyless})"
        elif self.by == "position":
            key = f"COALESCE({part} || ':' || {pos}, {keyless})"
        return {"key": key, "content": content, "part": part, "pos": pos}


class _PartialRows:
    """Partial rows, merged from time to time."""

    def __init__(self, declared: Aggregate) -> None:
        self._declared = declared
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._merged_rows = 0

    def add(self, rows: pa.Table) -> None:
        self._tables.append(rows)
        self._rows += rows.num_rows
        # Twice as many as were left the last time: each row is merged a few times.
        if self._rows > 2 * max(self._merged_rows, combine.HELD_ROWS_MAX):
            self._tables = [self.merge()]
            self._rows = self._merged_rows = self._tables[0].num_rows

    def merge(self) -> pa.Table | None:
        """A row for each slice and key; None: there was no output."""
        if not self._tables:
            return None
        return combine.merged(self._declared, pa.concat_tables(self._tables))


def _as_text(name: str) -> str:
    return f"CAST({column(name)} AS VARCHAR)"


def _files(made: Output) -> Sequence[MarkedFile | None]:
    """The files that hold an output's rows; a batch in a table has None in their place."""
    return made.of_kind(Kind.DATA) if made.sink is not None else (None,)


def _rows(
    made: Output, file: MarkedFile | pa.Table | None, sink_of: SinkOf
) -> Iterator[pa.Table]:
    """The rows of one file of an output; of a batch in a table, all."""
    if isinstance(file, pa.Table):
        yield zoneless(file)
        return
    if file is None:
        with suppress(MiscountError):  # What is missing is a difference, and is shown as one.
            yield from sink_of(made.spec).rows(made)
        return
    yield from gathered(rows_of(made, file), limits.AUDIT_CHUNK_BYTES)


@contextmanager
def _corruption_if_unreadable(made: Output, file: MarkedFile | None) -> Iterator[None]:
    """CorruptionError: what is read in the block cannot be."""
    try:
        yield
    except (pa.ArrowException, OSError, duckdb.Error) as error:
        what = repr(str(made.path_of(file))) if file else "its output"
        why = first_line(error)
        raise CorruptionError(
            f"batch {made.batch_id} of {made.pipeline}: {what} cannot be read: {why}",
            next=f"semel audit {made.pipeline}",
        ) from error
