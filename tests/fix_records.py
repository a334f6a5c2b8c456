"""Reads bytes as a whole file of records."""

import io
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from semel.formats.csv import Csv
from semel.formats.jsonl import JsonLines
from semel.formats.records import Block, read_split


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A row of a block's `rejected`."""

    offset: int
    length: int
    reason: str
    detail: str
    raw: bytes


def rejected_of(block: Block) -> list[Rejected]:
    return [Rejected(**row) for row in block.rejected().to_pylist()]


def read_whole(
    data: bytes, form: Csv | JsonLines, schema: pa.Schema, columns: list[str] | None = None
) -> tuple[list[Block], list[Rejected]]:
    """The blocks and the rejected records of one split; every byte is in a block."""
    blocks, rejected = [], []
    for block in read_split(
        io.BytesIO(data),
        start=0,
        end=len(data),
        range_start=0,
        range_end=len(data),
        schema=schema,
        format=form,
        digest=xxhash.xxh3_128(),
        columns=columns,
    ):
        blocks.append(block)
        rejected += rejected_of(block)
    assert sum(block.bytes_read for block in blocks) == len(data)
    return blocks, rejected
