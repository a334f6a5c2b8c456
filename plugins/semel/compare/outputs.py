"""The rows of two outputs, as keys and hashes: by what a row is matched, and its content."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import duckdb
import pyarrow as pa

from semel import limits
from semel.archive.marker import Marker
from semel.audit import fast
from semel.clients.duck import Engine
from semel.compare.path import Made
from semel.errors import CorruptionError, first_line
from semel.formats.output import columns_in_files, rows_of
from semel.formats.pieces import gathered, pieces
from semel.model.manifest import Kind, MarkedFile
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.sinks import MiscountError, Sink

_POSITION = ("_semel_source", "_semel_offset")
_NULL = "CAST(NULL AS BIGINT)"

Output = Marker | Made
"""A batch's output, or the batch path's, which has no number."""

SinkOf = Callable[[Spec], Sink]
"""Gives the sink of a batch that is in none of the folders, by its spec."""

Row = dict[str, str | None]
"""The texts of a row's values, by column."""


@dataclass(kw_only=True)
class Outputs:
    """Puts rows into an engine, and finds them again.

    `by`: what rows are matched by: id, position or row. `content`: the columns whose values count;
    those in `as_text` are not of one type everywhere. `files`: where rows came from, by number.
    """

    engine: Engine
    spec: Spec
    by: str
    content: tuple[str, ...]
    as_text: frozenset[str]
    files: list[tuple[Output, MarkedFile | None]] = field(default_factory=list)

    @classmethod
    def of(cls, engine: Engine, spec: Spec, outputs: Iterable[Output]) -> Self:
        """What rows of all these outputs can be matched by."""
        schemas = [columns_in_files(made) for made in outputs]
        in_all = set.intersection(*(set(schema.names) for schema in schemas))
        types: dict[str, set[pa.DataType]] = defaultdict(set)
        for schema in schemas:
            for column in schema:
                types[column.name].add(column.type)
        by = "row"
        if not spec.by_position and set(spec.record_id) <= in_all:
            by = "id"
        elif spec.by_position and set(_POSITION) <= in_all:
            by = "position"
        left_out = set(_POSITION)
        if not spec.sink.in_folder:  # A table may keep a JSON value in other words.
            left_out |= {name for name, kind in spec.column_types().items() if kind.word == "json"}
        return cls(
            engine=engine,
            spec=spec,
            by=by,
            content=tuple(name for name in types if name not in left_out),
            as_text=frozenset(name for name, kinds in types.items() if len(kinds) > 1),
        )

    def add(self, side: int, made: Output, sink_of: SinkOf = open_sink) -> None:
        """The rows of an output."""
        braces = self._braces(made) | {"side": side, "batch": made.batch_id or _NULL}
        for file in made.of_kind(Kind.DATA) if made.sink is not None else (None,):
            braces["file"] = len(self.files)
            self.files.append((made, file))
            with _readable(made, file):
                for table in _rows(made, file, sink_of):
                    self.engine.run("insert_output", table, braces)

    def examples(
        self, at: int, contents: list[int], sink_of: SinkOf
    ) -> dict[tuple[str, int], Row]:
        """Rows of a file with these contents, one for each key and content."""
        made, file = self.files[at]
        names = [n for n in columns_in_files(made).names if n not in _POSITION]
        braces = {**self._braces(made), "columns": ", ".join(map(_as_text, names))}
        found: dict[tuple[str, int], Row] = {}
        with _readable(made, file):
            for table in _rows(made, file, sink_of):
                some = self.engine.run("examples", table, braces, contents=contents).fetchall()
                for key, content, *texts in some:
                    found.setdefault((key, content), dict(zip(names, texts, strict=True)))
        return found

    def add_apart(self, side: int, made: Output, *, letters: bool = True) -> None:
        """The decisions of an output, and its dead letters where these are still such."""
        braces = {"side": side, "batch": made.batch_id or _NULL}
        identity = fast.identity(made.spec, lambda name: fast.column(f"record_id.{name}"))
        for file in made.of_kind(Kind.DECISIONS):
            self._add_apart(made, file, ["record_id"], {**braces, "letter": False, "key": identity})
        for file in made.of_kind(Kind.DEAD_LETTERS) if letters else ():
            self._add_apart(made, file, [], {**braces, "letter": True, "key": "NULL"})

    def _add_apart(
        self, made: Output, file: MarkedFile, more: list[str], braces: dict[str, object]
    ) -> None:
        columns = ["source_partition_id", "offset", "reason", *more]
        with _readable(made, file):
            some = (pa.Table.from_batches([rows]) for rows in pieces(made.path_of(file), columns))
            for table in gathered(some, limits.AUDIT_CHUNK_BYTES):
                self.engine.run("insert_apart", table.flatten(), braces)

    def _braces(self, made: Output) -> dict[str, object]:
        names = set(columns_in_files(made).names)
        part, pos = (fast.column(name) if name in names else _NULL for name in _POSITION)
        # A column that a batch does not have counts as null, at its place.
        values = [
            "NULL" if name not in names
            else _as_text(name) if name in self.as_text
            else fast.column(name)
            for name in self.content
        ]  # fmt: skip
        content = f"hash({', '.join(values)})" if values else "CAST(0 AS UBIGINT)"
        key = keyless = f"chr(1) || CAST({content} AS VARCHAR)"
        if self.by == "id":
            identity = fast.identity(self.spec, partial(fast.in_output, made.spec))
            key = f"COALESCE({identity}, {keyless})"
        elif self.by == "position":
            key = f"COALESCE({part} || ':' || {pos}, {keyless})"
        return {"key": key, "content": content, "part": part, "pos": pos}


def _as_text(name: str) -> str:
    return f"CAST({fast.column(name)} AS VARCHAR)"


def _rows(made: Output, file: MarkedFile | None, sink_of: SinkOf) -> Iterator[pa.Table]:
    """The rows of one file of an output; of a batch in a table, all."""
    if file is None:
        with suppress(MiscountError):  # What is missing is a difference, and is shown as one.
            yield from sink_of(made.spec).rows(made)
        return
    yield from gathered(rows_of(made, file), limits.AUDIT_CHUNK_BYTES)


@contextmanager
def _readable(made: Output, file: MarkedFile | None) -> Iterator[None]:
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
