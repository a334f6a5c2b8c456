"""A Delta table as it is now: how it is opened, what it holds, and whether an output fits.

Each question opens the table anew: a handle is the table at one version, and a commit that is made
through it fails where somebody has committed since.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from semel import storage
from semel.clients.objects import Store
from semel.clients.objects.access import options
from semel.clients.sql import column, query
from semel.errors import CorruptionError, SemelError, TerminalError, UnavailableError, first_line
from semel.sinks import Note
from semel.sinks.delta.spec import DeltaSink

OWN = pa.schema([("_semel_batch", pa.int64()), ("_semel_seq", pa.int64())])
"""The columns that semel adds: which batch a row is of, and its place in the order of commits."""

LOG = "_delta_log"

FEATURES = frozenset({"appendOnly", "changeDataFeed", "invariants", "timestampNtz"})
"""Features of tables that a commit of new files alone keeps. Of invariants none may be declared."""

_NEAR = 20
"""How far back the newest notes are looked for first, as a multiple of their number."""

_UNSAID = re.compile(r"[ ,;{}()\n\t=]")
"""What a column's name may not have, by Delta's protocol."""

_ROW_CHECKS = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
_CONSTRAINT = "delta.constraints."
_MAPPING, _FORGETS = "delta.columnMapping.mode", "delta.setTransactionRetentionDuration"


class Table:
    """Where a Delta table is. It holds no connection, and may be used by several threads."""

    def __init__(self, declared: DeltaSink) -> None:
        self.address = declared.address
        self._store, self._options = None, {}
        if declared.store is not None:
            self._store = Store(self.address, declared.connection)
            self._options = options(declared.store, declared.connection)

    def now(self) -> DeltaTable | None:
        """The table at its newest version; None: there is none yet. Errors as of `Store`."""
        if not self._is_there():
            return None
        with self.answers():
            return DeltaTable(self.address, storage_options=self._options)

    def _is_there(self) -> bool:
        # The store's own client says what is wrong in ten seconds, and in better words.
        if self._store is not None:
            return next(self._store.list(LOG), None) is not None
        return Path(self.address, LOG).is_dir()

    # Keeps DL4.
    def fit(self, schema: pa.Schema) -> DeltaTable:
        """The table, made where there is none. TerminalError: the output does not fit in it."""
        if (found := self.examine(schema)) is not None:
            return found
        made = delta_schema(with_own(schema))
        with self.answers(), suppress(DeltaError):  # Where a twin has made it, the output fits.
            DeltaTable.create(
                self.address, schema=made, mode="error", storage_options=self._options
            )
        with self.answers():
            return DeltaTable(self.address, storage_options=self._options)

    def put(self, name: str, data: bytes) -> None:
        """Add a file, durably, where none of its name is."""
        if self._store is not None:
            self._store.create(name, data, {})
            return
        folder = Path(self.address)
        storage.make_folder(folder)
        try:
            storage.write_new(folder / name, data)
        except FileExistsError:
            return  # Of a twin.

    def size(self, name: str) -> int | None:
        """Bytes of a file; None: there is none."""
        try:
            if self._store is not None:
                return self._store.head(name)[0].size
            return Path(self.address, name).stat().st_size
        except FileNotFoundError:
            return None

    @contextmanager
    def answers(self) -> Iterator[None]:
        """Errors of the client within the block, as errors of semel."""
        try:
            yield
        except (DeltaError, OSError) as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> SemelError:
        why = first_line(error)
        if isinstance(error, TableNotFoundError):
            return TerminalError(f"{self.address} is not there ({why}); restore it")
        if isinstance(error, DeltaError):
            return TerminalError(
                f"{self.address}: its log cannot be read or written ({why}); repair the table"
            )
        return UnavailableError(f"{self.address} does not answer ({why}); try later")

    def _asked(self, table: DeltaTable, text: str) -> Iterator[pa.RecordBatch]:
        """What a statement finds in a version of the table."""
        with self.answers():
            for rows in QueryBuilder().register("told", table).execute(text):
                yield pa.record_batch(rows)

    # Keeps DL3.
    def count(self, table: DeltaTable, batch_id: int) -> int:
        """How many rows of a batch a version has."""
        text = query("delta", "count").text.format(batch=batch_id)
        return sum(rows[0][0].as_py() for rows in self._asked(table, text))

    def notes(self, pipeline: str, has: int, most: int) -> list[Note]:
        """What the rows say of the newest `most` batches. Files far from `has` are not opened."""
        table, found = self.now(), []
        for first in dict.fromkeys((max(0, has - _NEAR * most), 0)) if table else ():
            told = self._asked(table, query("delta", "notes").text.format(first=first, most=most))
            found = [row for rows in told for row in zip(*rows.to_pydict().values(), strict=True)]
            if len(found) == most:
                break
        return [
            Note(pipeline=pipeline, batch_id=batch, commit_seq=seq, fence=None, rows=n, ledger=None)
            for batch, seq, n in found
        ]

    def rows(self, batch_id: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """All rows that say that they are of a batch, typed as `schema`."""
        table = self.now()
        names = ", ".join(map(column, schema.names))
        text = query("delta", "rows").text.format(columns=names, batch=batch_id)
        for rows in self._asked(table, text) if table else ():
            try:
                yield pa.Table.from_batches([rows]).rename_columns(schema.names).cast(schema)
            except pa.ArrowException as error:
                raise CorruptionError(
                    f"{self.address}: rows of batch {batch_id} are no {schema} any more ({error})"
                ) from error

    # Keeps DL4, DL5.
    def examine(self, schema: pa.Schema | None) -> DeltaTable | None:
        """The table, if there is one. TerminalError: the output does not fit in it."""
        if why := next(_unsaid(schema or pa.schema([])), None):
            raise TerminalError(f"the output {why}")
        table = self.now()
        if table is not None and (why := next(self._unfit(table, schema), None)):
            raise TerminalError(f"{self.address} {why}; change the table, or give another one")
        return table

    def _unfit(self, table: DeltaTable, schema: pa.Schema | None) -> Iterator[str]:
        """What of a table does not fit, each as the end of a sentence."""
        protocol, about = table.protocol(), table.metadata()
        features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
        if unknown := sorted(features - FEATURES):
            yield f"has the feature {unknown[0]}, which a commit of files alone may not keep"
        if about.partition_columns:
            yield f"is partitioned by {', '.join(about.partition_columns)}, which semel does not do"
        settings = about.configuration
        if named := next((key for key in settings if key.startswith(_CONSTRAINT)), None):
            yield f"has {named}, which only a writer of rows can check"
        if settings.get(_MAPPING, "none") != "none":
            yield f"has {_MAPPING}, so its files have other names of columns"
        if _FORGETS in settings:
            yield f"has {_FORGETS}, by which it forgets which batches it has"
        there = {field["name"]: field for field in json.loads(table.schema().to_json())["fields"]}
        for field in there.values():
            if named := next((key for key in _ROW_CHECKS if key in field["metadata"]), None):
                yield f"has {named} at {field['name']!r}, which only a writer of rows can keep"
            if not field["nullable"]:
                yield f"has {field['name']!r} NOT NULL, which only a writer of rows can check"
        yield from _lacking(there, OWN if schema is None else with_own(schema))


def _lacking(there: Mapping[str, Any], schema: pa.Schema) -> Iterator[str]:
    """Which columns of an output a table lacks, or has otherwise."""
    wanted = json.loads(delta_schema(schema).to_json())["fields"]
    folded = {name.lower() for name in there}
    if lacking := [field for field in wanted if field["name"].lower() not in folded]:
        names = ", ".join(f"{field['name']!r} ({_word(field['type'])})" for field in lacking)
        yield f"lacks {names}: ALTER TABLE ... ADD COLUMNS, or DeltaTable(...).alter.add_columns"
    for field in wanted:
        name = field["name"]
        if name.lower() in folded and name not in there:
            yield f"has {name!r} with other letters, upper or lower"
        elif name in there and _bare(there[name]["type"]) != _bare(field["type"]):
            word = _word(field["type"])
            yield f"has {name!r} as {_word(there[name]['type'])}, and the output's is {word}"


def _bare(kind: Any) -> Any:
    """A type without what says nothing of its values: may they be null, and remarks."""
    if isinstance(kind, dict):
        return {k: _bare(v) for k, v in kind.items() if k != "metadata" and "ull" not in k}
    return [_bare(one) for one in kind] if isinstance(kind, list) else kind


def _word(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


def _unsaid(schema: pa.Schema) -> Iterator[str]:
    """What no Delta table takes of an output."""
    seen: set[str] = set()
    for name in schema.names:
        if name in OWN.names:
            yield f"has a column {name!r}, and semel writes it itself; select it under another name"
        if _UNSAID.search(name) or not name:
            yield f"has a column {name!r}, a name that Delta does not take; select it under another"
        if name.lower() in seen:
            yield f"has columns {name!r} that differ by their case alone; rename one"
        seen.add(name.lower())


def with_own(schema: pa.Schema) -> pa.Schema:
    """The columns of an output and semel's own."""
    return pa.schema([*schema, *OWN])


# Keeps DL5.
def delta_schema(schema: pa.Schema) -> Schema:
    """A table's schema for columns of Arrow. TerminalError: Delta has no such type."""
    try:
        return Schema.from_arrow(schema.remove_metadata())
    except Exception as error:
        raise TerminalError(
            f"Delta has no type for a column of the output ({first_line(error)}); cast it in the "
            "last transform's select"
        ) from error
