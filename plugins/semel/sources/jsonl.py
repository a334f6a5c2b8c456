"""JSON Lines: one object on each line, nothing else.

Keys that the schema does not name are ignored; they may repeat, and may hold NaN. A repeated key
that it names, at any depth, rejects the record. Text is not taken for a number, nor a number for
text. White space around an object, blank lines, CRLF and a mark of UTF-8 at the start of the file
are fine.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.json

from semel.sources.blocks import line_ends
from semel.sources.columns import as_read
from semel.sources.records import BadRecords, Lines, Reason

_BLANK = b" \t\r"
# Above any block, so that the reader never cuts by itself. It does not allocate it.
_READ = pa.json.ReadOptions(use_threads=False, block_size=(1 << 31) - 1)


@dataclass(frozen=True, kw_only=True)
class JsonLines:
    """The format `jsonl`."""

    def parser(self, schema: pa.Schema, columns: list[str] | None) -> "_JsonParser":
        """See records.Format. `columns` has no meaning here."""
        return _JsonParser(schema)


class _JsonParser:
    header_records = 0
    record_ends = staticmethod(line_ends)

    def __init__(self, schema: pa.Schema) -> None:
        fields = [pa.field(field.name, as_read(field.type)) for field in schema]
        self._options = pa.json.ParseOptions(
            explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"
        )

    def parse(self, lines: Lines) -> pa.Table:
        """See records.Parser.

        pyarrow.json does not go by lines: two objects on a line are two rows, one object on two
        lines is one. But no value goes on with `{` behind a `}`. So where each line starts with
        `{` and ends with `}`, none goes on in the next one, and as many rows as lines (the caller
        counts) are one on each. The same check keeps a leading `null` out, at which pyarrow 26
        ends the process.
        """
        data = np.frombuffer(lines.data, np.uint8)
        _require(data[lines.starts] == ord("{"), "does not start with {")
        _require(data[lines.ends - 1] == ord("}"), "does not end with }")
        source = pa.BufferReader(lines.buffer())
        try:
            return pa.json.read_json(source, read_options=_READ, parse_options=self._options)
        except pa.ArrowInvalid as error:
            raise _verdict(str(error)) from error

    def clean(self, raw: bytes) -> bytes:
        """See records.Parser."""
        return raw.strip(_BLANK)


def _require(good: np.ndarray, detail: str) -> None:
    if not good.all():
        raise BadRecords(Reason.malformed, detail, int(np.argmin(good)))


def _verdict(message: str) -> BadRecords:
    detail, _, row = message.removeprefix("JSON parse error: ").partition(" in row ")
    index = int(row) if row.isdecimal() else None
    if "was specified twice" in message:
        reason = Reason.duplicate_key
    elif "changed from" in message or not message.startswith("JSON parse error"):
        reason = Reason.type_mismatch
    else:
        reason = Reason.malformed
    return BadRecords(reason, detail, index)
