"""The declared format of a source's files, and the header of a file."""

import gzip
import zlib
from typing import TYPE_CHECKING, BinaryIO

from semel.declare.context import Context
from semel.errors import SourceError
from semel.formats.table import source_format

if TYPE_CHECKING:
    from semel.formats.lines import Format


def format_of(context: Context) -> "Format":
    """The parser's side of `source.format`."""
    return source_format(context.declared.format).code().declared_format(context)


def is_whole(context: Context) -> bool:
    """Whether semel reads a file as one range: a reader cannot find a record in its middle."""
    return source_format(context.declared.format).is_one_range(context.declared)


def has_header(context: Context) -> bool:
    """Whether each file begins with a line of column names."""
    return source_format(context.declared.format).header


def header_of(context: Context, path: str) -> list[str] | None:
    """The column names in a file's header. Returns None for a format without headers.

    Raises SourceError if they differ from the schema's, or the file is damaged.
    """
    if not has_header(context):
        return None
    opener = gzip.open if path.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            return header_in(context, file)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(
            f"{path!r}: the compressed stream is damaged ({error}). Replace the file"
        ) from error


def header_in(context: Context, file: BinaryIO) -> list[str]:
    """Like `header_of`, for an open file whose format has headers."""
    form, code = format_of(context), source_format(context.declared.format).code()
    schema, samples = context.arrow_schema(), context.limits.log_samples
    return code.read_header(file, form, schema, context.naming, samples=samples)[0]
