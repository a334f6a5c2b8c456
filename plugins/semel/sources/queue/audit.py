"""How the audit reads segments again: with its own reader, which never uses the foot.

It finds the file with the claimed content by a digest of all bytes. It walks the groups from the
start of the file; pyarrow reads each group.
"""

import json
import os
import struct
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa

from semel.errors import SourceError
from semel.model.batch import Claim
from semel.sources.messages import ALL
from semel.sources.queue.spec import QueueSourceSpec
from semel.sources.reread import (
    Auditor,
    ClaimedMessages,
    ClaimedRecords,
    RecordsLostError,
    build_columns,
    csv_faults,
    text_columns,
)
from semel.sources.sealed.audit import FilesByContent

_HEADER = struct.Struct("<4sIQQ")
"""Before each body: its kind, number of messages, length in bytes and checksum."""

_GROUP = b"SQG1"


def opened(source: QueueSourceSpec, claims: Iterable[Claim]) -> AbstractContextManager[Auditor]:  # noqa: ARG001
    """Return an auditor that reads the declared spool."""
    return nullcontext(_Spool(source))


class _Spool(Auditor):
    """Finds claimed segments in the spools of all pipelines and reads their messages."""

    def __init__(self, source: QueueSourceSpec) -> None:
        self._root, self._files = source.folder(), FilesByContent()

    def read(
        self,
        claim: Claim,
        batch: int,
        source: QueueSourceSpec,
        record_id: Collection[str],  # noqa: ARG002
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        path = self._files.path(claim, self._candidates(claim))
        if path is None:
            name = Path(claim.evidence["content"]).name
            if any((spool / "removed" / name).exists() for spool in self._root.glob("*")):
                raise RecordsLostError(
                    f"{claim.name!r}: collect removed this segment after source.keep_spool"
                )
            raise SourceError("no segment in the spool has the claimed content")
        return text_columns(source), _read(path, claim, batch, source)

    def _candidates(self, claim: Claim) -> Iterator[Path]:
        yield from sorted(self._root.glob("*/sealed/*"), key=lambda path: path.name != claim.name)


def _id_address(segment: str, claim: Claim, source: QueueSourceSpec) -> str:
    """The prefix of a claim's ids, from its evidence. Raises SourceError if neither the segment nor
    the declaration allows it.
    """
    address = claim.evidence.get("address", segment)
    declared = f"nats:{getattr(source, 'address', None)}"
    # After @ comes the time at which the stream was created.
    if address.partition("@")[0] not in {each.partition("@")[0] for each in (segment, declared)}:
        raise SourceError(f"the messages come from {segment}, but their ids from {address}")
    return address


def _read(
    path: Path, claim: Claim, batch: int, source: QueueSourceSpec
) -> Iterator[ClaimedRecords]:
    """Yield the claimed messages, group by group."""
    with open(path, "rb") as file:
        _, _, length, _ = _HEADER.unpack(file.read(_HEADER.size))
        address = _id_address(json.loads(file.read(length))["address"], claim, source)
        first = 0
        while first < claim.end:
            magic, count, length, _ = _HEADER.unpack(file.read(_HEADER.size))
            if magic != _GROUP:
                raise SourceError(f"the segment has {first} messages, but {claim.end} were read")
            low, high = max(claim.start - first, 0), min(claim.end - first, count)
            if low < high:
                with pa.ipc.open_stream(file.read(length)) as stream:
                    rows = stream.read_all().slice(low, high - low)
                yield _lines(rows, first + low, address, claim, batch, source)
            else:
                file.seek(length, os.SEEK_CUR)
            first += count


def _lines(
    rows: pa.Table, first: int, address: str, claim: Claim, batch: int, source: QueueSourceSpec
) -> ClaimedMessages:
    values = rows.column("value").to_pylist()
    beside, bad = _beside(rows, address, source)
    if source.value == "csv":
        bad |= csv_faults(dict(enumerate(values)), source.csv.delimiter)
    return ClaimedMessages(
        batch=batch,
        claim=claim,
        data=b"".join(values),
        bounds=np.concatenate(([0], np.cumsum([len(value) for value in values]))),
        positions=np.arange(first, first + len(values)),
        is_record=np.ones(len(values), bool),
        faults=bad,
        unparsed_columns=beside,
    )


def _beside(
    rows: pa.Table, address: str, source: QueueSourceSpec
) -> tuple[pa.StructArray | None, dict[int, str]]:
    """The columns that the value does not fill, and the messages with a value that does not fit."""
    raw: dict[str, list[bytes | None]] = {}
    times, bad = {}, {}
    if source.message_id:
        ids = rows.column("message_id").to_pylist()
        raw[source.message_id] = [f"{address}#{name}".encode() for name in ids]
    if source.ordering_key:
        raw[source.ordering_key] = rows.column("ordering_key").cast(pa.binary()).to_pylist()
    named = {name: key for name, key in source.attributes.items() if key != ALL}  # ALL is nested.
    if named:
        attributes = [
            {each["key"]: each["value"] for each in pairs}
            for pairs in rows.column("attributes").to_pylist()
        ]
        raw |= {name: [each.get(key) for each in attributes] for name, key in named.items()}
        # The receiver could not parse an attribute without a name.
        unparsed = (at for at, each in enumerate(attributes) if "" in each)
        bad = dict.fromkeys(unparsed, "its attributes cannot be parsed")
    if source.published:
        published = rows.column("published").combine_chunks().cast(pa.int64())
        times[source.published] = published.to_pylist()
    beside, unfit = build_columns(source.columns, raw, times, per_second=1_000_000)
    return beside, bad | unfit
