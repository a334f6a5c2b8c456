"""The declared format of a source's files, and the header of one of them."""

import gzip
import zlib
from typing import TYPE_CHECKING

from semel.errors import SourceError
from semel.formats.table import source_format
from semel.pipeline import Spec

if TYPE_CHECKING:
    from semel.formats.lines import Format


def format_of(spec: Spec) -> "Format":
    """The parser's side of `source.format`."""
    return source_format(spec.source.format).code().declared(spec)


def is_whole(spec: Spec) -> bool:
    """Whether a file is read once, as one range: no byte of it tells where a record begins."""
    return source_format(spec.source.format).whole(spec.source)


def has_header(spec: Spec) -> bool:
    """Whether each file begins with a line that names its columns."""
    return source_format(spec.source.format).header


def header_of(spec: Spec, path: str) -> list[str] | None:
    """The column names in a file's header, None where the format has none.

    SourceError: they are not the schema's, or the file cannot be read.
    """
    if not has_header(spec):
        return None
    form, code = format_of(spec), source_format(spec.source.format).code()
    opener = gzip.open if path.endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            schema, samples = spec.arrow_schema(), spec.limits.log_samples
            return code.read_header(file, form, schema, samples=samples)[0]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(
            f"{path!r}: the compressed stream is damaged ({error}); replace the file"
        ) from error
