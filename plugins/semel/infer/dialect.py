"""The format of sample files: JSON Lines or CSV, with its delimiter, quote and header."""

import csv
import itertools
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePath

import pyarrow as pa

from semel import limits
from semel.declare.parts import RESERVED_PREFIX
from semel.errors import SourceError
from semel.formats.csv import CsvFormat, first_record
from semel.formats.foreign import LOOKED_AT_BYTES, foreign, is_json_lines, json_array
from semel.infer.parse import blocks
from semel.infer.sample import SampledFile, display_path
from semel.sources import quoted

_BOM = b"\xef\xbb\xbf"
_DELIMITERS = ",;\t|"
_SHOWN_CHARS = 60
_NAME_CHARS_MAX = 500
"""YAML allows 1,024 characters in a key, and an escaped character takes two."""

_JSON_NAME = re.compile(r"\.(jsonl?|ndjson)(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class InferredDialect:
    """`format: jsonl`; or `format: csv` with the `columns` of its header.

    `header`: the bytes of the header with its line end, without a byte order mark.
    """

    format: str
    csv: CsvFormat = CsvFormat()
    columns: tuple[str, ...] = ()
    header: bytes = b""


def dialect_of(sampled: SampledFile) -> InferredDialect:
    """The dialect of a nonempty file. Raises SourceError if semel does not read such files."""
    head, name = sampled.parts[0], display_path(sampled.path)
    text = head.removeprefix(_BOM)
    why = foreign(head) or json_array(text)
    if why is None and b"\0" in head[:LOOKED_AT_BYTES]:
        why = "it has NUL bytes, so it is not a text file. Give JSON Lines or CSV in UTF-8"
    if why:
        raise SourceError(f"{name}: {why}")
    if is_json_lines(text):
        return InferredDialect(format="jsonl")
    if text.lstrip().startswith(b"{") or _JSON_NAME.search(PurePath(name).name):
        raise SourceError(
            f"{name}: JSON, but not one object a line. Convert it with `jq -c .`"
        )
    return _csv(text, name, sampled)


def not_utf8(sampled: SampledFile) -> str | None:
    """A file's probable encoding, with the command that converts it. Returns None for UTF-8."""
    data = b"".join(sampled.parts)
    for kind, codec in ((None, "utf-8"), ("WINDOWS-1252", "cp1252"), ("ISO-8859-1", "latin-1")):
        with suppress(UnicodeDecodeError):
            data.decode(codec)
            break
    if kind is None:
        return None
    path = quoted(str(sampled.path))
    convert = f"iconv -f {kind} -t UTF-8 {path}"
    if sampled.path.suffix == ".gz":
        convert = f"gzip -dc {path} | iconv -f {kind} -t UTF-8 | gzip"
    return (
        f"{display_path(sampled.path)} is not UTF-8, but probably {kind}. Convert it, and all "
        f"later files: `{convert} > {path}.utf8 && mv {path}.utf8 {path}`"
    )


def _csv(text: bytes, name: str, sampled: SampledFile) -> InferredDialect:
    """The CSV dialect. DuckDB's sniffer finds the delimiter, because bad records do not mislead it.

    The quote, its escape and `multiline` are those that make the most good records. With equal
    counts the sniffer's quote wins, then the first combination.
    """
    delimiter, likely_quote = _sniff(text)
    # A quote that begins no field is not tried: with it, a stray double quote would be plain text.
    quotes = sorted("\"'" if re.search(rb"(^|[,;\t|\n])'", text) else '"', key=likely_quote.__ne__)
    escapes = (None, "\\") if re.search(rb"\\[\"']", text) else (None,)
    best = None
    for quote, escape, multiline in itertools.product(quotes, escapes, (False, True)):
        form = CsvFormat(
            delimiter=delimiter, quote=quote, escape=escape, multiline=multiline, header=False
        )
        if (named := _header(text, form)) is None:
            continue
        good, bad = _count_records(text, form, named)
        if best is None or (good, -bad) > best[0]:
            best = (good, -bad), replace(form, header=True), named
        if not best[0][1]:
            break
    if best is None:
        raise SourceError(
            f"{name}: semel cannot read its first line as a CSV header: it is not UTF-8, or a "
            f"quote does not end. {not_utf8(sampled) or 'Correct the line'}"
        )
    _, form, (names, header) = best
    _check_names(names, name)
    _check_is_header(names, form, name)
    return InferredDialect(format="csv", csv=form, columns=tuple(names), header=header)


def _sniff(text: bytes) -> tuple[str, str]:
    """The delimiter and the quote that DuckDB's sniffer finds; by default, a comma and `"`."""
    import duckdb

    from semel.clients.duck import connect

    with tempfile.NamedTemporaryFile(suffix=".csv") as file, connect() as engine:
        # The sniffer fails on a mixture of line ends.
        file.write(text[:LOOKED_AT_BYTES].replace(b"\r\n", b"\n"))
        file.flush()
        sniffed = "SELECT Delimiter, Quote FROM sniff_csv(?, ignore_errors = true)"
        try:
            delimiter, quote = engine.execute(sniffed, [file.name]).fetchone()
        except duckdb.Error:
            return ",", '"'
    return delimiter if delimiter in _DELIMITERS else ",", "'" if quote == "'" else '"'


def _header(text: bytes, form: CsvFormat) -> tuple[list[str], bytes] | None:
    """The names in the first record, and its bytes with the line end. Returns None if the record is
    not a header.
    """
    window = bytearray(text[: limits.CSV_HEADER_BYTES_MAX])
    try:
        names, end = first_record(window, form)
    except (UnicodeDecodeError, csv.Error):
        return None
    header = text[:end].removesuffix(b"\n")
    if not names or end == len(header) < len(text):
        return None
    return names, header + b"\n"


def _count_records(
    text: bytes, form: CsvFormat, header: tuple[list[str], bytes]
) -> tuple[int, int]:
    """The numbers of good and of bad records, without a look at the values of fields."""
    schema = pa.schema([(f"c{at}", pa.string()) for at in range(len(header[0]))])
    good = bad = 0
    for block in blocks(text[len(header[1]) :], schema, form):
        good, bad = good + block.table.num_rows, bad + len(block.faults)
    return good, bad


def parts_of(sampled: SampledFile, dialect: InferredDialect) -> Iterator[bytes]:
    """The parts of a file, each a small file with its header.

    If fields may contain line ends, only the first part: a later one may begin within a record.
    """
    first = sampled.parts[0]
    if not dialect.csv.multiline:
        yield first
        yield from (dialect.header + part for part in sampled.parts[1:])
        return
    if not sampled.complete:
        parser = dialect.csv.parser(pa.schema([("c", pa.string())]), None)
        ends = parser.record_ends(bytearray(first), len(first))
        first = first[: int(ends[-1]) if len(ends) else None]
    yield first


def column_problem(name: str) -> str | None:
    """Why a schema cannot have a column of this name. Returns None if it can."""
    if not name.strip():
        return "has no name"
    if not name.isprintable() or "`" in name:
        return "has a character that is not allowed in a column's name"
    if name.lower().startswith(RESERVED_PREFIX):
        return f"begins with {RESERVED_PREFIX}, which is reserved for semel's own columns"
    if len(name) > _NAME_CHARS_MAX:
        return f"is longer than {_NAME_CHARS_MAX} characters"
    return None


def _check_names(names: list[str], file: str) -> None:
    """Raises SourceError if a schema cannot have one of the columns."""
    earlier: set[str] = set()
    for number, name in enumerate(names, start=1):
        why = column_problem(name)
        if why is None and name.lower() in earlier:
            why = "is there twice (upper and lower case are alike)"
        if why is not None:
            raise SourceError(
                f"{file}: column {number} of the header, {ascii(name[:_SHOWN_CHARS])}, {why}. "
                "Rename it in the file"
            )
        earlier.add(name.lower())


_VALUE = r"^\s*([+-]?[0-9.,]+([eE][+-]?[0-9]+)?|\d{4}-\d{2}-\d{2}([ T].*)?)\s*$"
_YEAR = re.compile(r"(19|20)[0-9]{2}")


def _check_is_header(names: list[str], form: CsvFormat, file: str) -> None:
    """Raises SourceError if the first line looks like a record: some fields are numbers or dates.

    Years may be names of columns, and so may the numbers of all columns.
    """
    values = [name for name in names if re.match(_VALUE, name)]
    numbered = names == [str(number) for number in range(len(names))]
    if numbered or all(map(_YEAR.fullmatch, values)):
        return
    shown_line = ascii(form.delimiter.join(names)[:_SHOWN_CHARS])
    raise SourceError(
        f"{file}: the first line, {shown_line}, looks like a record, not like a header. Add a line "
        "with the columns' names above it"
    )
