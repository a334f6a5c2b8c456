"""How the audit reads segments again: with its own reader, which never uses the foot.

It finds the file with the claimed content by a digest of all bytes. It walks the groups from the
start of the file; pyarrow reads each group.
"""

import json
import os
import struct
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from semel.errors import CorruptionError, SourceError
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
from semel.storage import StorePath

_HEADER = struct.Struct("<4sIQQ")
"""Before each body: its kind, number of messages, length in bytes and checksum."""

_GROUP = b"SQG1"


def opened(source: QueueSourceSpec, claims: Iterable[Claim]) -> AbstractContextManager[Auditor]:  # noqa: ARG001
    """Return an auditor that reads the declared spool."""
    return closing(_Spool(source))


class _StoredSegments(NamedTuple):
    """A listing of the spools in a store: the segments by size, and the contents that collect has
    removed.
    """

    by_size: Mapping[int, list[StorePath]]
    removed: Collection[str]


class _Spool(Auditor):
    """Finds claimed segments in the spools of all pipelines and reads their messages."""

    def __init__(self, source: QueueSourceSpec) -> None:
        self._copies = tempfile.TemporaryDirectory(prefix="semel-audit-")
        self._root, self._files = source.spools(), FilesByContent()

    def read(
        self,
        claim: Claim,
        batch: int,
        source: QueueSourceSpec,
        record_id: Collection[str],  # noqa: ARG002
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        path = self._copy(claim) if isinstance(self._root, StorePath) else self._path(claim)
        if path is None:
            if self._was_removed(Path(claim.evidence["content"]).name):
                raise RecordsLostError(
                    f"{claim.name!r}: collect removed this segment after source.keep_spool"
                )
            raise SourceError("no segment in the spool has the claimed content")
        return text_columns(source), _read(path, claim, batch, source)

    def close(self) -> None:
        """Delete the copy of an object."""
        self._copies.cleanup()

    def _path(self, claim: Claim) -> Path | None:
        paths = sorted(self._root.glob("*/sealed/*"), key=lambda path: path.name != claim.name)
        return self._files.path(claim, paths)

    def _was_removed(self, content: str) -> bool:
        if isinstance(self._root, StorePath):
            return content in self._stored.removed
        return any((spool / "removed" / content).exists() for spool in self._root.glob("*"))

    @cached_property
    def _stored(self) -> "_StoredSegments":
        root, segments, removed = self._root, defaultdict(list), set()
        for page in root.store.list(root.key):
            for item in page:
                path = replace(root, path=PurePosixPath(item.key))
                if path.parent.name == "removed":
                    removed.add(path.name)
                elif path.parent.name == "sealed":
                    segments[item.size].append(path)
        return _StoredSegments(segments, removed)

    def _copy(self, claim: Claim) -> Path | None:
        """A copy of the object with the claimed content, until the next one."""
        content, size = claim.evidence.get("content"), claim.evidence.get("bytes")
        if content is None or size is None:
            raise CorruptionError(f"the claim of {claim.name!r} lacks the evidence of its content")
        candidates = self._stored.by_size.get(size, ())
        for place in sorted(candidates, key=lambda path: path.name != claim.name):
            with suppress(FileNotFoundError):
                data = place.read_bytes()
                if xxhash.xxh3_128_hexdigest(data) == content:
                    path = Path(self._copies.name, "segment")
                    path.write_bytes(data)
                    return path
        return None


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
