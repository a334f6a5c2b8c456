"""Turns messages into blocks of records: columns of the value, key, timestamp and headers."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from semel.clients.kafka.registry import Registry
from semel.declare.context import Context
from semel.formats.records import OFFSET, Block
from semel.formats.selection import Selection
from semel.sources.kafka.avro import Avro
from semel.sources.kafka.spec import KafkaSourceSpec
from semel.sources.messages import ALL
from semel.sources.values import Values, record_lines

if TYPE_CHECKING:
    from confluent_kafka import Message


class MessageBlocks:
    """Turns the messages of one split into blocks, in one pass."""

    def __init__(self, context: Context, name: str) -> None:
        """`name`: the source partition of the messages."""
        self._source: KafkaSourceSpec = context.declared
        self._values = Values(context)
        registry = Registry.of(self._source.registry)
        self._avro = Avro(registry, name, context.limits.unknown_schemas_max) if registry else None
        self._streams = {name: _Stream() for name in (OFFSET, "", *self._source.unparsed_columns)}

    def close(self) -> None:
        """Close the connection to the Schema Registry."""
        if self._avro is not None:
            self._avro.close()

    def digests(self) -> Iterable[bytes]:
        """Digests of the messages that were read, independent of the chunks."""
        return (part for stream in self._streams.values() for part in stream.digests())

    def block(self, chunk: Sequence["Message"], selection: Selection | None = None) -> Block:
        """The records of some messages, in the order of their offsets."""
        offsets = np.fromiter((m.offset() for m in chunk), np.int64, len(chunk))
        values = [m.value() for m in chunk]
        beside = self._beside(chunk)
        self._streams[OFFSET].add_fixed(offsets)
        self._streams[""].add(values)
        # 1. Messages without a value are records only if `tombstones: keep` is declared. The
        #    selection may leave records out.
        null = np.fromiter((value is None for value in values), bool, len(values))
        keep = self._source.tombstones == "keep"
        tombstones = 0 if keep else int(null.sum())
        records = np.ones(len(values), bool) if keep else ~null
        selected = records if selection is None else records & selection.takes(offsets)
        bytes_read, left_out = sum(map(len, filter(None, values))), offsets[records & ~selected]
        if not selected.all():
            values, offsets = list(compress(values, selected.tolist())), offsets[selected]
            beside = {name: column.filter(pa.array(selected)) for name, column in beside.items()}
            null = null[selected]
        lines = record_lines([value or b"" for value in values], offsets)
        # 2. The values.
        text, unread = None, {}
        if self._avro is not None:
            texts, unread = self._avro.texts(values)
            text = record_lines(texts, offsets)
        return self._values.block(
            lines,
            beside,
            bytes_read=bytes_read,
            null=null,
            text=text,
            unread=unread,
            tombstones=tombstones,
            left_out=left_out,
        )

    def _beside(self, chunk: Sequence["Message"]) -> dict[str, pa.Array]:
        """The raw columns of key, timestamp and headers: bytes, or lists of headers."""
        source, columns = self._source, {}
        if source.key:
            keys = [m.key() for m in chunk]
            self._streams[source.key].add(keys)
            columns[source.key] = pa.array(keys, pa.binary())
        if source.timestamp:
            stamps = [m.timestamp() for m in chunk]
            times = np.fromiter((ms if kind else -1 for kind, ms in stamps), np.int64, len(chunk))
            self._streams[source.timestamp].add_fixed(times)
            masked = pa.array(times, mask=times < 0)
            columns[source.timestamp] = masked.cast(pa.timestamp("ms", "UTC"))
        if source.headers:
            headers = [m.headers() or [] for m in chunk]
            for column, name in source.headers.items():
                columns[column] = self._header(column, name, headers)
        return columns

    def _header(
        self, column: str, name: str, headers: list[list[tuple[str, bytes | None]]]
    ) -> pa.Array:
        if name == ALL:
            self._streams[column].add([repr(pairs).encode() for pairs in headers])
            kind = self._values.type_of(column)
            return pa.array([[{"key": k, "value": v} for k, v in h] for h in headers], kind)
        values = [dict(pairs).get(name) for pairs in headers]
        self._streams[column].add(values)
        return pa.array(values, pa.binary())


class _Stream:
    """Hashes a column that arrives in chunks; the digest does not depend on their sizes."""

    def __init__(self) -> None:
        self._bytes, self._lengths = xxhash.xxh3_128(), xxhash.xxh3_128()

    def add(self, values: list[bytes | None]) -> None:
        self._bytes.update(b"".join([value for value in values if value]))
        lengths = (-1 if value is None else len(value) for value in values)
        self._lengths.update(np.fromiter(lengths, np.int64, len(values)).tobytes())

    def add_fixed(self, values: np.ndarray) -> None:
        self._lengths.update(values.tobytes())

    def digests(self) -> Iterator[bytes]:
        yield self._bytes.digest()
        yield self._lengths.digest()
