"""The rows of the ledger for batches whose ledger was lost: one statement for each kind of row."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

import sqlalchemy as sa

from semel import limits
from semel.adoption.partitions import Adoptee
from semel.ledger import change
from semel.manifest import Kind
from semel.reader import Marker


def write_partitions(
    connection: sa.Connection, pipeline_id: int, partitions: list[Adoptee]
) -> None:
    """The source partitions, under their old numbers."""
    known = [asdict(part.known) for part in partitions]
    change(
        connection,
        "adopt",
        "insert_partitions",
        pipeline_id=pipeline_id,
        partitions=json.dumps(known),
    )


def write_batches(
    connection: sa.Connection, pipeline_id: int, markers: list[Marker]
) -> None:
    """The batches with their attempts, claims and files. `markers` come in the order of commits."""
    ordinals: Counter[str] = Counter()
    for some in _parts(markers):
        _insert_batches(connection, pipeline_id, some, ordinals)
        _insert_attempts(connection, some)
        _insert_claims(connection, some)
        _insert_files(connection, some)


def _parts(markers: list[Marker]) -> Iterator[list[Marker]]:
    for start in range(0, len(markers), limits.MARKERS_AT_ONCE):
        yield markers[start : start + limits.MARKERS_AT_ONCE]


def _insert_batches(
    connection: sa.Connection, pipeline_id: int, some: list[Marker], ordinals: Counter[str]
) -> None:
    batches = []
    for m in some:
        ordinals[m.request_key] += 1
        start, end = (time.isoformat() if time else None for time in m.interval)
        batches.append(
            {
                "batch_id": m.batch_id,
                "request_key": m.request_key,
                "ordinal": ordinals[m.request_key],
                "spec": m.spec.to_json(),
                "spec_digest": m.spec_digest,
                "interval_start": start,
                "interval_end": end,
                "commit_seq": m.commit_seq,
                "batch_time": m.batch_time.isoformat(),
            }
        )
    change(
        connection,
        "adopt",
        "insert_batches",
        pipeline_id=pipeline_id,
        split_bytes=limits.SPLIT_BYTES,
        batches=json.dumps(batches),
    )


def _insert_attempts(connection: sa.Connection, some: list[Marker]) -> None:
    attempts = [
        {
            **vars(m.counts),
            "batch_id": m.batch_id,
            "fence": m.fence,
            "input_digest": m.input_digest,
            "sink_schema": json.dumps(m.sink_columns),
        }
        for m in some
    ]
    change(connection, "adopt", "insert_attempts", attempts=json.dumps(attempts))


def _insert_claims(connection: sa.Connection, some: list[Marker]) -> None:
    claims = [{**asdict(claim), "batch_id": m.batch_id} for m in some for claim in m.claims]
    change(connection, "adopt", "insert_claims", claims=json.dumps(claims))


def _insert_files(connection: sa.Connection, some: list[Marker]) -> None:
    # A manifest has none of what finalize writes.
    files = [
        {
            **vars(file),
            "batch_id": m.batch_id,
            "ordinal": at,
            "final_path": m.target_of(file),
        }
        for m in some
        for at, file in enumerate(m.files)
        if file.kind not in (Kind.CLAIMS, Kind.REFUSED)
    ]
    change(connection, "adopt", "insert_files", files=json.dumps(files))
