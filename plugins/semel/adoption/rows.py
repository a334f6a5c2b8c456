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
    numbers = []
    for marker in some:
        ordinals[marker.request_key] += 1
        numbers.append(ordinals[marker.request_key])
    change(
        connection,
        "adopt",
        "insert_batches",
        pipeline_id=pipeline_id,
        split_bytes=limits.SPLIT_BYTES,
        batches=[m.batch_id for m in some],
        request_keys=[m.request_key for m in some],
        ordinals=numbers,
        specs=[json.dumps(m.spec.to_json()) for m in some],
        spec_digests=[m.spec_digest for m in some],
        interval_starts=[m.interval[0] for m in some],
        interval_ends=[m.interval[1] for m in some],
        commit_seqs=[m.commit_seq for m in some],
        batch_times=[m.batch_time for m in some],
    )


def _insert_attempts(connection: sa.Connection, some: list[Marker]) -> None:
    counts = [asdict(m.counts) for m in some]
    change(
        connection,
        "adopt",
        "insert_attempts",
        batches=[m.batch_id for m in some],
        fences=[m.fence for m in some],
        input_digests=[m.input_digest for m in some],
        sink_schemas=[json.dumps(m.sink_columns) for m in some],
        **{name: [each[name] for each in counts] for name in counts[0]},
    )


def _insert_claims(connection: sa.Connection, some: list[Marker]) -> None:
    claims = [{**asdict(claim), "batch_id": m.batch_id} for m in some for claim in m.claims]
    change(connection, "adopt", "insert_claims", claims=json.dumps(claims))


def _insert_files(connection: sa.Connection, some: list[Marker]) -> None:
    # A manifest has no files of claims: finalize writes them from the ledger.
    files = [
        (m.batch_id, at, file, m.target_of(file))
        for m in some
        for at, file in enumerate(m.files)
        if file.kind is not Kind.CLAIMS
    ]
    change(
        connection,
        "adopt",
        "insert_files",
        batches=[batch_id for batch_id, *_ in files],
        ordinals=[at for _, at, *_ in files],
        kinds=[file.kind for _, _, file, _ in files],
        final_paths=[path for _, _, _, path in files],
        records=[file.records for _, _, file, _ in files],
        bytes=[file.bytes for _, _, file, _ in files],
        checksums=[file.checksum for _, _, file, _ in files],
    )
