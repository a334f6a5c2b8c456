"""Write the success marker, which makes a finalized batch visible to readers.

Purpose: write the marker whole and durably. A replay's marker replaces the previous one.
How it works: finalize links the first marker to its name, which never replaces a file. It writes a
replay's marker into the folder of the winning attempt and renames it from there, so readers see the
old marker or the new one. Before that, it removes the folder of the attempt that wrote the old
marker. So a finalizer that was paused all that time no longer has a file to rename. In a store, it
puts a replay's marker on condition that the old one is still the version that it has judged.
"""

import io
import json
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semel import failpoints, storage
from semel.archive import layout
from semel.archive.claims import pack_claims, read_claims
from semel.archive.marker import Marker, parse_marker
from semel.errors import AGAIN, CorruptionError
from semel.ledger import Row
from semel.model.batch import Attempt, Batch, Claim, Counts, Pipeline
from semel.model.buckets import Buckets
from semel.model.manifest import MARKER_FORMAT, Kind, ManifestFile
from semel.model.plain import parse_json
from semel.model.times import TimeSet
from semel.pipeline.spec import Spec
from semel.storage import ArchivePath, make_folder, packs, sync_folder, write_new

CLAIMS_IN_MARKER_MAX = 16
"""The most claims that a marker lists itself, 5 KB. More go to a Parquet file next to it, which
costs finalize two more fsyncs, and readers of the claims an open."""

ENDS = "time_min", "time_max"

_OF_OUTPUT = (
    "spec", "spec_digest", "parser_rules", "sink_schema", "sink", "counts", "code", "code_digest",
    "exact_from", "frontier", "complete_to",
)  # fmt: skip
"""Keys that every replay sets. The other keys keep the values of the replayed batch."""
_OF_INPUT = ("input_digest", "claims")
"""Keys that a replay sets, too, if it judges its records itself."""
_OF_ATTEMPT = ("batch_id", "fence", "replay", "files", "counts")
"""Keys that distinguish the markers of two attempts."""


def marker_content(
    spec: Spec,
    pipeline: Pipeline,
    batch: Batch,
    winner: Row,
    counts: Counts,
    files: list[ManifestFile],
    times: list[Row],
) -> dict[str, Any]:
    """The success marker, without claims. Readers need only it and the files that it lists."""
    attempt = Attempt.from_row(winner)
    return {
        "format": MARKER_FORMAT,
        "pipeline": spec.name,
        "bucket_seconds": pipeline.bucket_seconds,
        "batch_id": batch.batch_id,
        "fence": attempt.fence,
        "request_key": batch.request_key,
        "commit_seq": batch.commit_seq,
        "batch_time": batch.batch_time.isoformat() if batch.batch_time else None,
        "interval": [
            t.isoformat() if t else None for t in (batch.interval_start, batch.interval_end)
        ],
        "spec": batch.spec,
        "spec_digest": batch.spec_digest,
        "parser_rules": batch.spec["parser_rules"],
        "input_digest": attempt.input_digest,
        "sink_schema": json.loads(attempt.sink_schema or "[]"),
        "sink": {"type": batch.spec["sink"]["type"], "address": pipeline.sink_address},
        "counts": asdict(counts),
        **_admits(batch),
        **({"exact_from": pipeline.exact_from} if (pipeline.exact_from or 1) > 1 else {}),
        **_times(times),
        **_covers(None if winner["covers"] is None else TimeSet.from_ledger(winner["covers"])),
        **_buckets(None if winner["buckets"] is None else Buckets.from_ledger(winner["buckets"])),
        "files": [
            {
                "kind": file.kind,
                "root": "sink" if file.kind is Kind.DATA else "archive",
                "path": _below(file, pipeline),
                "records": file.records,
                "bytes": file.bytes,
                "checksum": file.checksum,
            }
            for file in files
        ],
    }


def _admits(batch: Batch) -> dict[str, Any]:
    if batch.admits is None:
        return {}
    return {"admits": {"batch_id": batch.admits, "admission": batch.admission}}


def _buckets(buckets: Buckets | None) -> dict[str, Any]:
    return {} if buckets is None else {"buckets": buckets.ranges}


def _covers(covers: TimeSet | None) -> dict[str, Any]:
    return {} if covers is None else {"covers": covers.to_plain()}


def _times(times: list[Row]) -> dict[str, Any]:
    entries = [
        [r["source_partition_id"], *(r[key].astimezone(UTC).isoformat() for key in ENDS)]
        for r in times
    ]
    return {"times": entries} if entries else {}


# Keeps W3, W7.
def completeness(state: Row, *, timed: bool) -> dict[str, Any]:
    """The marker's keys `frontier` and `complete_to`, for the moment when the batch is finalized.

    `complete_to` is the end of the complete windows. `frontier` is the last batch such that all up
    to it are finalized, and belong to one survey of the source or to intervals without a gap.
    """
    complete_to = state["event_time"] if timed else None
    return {
        "frontier": state["frontier"],
        **({"complete_to": complete_to.astimezone(UTC).isoformat()} if complete_to else {}),
    }


def _below(file: ManifestFile, pipeline: Pipeline) -> str:
    """A file's path relative to its root."""
    if file.kind is Kind.DATA and not pipeline.sink_address.startswith("/"):
        return file.final_path.rpartition("#")[2]  # The address may have changed since.
    if file.kind is Kind.DATA and (name := file.final_path.removeprefix(pipeline.sink_address)):
        return name.lstrip("/")
    archive = storage.at(pipeline.archive_path)
    return str(storage.at(file.final_path).relative_to(archive))


def _keep_claims(
    root: ArchivePath, batch_id: int, claims: list[Claim], *, part: int
) -> dict[str, Any]:
    """Write the claims next to the marker, durably. Returns the marker's entry for them.

    An existing file is right if it has the same ranges: a source file may have grown or got another
    name after an earlier attempt wrote it.
    """
    path = layout.batch_file(root, Kind.CLAIMS, batch_id, part)
    make_folder(path.parent)
    # Keeps F5, F6.
    try:
        write_new(path, pack_claims(claims))
    except FileExistsError:
        try:
            same = _ranges(read_claims(path)) == _ranges(claims)
        except CorruptionError:
            same = False
        if not same:
            raise CorruptionError(
                f"{path}: this file has other claims than batch {batch_id}. Nothing was changed. "
                "Remove it, then run finalize again"
            ) from None
        sync_folder(path.parent)
    return marker_entry(path, root, Kind.CLAIMS, len(claims))


def write_refused(path: ArchivePath, rows: pa.Table) -> None:
    """Write the rows that the sink refuses, durably. Replaces those of an unsuccessful try."""
    make_folder(path.parent)
    path.unlink(missing_ok=True)
    file = io.BytesIO()
    pq.write_table(rows, file, compression="zstd")
    write_new(path, file.getvalue())


def marker_entry(
    path: ArchivePath, root: ArchivePath, kind: Kind, records: int
) -> dict[str, Any]:
    """The marker's entry for a file that finalize wrote."""
    facts = storage.stat(path)
    return {
        "kind": kind,
        "root": "archive",
        "path": str(path.relative_to(root)),
        "records": records,
        "bytes": facts.size,
        "checksum": facts.checksum or storage.checksum(path),
    }


def _ranges(claims: Iterable[Claim]) -> list[tuple[int, int, int, int]]:
    return [(c.ordinal, c.source_partition_id, c.start, c.end) for c in claims]


def write_first_marker(
    archive: ArchivePath, batch: Batch, content: dict[str, Any], claims: list[Claim]
) -> None:
    """Write the first marker of a batch, or prove that the existing marker is the same attempt's.

    Keeps the marker of a replay, because the batch was finalized before its replay. Writes many
    claims to a separate file.
    """
    _add_claims(archive, batch, content, claims)
    marker = layout.marker(archive, batch.batch_id)
    make_folder(marker.parent)
    try:
        write_new(marker, _text(content))
    except FileExistsError:
        existing = parse_json(packs.read_marker_bytes(marker))
        if existing.get("generation", 1) > 1:
            return
        _check_same(marker, existing, content)
        sync_folder(marker.parent)


def _add_claims(
    archive: ArchivePath, batch: Batch, content: dict[str, Any], claims: list[Claim]
) -> None:
    if len(claims) > CLAIMS_IN_MARKER_MAX:
        part = sum(file["kind"] != Kind.REFUSED for file in content["files"])
        content["files"].append(_keep_claims(archive, batch.batch_id, claims, part=part))
    else:
        content["claims"] = [asdict(claim) for claim in claims]


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


# Keeps RP5.
def replace_marker(
    archive: ArchivePath,
    batch: Batch,
    winner: Row,
    output: dict[str, Any],
    earlier: list[Row],
    claims: list[Claim],
) -> None:
    """Replace the marker with that of a replay, or prove that this has happened already.

    `output`: the replay's own marker, with its refused rows. `earlier`: its earlier generations,
    oldest first, each with the fence of its winning attempt. `claims`: the ranges that the replay
    read. Raises CorruptionError if the existing marker is not of the previous generation.
    """
    path = layout.marker(archive, batch.root)
    if batch.judges:
        _add_claims(archive, batch, output, claims)
    # This comes first: from here on, only a finalizer of this generation can change the marker.
    # Keeps RP6.
    storage.fence_off(layout.attempt(archive, earlier[-1]["batch_id"], earlier[-1]["fence"]))
    failpoints.point("finalize.before_replace")
    text, version, current = _current_marker(path, batch)
    if current.generation > batch.generation:
        return  # A later replay replaced this one, so this one is finalized.
    new = _successor(text, batch, winner, output)
    if current.generation == batch.generation:
        _check_same(path, parse_json(text), new)
    else:
        _keep_aside(layout.replaced_marker(archive, batch.root, current.generation), text, current)
        _swap(path, new, version, layout.attempt(archive, batch.batch_id, winner["fence"]))
    sync_folder(path.parent)


def _current_marker(path: ArchivePath, batch: Batch) -> tuple[bytes, object, Marker]:
    """The text, version and value of the current marker, which is the one to replace or already the
    replacement.
    """
    copies = layout.replaced_marker(path.parents[1], batch.root, batch.generation - 1).parent
    advice = (
        "Nothing was changed. Restore the marker of generation "
        f"{batch.generation - 1} from a backup (copies of earlier ones are in {copies})"
    )
    try:
        text, version = packs.read_marker_version(path)
    except FileNotFoundError:
        raise CorruptionError(
            f"{path}: batch {batch.batch_id} replaces this marker, which is missing. {advice}",
            next=AGAIN,
        ) from None
    marker = parse_marker(text, path, None)
    if marker.pipeline != batch.spec["name"] or marker.generation < batch.generation - 1:
        raise CorruptionError(
            f"{path}: this marker is of generation {marker.generation} of {marker.pipeline!r}, but "
            f"batch {batch.batch_id} replaces generation {batch.generation - 1} of "
            f"{batch.spec['name']!r}. {advice}",
            next=AGAIN,
        )
    return text, version, marker


def _successor(text: bytes, batch: Batch, winner: Row, output: dict[str, Any]) -> dict[str, Any]:
    """The marker of a replay: the previous marker with the new output instead of the old."""
    old, replaced, keys = parse_json(text), (Kind.DATA, Kind.REFUSED), _OF_OUTPUT
    if batch.judges:
        replaced, keys = tuple(Kind), (*_OF_OUTPUT, *_OF_INPUT)
    new = [file for file in output["files"] if file["kind"] in replaced]
    unchanged = [file for file in old["files"] if file["kind"] not in replaced]
    return {
        **{key: value for key, value in old.items() if key not in keys},
        **{key: output[key] for key in keys if key in output},
        "files": [*new, *unchanged],
        "generation": batch.generation,
        "replaces": [{"batch_id": batch.root, "generation": batch.generation - 1}],
        "replay": {
            "batch_id": batch.batch_id,
            "fence": winner["fence"],
            "request_key": batch.request_key,
            "committed_at": winner["ended_at"].astimezone(UTC).isoformat(),
        },
    }


# Keeps ER1.
def rewrite_marker(path: ArchivePath, content: dict[str, Any], version: object) -> None:
    """Replace the marker of a finalized batch, some of whose data a person erased, in one step.

    The caller holds the lock of the pipeline. `version`: of the marker that it has read.
    """
    storage.swap(path, _text(content), version, through=path.parent)
    sync_folder(path.parent)


def _check_same(path: ArchivePath, existing: dict[str, Any], content: dict[str, Any]) -> None:
    """Raise CorruptionError if the `existing` marker is not the winning attempt's."""
    if any(existing.get(key) != content.get(key) for key in _OF_ATTEMPT):
        output = content.get("replay", content)
        raise CorruptionError(
            f"{path}: this marker does not match the ledger. Nothing was changed. Compare its "
            "attempt with the ledger's, and restore the right marker from a backup",
            next=f"semel show {output['batch_id']}",
        ) from None


# Keeps RP5.
def _keep_aside(path: ArchivePath, text: bytes, marker: Marker) -> None:
    """Keep a copy of the old marker, durably."""
    make_folder(path.parent)
    try:
        write_new(path, text)
    except FileExistsError:
        copy = parse_marker(path.read_bytes(), path, None)
        if (copy.generation, copy.files) != (marker.generation, marker.files):
            raise CorruptionError(
                f"{path}: this file should be a copy of the current marker, of generation "
                f"{marker.generation}, but differs from it. Nothing was changed. Move it out of "
                "the archive",
                next=AGAIN,
            ) from None
        sync_folder(path.parent)


def _swap(
    path: ArchivePath, content: dict[str, Any], version: object, attempt: ArchivePath
) -> None:
    """Replace the marker through its attempt's folder.

    Raises CorruptionError if the folder is missing, as it is after the batch was finalized.
    """
    try:
        storage.swap(path, _text(content), version, through=attempt)
    except FileNotFoundError as error:
        folder = shlex.quote(str(attempt))
        raise CorruptionError(
            f"{attempt}: finalize writes the new marker {path.name} into this folder first, and it "
            f"is missing. Nothing was changed. Create it: mkdir -p {folder}",
            next=AGAIN,
        ) from error
