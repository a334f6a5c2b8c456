"""Read samples with semel's own parser, as stage will read the files."""

import io
from collections.abc import Collection, Iterator

import pyarrow as pa
import xxhash

from semel.formats.lines import Format
from semel.formats.records import Block, read_split


def blocks(
    data: bytes,
    schema: pa.Schema,
    form: Format,
    columns: list[str] | None = None,
    exact: Collection[str] = (),
) -> Iterator[Block]:
    """Yield the records of a small file. See `read_split`."""
    return read_split(
        io.BytesIO(data),
        start=0,
        end=None,
        range_start=0,
        range_end=None,
        schema=schema,
        format=form,
        digest=xxhash.xxh3_128(),
        columns=columns,
        exact=exact,
    )
