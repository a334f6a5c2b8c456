"""finalize: give the winner's files their final names. Any number of times, also twice at once.

A pure decision table (`judge`) classifies each file by what is there; then it is acted upon. It
never overwrites, and never takes existence for correctness. Order: final names (hard links), fsync
of the folders, the claims when they are many, success marker, `committed -> finalized`, and only
then the staged names go.
"""

import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from semel import faults, limits
from semel.batch import Attempt, Batch, BatchStatus, Claim, Counts, Pipeline, batch_of
from semel.claims import pack_claims, read_claims
from semel.errors import CorruptionError, RetryableError, StateError
from semel.ledger import Ledger, Row, pipelines, row, rows
from semel.manifest import MARKER_FORMAT, Kind, ManifestFile
from semel.sinks import layout
from semel.spec.pipeline import Spec
from semel.storage import (
    checksum,
    link_new,
    make_folder,
    remove_folder,
    sync_folder,
    write_new,
)

_ROUNDS_MAX = 8  # A twin moves files under our eyes at most a few times.

Inode = tuple[int, int, int]
"""Device, number and time of the last change (ns) of a file, under whichever name."""


class State(StrEnum):
    """What is under a name: nothing, the file that the manifest describes, or another one."""

    ABSENT = "absent"
    RIGHT = "right"
    WRONG = "wrong"


class Act(StrEnum):
    LINK = "link"
    NOTHING = "nothing"
    FAIL = "fail"


# Keeps F1.
def judge(staged: State, final: State) -> Act:
    """The decision table: all nine cases."""
    match staged, final:
        case State.RIGHT, State.ABSENT:
            return Act.LINK
        case ((State.ABSENT | State.RIGHT), State.RIGHT):
            return Act.NOTHING
        case _:
            return Act.FAIL


@dataclass(frozen=True, kw_only=True)
class Finalized:
    """The answer of finalize. `found`: it had been finalized before."""

    batch: Batch
    found: bool
    counts: Counts
    files: int = 0
    marker: Path | None = None


def finalize(ledger: Ledger, spec: Spec, batch_id: int) -> Finalized:
    """Finish a committed batch. A finalized one is answered from the ledger, not from files.

    CorruptionError: a file is missing or is not what the manifest says; nothing was touched.
    """
    try:
        return _finalize(ledger, spec, batch_id)
    except OSError as error:
        raise RetryableError(
            f"batch {batch_id}: {error}; it has committed and stays so. Mend the file system of "
            "its sink, then run finalize again"
        ) from error


def _finalize(ledger: Ledger, spec: Spec, batch_id: int) -> Finalized:
    with ledger.transaction() as connection:
        batch = batch_of(connection, spec, batch_id)
        won = row(connection, "finalize", "won", batch_id=batch_id)
        if won is None:
            raise StateError(
                f"batch {batch_id} is {batch.status}, and finalize needs a committed one; run "
                "commit first"
            )
        files = [
            ManifestFile(**{**r, "kind": Kind(r["kind"])})
            for r in rows(connection, "finalize", "manifest", attempt_id=won["attempt_id"])
        ]
        claims = [Claim.from_row(r) for r in rows(connection, "plan", "claims", batch_id=batch_id)]
        pipeline = pipelines.find(connection, spec.name)
    counts = Counts(**{name: won[name] for name in Counts.__dataclass_fields__})
    sink = Path(pipeline.sink_path)
    marker = layout.marker(sink, batch_id)
    # Keeps F7.
    if batch.status is BatchStatus.FINALIZED:
        return Finalized(batch=batch, found=True, counts=counts, files=len(files), marker=marker)
    faults.point("finalize.before_rename")
    # Keeps F5.
    rename(sink, files, batch_id)
    faults.point("finalize.after_rename")
    content = marker_content(spec, pipeline, batch, won, counts, files)
    if len(claims) > limits.CLAIMS_IN_MARKER_MAX:
        content["files"].append(_keep_claims(sink, batch_id, claims, part=len(files)))
    else:
        content["claims"] = [asdict(claim) for claim in claims]
    _mark(marker, content)
    faults.point("finalize.after_mark")
    with ledger.transaction() as connection:
        done = row(connection, "finalize", "finalize_batch", batch_id=batch_id)
        now = row(connection, "finalize", "batch_status", batch_id=batch_id)
        faults.point("finalize.before_finalized")
    faults.point("finalize.after_finalized")
    if now["status"] != BatchStatus.FINALIZED:
        raise StateError(
            f"batch {batch_id} is {now['status']}, expected committed or finalized; see `semel "
            f"show {batch_id}`"
        )
    # Keeps F8.
    remove_folder(layout.attempt(sink, batch_id, won["fence"]))
    faults.point("finalize.after_clean")
    return Finalized(
        batch=batch, found=done is None, counts=counts, files=len(files), marker=marker
    )


def rename(sink: Path, files: list[ManifestFile], batch_id: int) -> None:
    """Bring every file under its final name, durably, or raise before touching any.

    The staged names stay until the batch is finalized: a file is never under neither name, also on
    file systems that log each folder apart.
    """
    folders = {Path(f.final_path).parent for f in files}
    seen: dict[Inode, str] = {}

    def look(file: ManifestFile) -> tuple[ManifestFile, State, State]:
        return file, _state(file, file.staged_path, seen), _state(file, file.final_path, seen)

    for _ in range(_ROUNDS_MAX):
        with ThreadPoolExecutor(limits.CHECKSUMS_AT_ONCE) as pool:
            acts = list(pool.map(look, files))
        faults.point("finalize.after_look")
        broken = [(f, s, t) for f, s, t in acts if judge(s, t) is Act.FAIL]
        # Keeps F4.
        if broken:
            shown = "; ".join(
                f"{f.final_path!r}: staged file {s}, final file {t}" for f, s, t in broken[:5]
            )
            raise CorruptionError(
                f"batch {batch_id}: {len(broken)} of {len(files)} files are not as its manifest "
                f"says ({shown}); nothing was touched. Restore them from a backup: the batch has "
                "committed"
            )
        missing = [file for file, s, t in acts if judge(s, t) is Act.LINK]
        if not missing:
            break
        for folder in sorted(folders):
            make_folder(folder)
        for file in missing:
            # A twin may have been faster: the next round looks at what it left. Keeps F9.
            with suppress(FileNotFoundError, FileExistsError):
                link_new(Path(file.staged_path), Path(file.final_path))
    else:
        raise RetryableError(
            f"batch {batch_id}: its files changed under finalize {_ROUNDS_MAX} times; run this "
            "again"
        )
    parents = {p for f in folders for p in (f, *f.parents) if p.is_relative_to(sink)}
    for folder in sorted(parents, reverse=True):
        sync_folder(folder)


# Keeps F2.
def _state(file: ManifestFile, path: str, seen: dict[Inode, str]) -> State:
    """What is under a name. `seen`: checksums that this call found; a link is no other file."""
    try:
        found = os.lstat(path)
        if found.st_size != file.bytes:
            return State.WRONG
        inode = (found.st_dev, found.st_ino, found.st_mtime_ns)
        if inode not in seen:
            seen[inode] = checksum(path)
        return State.RIGHT if seen[inode] == file.checksum else State.WRONG
    except (FileNotFoundError, NotADirectoryError):
        return State.ABSENT


def marker_content(
    spec: Spec,
    pipeline: Pipeline,
    batch: Batch,
    won: Row,
    counts: Counts,
    files: list[ManifestFile],
) -> dict[str, Any]:
    """The success marker but for its claims: with the files it lists, all that readers need."""
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
        "parser_rules": batch.spec.get("parser_rules", 1),
        "input_digest": attempt.input_digest,
        "sink_schema": json.loads(attempt.sink_schema or "[]"),
        "counts": asdict(counts),
        "files": [
            {
                "kind": file.kind,
                "path": os.path.relpath(file.final_path, pipeline.sink_path),
                "records": file.records,
                "bytes": file.bytes,
                "checksum": file.checksum,
            }
            for file in files
        ],
    }


def _keep_claims(sink: Path, batch_id: int, claims: list[Claim], *, part: int) -> dict[str, Any]:
    """Write the claims beside the marker, durably. Returns how the marker lists them.

    A file that is there already is right when it has these ranges: since it was written, a source
    file may have been renamed or have grown.
    """
    path = layout.kept(sink, Kind.CLAIMS, batch_id, part)
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
    return {
        "kind": Kind.CLAIMS,
        "path": os.path.relpath(path, sink),
        "records": len(claims),
        "bytes": path.stat().st_size,
        "checksum": checksum(path),
    }


def _ranges(claims: Iterable[Claim]) -> list[tuple[int, int, int, int]]:
    return [(c.ordinal, c.source_partition_id, c.start, c.end) for c in claims]


def _mark(marker: Path, content: dict[str, Any]) -> None:
    """Write the marker, or prove that the one that is there lists the same attempt's files."""
    make_folder(marker.parent)
    try:
        write_new(marker, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")
    except FileExistsError:
        there = json.loads(marker.read_bytes())
        if any(there[key] != content[key] for key in ("batch_id", "fence", "files", "counts")):
            raise CorruptionError(
                f"the marker {marker} says something else than the ledger; nothing was touched. "
                "Compare it with `semel show`, and restore the right one"
            ) from None
        sync_folder(marker.parent)
