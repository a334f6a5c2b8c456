"""The manifest: the files of an attempt. Tasks return them, the driver seals the manifest, and
finalize publishes its files.
"""

import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from semel.model.batch import Counts, Ignored
from semel.model.buckets import Buckets

if TYPE_CHECKING:
    import pyarrow as pa

# Keeps L6.
MARKER_FORMAT = 4
"""The format of the success markers that finalize writes and readers read."""


class Kind(StrEnum):
    """The kind of a batch's file. Finalize writes CLAIMS and REFUSED; manifests have the others."""

    DATA = "data"
    DECISIONS = "decisions"
    DEAD_LETTERS = "dead_letters"
    CLAIMS = "claims"
    IDS = "ids"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class StagedFile:
    """A closed, fsynced file of an attempt. `folder`: its place below the sink, '' for the root.

    `stands_for`: the number of records that partial rows count, or None if each row is a record.
    `shard`: the shard of the folder.
    """

    kind: Kind
    path: str
    folder: str
    suffix: str
    records: int
    bytes: int
    checksum: str
    stands_for: int | None = None
    shard: int = 0


def pack_files(files: tuple[StagedFile, ...]) -> bytes:
    """Encode files for the shuffle or the driver."""
    return json.dumps([asdict(file) for file in files]).encode()


def unpack_files(data: bytes) -> tuple[StagedFile, ...]:
    """Decode the files from `pack_files`."""
    return staged_files(json.loads(data))


def staged_files(plain: list[dict[str, Any]]) -> tuple[StagedFile, ...]:
    """The files from plain JSON."""
    return tuple(StagedFile(**{**file, "kind": Kind(file["kind"])}) for file in plain)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A dead letter: its split, its offset in the source, its fault, and the beginning of its text.
    The last two are empty with `limits.log_samples: false`.
    """

    split: int
    offset: int
    detail: str = ""
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class SplitReport:
    """The result of one split. `digest` covers the bytes read and their outcomes.

    `buckets`: the record-time buckets of its ids, in scope `bucket`. `times`: the first and last
    record time of its valid records, in microseconds since 1970, if the pipeline has windows.
    `parsed_bytes`: the bytes read; `quarantined_bytes`: the bytes of quarantined records. `samples`
    has one record for each of the `reasons`. The split's valid rows begin at `first_row` of the
    task's. `spill`: the name of the file with these. `kept`: that of a mask over them, for
    transforms.
    """

    split: int
    digest: str
    counts: Counts
    files: tuple[StagedFile, ...] = ()
    spill: str | None = None
    first_row: int = 0
    kept: str | None = None
    buckets: Buckets | None = None
    times: tuple[int, int] | None = None
    parsed_bytes: int = 0
    quarantined_bytes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    samples: dict[str, Sample] = field(default_factory=dict)
    ignored: Ignored = Ignored()


def pack_reports(reports: list[SplitReport]) -> bytes:
    """Encode the reports of a task for the shuffle or the driver."""
    return json.dumps([asdict(report) for report in reports]).encode()


def unpack_reports(data: bytes) -> list[SplitReport]:
    """Decode the reports from `pack_reports`."""
    return list(map(_report, json.loads(data)))


def _report(plain: dict[str, Any]) -> SplitReport:
    plain["counts"] = Counts(**plain["counts"])
    plain["ignored"] = Ignored(**plain["ignored"])
    plain["samples"] = {why: Sample(**one) for why, one in plain["samples"].items()}
    plain["files"] = staged_files(plain["files"])
    plain["times"] = plain["times"] and tuple(plain["times"])
    if plain["buckets"] is not None:
        plain["buckets"] = Buckets(tuple(plain["buckets"]["bounds"]))
    return SplitReport(**plain)


@dataclass(frozen=True, kw_only=True)
class ManifestFile:
    """A file of a sealed manifest, with the name that finalize gives it. Paths are absolute."""

    kind: Kind
    staged_path: str
    final_path: str
    records: int
    bytes: int
    checksum: str


@dataclass(frozen=True, kw_only=True)
class MarkedFile:
    """A file that a marker lists. `path` is relative to the sink for data, else to the archive."""

    kind: Kind
    path: str
    records: int
    bytes: int
    checksum: str


class Published(Protocol):
    """The receipt of a finalized batch, as in its marker."""

    path: Path
    sink: Path | None
    pipeline: str
    batch_id: int
    commit_seq: int
    spec: Any
    sink_schema: "pa.Schema"

    @property
    def writer_id(self) -> int: ...
    @property
    def committed_at(self) -> datetime: ...
    @property
    def erased_rows(self) -> int: ...
    def read_bytes(self) -> bytes: ...
    def path_of(self, file: MarkedFile) -> Path: ...
    def of_kind(self, kind: Kind) -> tuple[MarkedFile, ...]: ...
