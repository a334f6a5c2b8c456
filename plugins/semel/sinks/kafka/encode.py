"""Encodes rows as messages, column by column, and decodes messages to rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as at

from semel.errors import TerminalError
from semel.formats.jsonlsink import as_json, from_json, json_objects, refusal
from semel.sinks import CommittedBatch
from semel.sinks.kafka.target import KafkaTarget

BATCH_FIELD = "_semel_batch"
SEQ_FIELD = "_semel_seq"

Texts = list[bytes | None]


@dataclass(frozen=True, kw_only=True)
class EncodedMessages:
    """Rows as messages. `headers` has one list for each declared header, in their order.

    `size` is the total number of bytes before compression.
    """

    values: Texts
    keys: Texts
    headers: list[Texts]
    size: int


def encode_messages(
    target: KafkaTarget, batch: CommittedBatch, rows: pa.RecordBatch
) -> EncodedMessages:
    """The messages of some rows of a batch. Each one names its batch."""
    table = pa.Table.from_batches([rows])
    for name, number in ((BATCH_FIELD, batch.batch_id), (SEQ_FIELD, batch.commit_seq)):
        table = table.append_column(name, pa.repeat(pa.scalar(number, pa.int64()), len(table)))
    parts = encode_columns(target, table)
    values, keys, *headers = ([None] * len(table) if p is None else p.to_pylist() for p in parts)
    return EncodedMessages(
        values=values,
        keys=keys,
        headers=headers,
        size=sum(pc.sum(pc.binary_length(part)).as_py() or 0 for part in parts if part is not None),
    )


def encode_columns(target: KafkaTarget, table: pa.Table) -> list[pa.Array | None]:
    """The values of rows (binary), their keys or None, and a column for each header."""
    keys = None
    if isinstance(target.key, str):
        keys = _texts(target.key, table)
    elif target.key:
        keys = json_objects(table.select(list(target.key)))
    return [json_objects(table), keys, *(_texts(column, table) for _, column in target.headers)]


def _texts(name: str, table: pa.Table) -> pa.Array:
    """A column as texts: its JSON without the quotes. Bytes stay as they are."""
    values = table.column(name).combine_chunks()
    kind = values.type
    if at.is_string(kind) or at.is_large_string(kind) or at.is_binary(kind):
        return _binary(values)
    texts = _binary(as_json(name, values))
    quoted = at.is_temporal(kind) or at.is_decimal(kind)
    return pc.binary_slice(texts, 1, -1) if quoted else texts


def _binary(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.large_binary())


def check_columns(target: KafkaTarget, schema: pa.Schema) -> None:
    """Raises TerminalError if rows with these columns cannot become messages."""
    keys = (target.key,) if isinstance(target.key, str) else target.key or ()
    for place, name in (*(("key", n) for n in keys), *(("headers", c) for _, c in target.headers)):
        if name not in schema.names:
            raise TerminalError(
                f"sink.{place} names {name!r}, which is not a column of the output "
                f"({', '.join(schema.names)}). Correct it, or select the column in the last "
                "transform"
            )
    for column in schema:
        if column.name in (BATCH_FIELD, SEQ_FIELD):
            raise TerminalError(
                f"the output has a column {column.name!r}, but semel writes a field of that name. "
                "Give the column another name in the last transform"
            )
        if why := refusal(column.type):
            raise TerminalError(
                f"the output's column {column.name!r} has {why}. Cast it in the select of the last "
                "transform"
            )


def suffix(batch_id: int, commit_seq: int) -> bytes:
    """The suffix of the value of each message of a batch."""
    return f'"{BATCH_FIELD}":{batch_id},"{SEQ_FIELD}":{commit_seq}}}'.encode()


def read_back(values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Decode values of messages to rows with the types of the output."""
    texts = pa.array(values, pa.binary()).cast(pa.string())
    batch_fields = [pa.field(name, pa.int64()) for name in (BATCH_FIELD, SEQ_FIELD)]
    rows = from_json(texts, pa.struct([*schema, *batch_fields]))
    return pa.Table.from_arrays(rows.flatten()[: len(schema)], schema=schema)
