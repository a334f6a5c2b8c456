"""The rows of two outputs as pairs: a key, by which rows match, and a hash of the content."""

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
from semel.clients.duck import DuckEngine, drop_time_zones
from semel.clients.sql import column
from semel.compare.path import BatchPathOutput
from semel.declare.aggregate import Aggregate
from semel.errors import CorruptionError, first_line
from semel.formats.output import columns_in_files, rows_of
from semel.formats.pieces import gather, read_pieces
from semel.model.manifest import Kind, MarkedFile
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.sinks import MiscountError, Sink
from semel.stage import combine

_POSITION = ("_semel_source", "_semel_offset")
_NULL = "CAST(NULL AS BIGINT)"

Output = Marker | BatchPathOutput
"""A batch's output, or the batch path's, whose batch id is 0."""

SinkOf = Callable[[Spec], Sink]
"""Opens the sink of a spec, for batches that are not in a folder."""

Row = dict[str, str | None]
"""A row's values as texts, by column."""


@dataclass(kw_only=True)
class Outputs:
    """Inserts rows into an engine, and finds example rows.

    `by`: how rows are matched: id, position, window or row. `content`: the columns to compare.
    Those in `as_text` have different types in the two outputs; in `as_folder`, null equals the
    empty text. `files`: the files of the rows, by number.
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
        """Determine how to match the rows of the outputs."""
        outputs = list(outputs)
        schemas = [columns_in_files(output) for output in outputs]
        in_all = set.intersection(*(set(schema.names) for schema in schemas))
        types: dict[str, set[pa.DataType]] = defaultdict(set)
        for schema in schemas:
            for field_of_output in schema:
                types[field_of_output.name].add(field_of_output.type)
        by = "row"
        if spec.aggregate is not None:
            by = "window"
        elif not spec.by_position and set(spec.record_id) <= in_all:
            by = "id"
        elif spec.by_position and set(_POSITION) <= in_all:
            by = "position"
        left_out = set(_POSITION)
        if not spec.sink.in_folder and spec.aggregate is None:
            # A table may store a JSON value in another notation.
            json = {name for name, kind in spec.column_types().items() if kind.word == "json"}
            left_out |= {n for n in json & types.keys() if all(map(pa.types.is_string, types[n]))}
        return cls(
            engine=engine,
            spec=spec,
            by=by,
            content=tuple(name for name in types if name not in left_out),
            as_text=frozenset(name for name, kinds in types.items() if len(kinds) > 1),
            as_folder=frozenset(
                name for output in outputs for name in output.spec.sink.folders
                if output.spec.aggregate is None and {*types.get(name, ())} == {pa.string()}
            ),
        )

    def add(self, side: int, outputs: Sequence[Output], sink_of: SinkOf = open_sink) -> None:
        """Insert the rows of outputs."""
        if self.by == "window":
            self._add_windows(side, outputs, sink_of)
            return
        for output in outputs:
            self._add(side, output, sink_of)

    def _add(self, side: int, output: Output, sink_of: SinkOf) -> None:
        braces = self._braces(output) | {"side": side, "batch": output.batch_id or _NULL}
        for file in _files(output):
            braces["file"] = len(self.files)
            self.files.append((output, file))
            with _corruption_if_unreadable(output, file):
                for table in _rows(output, file, sink_of):
                    self.engine.run("insert_output", table, braces)

    def _add_windows(self, side: int, outputs: Sequence[Output], sink_of: SinkOf) -> None:
        """Insert a side's partial rows, merged across its outputs, so without their batches."""
        partial_rows = _PartialRows(self.spec.aggregate)
        for output in outputs:
            for file in _files(output):
                with _corruption_if_unreadable(output, file):
                    for table in _rows(output, file, sink_of):
                        names = output.sink_schema.names
                        partial_rows.add(table.select(names).cast(output.sink_schema))
        if (merged := partial_rows.merge()) is None:
            return
        self.files.append((outputs[0], merged))
        where = {"side": side, "batch": _NULL, "file": len(self.files) - 1}
        self.engine.run("insert_output", drop_time_zones(merged), self._braces(outputs[0]) | where)

    def examples(
        self, at: int, contents: list[int], sink_of: SinkOf
    ) -> dict[tuple[str, int], Row]:
        """Rows of a file with these contents, one for each key and content."""
        output, file = self.files[at]
        names = [n for n in columns_in_files(output).names if n not in _POSITION]
        braces = {**self._braces(output), "columns": ", ".join(map(_as_text, names))}
        examples: dict[tuple[str, int], Row] = {}
        with _corruption_if_unreadable(output, file):
            for table in _rows(output, file, sink_of):
                rows = self.engine.run("examples", table, braces, contents=contents).fetchall()
                for key, content, *texts in rows:
                    examples.setdefault((key, content), dict(zip(names, texts, strict=True)))
        return examples

    def add_apart(self, side: int, output: Output, *, letters: bool = True) -> None:
        """Insert the decisions of an output and, with `letters`, its dead letters."""
        braces = {"side": side, "batch": output.batch_id or _NULL}
        identity = fast.identity(output.spec, lambda name: column(f"record_id.{name}"))
        for file in output.of_kind(Kind.DECISIONS):
            decision = {**braces, "letter": False, "key": identity}
            self._add_apart(output, file, ["record_id"], decision)
        for file in output.of_kind(Kind.DEAD_LETTERS) if letters else ():
            self._add_apart(output, file, [], {**braces, "letter": True, "key": "NULL"})

    def _add_apart(
        self, output: Output, file: MarkedFile, more: list[str], braces: dict[str, object]
    ) -> None:
        columns = ["source_partition_id", "offset", "reason", *more]
        with _corruption_if_unreadable(output, file):
            path = output.path_of(file)
            tables = (pa.Table.from_batches([rows]) for rows in read_pieces(path, columns))
            for table in gather(tables, limits.AUDIT_CHUNK_BYTES):
                self.engine.run("insert_apart", table.flatten(), braces)

    def _braces(self, output: Output) -> dict[str, object]:
        names = set(columns_in_files(output).names)
        part, pos = (column(name) if name in names else _NULL for name in _POSITION)
        # A column that a batch lacks is null, so that each value keeps its place in the hash.
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
            parts = (f"{column(n)} := {column(n)}" for n in self.spec.aggregate.key_of_parts)
            key = f"CAST(to_json(struct_pack({', '.join(parts)})) AS VARCHAR)"
        if self.by == "id":
            identity = fast.identity(self.spec, partial(fast.output_expression, output.spec))
            key = f"COALESCE({identity}, {keyless})"
        elif self.by == "position":
            key = f"COALESCE({part} || ':' || {pos}, {keyless})"
        return {"key": key, "content": content, "part": part, "pos": pos}


class _PartialRows:
    """Collects partial rows, and merges them from time to time to save memory."""

    def __init__(self, declared: Aggregate) -> None:
        self._declared = declared
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._merged_rows = 0

    def add(self, rows: pa.Table) -> None:
        self._tables.append(rows)
        self._rows += rows.num_rows
        # Merge after the rows have doubled, so that each row takes part in few merges.
        if self._rows > 2 * max(self._merged_rows, combine.HELD_ROWS_MAX):
            self._tables = [self.merge()]
            self._rows = self._merged_rows = self._tables[0].num_rows

    def merge(self) -> pa.Table | None:
        """One row for each slice and key. Returns None if there was no output."""
        if not self._tables:
            return None
        return combine.merged(self._declared, pa.concat_tables(self._tables))


def _as_text(name: str) -> str:
    return f"CAST({column(name)} AS VARCHAR)"


def _files(output: Output) -> Sequence[MarkedFile | None]:
    """The files with an output's rows. For a table, None in their place."""
    return output.of_kind(Kind.DATA) if output.sink is not None else (None,)


def _rows(
    output: Output, file: MarkedFile | pa.Table | None, sink_of: SinkOf
) -> Iterator[pa.Table]:
    """The rows of one file of an output, or all rows of a batch in a table."""
    if isinstance(file, pa.Table):
        yield drop_time_zones(file)
        return
    if file is None:
        with suppress(MiscountError):  # Compare shows missing rows as differences.
            yield from sink_of(output.spec).rows(output)
        return
    yield from gather(rows_of(output, file), limits.AUDIT_CHUNK_BYTES)


@contextmanager
def _corruption_if_unreadable(output: Output, file: MarkedFile | None) -> Iterator[None]:
    """Raises CorruptionError if the block fails to read the file or table."""
    try:
        yield
    except (pa.ArrowException, OSError, duckdb.Error) as error:
        what = repr(str(output.path_of(file))) if file else "its output"
        why = first_line(error)
        raise CorruptionError(
            f"batch {output.batch_id} of {output.pipeline}: {what} cannot be read: {why}",
            next=f"semel audit {output.pipeline}",
        ) from error
