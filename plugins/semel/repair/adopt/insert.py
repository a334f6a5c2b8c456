"""Insert the ledger's rows for batches whose ledger was lost: one statement per kind of row."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise

import sqlalchemy as sa

from semel.archive.marker import Marker
from semel.ledger import change
from semel.model.batch import Claim
from semel.model.manifest import Kind
from semel.plan.partitions import lose
from semel.repair.adopt.history import History
from semel.repair.adopt.partitions import Adoptee

MARKERS_AT_ONCE = 1_000
"""The number of batches that one statement of adopt writes. Their specs are some 2 KB each."""

_RequestKey = tuple[str, int | None, int | None]
"""A request, and the batch that it replays or admits: the key by which adopt counts ordinals."""


def write_partitions(
    connection: sa.Connection, pipeline_id: int, partitions: list[Adoptee]
) -> None:
    """Write the source partitions with their old numbers, and their start as lost if not read."""
    known_partitions = [asdict(part.partition) for part in partitions]
    change(
        connection,
        "adopt",
        "insert_partitions",
        pipeline_id=pipeline_id,
        partitions=json.dumps(known_partitions),
    )
    begins = {k["source_partition_id"]: k["evidence"].get("since", 0) for k in known_partitions}
    passed = {number: [(0, start)] for number, start in begins.items() if start}
    lose(connection, passed, "repeated", "adopt")


def write_batches(
    connection: sa.Connection, pipeline_id: int, batches: list[History], split_size: int
) -> None:
    """Write the batches with attempts, claims and files, then their replays, which are batches too.

    `batches`: in commit order. `split_size`: the split size of a plan of their source, in bytes.
    """
    ordinals: Counter[_RequestKey] = Counter()
    replays = sorted((m for each in batches for m in each.replays), key=lambda m: m.writer_id)
    histories = {each.first.batch_id: each for each in batches}
    for markers in (*_parts([each.first for each in batches]), *_parts(replays)):
        _insert_batches(connection, pipeline_id, markers, histories, ordinals, split_size)
        _insert_attempts(connection, markers)
        _insert_claims(connection, markers, histories)
        _insert_files(connection, markers, histories)
    pairs = [pair for each in batches for pair in pairwise(each.outputs)]
    # Keeps ER2.
    insert_erasures(connection, [each.newest for each in batches])
    replaced = [{"batch_id": old.writer_id, "replaced_by": new.writer_id} for old, new in pairs]
    change(connection, "adopt", "replaced", replaced=json.dumps(replaced))


def insert_erasures(connection: sa.Connection, markers: list[Marker]) -> None:
    """Write the erasures in these markers to the ledger, unless it has them."""
    erasures = [{"batch_id": m.batch_id, **asdict(each)} for m in markers for each in m.erased]
    change(connection, "accept", "erase", erasures=json.dumps(erasures))


def _parts(markers: list[Marker]) -> Iterator[list[Marker]]:
    for start in range(0, len(markers), MARKERS_AT_ONCE):
        yield markers[start : start + MARKERS_AT_ONCE]


def _insert_batches(
    connection: sa.Connection,
    pipeline_id: int,
    markers: list[Marker],
    histories: dict[int, History],
    ordinals: Counter[_RequestKey],
    split_size: int,
) -> None:
    batches = []
    for m in markers:
        request = m.replay.request_key if m.replay else m.request_key
        replays = m.batch_id if m.replay else None
        admits = m.admits.batch_id if m.admits and not m.replay else None
        ordinals[request, replays, admits] += 1
        interval = m.interval if not (m.replay or m.admits) else (None, None)
        start, end = (time.isoformat() if time else None for time in interval)
        batches.append(
            {
                "batch_id": m.writer_id,
                "request_key": request,
                "ordinal": ordinals[request, replays, admits],
                "spec": m.spec.to_json(),
                "spec_digest": m.spec_digest,
                "interval_start": start,
                "interval_end": end,
                "covers": m.covers.to_ledger() if m.covers.ranges and not m.replay else None,
                "commit_seq": m.commit_seq if m.replay is None else None,
                "batch_time": m.batch_time.isoformat() if m.replay is None else None,
                "committed_at": m.replay.committed_at if m.replay else m.batch_time.isoformat(),
                "replays": replays,
                "generation": m.generation,
                "judged_by": histories[m.batch_id].judged_by(m),
                "admits": admits,
                "admission": m.admits.admission if m.admits and not m.replay else None,
            }
        )
    change(
        connection,
        "adopt",
        "insert_batches",
        pipeline_id=pipeline_id,
        split_bytes=split_size,
        batches=json.dumps(batches),
    )


def _insert_attempts(connection: sa.Connection, markers: list[Marker]) -> None:
    attempts = [
        {
            **vars(m.counts),
            "batch_id": m.writer_id,
            "fence": m.replay.fence if m.replay else m.fence,
            "input_digest": m.input_digest,
            "sink_schema": json.dumps(m.sink_columns),
        }
        for m in markers
    ]
    change(connection, "adopt", "insert_attempts", attempts=json.dumps(attempts))


def _insert_claims(
    connection: sa.Connection, markers: list[Marker], histories: dict[int, History]
) -> None:
    claims = [
        {**asdict(claim), "batch_id": m.writer_id, **_times(m, claim)}
        for m in markers
        for claim in histories[m.batch_id].own_claims(m)
    ]
    change(connection, "adopt", "insert_claims", claims=json.dumps(claims))


def _times(m: Marker, claim: Claim) -> dict[str, str]:
    """The record times of a claim: of its stream in the batch, or of the whole batch."""
    times = m.times.get(claim.source_partition_id) or m.times.get(None)
    if times is None or m.replay is not None:
        return {}
    return {"time_min": times[0].isoformat(), "time_max": times[1].isoformat()}


def _insert_files(
    connection: sa.Connection, markers: list[Marker], histories: dict[int, History]
) -> None:
    # Manifests do not list files that finalize writes, or in a replay the files of its judge.
    excluded = {True: set(Kind) - {Kind.DATA}, False: {Kind.CLAIMS, Kind.REFUSED}}
    files = [
        {
            **vars(file),
            "batch_id": m.writer_id,
            "ordinal": at,
            "final_path": m.target_of(file),
        }
        for m in markers
        for kinds_excluded in [excluded[histories[m.batch_id].judged_by(m) is not None]]
        for at, file in enumerate(m.files)
        if file.kind not in kinds_excluded
    ]
    change(connection, "adopt", "insert_files", files=json.dumps(files))
