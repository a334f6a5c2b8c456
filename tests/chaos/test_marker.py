"""Markers of batches that claim many files: small, durable in the right order, read by all."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fix_disk import Disk
from fixtures.batches.account import quiet, run
from fixtures.batches.workbench import Workbench, events
from fixtures.files.markers import duckdb_count, snippet
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.archive import layout
from semel.archive.marker import markers
from semel.archive.write_marker import CLAIMS_IN_MARKER_MAX
from semel.audit import audit
from semel.commit import commit
from semel.errors import CorruptionError, Doing
from semel.failpoints import FaultError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.reports.find import find
from semel.runs.run import run_batch
from semel.stage import stage

_MARKER_BYTES_MAX = 16 << 10
_MANY = """
    WITH part AS (
        SELECT to_jsonb(p) AS content FROM semel.source_partition AS p LIMIT 1
    ), added AS (
        INSERT INTO semel.source_partition OVERRIDING SYSTEM VALUE
        SELECT made.* FROM part, generate_series(1000, 999 + %(count)s) AS n,
               jsonb_populate_record(NULL::semel.source_partition, content || jsonb_build_object(
                   'source_partition_id', n, 'identity', '1:' || n,
                   'name', '/data/flights/2026/11/22/' || n || '.jsonl')) AS made
        RETURNING source_partition_id
    )
    INSERT INTO semel.claim
    SELECT made.* FROM (SELECT to_jsonb(c) AS content FROM semel.claim AS c LIMIT 1) AS one,
           generate_series(1000, 999 + %(count)s) AS n,
           jsonb_populate_record(NULL::semel.claim, content || jsonb_build_object(
               'ordinal', n, 'source_partition_id', n)) AS made
"""


def committed(bench: Workbench, ledger: Ledger, spec: Spec, *, more: int) -> int:
    """A committed batch of one file, whose claims are then told to be `more`."""
    bench.write("in/a.jsonl", [*events(0, 3), *events(0, 1), b"{bad"])
    batch_id = plan(ledger, spec, "r1").batch.batch_id
    stage(ledger, spec, batch_id, LocalEngine(), quiet)
    commit(ledger, spec, batch_id, lambda: None, quiet)
    with ledger.transaction() as connection:
        connection.exec_driver_sql("SET CONSTRAINTS ALL DEFERRED")
        connection.exec_driver_sql(_MANY, {"count": more})
    return batch_id


def many_files(bench: Workbench, count: int, start: int = 0) -> None:
    for n in range(start, start + count):
        bench.write(f"in/{n}.jsonl", [*events(2 * n, 2 * n + 3), b"{bad"])


@pytest.fixture
def spec(bench: Workbench) -> Spec:
    """A pipeline, and one file more than a marker has room for the claims of."""
    many_files(bench, CLAIMS_IN_MARKER_MAX + 1)
    return bench.spec()


def claims_of(spec: Spec) -> Path:
    """The file of the one batch's claims."""
    [kept] = (layout.archive_folder(spec) / "claims").glob("b*")
    return kept


def marker_path(spec: Spec, batch_id: int = 1) -> Path:
    return layout.archive_folder(spec) / "markers" / f"b{batch_id:08d}.json"


# Attacks L6.
@pytest.mark.rest
def test_a_batch_of_many_files_has_a_small_marker(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README's readers go on after a batch of 110,000 files, and all its claims are kept."""
    spec = bench.spec("flights")
    batch_id = committed(bench, ledger, spec, more=110_000)
    finalize(ledger, spec, batch_id)
    monkeypatch.chdir(bench.folder)
    assert duckdb_count() == 3
    found: dict = {}
    exec(snippet("Python:"), found)
    assert found["table"].num_rows == 3
    assert marker_path(spec, batch_id).stat().st_size <= _MARKER_BYTES_MAX
    [marker] = markers(spec.sink_path())
    assert [claim.ordinal for claim in marker.claims] == [0, *range(1000, 111_000)]
    assert marker.claims[-1].name == "/data/flights/2026/11/22/110999.jsonl"


@pytest.mark.parametrize("beyond", [0, 1])
def test_claims_beside_the_marker_are_read_by_all(
    bench: Workbench, ledger: Ledger, engine: LocalEngine, beyond: int
) -> None:
    """Audit and find know each record's file, wherever the claims stand."""
    spec = bench.spec()
    many_files(bench, CLAIMS_IN_MARKER_MAX + beyond)
    run_batch(ledger, spec, "r1", engine, log=quiet)
    content = json.loads(marker_path(spec).read_text())
    kinds = {file["kind"] for file in content["files"]}
    assert ("claims" in kinds, "claims" in content) == (bool(beyond), not beyond)
    verdict = audit(spec)
    assert verdict.ok, verdict.checks
    found = find(spec, ["e000004"])
    assert [(p.what, p.source) for p in found.places[1:]] == [
        ("duplicate_in_batch", str(bench.data / "in" / "2.jsonl"))
    ]


# Attacks F5, F6.
def test_claims_last_before_the_marker(
    spec: Spec, bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the claims is durable, under its folders, when the marker appears."""
    disk = Disk(bench.folder, monkeypatch)

    def marking() -> None:
        assert disk.keeps(claims_of(spec)) and not marker_path(spec).exists()

    # The first file that is published is the claims', the second one the marker.
    with failpoints.armed("storage.before_publish", marking, nth=2) as fault:
        run(ledger, spec, "r1")
    assert fault.hit


# Attacks F6, F9.
@pytest.mark.parametrize("point", ["storage.after_publish", "finalize.after_mark"])
def test_a_finalize_that_died_goes_on_with_the_claims_that_are_there(
    spec: Spec, bench: Workbench, ledger: Ledger, point: str
) -> None:
    """Names and heads of files move on in the ledger; the ranges of a batch do not."""

    def die() -> None:
        raise FaultError(point)

    with failpoints.armed(point, die), pytest.raises(FaultError):
        run(ledger, spec, "r1")
    (bench.data / "in" / "0.jsonl").rename(bench.data / "in" / "renamed.jsonl")
    bench.write("in/1.jsonl", events(900, 901), mode="ab")
    plan(ledger, spec, "r2")
    finalize(ledger, spec, 1)
    assert finalize(ledger, spec, 1).found
    run(ledger, spec, "r2")
    assert audit(spec).ok


# Attacks F6.
def test_a_foreign_marker_is_loud(bench: Workbench, ledger: Ledger) -> None:
    """A marker of the batch that lists another attempt's files stops finalize, and stays."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))

    def die() -> None:
        raise FaultError("died")

    with failpoints.armed("finalize.after_mark", die), pytest.raises(FaultError):
        run(ledger, spec, "r1")
    marker = marker_path(spec)
    other = json.dumps(json.loads(marker.read_bytes()) | {"fence": 2})
    marker.write_text(other)
    with pytest.raises(CorruptionError, match="does not match the ledger") as raised:
        finalize(ledger, spec, 1)
    assert raised.value.next_step(Doing(again="", anew="")) == "semel show 1"
    assert marker.read_text() == other


# Attacks F6.
def test_foreign_claims_are_loud(spec: Spec, ledger: Ledger) -> None:
    """A file under the claims' name that says something else stops finalize, and stays."""

    def damage() -> None:
        claims_of(spec).write_bytes(b"not ours")
        raise FaultError("damaged")

    with failpoints.armed("storage.after_publish", damage), pytest.raises(FaultError):
        run(ledger, spec, "r1")
    with pytest.raises(CorruptionError, match="Remove it, then run finalize again"):
        finalize(ledger, spec, 1)
    assert not marker_path(spec).exists()
    kept = claims_of(spec)
    assert kept.read_bytes() == b"not ours"
    kept.unlink()
    finalize(ledger, spec, 1)
    assert audit(spec).ok


@pytest.mark.parametrize("damage", ["gone", "other bytes", "a column is gone"])
def test_damaged_claims_are_told(spec: Spec, ledger: Ledger, damage: str) -> None:
    """The audit blames the marker, and who asks for the claims gets an error, never an empty list.
    """
    run(ledger, spec, "r1")
    kept = claims_of(spec)
    if damage == "gone":
        kept.unlink()
    elif damage == "other bytes":
        kept.write_bytes(b"not ours")
    else:
        pq.write_table(pq.read_table(kept).drop_columns(["evidence"]), kept)
    [marker] = markers(spec.sink_path())
    with pytest.raises(CorruptionError, match=f"{kept.name}.*Restore the file"):
        _ = marker.claims
    broken = {check.name for check in audit(spec).checks if not check.ok}
    assert "markers" in broken
