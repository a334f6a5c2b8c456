"""Segments as the audit reads them again: by a reader of its own, which looks at no foot.

The file with the claimed content is found by a digest of all its bytes. Its groups are walked one
after the other from its beginning; pyarrow reads each.
"""

import json
import os
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from semel.errors import CorruptionError, SourceError
from semel.model.batch import Claim
from semel.sources.messages import ALL
from semel.sources.queue.spec import QueueSource
from semel.sources.reread import (
    Auditor,
    GoneError,
    Lines,
    Messages,
    bad_csv,
    in_order,
    texts_of,
    times_of,
)

_HEADER = struct.Struct("<4sIQQ")
"""Before each body: what it is, how many messages, how many bytes, a checksum."""

_GROUP = b"SQG1"
_HASHED_BYTES = 1 << 20


def opened(source: QueueSource, claims: Iterable[Claim]) -> AbstractContextManager[Auditor]:  # noqa: ARG001
    """What reads the spool that is declared."""
    return nullcontext(_Spool(source))


class _Spool(Auditor):
    """Finds claimed segments in the spools of all pipelines, and reads their messages."""

    def __init__(self, source: QueueSource) -> None:
        self._source, self._root = source, source.folder()
        self._found: dict[str, Path] = {}

    def read(
        self, claim: Claim, batch: int, source: QueueSource, record_id: Collection[str]  # noqa: ARG002
    ) -> tuple[tuple[str, ...], Iterator[Lines]]:
        content, size = claim.evidence.get("content"), claim.evidence.get("bytes")
        if content is None or size is None:
            raise CorruptionError(f"the claim of {claim.name!r} has no evidence of a segment")
        path = self._found.get(content)
        if path is None:
            there = self._root.glob("*/sealed/*")
            some = sorted(there, key=lambda path: path.name != claim.name)
            path = next((path for path in some if _has(path, size, content)), None)
            if path is None:
                notes = (spool / "removed" / Path(content).name for spool in self._root.glob("*"))
                if any(note.exists() for note in notes):
                    raise GoneError(f"{claim.name!r}: collect has removed it (source.keep_spool)")
                raise SourceError("no segment of the spool has the claimed content")
            self._found[content] = path
        return in_order(source), _read(path, claim, batch, source)


def _address(segment: str, claim: Claim, source: QueueSource) -> str:
    """What ids of a claim begin with: its evidence says so, within what there can be."""
    address = claim.evidence.get("address", segment)
    declared = f"nats:{getattr(source, 'address', None)}"
    # Behind @ is when a stream was made.
    if address.partition("@")[0] not in {each.partition("@")[0] for each in (segment, declared)}:
        raise SourceError(f"its messages are of {segment}, and their ids of {address}")
    return address


def _has(path: Path, size: int, content: str) -> bool:
    state = xxhash.xxh3_128()
    with suppress(OSError):
        if os.stat(path).st_size == size:
            with open(path, "rb") as file:
                while data := file.read(_HASHED_BYTES):
                    state.update(data)
            return state.hexdigest() == content
    return False


def _read(path: Path, claim: Claim, batch: int, source: QueueSource) -> Iterator[Lines]:
    """The claimed messages, group by group."""
    with open(path, "rb") as file:
        _, _, length, _ = _HEADER.unpack(file.read(_HEADER.size))
        address = _address(json.loads(file.read(length))["address"], claim, source)
        first = 0
        while first < claim.end:
            magic, count, length, _ = _HEADER.unpack(file.read(_HEADER.size))
            if magic != _GROUP:
                raise SourceError(f"it has {first} messages, and {claim.end} were read")
            low, high = max(claim.start - first, 0), min(claim.end - first, count)
            if low < high:
                with pa.ipc.open_stream(file.read(length)) as stream:
                    rows = stream.read_all().slice(low, high - low)
                yield _lines(rows, first + low, address, claim, batch, source)
            else:
                file.seek(length, os.SEEK_CUR)
            first += count


def _lines(
    rows: pa.Table, first: int, address: str, claim: Claim, batch: int, source: QueueSource
) -> Messages:
    values = rows.column("value").to_pylist()
    beside, bad = _beside(rows, address, source)
    if source.value == "csv":
        bad |= bad_csv(dict(enumerate(values)), source.csv.delimiter)
    return Messages(
        batch=batch,
        claim=claim,
        data=b"".join(values),
        bounds=np.concatenate(([0], np.cumsum([len(value) for value in values]))),
        positions=np.arange(first, first + len(values)),
        kept=np.ones(len(values), bool),
        bad=bad,
        beside=beside,
    )


def _beside(
    rows: pa.Table, address: str, source: QueueSource
) -> tuple[pa.StructArray | None, dict[int, str]]:
    """The columns that are not of the value; and the messages with one that does not fit."""
    columns: dict[str, pa.Array] = {}
    bad: dict[int, str] = {}
    texts: dict[str, list[bytes | None]] = {}
    if source.message_id:
        ids = rows.column("message_id").to_pylist()
        texts[source.message_id] = [f"{address}#{name}".encode() for name in ids]
    if source.ordering_key:
        texts[source.ordering_key] = rows.column("ordering_key").cast(pa.binary()).to_pylist()
    found = [
        {one["key"]: one["value"] for one in some} for some in rows.column("attributes").to_pylist()
    ] if source.attributes else []  # fmt: skip
    for name, attribute in source.attributes.items():
        if attribute == ALL:
            continue  # Nested, and so not compared.
        # An attribute without a name is what could not be parsed.
        bad |= {at: "its attributes cannot be parsed" for at, some in enumerate(found) if "" in some}
        values = [some.get(attribute) for some in found]
        if source.columns[name] == "binary":
            columns[name] = pa.array(values, pa.binary())
        else:
            texts[name] = values
    for name, values in texts.items():
        columns[name], more = texts_of(name, values)
        bad |= more
    if source.published:
        times = rows.column("published").combine_chunks().cast(pa.int64())
        columns[source.published], more = times_of(source.published, times.to_pylist(), 1_000_000)
        bad |= more
    if not columns:
        return None, bad
    return pa.StructArray.from_arrays(list(columns.values()), list(columns)), bad
