"""Reads bytes as a whole file of records."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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


def blocks_of(
    data: bytes, form: Csv | JsonLines, schema: pa.Schema, **more: Any
) -> Iterator[Block]:
    """Read a file as one split. `more`: as of read_split."""
    size = len(data)
    more = {"digest": xxhash.xxh3_128(), **more}
    return read_split(
        io.BytesIO(data), start=0, end=size, range_start=0, range_end=size, schema=schema,
        format=form, **more,
    )  # fmt: skip


def read_whole(
    data: bytes, form: Csv | JsonLines, schema: pa.Schema, columns: list[str] | None = None
) -> tuple[list[Block], list[Rejected]]:
    """The blocks and the rejected records of one split; every byte is in a block."""
    blocks, rejected = [], []
    for block in blocks_of(data, form, schema, columns=columns):
        blocks.append(block)
        rejected += rejected_of(block)
    assert sum(block.bytes_read for block in blocks) == len(data)
    return blocks, rejected
