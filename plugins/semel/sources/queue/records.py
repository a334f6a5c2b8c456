"""The messages of a segment become blocks of records, column by column."""

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
from semel.formats.selection import NONE, Selection
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
    """The records of the messages [start, end) of a segment. `address`: what their ids begin with;
    None: with the segment's. CorruptionError: it is damaged.
    """
    address, values = address or read_head(path).address, Values(context)
    for first, batch in _together(path, start, end):
        offsets = np.arange(first, first + batch.num_rows, dtype=np.int64)
        size, left_out = _bytes(batch), NONE
        if selection is not None:
            taken = selection.takes(offsets)
            if not taken.all():
                batch = batch.filter(pa.array(taken))
                offsets, left_out = offsets[taken], offsets[~taken]
        block = values.block(
            record_lines_of_column(batch.column("value"), offsets),
            _beside(context.declared, values, address, batch),
            bytes_read=size,
            left_out=left_out,
        )
        bad = _malformed(context.declared, batch)
        yield block.without(offsets[bad], [_MALFORMED] * len(bad)) if len(bad) else block


def _malformed(source: QueueSourceSpec, batch: pa.RecordBatch) -> np.ndarray:
    """The messages of which a column takes an attribute, and whose attributes nobody can parse."""
    if set(source.attributes.values()) <= {ALL}:
        return np.empty(0, np.int64)
    found = _last(batch.column("attributes"), MALFORMED)
    return np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))


def _together(path: Path, start: int, end: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Groups as they are, or several as one where they are small, each with the number of its first
    message: what is parsed at once is some BLOCK_BYTES.
    """
    held: list[pa.RecordBatch] = []
    size = begin = 0
    for first, batch in read_groups(path, start, end):
        if held and size + _bytes(batch) > limits.BLOCK_BYTES:
            yield begin, pa.concat_batches(held)
            held, size = [], 0
        if not held:
            begin = first
        held.append(batch)
        size += _bytes(batch)
    if held:
        yield begin, pa.concat_batches(held)


def _bytes(batch: pa.RecordBatch) -> int:
    """The bytes of its values."""
    return pc.sum(pc.binary_length(batch.column("value")), min_count=0).as_py()


# Keeps Q4.
def _beside(
    source: QueueSourceSpec, values: Values, address: str, batch: pa.RecordBatch
) -> dict[str, pa.Array]:
    """The columns that are not of the value."""
    columns = {}
    if source.message_id:
        ids = batch.column("message_id")
        columns[source.message_id] = pc.binary_join_element_wise(address, ids, "#")
    if source.published:
        columns[source.published] = batch.column("published")
    if source.ordering_key:
        columns[source.ordering_key] = batch.column("ordering_key").cast(pa.binary())
    for column, name in source.attributes.items():
        found = batch.column("attributes")
        if name == ALL:
            columns[column] = found.cast(values.type_of(column))
        else:
            columns[column] = _last(found, name)
    return columns


def _last(attributes: pa.ListArray, name: str) -> pa.Array:
    """The value of each message's last attribute of a name."""
    every = attributes.flatten()
    at = np.flatnonzero(pc.equal(every.field("key"), name).to_numpy(zero_copy_only=False))
    found = np.full(len(attributes), -1, np.int64)
    # Of several for one message the last one stays.
    found[pc.list_parent_indices(attributes).to_numpy()[at]] = at
    return every.field("value").take(pa.array(found, mask=found < 0))
