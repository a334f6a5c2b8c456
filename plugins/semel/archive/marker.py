"""Read the success marker of a finalized batch.

A marker is one JSON file that lists the batch's files; docs/protocol.md gives its fields.
write_marker.py writes it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from semel.archive import layout
from semel.archive.claims import read_claims, to_claim, typed
from semel.archive.provenance import CodeDigests
from semel.errors import CorruptionError, SpecError
from semel.model.batch import Claim, Counts
from semel.model.buckets import Buckets
from semel.model.manifest import MARKER_FORMAT, Kind, MarkedFile
from semel.model.plain import parse_json
from semel.model.times import TimeSet
from semel.pipeline.spec import Spec
from semel.sinks.spec import archive_of
from semel.storage import ArchivePath, checksum, each, packs, stat

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The batch that recomputed another batch's output, and when it committed."""

    batch_id: int
    fence: int
    request_key: str
    committed_at: str


@dataclass(frozen=True, kw_only=True)
class MarkedAdmission:
    """An admission: its number, and the batch whose remaining dead letters it judged again."""

    batch_id: int
    admission: int


@dataclass(frozen=True, kw_only=True)
class MarkedErasure:
    """An erasure that a person recorded: rows of a batch's output, and records of its files in the
    archive.
    """

    at: str
    by: str
    why: str
    rows: int
    records: int


@dataclass(frozen=True, kw_only=True)
class Marker:
    """The success marker of one finalized batch.

    `sink` is the output folder as the caller gave it, or None if the output is not a folder.
    `address` is the sink's address when finalize wrote the marker. `sink_columns` has names and
    Arrow types as the marker's text, `sink_schema` as types. docs/protocol.md explains
    `generation`, `replay`, `admits`, `code`, `code_digest`, `parser_rules`, `buckets`, `covers`,
    `times`, `complete_to`, `exact_from` and `erased`. If `has_added_ids`, `files` also lists the
    ids files that `semel exact` added to an at-least-once batch.
    """

    path: ArchivePath
    sink: Path | None
    address: str
    pipeline: str
    batch_id: int
    fence: int
    request_key: str
    commit_seq: int
    batch_time: datetime
    interval: tuple[datetime | None, datetime | None]
    bucket_seconds: int
    spec: Spec
    spec_digest: str
    input_digest: str
    sink_schema: "pa.Schema"
    sink_columns: list[list[str]]
    counts: Counts
    claims_listed: tuple[Claim, ...]
    files: tuple[MarkedFile, ...]
    generation: int
    replay: Replay | None
    admits: MarkedAdmission | None
    code: CodeDigests | None
    code_digest: str | None
    parser_rules: int
    buckets: Buckets | None
    covers: TimeSet
    times: dict[int | None, tuple[datetime, datetime]]
    complete_to: datetime | None
    exact_from: int | None
    erased: tuple[MarkedErasure, ...] = ()
    has_added_ids: bool = False

    @property
    def exact(self) -> bool:
        """Whether the batch dropped repeats by id, which at-least-once and by-position ones do not.

        A replay's declaration may have another guarantee than that of its root.
        """
        return not self.spec.by_position and self.commit_seq >= (self.exact_from or 1)

    @property
    def erased_rows(self) -> int:
        """The number of output rows that a person recorded as erased."""
        return sum(erasure.rows for erasure in self.erased)

    @property
    def writer_id(self) -> int:
        """The batch that wrote the output: this batch, or its newest replay."""
        return self.replay.batch_id if self.replay else self.batch_id

    @property
    def committed_at(self) -> datetime:
        """When the batch that wrote the output committed."""
        return datetime.fromisoformat(self.replay.committed_at) if self.replay else self.batch_time

    @property
    def archive(self) -> ArchivePath:
        """The archive folder that contains the marker."""
        return self.path.parents[1]

    def read_bytes(self) -> bytes:
        """The marker's bytes, from its file or from a pack. Raises FileNotFoundError."""
        return packs.read_marker_bytes(self.path)

    def path_of(self, file: MarkedFile) -> ArchivePath:
        """The path of a listed file. A data file has one only in a sink of files."""
        return (self.sink if file.kind is Kind.DATA else self.archive) / file.path

    def is_whole(self, file: MarkedFile) -> bool:
        """Whether a listed file has its size and checksum. Raises OSError if it is unreadable."""
        path = self.path_of(file)
        return stat(path).size == file.bytes and checksum(path) == file.checksum

    def target_of(self, file: MarkedFile) -> str:
        """The name of a listed file in the ledger."""
        if file.kind is Kind.DATA and self.sink is None:
            return f"{self.address}#{file.path}"
        return str(self.path_of(file))

    def of_kind(self, kind: Kind) -> tuple[MarkedFile, ...]:
        """The files of one kind, in the marker's order."""
        return tuple(file for file in self.files if file.kind is kind)

    @property
    def added_ids_paths(self) -> dict[str, ArchivePath]:
        """Paths of the ids files that exact may add to an at-least-once batch, by listed path."""
        if self.exact or not self.spec.record_id:
            return {}
        shards = range(self.spec.dedup.shards)
        root, number = self.archive, self.batch_id
        paths = (layout.batch_file(root, Kind.IDS, number, shard) for shard in shards)
        return {str(path.relative_to(root)): path for path in paths}

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The batch's claims, from the marker or from the file next to it.

        Raises CorruptionError if that file is damaged or missing.
        """
        in_files = (read_claims(self.path_of(file)) for file in self.of_kind(Kind.CLAIMS))
        return (*self.claims_listed, *(claim for claims in in_files for claim in claims))

    @cached_property
    def ranges(self) -> tuple[Claim, ...]:
        """The claims that contain the batch's records. Those of an admission are its root's.

        Raises CorruptionError if the root's marker is damaged or missing.
        """
        if self.admits is None:
            return self.claims
        return read_marker(layout.marker(self.archive, self.admits.batch_id), self.sink).claims


def markers_of(spec: Spec) -> list[Marker]:
    """The markers of a pipeline's finalized batches, in commit order.

    Raises CorruptionError if a file there is not a marker.
    """
    return markers_in(spec.sink_path(), layout.archive_folder(spec))


def markers(sink_path: str | Path, archive_path: Path | None = None) -> list[Marker]:
    """The markers of a sink folder, in commit order. Raises CorruptionError as `markers_of` does.

    `archive_path`: their archive, if the pipeline declares `sink.archive`.
    """
    sink = Path(sink_path)
    return markers_in(sink, archive_path or archive_of(sink))


def markers_in(sink: Path | None, archive: ArchivePath) -> list[Marker]:
    """Like `markers_of`, for a sink folder (None if the sink is not a folder) and an archive."""
    listed = _listed_paths(archive)

    def read(path: ArchivePath) -> Marker:
        text = None if path in listed else packs.read_packed_marker(path)
        return parse_marker(text, path, sink)

    markers = each(archive, read, marker_paths(archive, listed))
    return sorted(markers, key=lambda marker: marker.commit_seq)


def generations(marker: Marker) -> list[Marker]:
    """The markers of all outputs of a batch, oldest first. The newest is `marker`.

    Raises CorruptionError if the copy of a replaced marker is missing or damaged.
    """
    earlier = range(1, marker.generation)
    paths = [layout.replaced_marker(marker.archive, marker.batch_id, number) for number in earlier]
    return [*(read_marker(path, marker.sink) for path in paths), marker]


def judging_output(outputs: Sequence[Marker]) -> Marker:
    """The output whose verdicts the last of a batch's outputs uses. `outputs`: oldest first.

    A replay with the same claims uses the verdicts of the output that it replaced.
    """
    *earlier, judge = outputs
    for marker in reversed(earlier):
        if marker.claims != judge.claims:
            break
        judge = marker
    return judge


def marker_paths(
    archive: ArchivePath, listed: Collection[ArchivePath] | None = None
) -> list[ArchivePath]:
    """The files that should be markers, also those in packs. `listed`: those in the folder.

    Raises CorruptionError if a pack is damaged.
    """
    # The packs come last: collect writes one before it removes the markers.
    found = {*(_listed_paths(archive) if listed is None else listed)}
    return sorted(found | {layout.marker(archive, number) for number in packs.packed(archive)})


def _listed_paths(archive: ArchivePath) -> set[ArchivePath]:
    """The files in the folder of markers, without hidden ones, which are leftovers of a crash."""
    # Keeps R2.
    return {p for p in layout.markers(archive).glob("*") if not p.name.startswith(".")}


def read_marker(path: ArchivePath, sink: Path | None) -> Marker:
    """Read one marker. Raises CorruptionError if it is damaged or has an unknown format."""
    return parse_marker(None, path, sink)


def parse_marker(text: bytes | None, path: ArchivePath, sink: Path | None) -> Marker:
    """Like `read_marker`. `text`: the file's content, if the caller has read it already."""
    try:
        plain = parse_json(packs.read_marker_bytes(path) if text is None else text)
        # Keeps R3.
        if plain["format"] != MARKER_FORMAT:
            raise ValueError(f"its format is {plain['format']!r}, not {MARKER_FORMAT}")
        replaced = {"batch_id": plain["batch_id"], "generation": plain.get("generation", 1) - 1}
        # A replay's marker has the file name of the marker that it replaces.
        if "replaces" in plain and not ("replay" in plain and plain["replaces"] == [replaced]):
            raise ValueError(f"this version of semel does not know replaces {plain['replaces']!r}")
        return _marker(path, sink, plain)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SpecError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise CorruptionError(
            f"{path}: semel cannot read this marker: {why}. Restore it from a backup"
        ) from error


def _marker(path: ArchivePath, sink: Path | None, plain: dict[str, Any]) -> Marker:
    import pyarrow as pa  # Commands that list files start without Arrow.

    from semel.model.arrow import arrow_type

    spec = Spec.from_json(plain["spec"])
    marker = Marker(
        path=path,
        sink=sink,
        address=plain["sink"]["address"],
        pipeline=plain["pipeline"],
        batch_id=int(plain["batch_id"]),
        fence=plain["fence"],
        request_key=plain["request_key"],
        commit_seq=int(plain["commit_seq"]),
        batch_time=datetime.fromisoformat(plain["batch_time"]),
        interval=tuple(t and datetime.fromisoformat(t) for t in plain["interval"]),
        bucket_seconds=int(plain["bucket_seconds"]),
        spec=spec,
        spec_digest=plain["spec_digest"],
        input_digest=plain["input_digest"],
        sink_columns=plain["sink_schema"],
        sink_schema=pa.schema([(name, arrow_type(text)) for name, text in plain["sink_schema"]]),
        counts=typed(Counts, plain["counts"]),
        claims_listed=tuple(map(to_claim, plain.get("claims", ()))),
        files=tuple(map(_file, plain["files"])),
        generation=int(plain.get("generation", 1)),
        replay=typed(Replay, plain["replay"]) if "replay" in plain else None,
        admits=typed(MarkedAdmission, plain["admits"]) if "admits" in plain else None,
        code=CodeDigests.from_json(plain["code"]) if "code" in plain else None,
        code_digest=plain.get("code_digest"),
        parser_rules=int(plain.get("parser_rules", 1)),
        buckets=Buckets.of_ranges(plain["buckets"]) if "buckets" in plain else None,
        covers=TimeSet.from_plain(plain.get("covers", ())),
        times=dict(map(_time, plain.get("times", ()))),
        complete_to=_complete_to(plain),
        exact_from=plain.get("exact_from", spec.exact_from),
        erased=tuple(typed(MarkedErasure, one) for one in plain.get("erased", ())),
    )
    if spec.record_id and not marker.exact and (added := _added_ids_files(marker)) is not None:
        marker = replace(marker, files=(*marker.files, *added), has_added_ids=True)
    if ("claims" in plain) == bool(marker.of_kind(Kind.CLAIMS)):
        raise ValueError("it must have either its claims or a file of the kind `claims`")
    names = [
        layout.marker(Path(), marker.batch_id).name,
        layout.replaced_marker(Path(), marker.batch_id, marker.generation).name,
    ]
    if path.name not in names:
        raise ValueError(f"its batch_id, {marker.batch_id}, does not match its file name")
    if any((key in plain) != (marker.generation > 1) for key in ("replay", "replaces")):
        raise ValueError(
            "`replay` and `replaces` belong to generations from 2 on, and its generation is "
            f"{marker.generation}"
        )
    if plain["sink"]["type"] != marker.spec.sink.type:
        raise ValueError(
            f"its sink.type is {plain['sink']['type']!r}, and {marker.spec.sink.type!r} in its spec"
        )
    for file in marker.files:
        parts = PurePosixPath(file.path)
        # Keeps R4.
        if parts.is_absolute() or ".." in parts.parts:
            raise ValueError(f"it lists {file.path!r}, which points outside of its root")
    return marker


def _added_ids_files(marker: Marker) -> tuple[MarkedFile, ...] | None:
    """The ids files that exact added to the batch. Returns None without a valid list.

    A damaged list is no error: output and source have the ids too, and the audit reports a stray.
    """
    try:
        listed = parse_json(layout.ids_list(marker.archive, marker.batch_id).read_bytes())
        files = tuple(map(_file, listed["files"]))
        paths = {file.path for file in files if file.kind is Kind.IDS}
        valid = len(paths) == len(files) and paths <= marker.added_ids_paths.keys()
        return files if valid and sum(file.records for file in files) == listed["ids"] else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _complete_to(plain: dict[str, Any]) -> datetime | None:
    """The end of the windows that were complete when the batch was finalized."""
    if "complete_to" in plain:
        return datetime.fromisoformat(plain["complete_to"])
    if "frontier" in plain or not plain.get("times"):
        return None
    # An older version of semel wrote this marker, without a frontier.
    last = max(end for _, end in (_time(one)[1] for one in plain["times"]))
    return min(last, datetime.fromisoformat(plain["batch_time"]))


def _time(plain: list[Any]) -> tuple[int | None, tuple[datetime, datetime]]:
    """The first and last record time of a source partition, or of all if it is None.

    Raises ValueError if the first is later than the last.
    """
    partition, first, last = plain
    times = datetime.fromisoformat(first), datetime.fromisoformat(last)
    if times[0] > times[1]:
        raise ValueError(f"its record times are {first} to {last}")
    return None if partition is None else int(partition), times


def _file(plain: dict[str, Any]) -> MarkedFile:
    """A listed file. Raises ValueError if its root is wrong for its kind."""
    kind, path = Kind(plain["kind"]), plain["path"]
    root = "sink" if kind is Kind.DATA else "archive"
    if plain["root"] != root:
        raise ValueError(f"it lists {path!r} with root {plain['root']!r}, expected {root!r}")
    values = {key: value for key, value in plain.items() if key != "root"}
    return typed(MarkedFile, {**values, "kind": kind, "path": path})
