"""How sample files are written: JSON Lines or CSV, and its delimiter, quote and header."""

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
from semel.infer.sample import Sampled, told
from semel.sources import quoted

_BOM = b"\xef\xbb\xbf"
_DELIMITERS = ",;\t|"
_SHOWN_CHARS = 60
_NAME_CHARS_MAX = 500
"""YAML takes no key above 1,024 characters, and each may be written as two."""

_JSON_NAME = re.compile(r"\.(jsonl?|ndjson)(\.gz)?$", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class InferredDialect:
    """`format: jsonl`; or `format: csv`, `columns` as its header names them.

    `header` are the bytes of the header with its line end, without a byte order mark.
    """

    format: str
    csv: CsvFormat = CsvFormat()
    columns: tuple[str, ...] = ()
    header: bytes = b""


def dialect_of(sampled: Sampled) -> InferredDialect:
    """How a file is written that is not empty. SourceError says why semel does not read it."""
    head, name = sampled.parts[0], told(sampled.path)
    text = head.removeprefix(_BOM)
    why = foreign(head) or json_array(text)
    if why is None and b"\0" in head[:LOOKED_AT_BYTES]:
        why = "it holds NUL bytes, so it is no text; sources are JSON Lines and CSV in UTF-8"
    if why:
        raise SourceError(f"{name}: {why}")
    if is_json_lines(text):
        return InferredDialect(format="jsonl")
    if text.lstrip().startswith(b"{") or _JSON_NAME.search(PurePath(name).name):
        raise SourceError(
            f"{name}: JSON, but not one object a line; `jq -c .` makes that of it"
        )
    return _csv(text, name, sampled)


def not_utf8(sampled: Sampled) -> str | None:
    """What a file is written in that is not UTF-8, as far as its bytes tell, and what converts it."""
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
        f"{told(sampled.path)} is not UTF-8, but {kind} by its bytes; convert it, and whatever comes "
        f"after it: `{convert} > {path}.utf8 && mv {path}.utf8 {path}`"
    )


def _csv(text: bytes, name: str, sampled: Sampled) -> InferredDialect:
    """The delimiter by DuckDB's sniffer, which no bad record changes; the quote, its escape, and
    whether fields hold line ends, as most records are good: of equal ones the first, and the
    sniffer's.
    """
    delimiter, sniffed = _sniffed(text)
    # Where no field begins with it, the other quote makes text of a lost one.
    quotes = sorted("\"'" if re.search(rb"(^|[,;\t|\n])'", text) else '"', key=sniffed.__ne__)
    escapes = (None, "\\") if re.search(rb"\\[\"']", text) else (None,)
    best = None
    for quote, escape, multiline in itertools.product(quotes, escapes, (False, True)):
        form = CsvFormat(
            delimiter=delimiter, quote=quote, escape=escape, multiline=multiline, header=False
        )
        if (found := _header(text, form)) is None:
            continue
        good, bad = _read(text, form, found)
        if best is None or (good, -bad) > best[0]:
            best = (good, -bad), replace(form, header=True), found
        if not best[0][1]:
            break
    if best is None:
        raise SourceError(
            f"{name}: its first line is no CSV header that can be read (UTF-8, quotes that end); "
            f"{not_utf8(sampled) or 'correct it'}"
        )
    _, form, (names, header) = best
    _check_names(names, name)
    _check_is_header(names, form, name)
    return InferredDialect(format="csv", csv=form, columns=tuple(names), header=header)


def _sniffed(text: bytes) -> tuple[str, str]:
    """The delimiter and the quote by DuckDB's sniffer; a comma and `"`, where it finds none."""
    import duckdb

    with tempfile.NamedTemporaryFile(suffix=".csv") as file, duckdb.connect() as engine:
        # Line ends of both kinds are an error to it.
        file.write(text[:LOOKED_AT_BYTES].replace(b"\r\n", b"\n"))
        file.flush()
        sniffed = "SELECT Delimiter, Quote FROM sniff_csv(?, ignore_errors = true)"
        try:
            delimiter, quote = engine.execute(sniffed, [file.name]).fetchone()
        except duckdb.Error:
            return ",", '"'
    return delimiter if delimiter in _DELIMITERS else ",", "'" if quote == "'" else '"'


def _header(text: bytes, form: CsvFormat) -> tuple[list[str], bytes] | None:
    """The names in the first record, and its bytes with the line end. None: it is none."""
    window = bytearray(text[: limits.CSV_HEADER_BYTES_MAX])
    try:
        names, end = first_record(window, form)
    except (UnicodeDecodeError, csv.Error):
        return None
    header = text[:end].removesuffix(b"\n")
    if not names or end == len(header) < len(text):
        return None
    return names, header + b"\n"


def _read(text: bytes, form: CsvFormat, header: tuple[list[str], bytes]) -> tuple[int, int]:
    """How many records are good, and how many are bad, whatever the fields hold."""
    schema = pa.schema([(f"c{at}", pa.string()) for at in range(len(header[0]))])
    good = bad = 0
    for block in blocks(text[len(header[1]) :], schema, form):
        good, bad = good + block.table.num_rows, bad + len(block.faults)
    return good, bad


def parts_of(sampled: Sampled, dialect: InferredDialect) -> Iterator[bytes]:
    """The parts of a file, each a small file with its header.

    Where fields may hold line ends, nobody knows where a record begins: then the first part alone.
    """
    first = sampled.parts[0]
    if not dialect.csv.multiline:
        yield first
        yield from (dialect.header + part for part in sampled.parts[1:])
        return
    if not sampled.whole:
        parser = dialect.csv.parser(pa.schema([("c", pa.string())]), None)
        ends = parser.record_ends(bytearray(first), len(first))
        first = first[: int(ends[-1]) if len(ends) else None]
    yield first


def column_problem(name: str) -> str | None:
    """Why a schema cannot name such a column."""
    if not name.strip():
        return "has no name"
    if not name.isprintable() or "`" in name:
        return "holds a character that no column's name may hold"
    if name.lower().startswith(RESERVED_PREFIX):
        return f"begins with {RESERVED_PREFIX}, which is kept for semel's own columns"
    if len(name) > _NAME_CHARS_MAX:
        return f"is longer than {_NAME_CHARS_MAX} characters"
    return None


def _check_names(names: list[str], file: str) -> None:
    """SourceError: a schema cannot name one of the columns, and a header must name them all."""
    seen: set[str] = set()
    for number, name in enumerate(names, start=1):
        why = column_problem(name)
        if why is None and name.lower() in seen:
            why = "is there twice (upper and lower case are alike)"
        if why is not None:
            raise SourceError(
                f"{file}: column {number} of the header, {ascii(name[:_SHOWN_CHARS])}, {why}; "
                "give it another name in the file"
            )
        seen.add(name.lower())


_VALUE = r"^\s*([+-]?[0-9.,]+([eE][+-]?[0-9]+)?|\d{4}-\d{2}-\d{2}([ T].*)?)\s*$"
_YEAR = re.compile(r"(19|20)[0-9]{2}")


def _check_is_header(names: list[str], form: CsvFormat, file: str) -> None:
    """SourceError when the first line looks like a record: some fields are numbers or dates.

    Years are what columns may be called, and so are the numbers of all columns.
    """
    values = [name for name in names if re.match(_VALUE, name)]
    numbered = names == [str(number) for number in range(len(names))]
    if numbered or all(map(_YEAR.fullmatch, values)):
        return
    shown_line = ascii(form.delimiter.join(names)[:_SHOWN_CHARS])
    raise SourceError(
        f"{file}: the first line, {shown_line}, looks like a record, and semel needs a header "
        "that names the columns; put one above it"
    )
