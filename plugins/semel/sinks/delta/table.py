"""Open a Delta table, query its rows, and examine whether an output fits.

Each query opens the table again: a handle is the table at one version, and a commit through it
fails if another commit came after that version.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from semel import storage
from semel.clients.objects import Store
from semel.clients.objects.access import client_options
from semel.clients.objects.probe import check_conditional_puts
from semel.clients.sql import column, query
from semel.errors import (
    CorruptionError,
    RetryableError,
    SemelError,
    TerminalError,
    UnavailableError,
    first_line,
)
from semel.sinks import BatchNote, notes_of_rows
from semel.sinks.delta.spec import DeltaSinkSpec, name_problem

SEMEL_COLUMNS = pa.schema([("_semel_batch", pa.int64()), ("_semel_seq", pa.int64())])
"""The columns that semel adds: a row's batch, and the batch's place in the commit order."""

_NEWEST_BATCH = "max._semel_batch"
"""The greatest batch of a file, by its statistics."""

_OF_ONE_BATCH = (
    "min._semel_batch", _NEWEST_BATCH, "min._semel_seq", "max._semel_seq",
    "null_count._semel_batch", "num_records",
)  # fmt: skip
"""Statistics that are equal in pairs, and without nulls, if a file has the rows of one batch."""

LOG = "_delta_log"

FEATURES = frozenset({"appendOnly", "changeDataFeed", "invariants", "timestampNtz"})
"""Table features that a commit of new files alone respects. `invariants` only if none is declared.
"""

_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=\0]")
"""Characters that Delta's protocol forbids in column names, and NUL, which its readers drop."""

_ROW_CHECKS = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
_CONSTRAINT = "delta.constraints."
_NULLS = ("nullable", "containsNull", "valueContainsNull")
_LEGACY_IDENTITY = 6
"""The writer version that has identity columns, and all earlier features, without naming them."""

_DIGITS = 20
_ENTRY = re.compile(r"\d{20}\.(json|checkpoint\.)")
"""The commits and checkpoints of a log."""

_DENIED = re.compile(r"[^:()]+\(os error (1|13|30)\)")
"""EPERM, EACCES and EROFS, as Rust writes them."""

_MAPPING, _RETENTION = "delta.columnMapping.mode", "delta.setTransactionRetentionDuration"


class DeltaTarget:
    """The location of a Delta table. Has no connection; threads may share it."""

    def __init__(self, declared: DeltaSinkSpec) -> None:
        self.address = declared.address
        self._store, self._options = None, {}
        if declared.store is not None:
            self._store = Store(self.address, declared.connection)
            self._options = client_options(declared.store, declared.connection)

    def open_newest(self) -> DeltaTable | None:
        """The table at its newest version. Returns None if it does not exist yet. Raises the
        errors of `Store`.
        """
        if not self._has_log():
            return None
        # Not found: its creator died before the first commit.
        with self.translate_errors(), suppress(TableNotFoundError):
            return DeltaTable(self.address, storage_options=self._options)
        return None

    def _has_log(self) -> bool:
        # The store's own client reports errors within ten seconds, and in better words.
        if self._store is not None:
            return next(self._store.list(LOG), None) is not None
        return Path(self.address, LOG).is_dir()

    def check_store(self) -> None:
        """Raises TerminalError if the store does not refuse to overwrite a commit."""
        if self._store is not None:
            check_conditional_puts(self._store, replaces=False)

    # Keeps DL4.
    def open_or_create(self, schema: pa.Schema, seen: DeltaTable | None = None) -> DeltaTable:
        """The table, as `seen` or at its newest version, after creating it if necessary. Raises
        TerminalError if the output does not fit.
        """
        if (table := self.examine(schema, seen)) is not None:
            return table
        new_schema = delta_schema(with_semel_columns(schema))
        if self._store is None:
            storage.make_folder(Path(self.address))
        with self.translate_errors():
            try:
                DeltaTable.create(
                    self.address, schema=new_schema, mode="error", storage_options=self._options
                )
            except DeltaError:
                if self.open_newest() is None:
                    raise
        # Somebody may have created another table meanwhile.
        table = self.examine(schema)
        if table is None:
            raise RetryableError(
                f"somebody removed {self.address} right after semel created it; run finalize again"
            )
        return table

    def add_file(self, name: str, data: bytes) -> None:
        """Write a file durably, unless its name exists."""
        if self._store is not None:
            self._store.create(name, data, {})
            return
        try:
            storage.write_new(Path(self.address, name), data)
        except FileExistsError:
            return  # Another attempt has written the same file.

    def active_files(self, table: DeltaTable, names: list[str]) -> dict[str, int]:
        """The files among `names` that a version names, with their bytes by its log."""
        with self.translate_errors():
            files = pa.table(table.get_add_actions())
        files = files.filter(pc.is_in(files["path"], pa.array(names, files["path"].type)))
        return dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))

    def file_size(self, name: str) -> int | None:
        """Bytes of a file. Returns None if it does not exist."""
        try:
            if self._store is not None:
                return self._store.head(name)[0].size
            return Path(self.address, name).stat().st_size
        except FileNotFoundError:
            return None

    # Keeps DL8.
    def sync_log(self) -> None:
        """Make the commits durable: sync the newest checkpoint and all later commits."""
        if self._store is not None:
            return
        log = Path(self.address, LOG)
        entries = {name: int(name[:_DIGITS]) for name in os.listdir(log) if _ENTRY.match(name)}
        newest = max((entries[name] for name in entries if ".checkpoint" in name), default=0)
        for name, version in entries.items():
            if version >= newest:
                # A cleanup of the log may have removed it meanwhile.
                with suppress(FileNotFoundError):
                    storage.sync_file(log / name)
        storage.sync_folder(log)
        storage.sync_folder(log.parent)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise the client's errors within the block as semel's errors."""
        try:
            yield
        except (DeltaError, OSError) as error:
            raise self._translate_error(error) from error

    def _translate_error(self, error: Exception) -> SemelError:
        why = first_line(error)
        if self._store is not None and (translated := self._store.translate_error(error)):
            return translated
        if denied := _DENIED.search(str(error)):
            return TerminalError(
                f"{self.address}: {denied[0]}; give semel the right to write there"
            )
        if isinstance(error, DeltaError):
            return TerminalError(
                f"{self.address}: semel cannot read or write its log ({why}); repair the table"
            )
        return UnavailableError(f"{self.address} does not answer ({why}); try later")

    def _query(self, table: DeltaTable, text: str) -> Iterator[pa.RecordBatch]:
        """The rows of a statement on a version of the table."""
        if not {*SEMEL_COLUMNS.names} <= {field.name for field in table.schema().fields}:
            return  # No batch has landed yet.
        try:
            with self.translate_errors():
                for rows in QueryBuilder().register("told", table).execute(text):
                    yield pa.record_batch(rows)
        except Exception as error:
            if type(error) is not Exception:  # DataFusion raises the class Exception itself.
                raise
            raise CorruptionError(
                f"{self.address}: a file that its log names cannot be read ({_one_line(error)}). A "
                "vacuum with a short retention may have removed it. Restore it from a backup"
            ) from error

    # Keeps DL3.
    def count(self, table: DeltaTable, batch_id: int) -> int:
        """The number of rows of a batch in a version."""
        text = query("delta", "count").text.format(batch=batch_id)
        return sum(rows[0][0].as_py() for rows in self._query(table, text))

    def notes(self, table: DeltaTable, pipeline: str, most: int) -> list[BatchNote]:
        """Notes of the newest `most` batches, derived from the rows of a version. Opens only the
        files that may have rows of these batches, by their statistics, and none if each of these
        files has one batch.
        """
        with self.translate_errors():
            files = pa.table(table.get_add_actions(flatten=True))

        def batches_from(first: int) -> list[tuple[int, int, int]]:
            if (known := _batches_by_statistics(files, first)) is not None:
                return known[:most]
            text = query("delta", "notes").text.format(first=first, most=most)
            pieces = self._query(table, text)
            return [row for rows in pieces for row in zip(*rows.to_pydict().values(), strict=True)]

        starts = dict.fromkeys((_start_of_newest(files, most), 0))
        return notes_of_rows(pipeline, starts, most, batches_from)

    def rows(self, batch_id: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """All rows with a batch's number, typed as `schema`."""
        table = self.open_newest()
        names = ", ".join(map(column, schema.names))
        text = query("delta", "rows").text.format(columns=names, batch=batch_id)
        for rows in self._query(table, text) if table else ():
            try:
                yield pa.Table.from_batches([rows]).rename_columns(schema.names).cast(schema)
            except pa.ArrowException as error:
                raise CorruptionError(
                    f"{self.address}: the columns of batch {batch_id} are no longer {schema} "
                    f"({error}). Restore a version that has them"
                ) from error

    # Keeps DL4, DL5.
    def examine(
        self, schema: pa.Schema | None, seen: DeltaTable | None = None
    ) -> DeltaTable | None:
        """The table, as `seen` or at its newest version, or None if it does not exist. Raises
        TerminalError if the output does not fit.
        """
        if why := name_problem(self.address):
            raise TerminalError(f"{self.address} {why}; give the table another name")
        if why := next(_output_problems(schema or pa.schema([])), None):
            raise TerminalError(f"the output {why}")
        delta_schema(schema or pa.schema([]))  # Check the types even if there is no table yet.
        table = seen or self.open_newest()
        if table is not None and (why := next(self._table_problems(table, schema), None)):
            raise TerminalError(f"{self.address} {why}; change the table, or declare another one")
        return table

    def _table_problems(self, table: DeltaTable, schema: pa.Schema | None) -> Iterator[str]:
        """Reasons why an output does not fit a table, each as the end of a sentence."""
        protocol, metadata = table.protocol(), table.metadata()
        features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
        if unknown := sorted(features - FEATURES):
            yield f"has the feature {unknown[0]}, which semel's commits may violate"
        if not features and protocol.min_writer_version == _LEGACY_IDENTITY:
            yield "has the feature identityColumns, which semel's commits may violate"
        if metadata.partition_columns:
            columns = ", ".join(metadata.partition_columns)
            yield f"is partitioned by {columns}, and semel does not partition"
        settings = metadata.configuration
        if constraint := next((key for key in settings if key.startswith(_CONSTRAINT)), None):
            yield f"has {constraint}, which semel's commits would not check"
        if settings.get(_MAPPING, "none") != "none":
            yield f"has {_MAPPING}, so its files use other column names"
        if _RETENTION in settings:
            yield f"has {_RETENTION}, after which it forgets its batches"
        fields = {field["name"]: field for field in json.loads(table.schema().to_json())["fields"]}
        for name, part in ((n, p) for n, field in fields.items() for p in _parts(field)):
            if rule := next((key for key in _ROW_CHECKS if key in part.get("metadata", ())), None):
                yield f"has {rule} at {name!r}, which semel's commits would not apply"
            if any(part.get(key) is False for key in _NULLS):
                yield f"has {name!r}, or a part of it, NOT NULL; semel's commits would not check it"
        output = SEMEL_COLUMNS if schema is None else with_semel_columns(schema)
        yield from _column_problems(fields, output)


def _start_of_newest(files: pa.Table, most: int) -> int:
    """The batch from which on the statistics of the files name `most` batches, or 0."""
    if _NEWEST_BATCH not in files.column_names:
        return 0
    newest = pc.unique(files[_NEWEST_BATCH]).drop_null().sort("descending")[:most]
    return newest[-1].as_py() if len(newest) == most else 0


def _batches_by_statistics(files: pa.Table, first: int) -> list[tuple[int, int, int]] | None:
    """Each batch from `first` on, newest first, with its place in the commit order and its rows.

    None if the statistics lack them, or a file has several batches, as after a compaction.
    """
    if not {*_OF_ONE_BATCH} <= {*files.column_names}:
        return None
    rows, nulls = files["num_records"], files["null_count._semel_batch"]
    others = pc.fill_null(pc.equal(nulls, rows), False)  # Files of other programs.
    newer = pc.fill_null(pc.greater_equal(files[_NEWEST_BATCH], first), True)
    found: Counter[tuple[int, int]] = Counter()
    columns = files.filter(pc.and_not(newer, others)).select(_OF_ONE_BATCH).to_pydict().values()
    for batch, newest, seq, last_seq, null_count, count in zip(*columns, strict=True):
        if None in (batch, seq, count) or (batch, seq, null_count) != (newest, last_seq, 0):
            return None
        found[batch, seq] += count
    return sorted(((batch, seq, n) for (batch, seq), n in found.items()), reverse=True)


def _column_problems(fields: Mapping[str, Any], schema: pa.Schema) -> Iterator[str]:
    """The columns of an output that a table lacks, or has with another type or case."""
    output = json.loads(delta_schema(schema).to_json())["fields"]
    folded = {name.lower() for name in fields}
    if lacking := [field for field in output if field["name"].lower() not in folded]:
        names = ", ".join(f"{field['name']!r} ({_type_text(field['type'])})" for field in lacking)
        yield f"lacks {names}: ALTER TABLE ... ADD COLUMNS, or DeltaTable(...).alter.add_columns"
    for field in output:
        name = field["name"]
        if name.lower() in folded and name not in fields:
            yield f"has {name!r} in another case"
        elif name in fields and _bare_type(fields[name]["type"]) != _bare_type(field["type"]):
            text = _type_text(field["type"])
            yield f"has {name!r} as {_type_text(fields[name]['type'])}, and the output's is {text}"


def _parts(kind: Any) -> Iterator[dict[str, Any]]:
    """A field or a type, and all its parts, as the JSON of a schema has them."""
    if isinstance(kind, dict):
        yield kind
    for part in kind.values() if isinstance(kind, dict) else kind if isinstance(kind, list) else ():
        yield from _parts(part)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _bare_type(kind: Any) -> Any:
    """A type without its metadata and nullability."""
    if isinstance(kind, dict):
        return {k: _bare_type(v) for k, v in kind.items() if k != "metadata" and "ull" not in k}
    return [_bare_type(part) for part in kind] if isinstance(kind, list) else kind


def _type_text(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


def _output_problems(schema: pa.Schema) -> Iterator[str]:
    """Reasons why no Delta table can have an output's columns, each as the end of a sentence."""
    names: set[str] = set()
    for name in schema.names:
        if name in SEMEL_COLUMNS.names:
            yield f"has a column {name!r}, a name that semel uses itself; select it under another"
        if _FORBIDDEN.search(name) or not name:
            yield f"has a column {name!r}, a name that Delta forbids; select it under another"
        if name.lower() in names:
            yield f"has columns {name!r} that differ by their case alone; rename one"
        names.add(name.lower())


def with_semel_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of an output, and those that semel adds."""
    return pa.schema([*schema, *SEMEL_COLUMNS])


# Keeps DL5.
def delta_schema(schema: pa.Schema) -> Schema:
    """The Delta schema of Arrow columns. Raises TerminalError if Delta lacks a type."""
    try:
        return Schema.from_arrow(schema.remove_metadata())
    except Exception as error:
        raise TerminalError(
            f"Delta has no type for a column of the output ({first_line(error)}); cast it in the "
            "last transform's select"
        ) from error
