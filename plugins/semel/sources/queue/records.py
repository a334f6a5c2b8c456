"""Turns the messages of a segment into blocks of records, column by column."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel import limits
from semel.clients.queue import MALFORMED
from semel.declare.context import Context
from semel.formats.lines import Fault
from semel.formats.records import Block
from semel.formats.selection import NO_OFFSETS, Selection
from semel.model.reasons import Reason
from semel.sources.messages import ALL
from semel.sources.queue.segment import read_groups, read_head
from semel.sources.queue.spec import QueueSourceSpec
from semel.sources.values import Values, record_lines_of_column


_MALFORMED: Fault = (Reason.malformed, "expected attributes (headers), found other bytes")


def blocks(
    context: Context, path: Path, start: int, end: int, address: str | None,
    selection: Selection | None = None,
) -> Iterator[Block]:  # fmt: skip
    """Yield the records of the messages [start, end) of a segment. `address`: the prefix of their
    ids, by default the segment's own. Raises CorruptionError if the segment is damaged.
    """
    address, values = address or read_head(path).address, Values(context)
    for first, batch in _joined_groups(path, start, end):
        offsets = np.arange(first, first + batch.num_rows, dtype=np.int64)
        size, left_out = _value_bytes(batch), NO_OFFSETS
        if selection is not None:
            chosen = selection.takes(offsets)
            if not chosen.all():
                batch = batch.filter(pa.array(chosen))
                offsets, left_out = offsets[chosen], offsets[~chosen]
        block = values.block(
            record_lines_of_column(batch.column("value"), offsets),
            _other_columns(context.declared, values, address, batch),
            bytes_read=size,
            left_out=left_out,
        )
        bad = _malformed(context.declared, batch)
        yield block.without(offsets[bad], [_MALFORMED] * len(bad)) if len(bad) else block


def _malformed(source: QueueSourceSpec, batch: pa.RecordBatch) -> np.ndarray:
    """The messages whose attributes cannot be parsed, if a column needs one of their attributes."""
    if set(source.attributes.values()) <= {ALL}:
        return np.empty(0, np.int64)
    raw = _last_value(batch.column("attributes"), MALFORMED)
    return np.flatnonzero(raw.is_valid().to_numpy(zero_copy_only=False))


def _joined_groups(path: Path, start: int, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield groups, each with the number of its first message. Joins small groups up to about
    BLOCK_BYTES, so that they are parsed together.
    """
    small: list[pa.RecordBatch] = []
    size = begin = 0
    for first, batch in read_groups(path, start, end):
        if small and size + _value_bytes(batch) > limits.BLOCK_BYTES:
            yield begin, pa.concat_batches(small)
            small, size = [], 0
        if not small:
            begin = first
        small.append(batch)
        size += _value_bytes(batch)
    if small:
        yield begin, pa.concat_batches(small)


def _value_bytes(batch: pa.RecordBatch) -> int:
    return pc.sum(pc.binary_length(batch.column("value")), min_count=0).as_py()


# Keeps Q4.
def _other_columns(
    source: QueueSourceSpec, values: Values, address: str, batch: pa.RecordBatch
) -> dict[str, pa.Array]:
    """The columns that the value does not fill."""
    columns = {}
    if source.message_id:
        ids = batch.column("message_id")
        columns[source.message_id] = pc.binary_join_element_wise(address, ids, "#")
    if source.published:
        columns[source.published] = batch.column("published")
    if source.ordering_key:
        columns[source.ordering_key] = batch.column("ordering_key").cast(pa.binary())
    for column, name in source.attributes.items():
        attributes = batch.column("attributes")
        if name == ALL:
            columns[column] = attributes.cast(values.type_of(column))
        else:
            columns[column] = _last_value(attributes, name)
    return columns


def _last_value(attributes: pa.ListArray, name: str) -> pa.Array:
    """The value of each message's last attribute with a name, or null."""
    every = attributes.flatten()
    at = np.flatnonzero(pc.equal(every.field("key"), name).to_numpy(zero_copy_only=False))
    last = np.full(len(attributes), -1, np.int64)
    # numpy assigns in order, so a message's last attribute wins.
    last[pc.list_parent_indices(attributes).to_numpy()[at]] = at
    return every.field("value").take(pa.array(last, mask=last < 0))
