"""CSV: fields in a fixed order, quoted if needed; a quote within quotes is doubled or escaped.

An empty field is null, a quoted empty field the empty text (not a valid number, date or flag). A
record is a line, unless `multiline` allows line ends within quotes. An unclosed quote makes its
line malformed; with `multiline`, the record also swallows the following lines.
"""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from semel import limits
from semel.declare.context import Context
from semel.declare.naming import AS_DECLARED, Naming
from semel.declare.parts import NO_QUOTE
from semel.declare.wording import named
from semel.errors import SourceError, SpecError
from semel.formats import words
from semel.formats.blocks import line_ends
from semel.formats.foreign import foreign
from semel.formats.lines import BadRecords, Fault, RecordLines
from semel.formats.quotes import OPEN, Quotes
from semel.formats.words import FOUND_CHARS_MAX
from semel.model.batch import Ignored
from semel.model.reasons import Reason

_BOM = b"\xef\xbb\xbf"
_MARK = "a byte order mark within the file"
_RETURN = "a carriage return (CR) without a line feed, or a quote that is not closed"
_INTEGER = re.compile(r"[ \t]*-?[0-9]+[ \t]*")
_HEX = r"^[ \t]*-?0[xX]"
_DIGITS_MAX = 4_000  # Python refuses longer numbers. Such texts are long because of leading zeros.


@dataclass(frozen=True, kw_only=True)
class CsvFormat:
    """The format `csv`. Without `header`, the columns have the schema's order."""

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    multiline: bool = False
    header: bool = True

    def parser(self, schema: pa.Schema, columns: list[str] | None) -> "_CsvParser":
        """See lines.Format."""
        return _CsvParser(self, schema, columns or schema.names)


def declared_format(context: Context) -> CsvFormat:
    """See table.SourceCode."""
    csv = context.declared.csv
    return CsvFormat(
        delimiter=csv.delimiter,
        quote=None if csv.quote == NO_QUOTE else csv.quote,
        escape=csv.escape,
        multiline=csv.multiline,
    )


# Keeps P14.
def read_header(
    file: BinaryIO,
    format: CsvFormat,
    schema: pa.Schema,
    naming: Naming = AS_DECLARED,
    *,
    samples: bool = True,
) -> tuple[list[str], int]:
    """The columns in the order of the file's header, and the offset after it.

    Returns [], 0 for an empty file. The header must name each required column of the schema once,
    and no others: else raises SourceError. Its message quotes the header only with `samples`,
    because the first line may be a record.
    """
    if not format.header:
        return schema.names, 0
    head = bytearray(file.read(limits.CSV_HEADER_BYTES_MAX))
    if not head:
        return [], 0
    name = repr(getattr(file, "name", "the file"))
    try:
        if why := foreign(head):
            raise csv.Error(why)
        names, end = first_record(head, format)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{name}: the CSV header is unreadable ({error}). Correct it") from error
    if not "".join(names).strip():
        raise SourceError(f"{name}: the first line is empty instead of a CSV header. Remove it")
    header = naming.match(schema.names, names)
    if len(names) == len(header.held) and not header.lacking:
        columns = {name: column for column, name in header.held.items()}
        return [columns[one] for one in names], end
    if not samples:
        why = f"has {len(names)} columns that differ from the schema, {schema.names}"
        raise SourceError(f"{name}: the CSV header {why}. Correct the file, or the schema")
    wrong = [*header.doubled]
    if header.lacking:
        wrong.append(f"it lacks {named(tuple(header.lacking))}")
    if header.strange:
        wrong.append(f"the schema does not name {named(tuple(header.strange))}")
    advice = naming.remedy(header, all_named=True) or "Correct the file"
    why = f"the CSV header does not fit the schema: {', and '.join(wrong)}"
    raise SourceError(f"{name}: {why}. {advice}")


def first_record(head: bytearray, format: CsvFormat) -> tuple[list[str], int]:
    """The fields of a file's first record, and the offset after it (the end of `head` if the record
    continues). Raises UnicodeDecodeError or csv.Error if it is not a record.
    """
    ends = format.parser(pa.schema([]), [""]).record_ends(head, len(head))
    end = int(ends[0]) if len(ends) else len(head)
    text = head[:end].removeprefix(_BOM).decode()
    quotes = {"quotechar": format.quote} if format.quote else {"quoting": csv.QUOTE_NONE}
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=format.delimiter, strict=True,
                      escapechar=format.escape, doublequote=not format.escape, **quotes)
    names = next(rows, [])
    if next(rows, None) is not None:  # The header would swallow a record.
        raise csv.Error("its line ends in CR alone")
    return names, end


class _CsvParser:
    skips_line_ends = False

    def __init__(self, format: CsvFormat, schema: pa.Schema, columns: list[str]) -> None:
        for field in schema:
            if pa.types.is_nested(field.type):
                raise SpecError(
                    f"column {field.name!r}: a CSV field cannot hold {field.type}. Declare it as "
                    "string"
                )
        self.header_records = int(format.header)
        self._blank = b" \t\r".replace(format.delimiter.encode(), b"")
        self._one_column = len(columns) == 1
        self.finders = (self._faults,)
        self._quotes = Quotes(
            delimiter=format.delimiter, quote=format.quote, escape=format.escape
        )
        self.record_ends = self._quotes.record_ends if format.multiline else line_ends
        self._read = pa.csv.ReadOptions(
            use_threads=False, block_size=(1 << 31) - 1, column_names=columns
        )
        self._parse = pa.csv.ParseOptions(
            delimiter=format.delimiter,
            quote_char=format.quote or False,
            newlines_in_values=format.multiline,
        )
        self._declared = {field.name: field.type for field in schema}
        # A column that the header lacks becomes null.
        self._convert = _convert_options({f.name: _as_read(f.type) for f in schema}, schema.names)
        self._types = {f.name: _as_read(f.type) for f in schema if f.name in columns}
        # If all columns are text, `_faults` only counts fields, and one column suffices.
        checked = [name for name, kind in self._types.items() if _form(kind)] or columns[:1]
        self._texts = _convert_options(dict.fromkeys(checked, pa.string()), checked)
        integers = [name for name, kind in self._types.items() if pa.types.is_integer(kind)]
        self._integers = _convert_options(dict.fromkeys(integers, pa.string()), integers)

    def parse(self, lines: RecordLines) -> tuple[pa.Table, dict[int, Fault]]:
        """See lines.Parser.

        Each row ends at a line end and has at least one non-empty line. So if the caller counts as
        many rows as lines, and no lone CR ends a row, each line is one row. Only the last quote may
        be open: pyarrow closes it at the end of the input.
        """
        data = np.frombuffer(lines.data, np.uint8)
        start, end = lines.span
        if (data[lines.starts] == _BOM[0]).any() and any(
            lines.data.startswith(_BOM, int(at)) for at in lines.starts
        ):
            # pyarrow drops it from the start of its input, wherever the input starts in the file.
            raise BadRecords(Reason.malformed, _MARK)
        if len(lines) > 1:
            returns = np.flatnonzero(data[start : end - 1] == 13) + start
            if data[end - 1] == 13 or not (data[returns + 1] == 10).all():
                raise BadRecords(Reason.malformed, _RETURN)
        if self._one_column:
            # pyarrow would read white space as a value. The strict path omits these lines.
            for i in np.flatnonzero(np.isin(data[lines.starts], list(self._blank))):
                if not self.clean(lines.raw(i)):
                    raise BadRecords(Reason.malformed, "a blank line")
        doubtful = np.zeros(1, np.int64) if len(lines) == 1 else self._quotes.suspects(lines)
        for at, text in zip(doubtful.tolist(), lines.raws(doubtful), strict=True):
            if why := self._quotes.fault(text):
                raise BadRecords(Reason.malformed, why, at)
        source = self._source(lines)
        try:
            table = self._read_as(self._convert, source)
        except pa.ArrowInvalid as error:
            raise self._verdict(lines, str(error)) from error
        if self._integers.include_columns and _holds_hex(lines):
            # pyarrow reads 0x10 as 16.
            for column in self._read_as(self._integers, source).columns:
                if pc.any(pc.match_substring_regex(column, _HEX)).as_py():
                    raise BadRecords(Reason.type_mismatch, "a number that begins with 0x")
        return table, {}

    def _read_as(
        self, convert: pa.csv.ConvertOptions, source: pa.Buffer, handler: Callable | None = None
    ) -> pa.Table:
        parse = self._parse
        if handler is not None:
            parse = pa.csv.ParseOptions(
                delimiter=parse.delimiter,
                quote_char=parse.quote_char,
                newlines_in_values=parse.newlines_in_values,
                invalid_row_handler=handler,
            )
        return pa.csv.read_csv(
            pa.BufferReader(source),
            read_options=self._read,
            parse_options=parse,
            convert_options=convert,
        )

    def ignored(self, lines: RecordLines) -> Ignored:
        """See lines.Parser. A header names all columns."""
        return Ignored()

    def clean(self, raw: bytes) -> bytes:
        """See lines.Parser."""
        return raw if raw.strip(self._blank) else b""

    def _faults(self, lines: RecordLines) -> dict[int, Fault]:
        """Faults of quotes, of the number of fields, and of values."""
        faults = self._quote_faults(lines)
        rows = np.arange(len(lines))
        if faults:
            rows = np.delete(rows, list(faults))
            if not len(rows):
                return faults
            lines = lines.take(rows).pack()
        counts: dict[int, Fault] = {}

        def skip(row: pa.csv.InvalidRow) -> str:
            # Each record is one row here, so the row number is the record's.
            why = f"expected {row.expected_columns} fields, found {row.actual_columns}"
            counts[row.number - 1] = (Reason.field_count, why)
            return "skip"

        table = self._read_as(self._texts, self._source(lines), skip)
        faults |= {int(rows[at]): fault for at, fault in counts.items()}
        self._add_unfit(np.delete(rows, list(counts)), table, faults)
        return faults

    def _quote_faults(self, lines: RecordLines) -> dict[int, Fault]:
        faults: dict[int, Fault] = {}
        codes = np.frombuffer(lines.data, np.uint8)
        places = self._quotes.suspects(lines)
        if b"\r" in lines.data:
            places = np.union1d(places, lines.matching(r"\r"))
        for at, text in zip(places.tolist(), lines.raws(places), strict=True):
            if why := self._quotes.fault(text):
                faults[at] = (Reason.malformed, _RETURN if why == OPEN and b"\r" in text else why)
        if _BOM in lines.data:
            for at in np.flatnonzero(codes[lines.starts] == _BOM[0]).tolist():
                if lines.data.startswith(_BOM, lines.starts[at]):
                    faults[at] = (Reason.malformed, _MARK)
        return faults

    def _source(self, lines: RecordLines) -> pa.Buffer:
        """The records as pyarrow's input, with a line end after the last.

        Without it, pyarrow 26 reads an empty last field as quoted if another field is quoted.
        """
        doubled = self._quotes.double_escaped_quotes(lines)
        return _with_line_end(lines) if doubled is None else pa.py_buffer(doubled + b"\n")

    def _add_unfit(self, rows: np.ndarray, table: pa.Table, faults: dict[int, Fault]) -> None:
        """Add the faults of texts in the columns of numbers and flags."""
        for name, kind in self._types.items():
            if (form := _form(kind)) is None:
                continue
            column = table.column(name).combine_chunks()
            if _casts(column, kind):
                continue
            unlike = _unlike(column, form, kind)
            texts = pc.utf8_slice_codeunits(column.take(unlike), 0, FOUND_CHARS_MAX + 1)
            declared = self._declared[name]
            fits, beyond = words.expected_value(declared), words.expected_range(declared)
            is_integer = pa.types.is_integer(kind)
            for row, text in zip(rows[unlike].tolist(), texts.to_pylist(), strict=True):
                expected = beyond if is_integer and _INTEGER.fullmatch(text) else fits
                why = words.misfit(name, expected, words.quote(text))
                faults.setdefault(row, (Reason.type_mismatch, why))

    def _verdict(self, lines: RecordLines, message: str) -> BadRecords:
        """Translate pyarrow's error. For a single record, semel writes its own message."""
        row = re.search(r"Row #(\d+)", message)
        index = int(row[1]) - 1 if row else None
        if fields := re.search(r"Expected (\d+) columns, got (\d+)", message):
            why = f"expected {fields[1]} fields, found {fields[2]}"
            return BadRecords(Reason.field_count, why, index)
        column = re.match(r"In CSV column #(\d+): ", message)
        if not column:
            return BadRecords(Reason.malformed, message, index)
        name = self._read.column_names[int(column[1])]
        if len(lines) == 1:
            text = _convert_options({name: pa.string()}, [name])
            value = self._read_as(text, self._source(lines)).column(name)[0].as_py()
            kind = self._declared[name]
            is_integer = pa.types.is_integer(kind) and _INTEGER.fullmatch(value)
            expected = words.expected_range(kind) if is_integer else words.expected_value(kind)
            message = words.misfit(name, expected, words.quote(value))
        return BadRecords(Reason.type_mismatch, message, index)


def _with_line_end(lines: RecordLines) -> pa.Buffer:
    start, end = lines.span
    for line_end in (b"\n", b"\r\n"):
        if lines.data.startswith(line_end, end):
            return pa.py_buffer(lines.data).slice(start, end + len(line_end) - start)
    return pa.py_buffer(bytes(memoryview(lines.data)[start:end]) + b"\n")


def _holds_hex(lines: RecordLines) -> bool:
    """Whether a number may begin with 0x."""
    return any(lines.data.find(sign, *lines.span) >= 0 for sign in (b"0x", b"0X"))


def _as_read(declared: pa.DataType) -> pa.DataType:
    """The type that pyarrow reads: text for dates, times, bytes and decimals, to match JSON."""
    text = (pa.types.is_temporal, pa.types.is_binary, pa.types.is_decimal)
    return pa.string() if any(fits(declared) for fits in text) else declared


def _convert_options(
    types: dict[str, pa.DataType], only: list[str] | None = None
) -> pa.csv.ConvertOptions:
    return pa.csv.ConvertOptions(
        column_types=types,
        include_columns=only,
        include_missing_columns=True,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _form(kind: pa.DataType) -> str | None:
    """A pattern for all texts that pyarrow accepts, and few others. None if it accepts any text."""
    if pa.types.is_integer(kind):
        return r"^[ \t]*-?[0-9]+[ \t]*$"
    if pa.types.is_floating(kind):
        number = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
        words = r"[nN][aA][nN](\(.*)?|[iI][nN][fF]([iI][nN][iI][tT][yY])?"
        return rf"^[ \t]*[+-]?({number}|{words})[ \t]*$"
    if pa.types.is_boolean(kind):
        return r"^(0|1|true|True|TRUE|false|False|FALSE)$"
    return None


def _casts(column: pa.Array, kind: pa.DataType) -> bool:
    """Whether all texts are values. Faster than the patterns."""
    if pa.types.is_boolean(kind):
        return False  # The cast accepts tRue, too.
    try:
        column.cast(kind)
    except pa.ArrowInvalid:
        return False
    if not pa.types.is_integer(kind):
        return True
    return not pc.any(pc.match_substring_regex(column, _HEX)).as_py()


def _unlike(column: pa.Array, form: str, kind: pa.DataType) -> np.ndarray:
    """The rows whose text is certainly not a value of the type."""
    alike = pc.fill_null(pc.match_substring_regex(column, form), True)
    bad = ~alike.to_numpy(zero_copy_only=False)
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        long = pc.fill_null(pc.greater_equal(pc.utf8_length(column), len(str(bound))), False)
        rows = np.flatnonzero(long.to_numpy(zero_copy_only=False) & ~bad)
        if not _casts(column.take(rows), kind):
            for row, text in zip(rows.tolist(), column.take(rows).to_pylist(), strict=True):
                number = text.strip(" \t")
                bad[row] = len(number) < _DIGITS_MAX and not -bound <= int(number) < bound
    return np.flatnonzero(bad)
