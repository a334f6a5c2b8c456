"""The declared format of a source's files, and the header of one of them."""

import gzip
import zlib

from semel.errors import SourceError
from semel.formats.csv import Csv, read_header
from semel.formats.jsonl import JsonLines
from semel.formats.records import Format
from semel.spec.parts import REST_COLUMN
from semel.spec.pipeline import Spec


def format_of(spec: Spec) -> Format:
    """The parser's side of `source.format`."""
    if spec.source.format == "jsonl":
        kinds = spec.column_types()
        texts = (n for n, kind in kinds.items() if kind.word == "json" and n != REST_COLUMN)
        return JsonLines(json=tuple(texts), unknown=spec.source.unknown)
    csv = spec.source.csv
    return Csv(delimiter=csv.delimiter, quote=csv.quote, multiline=csv.multiline)


def is_whole(spec: Spec) -> bool:
    """Whether a file is read once, as one range: no byte of it tells where a record begins."""
    return spec.source.csv.multiline


def header_of(spec: Spec, path: str) -> list[str] | None:
    """The column names in a CSV file's header, None for JSON Lines.

    SourceError: they are not the schema's, or the file cannot be read.
    """
    if spec.source.format == "jsonl":
        return None
    form = format_of(spec)
    opener = gzip.open if path.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            schema, samples = spec.arrow_schema(), spec.limits.log_samples
            return read_header(file, form, schema, samples=samples)[0]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(
            f"{path!r}: the compressed stream is damaged ({error}); replace the file"
        ) from error
