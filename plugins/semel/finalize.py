"""finalize: make the winner's files visible. Any number of times, also twice at once.

A pure decision table (`sinks.judge`) says of each file what to do, by what is there. The sink
publishes what is missing of the output, the archive takes the rest. Order: these, durably; the
claims when they are many; success marker; `committed -> finalized`; and only then the staged names
go.
"""

import io
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from semel import code, faults, limits
from semel.batch import Attempt, Batch, BatchStatus, Claim, Counts, Pipeline, batch_of
from semel.claims import pack_claims, read_claims
from semel.errors import AGAIN, ANEW, CorruptionError, RetryableError, StateError
from semel.ledger import Ledger, Row, pipelines, row, rows
from semel.manifest import MARKER_FORMAT, Kind, ManifestFile
from semel.reader import arrow_type
from semel.sinks import Act, Sink, Won, archive, judge
from semel.sinks.declared import open_sink
from semel.sinks.folder import Folder, Looks
from semel.spec.pipeline import Spec
from semel.storage import checksum, make_folder, remove_folder, sync_folder, write_new

_ROUNDS_MAX = 8  # A twin moves files while we read them at most a few times.


@dataclass(frozen=True, kw_only=True)
class Finalized:
    """The answer of finalize. `found`: it had been finalized before. `kept`: patterns of the files
    that hold its dead letters and decisions.
    """

    batch: Batch
    found: bool
    counts: Counts
    files: int = 0
    marker: Path | None = None
    kept: dict[str, Path] = field(default_factory=dict)


def finalize(
    ledger: Ledger, spec: Spec, batch_id: int, *, accepting: bool = False
) -> Finalized:
    """Finish a committed batch. A finalized one is answered from the ledger, not from files.

    `accepting`: rows that the sink refuses go to the archive, as a person has decided.

    CorruptionError: a file is missing or is not what the manifest says; nothing was touched.
    """
    try:
        return _finalize(ledger, spec, batch_id, accepting=accepting)
    except OSError as error:
        raise RetryableError(
            f"batch {batch_id}: {error}; it has committed and stays so. Fix the file system of "
            "its sink, then run finalize again"
        ) from error


def _finalize(ledger: Ledger, spec: Spec, batch_id: int, *, accepting: bool) -> Finalized:
    with ledger.transaction() as connection:
        batch = batch_of(connection, spec, batch_id)
        won = row(connection, "finalize", "won", batch_id=batch_id)
        if won is None:
            raise StateError(
                f"batch {batch_id} is {batch.status}, and finalize needs a committed one",
                next=ANEW,
            )
        files = [
            ManifestFile(**{**r, "kind": Kind(r["kind"])})
            for r in rows(connection, "finalize", "manifest", attempt_id=won["attempt_id"])
        ]
        claims = [Claim.from_row(r) for r in rows(connection, "plan", "claims", batch_id=batch_id)]
        pipeline = pipelines.find(connection, spec.name)
    counts = Counts.from_row(won)
    root = Path(pipeline.archive_path)
    marker = archive.marker(root, batch_id)
    done = Finalized(
        batch=batch,
        found=True,
        counts=counts,
        files=len(files),
        marker=marker,
        kept=archive.all_kept(root, {file.kind for file in files}, batch_id),
    )
    # Keeps F7.
    if batch.status is BatchStatus.FINALIZED:
        return done
    looks = Looks()
    sink = open_sink(spec, pipeline.sink_address, looks)
    faults.point("finalize.before_publish")
    output = _won(spec, batch, won, files)
    refused = archive.kept(root, Kind.REFUSED, batch_id, len(files) + 1)
    with sink:
        if accepting:
            sink.publish_accepting(output, lambda rows: _keep_refused(refused, rows))
        # Keeps F5.
        publish(sink, Folder(root, spec, looks), output, files, looks)
        count = sink.refused(output)
    faults.point("finalize.after_publish")
    content = marker_content(spec, pipeline, batch, won, counts, files)
    if count:
        content["files"].append(_listed(refused, root, Kind.REFUSED, count))
    else:
        refused.unlink(missing_ok=True)  # Of a try that did not land.
    if ran := code.of_attempt(archive.attempt(root, batch_id, won["fence"])):
        content |= {"code": asdict(ran), "code_digest": ran.digest}
    if len(claims) > limits.CLAIMS_IN_MARKER_MAX:
        content["files"].append(_keep_claims(root, batch_id, claims, part=len(files)))
    else:
        content["claims"] = [asdict(claim) for claim in claims]
    _mark(marker, content)
    faults.point("finalize.after_mark")
    with ledger.transaction() as connection:
        changed = row(connection, "finalize", "finalize_batch", batch_id=batch_id)
        now = row(connection, "finalize", "batch_status", batch_id=batch_id)
        faults.point("finalize.before_finalized")
    faults.point("finalize.after_finalized")
    if now["status"] != BatchStatus.FINALIZED:
        raise StateError(
            f"batch {batch_id} is {now['status']}, expected committed or finalized",
            next=f"semel show {content['batch_id']}",
        )
    # Keeps F8.
    remove_folder(archive.attempt(root, batch_id, won["fence"]))
    faults.point("finalize.after_clean")
    return replace(done, found=changed is None)


def _won(spec: Spec, batch: Batch, won: Row, files: list[ManifestFile]) -> Won:
    columns = json.loads(won["sink_schema"] or "[]")
    whole = json.dumps([asdict(file) for file in files], sort_keys=True).encode()
    return Won(
        pipeline=spec.name,
        batch_id=batch.batch_id,
        fence=won["fence"],
        commit_seq=batch.commit_seq,
        files=tuple(file for file in files if file.kind is Kind.DATA),
        schema=pa.schema([(name, arrow_type(text)) for name, text in columns]),
        digest=xxhash.xxh3_128_hexdigest(whole),
    )


def publish(sink: Sink, kept: Sink, won: Won, files: list[ManifestFile], looks: Looks) -> None:
    """Make a batch visible and durable, or raise before touching anything.

    `files` is the whole manifest: what of it is not `won`'s goes to the archive, `kept`.
    """
    beside = replace(won, files=tuple(file for file in files if file.kind is not Kind.DATA))
    files = [*won.files, *beside.files]
    for _ in range(_ROUNDS_MAX):
        staged = looks.of((file, file.staged_path) for file in files)
        targets = [*sink.look(won), *kept.look(beside)]
        faults.point("finalize.after_look")
        acts = list(map(judge, staged, targets))
        # Keeps F4.
        broken = [n for n, act in enumerate(acts) if act is Act.FAIL]
        if broken:
            shown = "; ".join(
                f"{files[n].final_path!r}: staged file {staged[n]}, final file {targets[n]}"
                for n in broken[:5]
            )
            raise CorruptionError(
                f"batch {won.batch_id}: {len(broken)} of {len(files)} files are not as its "
                f"manifest says ({shown}); nothing was touched. Restore what is damaged from a "
                "backup: the batch has committed; and ask whether another ledger writes to this "
                "sink where what is final is wrong",
                next=AGAIN,
            )
        missing = [file for file, act in zip(files, acts, strict=True) if act is Act.PUBLISH]
        faults.point("sink.before_publish")
        sink.publish(won, [file for file in missing if file.kind is Kind.DATA])
        faults.point("sink.after_publish")
        kept.publish(beside, [file for file in missing if file.kind is not Kind.DATA])
        if not missing:
            return
    raise RetryableError(
        f"batch {won.batch_id}: its files were changed by others {_ROUNDS_MAX} times while "
        "finalize worked; run this again"
    )


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
        "sink": {"type": batch.spec["sink"]["type"], "address": pipeline.sink_address},
        "counts": asdict(counts),
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


def _below(file: ManifestFile, pipeline: Pipeline) -> str:
    """A file's path, relative to the root that it lies below."""
    if file.kind is Kind.DATA and (name := file.final_path.removeprefix(pipeline.sink_address)):
        return name.lstrip("/#")
    return os.path.relpath(file.final_path, pipeline.archive_path)


def _keep_claims(root: Path, batch_id: int, claims: list[Claim], *, part: int) -> dict[str, Any]:
    """Write the claims beside the marker, durably. Returns how the marker lists them.

    A file that is there already is right when it has these ranges: since it was written, a source
    file may have been renamed or have grown.
    """
    path = archive.kept(root, Kind.CLAIMS, batch_id, part)
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
    return _listed(path, root, Kind.CLAIMS, len(claims))


def _keep_refused(path: Path, rows: pa.Table) -> None:
    """Write rows that the sink refuses, durably, in the place of a try that did not land."""
    make_folder(path.parent)
    path.unlink(missing_ok=True)
    file = io.BytesIO()
    pq.write_table(rows, file, compression="zstd")
    write_new(path, file.getvalue())


def _listed(path: Path, root: Path, kind: Kind, records: int) -> dict[str, Any]:
    """How the marker lists a file that finalize wrote."""
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


def _mark(marker: Path, content: dict[str, Any]) -> None:
    """Write the marker, or prove that the one that is there lists the same attempt's files."""
    make_folder(marker.parent)
    try:
        write_new(marker, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")
    except FileExistsError:
        there = json.loads(marker.read_bytes())
        if any(there[key] != content[key] for key in ("batch_id", "fence", "files", "counts")):
            raise CorruptionError(
                f"the marker {marker} does not match the ledger; nothing was touched. "
                "Compare it with what the ledger has, and restore the right one",
                next=f"semel show {content['batch_id']}",
            ) from None
        sync_folder(marker.parent)
