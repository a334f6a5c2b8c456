"""JSON Lines: one object on each line, nothing else.

Keys that the schema does not name are ignored, kept or refused, as declared; ignored ones may
repeat, and may hold NaN. A repeated key that it names, at any depth, rejects the record. Text is
not taken for a number, nor a number for text. White space around an object, blank lines, CRLF and a
BOM at the start of the file are fine.
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
# Above any block, so that the reader never cuts by itself. It does not allocate it.
_READ = pa.json.ReadOptions(use_threads=False, block_size=(1 << 31) - 1)
_UNNAMED = "JSON parse error: unexpected field"


@dataclass(frozen=True, kw_only=True)
class JsonLines:
    """The format `jsonl`. `json` are the columns that keep a value's text, whatever it is.

    `unknown` says what becomes of keys that the schema does not name. With `keep` the schema has
    the column REST_COLUMN for them.
    """

    json: tuple[str, ...] = ()
    unknown: Unknown = Unknown.IGNORE
    naming: Naming = AS_DECLARED

    def parser(self, schema: pa.Schema, columns: list[str] | None) -> "_JsonParser":
        """See lines.Format. `columns` has no meaning here."""
        return _JsonParser(schema, self.json, self.unknown, self.naming)


def declared(context: Context) -> JsonLines:
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
        # A column is read once for each of its names.
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
        self._unnamed = Keys(declared)
        # Whether pyarrow is asked if the schema names all keys, and whether it just said no.
        self._asked, self._told = self._texts is None, False
        self._times_as_text = False
        self._set_options()
        self._decode = msgspec.json.Decoder(_struct(self._read_columns)).decode
        self._exact = RecordFaults(self._read_columns, declared)
        self.finders = (self._refused, self._decimals, self._repeated)

    def _set_options(self) -> None:
        fields = [
            pa.field(field.name, as_read(field.type, times_as_text=self._times_as_text))
            for field in self._read_columns
        ]
        # The strict way costs nothing, and tells that the schema names all keys.
        self._lax, self._strict = (
            pa.json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior=way)
            for way in ("ignore", "error")
        )

    def _value_judge(self, field: pa.Field) -> Judge:
        """What judges the values of a map, but for keys that the schema does not name."""
        schema = pa.schema([pa.field(VALUE, field.type.item_type)])
        return partial(judge_lines, _JsonParser(schema, (), Unknown.IGNORE), schema)

    def parse(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        """See lines.Parser.

        pyarrow.json does not go by lines: two objects on a line are two rows, one object on two
        lines is one. But no value goes on with `{` behind a `}`. So where each line starts with
        `{` and ends with `}`, none goes on in the next one, and as many rows as lines (the caller
        counts) are one on each. The same check keeps a leading `null` out, at which pyarrow 26
        ends the process.
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
            # pyarrow.json knows six digits of a second. As text, times take longer and mean the
            # same; what comes next is read so too, as it is probably alike.
            self._times_as_text = True
            self._set_options()
            try:
                table, named = self._read(lines)
            except pa.ArrowInvalid as error:
                raise self._verdict(lines, str(error)) from error
        if table.num_rows != len(lines):
            return table, {}
        return self._completed(table, lines, named)

    def _verdict(self, lines: RecordLines, message: str) -> BadRecords:
        """What pyarrow says of records. Of one alone, it is said in other words."""
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
        """What pyarrow reads of the records, and whether the schema surely names all their keys."""
        source = pa.BufferReader(lines.buffer())
        if self._asked:
            try:
                return pa.json.read_json(
                    source, read_options=_READ, parse_options=self._strict
                ), True
            except pa.ArrowInvalid as error:
                if not str(error).startswith(_UNNAMED):
                    raise
            source.seek(0)
            self._told = True
            # What comes next has such keys too, probably. A sample of it is enough to say so.
            self._asked = self._unknown is not Unknown.IGNORE
        return pa.json.read_json(source, read_options=_READ, parse_options=self._lax), False

    def _completed(
        self, table: pa.Table, lines: RecordLines, named: bool
    ) -> tuple[pa.Table, dict[int, Fault]]:
        """The table with the columns that pyarrow does not read. `named`: see `_read`."""
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
                column, bad = self._unnamed.unnamed_column(lines)
                faults = bad | faults
            table = table.append_column(REST_COLUMN, column)
        elif self._unknown is Unknown.QUARANTINE and not named:
            faults = self._unnamed.faults(lines) | faults
        for column, others in self._named.items():
            table, bad = _merge_names(table, column, others)
            faults = bad | faults
        return table, faults

    def ignored(self, lines: RecordLines) -> Ignored:
        """See lines.Parser."""
        if self._unknown is not Unknown.IGNORE or self._asked or not len(lines):
            return Ignored()
        surely, self._told = self._told, False
        return self._unnamed.count(lines, surely=surely)

    def clean(self, raw: bytes) -> bytes:
        """See lines.Parser."""
        return raw.strip(_BLANK)

    def _refused(self, lines: RecordLines) -> dict[int, Fault]:
        """What is wrong with records that msgspec refuses: it takes all that pyarrow takes but for
        NaN, Infinity and very deep nesting."""
        decode, bad = self._decode, []
        data, bounds = lines.data, zip(lines.starts.tolist(), lines.ends.tolist(), strict=True)
        for at, (start, end) in enumerate(bounds):
            try:
                decode(data[start:end])
            except (msgspec.MsgspecError, RecursionError):
                bad.append(at)
        return self._judged(lines, bad)

    def _decimals(self, lines: RecordLines) -> dict[int, Fault]:
        """The same of records with a decimal that may not fit."""
        return self._judged(lines, self._exact.doubtful(lines))

    def _repeated(self, lines: RecordLines) -> dict[int, Fault]:
        """The same of records that repeat a key."""
        faults = enumerate(map(self._exact.repeated, lines.data.split(b"\n")[:-1]))
        return {at: fault for at, fault in faults if fault}

    def _judged(self, lines: RecordLines, places: list[int]) -> dict[int, Fault]:
        faults = zip(places, map(self._exact.fault, lines.raws(places)), strict=True)
        return {at: fault for at, fault in faults if fault}


# Keeps P30.
def _merge_names(
    table: pa.Table, column: str, others: tuple[str, ...]
) -> tuple[pa.Table, dict[int, Fault]]:
    """The values of a column under all its names; and the records with two of them."""
    faults: dict[int, Fault] = {}
    merged, rows = table.column(column), np.arange(table.num_rows)
    for name in others:
        other = table.column(name)
        given = other.is_valid().to_numpy()
        for at in np.flatnonzero(given & merged.is_valid().to_numpy()).tolist():
            keys = [key for key in (column, *others) if table.column(key)[at].is_valid]
            both = " and ".join(map(words.quote, keys))
            faults[at] = Reason.duplicate_key, f"{both} are both there, and names of one column"
        if given.any():
            both = pa.chunked_array([*merged.chunks, *other.chunks], merged.type)
            merged = both.take(pa.array(np.where(given, rows + len(rows), rows)))
    index = table.schema.get_field_index(column)
    return table.set_column(index, column, merged).drop_columns(list(others)), faults


def _nameable(name: str) -> bool:
    """Whether msgspec takes it for a key."""
    return not any(char in '\\"' or char < " " for char in name)


def _struct(schema: pa.Schema | pa.StructType) -> type[msgspec.Struct]:
    """A type that msgspec decodes a record as, or a part of it."""
    fields = []
    for at, field in enumerate(schema):
        if _nameable(field.name):
            key = msgspec.field(name=field.name, default=None)
            fields.append((f"f{at}", _kind(field.type) | None, key))
    return msgspec.defstruct("Record", fields, gc=False)


def _kind(declared: pa.DataType) -> Any:
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
        return list[_kind(declared.value_type) | None]
    return str


def _require(lines: RecordLines, good: np.ndarray) -> None:
    if not good.all():
        at = int(np.argmin(good))
        start, end = lines.starts[at], lines.ends[at]
        shown = memoryview(lines.data)[start : min(end, start + RECORD_SHOWN_BYTES)]
        raise BadRecords(Reason.malformed, no_object(shown), at)
