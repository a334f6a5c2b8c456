"""Reads bytes as a whole file of records."""

import io

import pyarrow as pa
import xxhash

from semel.sources.csv import Csv
from semel.sources.jsonl import JsonLines
from semel.sources.records import Block, Rejected, read_split


def read_whole(
    data: bytes, form: Csv | JsonLines, schema: pa.Schema, columns: list[str] | None = None
) -> tuple[list[Block], list[Rejected]]:
    """The blocks and the rejected records of one split; every byte is in a block."""
    blocks = list(
        read_split(
            io.BytesIO(data),
            start=0,
            end=len(data),
            range_start=0,
            range_end=len(data),
            schema=schema,
            format=form,
            digest=xxhash.xxh3_128(),
            columns=columns,
        )
    )
    assert sum(block.bytes_read for block in blocks) == len(data)
    return blocks, [record for block in blocks for record in block.rejected]
