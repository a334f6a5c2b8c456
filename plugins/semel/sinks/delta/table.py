"""A Delta table as it is now: how it is opened, what it holds, and whether an output fits.

Each question opens the table anew: a handle is the table at one version, and a commit that is made
through it fails where somebody has committed since.
"""

import json
import os
import re
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
from semel.clients.objects.access import options
from semel.clients.objects.probe import prove
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
from semel.sinks.delta.spec import DeltaSinkSpec, misread

OWN = pa.schema([("_semel_batch", pa.int64()), ("_semel_seq", pa.int64())])
"""The columns that semel adds: which batch a row is of, and its place in the order of commits."""

LOG = "_delta_log"

FEATURES = frozenset({"appendOnly", "changeDataFeed", "invariants", "timestampNtz"})
"""Features of tables that a commit of new files alone keeps. Of invariants none may be declared."""

_UNSAID = re.compile(r"[ ,;{}()\n\t=\0]")
"""What a column's name may not have, by Delta's protocol; and NUL, which its readers leave out."""

_ROW_CHECKS = ("delta.invariants", "delta.generationExpression", "delta.identity.start")
_CONSTRAINT = "delta.constraints."
_NULLS = ("nullable", "containsNull", "valueContainsNull")
_LEGACY_IDENTITY = 6
"""The version of writers that has identity columns, and all before, without their names."""

_DIGITS = 20
_ENTRY = re.compile(r"\d{20}\.(json|checkpoint\.)")
"""The commits and checkpoints of a log."""

_DENIED = re.compile(r"[^:()]+\(os error (1|13|30)\)")
"""EPERM, EACCES and EROFS, as Rust tells them."""

_MAPPING, _FORGETS = "delta.columnMapping.mode", "delta.setTransactionRetentionDuration"


class Table:
    """Where a Delta table is. It holds no connection, and may be used by several threads."""

    def __init__(self, declared: DeltaSinkSpec) -> None:
        self.address = declared.address
        self._store, self._options = None, {}
        if declared.store is not None:
            self._store = Store(self.address, declared.connection)
            self._options = options(declared.store, declared.connection)

    def now(self) -> DeltaTable | None:
        """The table at its newest version; None: there is none yet. Errors as of `Store`."""
        if not self._is_there():
            return None
        with self.answers(), suppress(TableNotFoundError):  # Who made it died before its commit.
            return DeltaTable(self.address, storage_options=self._options)
        return None

    def _is_there(self) -> bool:
        # The store's own client says what is wrong in ten seconds, and in better words.
        if self._store is not None:
            return next(self._store.list(LOG), None) is not None
        return Path(self.address, LOG).is_dir()

    def prove(self) -> None:
        """TerminalError: a store does not refuse a commit where one is."""
        if self._store is not None:
            prove(self._store, replaces=False)

    # Keeps DL4.
    def fit(self, schema: pa.Schema) -> DeltaTable:
        """The table, made where there is none. TerminalError: the output does not fit in it."""
        if (found := self.examine(schema)) is not None:
            return found
        made = delta_schema(with_own(schema))
        if self._store is None:
            storage.make_folder(Path(self.address))
        with self.answers():
            try:
                DeltaTable.create(
                    self.address, schema=made, mode="error", storage_options=self._options
                )
            except DeltaError:
                if self.now() is None:
                    raise
        # Somebody may have made another one meanwhile.
        found = self.examine(schema)
        if found is None:
            raise RetryableError(f"{self.address} was made, and is gone; run finalize again")
        return found

    def put(self, name: str, data: bytes) -> None:
        """Add a file, durably, where none of its name is."""
        if self._store is not None:
            self._store.create(name, data, {})
            return
        try:
            storage.write_new(Path(self.address, name), data)
        except FileExistsError:
            return  # Of a twin.

    def active(self, table: DeltaTable, names: list[str]) -> dict[str, int]:
        """Those of some files that a version names, and their bytes as it says."""
        with self.answers():
            told = pa.table(table.get_add_actions())
        told = told.filter(pc.is_in(told["path"], pa.array(names, told["path"].type)))
        return dict(zip(told["path"].to_pylist(), told["size_bytes"].to_pylist(), strict=True))

    def size(self, name: str) -> int | None:
        """Bytes of a file; None: there is none."""
        try:
            if self._store is not None:
                return self._store.head(name)[0].size
            return Path(self.address, name).stat().st_size
        except FileNotFoundError:
            return None

    # Keeps DL8.
    def settle(self) -> None:
        """Make what was committed durable: the newest checkpoint, and all commits behind it."""
        if self._store is not None:
            return
        log = Path(self.address, LOG)
        entries = {name: int(name[:_DIGITS]) for name in os.listdir(log) if _ENTRY.match(name)}
        newest = max((entries[name] for name in entries if ".checkpoint" in name), default=0)
        for name, version in entries.items():
            if version >= newest:
                # A checkpoint may have taken it away meanwhile.
                with suppress(FileNotFoundError):
                    storage.sync_file(log / name)
        storage.sync_folder(log)
        storage.sync_folder(log.parent)

    @contextmanager
    def answers(self) -> Iterator[None]:
        """Errors of the client within the block, as errors of semel."""
        try:
            yield
        except (DeltaError, OSError) as error:
            raise self._told(error) from error

    def _told(self, error: Exception) -> SemelError:
        why = first_line(error)
        if self._store is not None and (told := self._store.told(error)):
            return told
        if denied := _DENIED.search(str(error)):
            return TerminalError(
                f"{self.address}: {denied[0]}; give semel the right to write there"
            )
        if isinstance(error, DeltaError):
            return TerminalError(
                f"{self.address}: its log cannot be read or written ({why}); repair the table"
            )
        return UnavailableError(f"{self.address} does not answer ({why}); try later")

    def _asked(self, table: DeltaTable, text: str) -> Iterator[pa.RecordBatch]:
        """What a statement finds in a version of the table."""
        if not {*OWN.names} <= {field.name for field in table.schema().fields}:
            return  # Nobody's batch has landed in it.
        try:
            with self.answers():
                for rows in QueryBuilder().register("told", table).execute(text):
                    yield pa.record_batch(rows)
        except Exception as error:
            if type(error) is not Exception:  # What DataFusion raises has no class of its own.
                raise
            raise CorruptionError(
                f"{self.address}: a file that its log names cannot be read ({_one_line(error)}); "
                "restore it from a backup. A vacuum with a short retention may have taken it"
            ) from error

    # Keeps DL3.
    def count(self, table: DeltaTable, batch_id: int) -> int:
        """How many rows of a batch a version has."""
        text = query("delta", "count").text.format(batch=batch_id)
        return sum(rows[0][0].as_py() for rows in self._asked(table, text))

    def notes(self, pipeline: str, has: int, most: int) -> list[BatchNote]:
        """What the rows say of the newest `most` batches. Files far from `has` are not opened."""
        table = self.now()

        def look(first: int) -> list[tuple[int, int, int]]:
            told = self._asked(table, query("delta", "notes").text.format(first=first, most=most))
            return [row for rows in told for row in zip(*rows.to_pydict().values(), strict=True)]

        return notes_of_rows(pipeline, has, most, look) if table else []

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
        if why := misread(self.address):
            raise TerminalError(f"{self.address} {why}; give the table another name")
        if why := next(_unsaid(schema or pa.schema([])), None):
            raise TerminalError(f"the output {why}")
        delta_schema(schema or pa.schema([]))  # Where there is no table yet, too.
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
        if not features and protocol.min_writer_version == _LEGACY_IDENTITY:
            yield "has the feature identityColumns, which a commit of files alone may not keep"
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
        for name, part in ((n, p) for n, field in there.items() for p in _parts(field)):
            if named := next((key for key in _ROW_CHECKS if key in part.get("metadata", ())), None):
                yield f"has {named} at {name!r}, which only a writer of rows can keep"
            if any(part.get(key) is False for key in _NULLS):
                why = "which only a writer of rows can check"
                yield f"has {name!r} NOT NULL, or a part of it, {why}"
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


def _parts(kind: Any) -> Iterator[dict[str, Any]]:
    """A field or a type, and all that it is made of."""
    if isinstance(kind, dict):
        yield kind
    for part in kind.values() if isinstance(kind, dict) else kind if isinstance(kind, list) else ():
        yield from _parts(part)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


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
