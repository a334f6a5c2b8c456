"""JSON Lines: one object per line, nothing else.

The declaration says whether semel ignores, keeps or refuses keys that the schema does not name.
Ignored keys may repeat, and may hold NaN. A repeated key that the schema names rejects the record,
at any depth. A string never becomes a number, nor a number a string. White space around an object,
blank lines, CRLF and a BOM at the start of the file are allowed.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json

from semel.declare.context import Context
from semel.declare.naming import AS_DECLARED, Naming
from semel.declare.parts import REST_COLUMN, Unknown
from semel.formats import words
from semel.formats.blocks import line_ends
from semel.formats.columns import as_read
from semel.formats.jsonfaults import RecordFaults, no_object
from semel.formats.jsontext import VALUE, JsonTexts, Judge, Keys, map_column
from semel.formats.lines import BadRecords, Fault, RecordLines
from semel.formats.records import OFFSET, judge_lines
from semel.formats.words import RECORD_SHOWN_BYTES
from semel.model.batch import Ignored
from semel.model.reasons import Reason

_BLANK = b" \t\r"
_OPENS = ord("{")
# Larger than any block, so that pyarrow never splits one. pyarrow does not allocate it.
_READ = pa.json.ReadOptions(use_threads=False, block_size=(1 << 31) - 1)
_UNNAMED = "JSON parse error: unexpected field"


@dataclass(frozen=True, kw_only=True)
class JsonLines:
    """The format `jsonl`. `json`: columns that keep the text of any JSON value.

    `unknown`: whether keys that the schema does not name are ignored, kept or refused. With `keep`
    the schema has the column REST_COLUMN for them.
    """

    json: tuple[str, ...] = ()
    unknown: Unknown = Unknown.IGNORE
    naming: Naming = AS_DECLARED

    def parser(self, schema: pa.Schema, columns: list[str] | None) -> "_JsonParser":
        """See lines.Format. The format ignores `columns`."""
        return _JsonParser(schema, self.json, self.unknown, self.naming)


def declared_format(context: Context) -> JsonLines:
    """See table.SourceCode."""
    kinds = context.columns
    texts = (n for n, kind in kinds.items() if kind.word == "json" and n != REST_COLUMN)
    unknown, naming = context.declared.unknown, context.naming
    return JsonLines(json=tuple(texts), unknown=unknown, naming=naming)


class _JsonParser:
    header_records = 0
    skips_line_ends = True
    record_ends = staticmethod(line_ends)

    def __init__(
        self,
        schema: pa.Schema,
        json_columns: tuple[str, ...],
        unknown: Unknown,
        naming: Naming = AS_DECLARED,
    ) -> None:
        self._unknown, self._named = unknown, naming.others
        added = {REST_COLUMN} if unknown is Unknown.KEEP else set()
        # pyarrow reads a column once under each of its names.
        declared = pa.schema(
            field.with_name(name)
            for field in schema if field.name not in added
            for name in naming.names(field.name)
        )  # fmt: skip
        json_columns = tuple(name for column in json_columns for name in naming.names(column))
        self._json = json_columns
        self._maps = [field for field in declared if pa.types.is_map(field.type)]
        texts = (*json_columns, *(field.name for field in self._maps))
        self._texts = JsonTexts(texts, json_columns) if texts else None
        self._values = {field.name: self._value_judge(field) for field in self._maps}
        self._read_columns = pa.schema([field for field in declared if field.name not in texts])
        self._keys = Keys(declared)
        # Whether pyarrow checks that the schema names all keys, and whether that check just failed.
        self._checks_keys, self._unnamed_found = self._texts is None, False
        self._times_as_text = False
        self._set_options()
        self._decode = msgspec.json.Decoder(_struct(self._read_columns)).decode
        self._exact = RecordFaults(self._read_columns, declared)
        self.finders = (self._msgspec_faults, self._decimal_faults, self._repeated_key_faults)

    def _set_options(self) -> None:
        fields = [
            pa.field(field.name, as_read(field.type, times_as_text=self._times_as_text))
            for field in self._read_columns
        ]
        # Strict parsing is free, and proves that the schema names all keys.
        self._lax, self._strict = (
            pa.json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior=way)
            for way in ("ignore", "error")
        )

    def _value_judge(self, field: pa.Field) -> Judge:
        """The judge of a map's values. It ignores keys that the schema does not name."""
        schema = pa.schema([pa.field(VALUE, field.type.item_type)])
        return partial(judge_lines, _JsonParser(schema, (), Unknown.IGNORE), schema)

    def parse(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        """See lines.Parser.

        pyarrow.json ignores line ends: it reads two objects on a line as two rows, and an object on
        two lines as one row. But no value continues with `{` after `}`. So if each line starts with
        `{` and ends with `}`, no object spans two lines. If pyarrow then returns as many rows as
        lines (the caller counts), each line is one object. The same check keeps out a leading
        `null`, which crashes pyarrow 26.
        """
        data = np.frombuffer(lines.data, np.uint8)
        _require(lines, data[lines.starts] == ord("{"))
        _require(lines, data[lines.ends - 1] == ord("}"))
        for at, fault in self._exact.refused(lines):
            raise BadRecords(*fault, at)
        try:
            table, named = self._read(lines)
        except pa.ArrowInvalid as error:
            if self._times_as_text or "to timestamp" not in str(error):
                raise self._verdict(lines, str(error)) from error
            # pyarrow.json reads six digits of a second. Reading times as text is slower, with the
            # same values. Later blocks are probably alike, so they are read as text at once.
            self._times_as_text = True
            self._set_options()
            try:
                table, named = self._read(lines)
            except pa.ArrowInvalid as error:
                raise self._verdict(lines, str(error)) from error
        if table.num_rows != len(lines):
            return table, {}
        return self._complete(table, lines, named)

    def _verdict(self, lines: RecordLines, message: str) -> BadRecords:
        """pyarrow's error as a fault. For a single record, semel's own words replace it."""
        if len(lines) == 1 and (fault := self._exact.fault(lines.raw(0))):
            return BadRecords(*fault)
        detail, _, row = message.removeprefix("JSON parse error: ").partition(" in row ")
        index = int(row) if row.isdecimal() else None
        if "was specified twice" in message:
            return BadRecords(Reason.duplicate_key, detail, index)
        if "changed from" in message or not message.startswith("JSON parse error"):
            return BadRecords(Reason.type_mismatch, f"expected other values: {detail}", index)
        return BadRecords(Reason.malformed, f"not JSON: {detail}", index)

    def _read(self, lines: RecordLines) -> tuple[pa.Table, bool]:
        """The rows that pyarrow reads, and whether the schema certainly names all their keys."""
        source = pa.BufferReader(lines.buffer())
        if self._checks_keys:
            try:
                return pa.json.read_json(
                    source, read_options=_READ, parse_options=self._strict
                ), True
            except pa.ArrowInvalid as error:
                if not str(error).startswith(_UNNAMED):
                    raise
            source.seek(0)
            self._unnamed_found = True
            # Later blocks probably have such keys too. `ignored` counts them in a sample.
            self._checks_keys = self._unknown is not Unknown.IGNORE
        return pa.json.read_json(source, read_options=_READ, parse_options=self._lax), False

    def _complete(
        self, table: pa.Table, lines: RecordLines, named: bool
    ) -> tuple[pa.Table, dict[int, Fault]]:
        """Add the columns that pyarrow does not read. `named`: see `_read`."""
        faults: dict[int, Fault] = {}
        texts = self._texts.columns(lines) if self._texts is not None else {}
        for name in self._json:
            table = table.append_column(name, pa.array(texts[name], pa.string()))
        for field in self._maps:
            judge = self._values[field.name]
            column, bad = map_column(field, texts[field.name], judge, OFFSET)
            table = table.append_column(field, column)
            faults = bad | faults
        if self._unknown is Unknown.KEEP:
            column = pa.nulls(len(lines), pa.string())
            if not named:
                column, bad = self._keys.unnamed_column(lines)
                faults = bad | faults
            table = table.append_column(REST_COLUMN, column)
        elif self._unknown is Unknown.QUARANTINE and not named:
            faults = self._keys.faults(lines) | faults
        for column, others in self._named.items():
            table, bad = _merge_names(table, column, others)
            faults = bad | faults
        return table, faults

    def ignored(self, lines: RecordLines) -> Ignored:
        """See lines.Parser."""
        if self._unknown is not Unknown.IGNORE or self._checks_keys or not len(lines):
            return Ignored()
        surely, self._unnamed_found = self._unnamed_found, False
        return self._keys.count(lines, surely=surely)

    def clean(self, raw: bytes) -> bytes:
        """See lines.Parser."""
        return raw.strip(_BLANK)

    def _msgspec_faults(self, lines: RecordLines) -> dict[int, Fault]:
        """The faults of records that msgspec refuses. msgspec accepts all that pyarrow accepts,
        except NaN, Infinity and very deep nesting."""
        decode, bad = self._decode, []
        data, bounds = lines.data, zip(lines.starts.tolist(), lines.ends.tolist(), strict=True)
        for at, (start, end) in enumerate(bounds):
            try:
                decode(data[start:end])
            except (msgspec.MsgspecError, RecursionError):
                bad.append(at)
        return self._faults_at(lines, bad)

    def _decimal_faults(self, lines: RecordLines) -> dict[int, Fault]:
        """The faults of records with a decimal that may not fit."""
        return self._faults_at(lines, self._exact.doubtful(lines))

    def _repeated_key_faults(self, lines: RecordLines) -> dict[int, Fault]:
        """The faults of records that repeat a key."""
        faults = enumerate(map(self._exact.repeated, lines.data.split(b"\n")[:-1]))
        return {at: fault for at, fault in faults if fault}

    def _faults_at(self, lines: RecordLines, places: list[int]) -> dict[int, Fault]:
        faults = zip(places, map(self._exact.fault, lines.raws(places)), strict=True)
        return {at: fault for at, fault in faults if fault}


# Keeps P30.
def _merge_names(
    table: pa.Table, column: str, others: tuple[str, ...]
) -> tuple[pa.Table, dict[int, Fault]]:
    """A column's values from all its names, and the faults of records that use two names."""
    faults: dict[int, Fault] = {}
    merged, rows = table.column(column), np.arange(table.num_rows)
    for name in others:
        other = table.column(name)
        valid = other.is_valid().to_numpy()
        for at in np.flatnonzero(valid & merged.is_valid().to_numpy()).tolist():
            keys = [key for key in (column, *others) if table.column(key)[at].is_valid]
            both = " and ".join(map(words.quote, keys))
            faults[at] = Reason.duplicate_key, f"{both} are names of the same column"
        if valid.any():
            both = pa.chunked_array([*merged.chunks, *other.chunks], merged.type)
            merged = both.take(pa.array(np.where(valid, rows + len(rows), rows)))
    index = table.schema.get_field_index(column)
    return table.set_column(index, column, merged).drop_columns(list(others)), faults


def _nameable(name: str) -> bool:
    """Whether msgspec accepts the name as a key."""
    return not any(char in '\\"' or char < " " for char in name)


def _struct(schema: pa.Schema | pa.StructType) -> type[msgspec.Struct]:
    """A msgspec type that decodes a record or an object in it."""
    fields = []
    for at, field in enumerate(schema):
        if _nameable(field.name):
            key = msgspec.field(name=field.name, default=None)
            fields.append((f"f{at}", _msgspec_type(field.type) | None, key))
    return msgspec.defstruct("Record", fields, gc=False)


def _msgspec_type(declared: pa.DataType) -> Any:
    if pa.types.is_integer(declared):
        bound = 1 << (declared.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)]
    if pa.types.is_floating(declared):
        return float
    if pa.types.is_boolean(declared):
        return bool
    if pa.types.is_decimal(declared):
        return int | float | str
    if pa.types.is_struct(declared):
        return _struct(declared)
    if pa.types.is_list(declared):
        return list[_msgspec_type(declared.value_type) | None]
    return str


def _require(lines: RecordLines, good: np.ndarray) -> None:
    if not good.all():
        at = int(np.argmin(good))
        start, end = lines.starts[at], lines.ends[at]
        beginning = memoryview(lines.data)[start : min(end, start + RECORD_SHOWN_BYTES)]
        raise BadRecords(Reason.malformed, no_object(beginning), at)
