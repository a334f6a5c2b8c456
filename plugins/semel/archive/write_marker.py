"""Write the success marker, which makes a finalized batch visible to readers.

Purpose: write it whole and durably; a replay's marker replaces the one before.
How it works: the first marker is linked to its name, which never replaces anything. A replay's
marker is written into the folder of the winning attempt, and renamed from there: readers see the
old one or the new one. Before a marker is replaced, the folder of the attempt that made it is
removed. So a finalizer that was paused all that time finds nothing left to rename.
"""

import io
import json
import os
import shlex
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semel import failpoints
from semel.archive import layout
from semel.archive.claims import pack_claims, read_claims
from semel.archive.marker import Marker, parse_marker
from semel.errors import AGAIN, CorruptionError, RetryableError
from semel.ledger import Row
from semel.model.batch import Attempt, Batch, Claim, Counts, Pipeline
from semel.model.buckets import Buckets
from semel.model.manifest import MARKER_FORMAT, Kind, ManifestFile
from semel.model.plain import parse_json
from semel.model.times import TimeSet
from semel.pipeline.spec import Spec
from semel.storage import (
    Sealed,
    checksum,
    make_folder,
    remove_folder,
    sync_folder,
    write_new,
)

CLAIMS_IN_MARKER_MAX = 16
"""Claims listed in a marker itself, 5 KB; more go to a Parquet file beside it. A file for every
batch would cost small batches two more fsyncs, and readers of their claims an open."""

ENDS = "time_min", "time_max"

_ROUNDS_MAX = 8  # A paused process writes one file there, and then fails.
_OF_OUTPUT = (
    "spec", "spec_digest", "parser_rules", "sink_schema", "sink", "counts", "code", "code_digest",
    "exact_from", "frontier", "complete_to",
)  # fmt: skip
"""Keys that a replay sets. The others stay those of the batch that it replays."""
_OF_INPUT = ("input_digest", "claims")
"""Keys that one sets, too, that judges its records."""
_OF_ATTEMPT = ("batch_id", "fence", "replay", "files", "counts")
"""Keys that distinguish the markers of two attempts."""


def content(
    spec: Spec,
    pipeline: Pipeline,
    batch: Batch,
    won: Row,
    counts: Counts,
    files: list[ManifestFile],
    times: list[Row],
) -> dict[str, Any]:
    """The success marker without its claims. With the files it lists, readers need nothing else."""
    attempt = Attempt.from_row(won)
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
        **_covers(None if won["covers"] is None else TimeSet.from_ledger(won["covers"])),
        **_buckets(None if won["buckets"] is None else Buckets.from_ledger(won["buckets"])),
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
    found = [
        [r["source_partition_id"], *(r[key].astimezone(UTC).isoformat() for key in ENDS)]
        for r in times
    ]
    return {"times": found} if found else {}


# Keeps W3, W7.
def complete(now: Row, *, timed: bool) -> dict[str, Any]:
    """Up to where windows are complete once a batch is finalized, and the batch up to which all is
    finalized then that one look at the source saw, or that intervals without a hole cover.
    """
    to = now["event_time"] if timed else None
    return {
        "frontier": now["frontier"],
        **({"complete_to": to.astimezone(UTC).isoformat()} if to else {}),
    }


def _below(file: ManifestFile, pipeline: Pipeline) -> str:
    """A file's path relative to its root."""
    if file.kind is Kind.DATA and not pipeline.sink_address.startswith("/"):
        return file.final_path.rpartition("#")[2]  # The address may have changed since.
    if file.kind is Kind.DATA and (name := file.final_path.removeprefix(pipeline.sink_address)):
        return name.lstrip("/")
    return os.path.relpath(file.final_path, pipeline.archive_path)


def _keep_claims(root: Path, batch_id: int, claims: list[Claim], *, part: int) -> dict[str, Any]:
    """Write the claims beside the marker, durably. Returns the marker's entry for them.

    An existing file is right if it has these ranges: since it was written, a source file may have
    been renamed or may have grown.
    """
    path = layout.kept(root, Kind.CLAIMS, batch_id, part)
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
                f"batch {batch_id}: {path} does not hold its claims, and was not touched; remove "
                "it, and run finalize again"
            ) from None
        sync_folder(path.parent)
    return listed(path, root, Kind.CLAIMS, len(claims))


def keep_refused(path: Path, rows: pa.Table) -> None:
    """Write the rows that the sink refuses, durably, over those of a try that did not land."""
    make_folder(path.parent)
    path.unlink(missing_ok=True)
    file = io.BytesIO()
    pq.write_table(rows, file, compression="zstd")
    write_new(path, file.getvalue())


def listed(path: Path, root: Path, kind: Kind, records: int) -> dict[str, Any]:
    """The marker's entry for a file that finalize wrote."""
    return {
        "kind": kind,
        "root": "archive",
        "path": os.path.relpath(path, root),
        "records": records,
        "bytes": path.stat().st_size,
        "checksum": checksum(path),
    }


def _ranges(claims: Iterable[Claim]) -> list[tuple[int, int, int, int]]:
    return [(c.ordinal, c.source_partition_id, c.start, c.end) for c in claims]


def write(kept: Path, batch: Batch, content: dict[str, Any], claims: list[Claim]) -> None:
    """Write the first marker of a batch, or prove that the existing one lists the same attempt's
    files. A replay's marker is left alone: the batch was finalized before it.

    Many claims get a file of their own.
    """
    _add_claims(kept, batch, content, claims)
    marker = layout.marker(kept, batch.batch_id)
    make_folder(marker.parent)
    try:
        write_new(marker, _text(content))
    except FileExistsError:
        there = parse_json(marker.read_bytes())
        if there.get("generation", 1) > 1:
            return
        _check_same(marker, there, content)
        sync_folder(marker.parent)


def _add_claims(
    kept: Path, batch: Batch, content: dict[str, Any], claims: list[Claim]
) -> None:
    if len(claims) > CLAIMS_IN_MARKER_MAX:
        part = sum(file["kind"] != Kind.REFUSED for file in content["files"])
        content["files"].append(_keep_claims(kept, batch.batch_id, claims, part=part))
    else:
        content["claims"] = [asdict(claim) for claim in claims]


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"


# Keeps RP5.
def replace(
    kept: Path,
    batch: Batch,
    won: Row,
    output: dict[str, Any],
    before: list[Row],
    claims: list[Claim],
) -> None:
    """Replace the marker with that of a replay, or prove that this has been done.

    `output`: what `content` gives for the replay, with its refused rows. `before`: the earlier
    generations, first one first, each with the fence of its winning attempt. `claims`: what it
    read. CorruptionError: the existing marker is not of the generation before.
    """
    path = layout.marker(kept, batch.root)
    if batch.judges:
        _add_claims(kept, batch, output, claims)
    # First: from here on, only a finalizer of this generation changes the marker.
    _remove_fence(kept, before[-1])
    failpoints.point("finalize.before_replace")
    text, there = _there(path, batch)
    if there.generation > batch.generation:
        return  # A later replay replaced this one, so this one is finalized.
    new = _successor(text, batch, won, output)
    if there.generation == batch.generation:
        _check_same(path, parse_json(text), new)
    else:
        _keep_aside(layout.replaced(kept, batch.root, there.generation), text, there)
        _rename(layout.attempt(kept, batch.batch_id, won["fence"]), path, new)
    sync_folder(path.parent)


def _there(path: Path, batch: Batch) -> tuple[bytes, Marker]:
    """The current marker: to be replaced, or already the replacement."""
    backups = layout.replaced(path.parents[1], batch.root, batch.generation - 1).parent
    advice = f"nothing was touched. Restore it from a backup (those before it are in {backups})"
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise CorruptionError(
            f"the marker {path}, which batch {batch.batch_id} is to replace, is gone; {advice}",
            next=AGAIN,
        ) from None
    marker = parse_marker(text, path, None)
    if marker.pipeline != batch.spec["name"] or marker.generation < batch.generation - 1:
        raise CorruptionError(
            f"the marker {path} is of generation {marker.generation} of {marker.pipeline!r}, and "
            f"batch {batch.batch_id} replaces generation {batch.generation - 1}; {advice}",
            next=AGAIN,
        )
    return text, marker


def _successor(text: bytes, batch: Batch, won: Row, output: dict[str, Any]) -> dict[str, Any]:
    """The marker of a replay: the one before, with the new output in place of the old."""
    before, replaced, keys = parse_json(text), (Kind.DATA, Kind.REFUSED), _OF_OUTPUT
    if batch.judges:
        replaced, keys = tuple(Kind), (*_OF_OUTPUT, *_OF_INPUT)
    own = [file for file in output["files"] if file["kind"] in replaced]
    beside = [file for file in before["files"] if file["kind"] not in replaced]
    return {
        **{key: value for key, value in before.items() if key not in keys},
        **{key: output[key] for key in keys if key in output},
        "files": [*own, *beside],
        "generation": batch.generation,
        "replaces": [{"batch_id": batch.root, "generation": batch.generation - 1}],
        "replay": {
            "batch_id": batch.batch_id,
            "fence": won["fence"],
            "request_key": batch.request_key,
            "committed_at": won["ended_at"].astimezone(UTC).isoformat(),
        },
    }


# Keeps ER1.
def erase(path: Path, content: dict[str, Any]) -> None:
    """Put the marker of a batch of which data were erased in the place of the one there, in one
    step. The caller holds the lock of the pipeline, and the batch is finalized.
    """
    made = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    with Sealed(made) as file:
        file.write(_text(content))
    os.rename(made, path)
    sync_folder(path.parent)


def _check_same(path: Path, there: dict[str, Any], content: dict[str, Any]) -> None:
    """CorruptionError: the marker `there` is not the winning attempt's."""
    if any(there.get(key) != content.get(key) for key in _OF_ATTEMPT):
        made_by = content.get("replay", content)
        raise CorruptionError(
            f"the marker {path} does not match the ledger; nothing was touched. Compare it with "
            "what the ledger has, and restore the right one",
            next=f"semel show {made_by['batch_id']}",
        ) from None


# Keeps RP5.
def _keep_aside(path: Path, text: bytes, marker: Marker) -> None:
    """Keep the old marker aside, durably."""
    make_folder(path.parent)
    try:
        write_new(path, text)
    except FileExistsError:
        kept = parse_marker(path.read_bytes(), path, None)
        if (kept.generation, kept.files) != (marker.generation, marker.files):
            raise CorruptionError(
                f"{path} is not the marker that is to be replaced, of generation "
                f"{marker.generation}; nothing was touched. Move it away",
                next=AGAIN,
            ) from None
        sync_folder(path.parent)


# Keeps RP6.
def _remove_fence(kept: Path, before: Row) -> None:
    """Remove the folder that the old marker was renamed from.

    RetryableError: another process still writes there.
    """
    folder = layout.attempt(kept, before["batch_id"], before["fence"])
    for _ in range(_ROUNDS_MAX):
        remove_folder(folder)
        if not os.path.lexists(folder):
            return
    raise RetryableError(
        f"{folder} is still written to by another process, though its batch "
        f"{before['batch_id']} is finalized; run this again"
    )


def _rename(folder: Path, path: Path, content: dict[str, Any]) -> None:
    """Write a marker into its attempt's folder, durably, and rename it from there.

    CorruptionError: the folder is gone, as it is once the batch is finalized.
    """
    made = folder / f"marker-{os.urandom(4).hex()}.json"
    try:
        with Sealed(made) as file:
            file.write(_text(content))
        failpoints.point("finalize.before_rename")
        os.rename(made, path)
    except FileNotFoundError as error:
        raise CorruptionError(
            f"the folder {folder} is gone, which the new marker {path} is written in first; "
            f"nothing was touched. Make that folder again: mkdir -p {shlex.quote(str(folder))}",
            next=AGAIN,
        ) from error
    failpoints.point("finalize.after_rename")
