"""A pipeline that reads the objects of another one, without its archive."""

from collections.abc import Iterator

import pytest

from fixtures.batches.account import ids, refusals, run, settled
from fixtures.batches.replays import replayed
from fixtures.batches.workbench import Workbench
from fixtures.contract.sources import StoredUpstream
from fixtures.objects.s3 import CONNECTION, S3
from fixtures.postgres.server import database
from semel.audit import audit
from semel.errors import SourceError, SpecError
from semel.ledger import Ledger
from semel.pipeline import load
from semel.pipeline.spec import Spec
from semel.runs import downstream


@pytest.fixture
def up(bench: Workbench, postgres: str, template: str, s3: S3) -> Iterator[StoredUpstream]:
    with database(postgres, template) as dsn, Ledger(dsn) as ledger:
        yield StoredUpstream(bench, ledger, s3)


def data_keys(up: StoredUpstream) -> list[str]:
    return [key for key in up.keys() if "/_semel/" not in key]


# Attacks R1, CH1.
def test_each_row_of_each_batch_once(up: StoredUpstream, ledger: Ledger) -> None:
    """Several batches in one, with values that are folders. What lies below the prefix and is in no
    marker is not read; the audit proves the rows from the objects.
    """
    for start in (0, 10, 20):
        up.append(start, start + 10)
    [key, *_] = data_keys(up)
    up.s3.put(up.bucket, f"{key.rpartition('/')[0]}/stray.parquet", up.s3.get(up.bucket, key))
    marker = up.s3.get(up.bucket, "lake/up/_semel/markers/b00000001.json")
    up.s3.put(up.bucket, "lake/up/_semel/markers/bak/b00000001.json", marker)
    up.s3.put(up.bucket, "lake/up/_semel/markers/bak/b00000009.json", b"{}")
    spec = up.spec(sink={"position_columns": True})
    done = run(ledger, spec, "r1")
    assert done.plan.names == ("up/b00000001", "up/b00000002", "up/b00000003")
    assert settled(spec).ids == ids(0, 30)
    assert {str(row["at"]) for row in settled(spec).rows} == {"2026-01-01 00:00:00+00:00"}
    up.append(30, 35)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 35)


# Attacks CH1.
def test_a_prefix_of_a_pipeline_that_is_declared_elsewhere(
    up: StoredUpstream, ledger: Ledger
) -> None:
    """By its URL and connection. Neither goes without the other rules: `path`, `connection`."""
    up.append(0, 10)
    here = {"url": f"s3://{up.bucket}/lake/up/", "connection": CONNECTION}
    spec = up.spec(source=here)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)
    with pytest.raises(SpecError, match="source.url: does not apply with path"):
        up.spec(source={**here, "path": "out/up"})
    with pytest.raises(SpecError, match="source.connection: does not apply without url"):
        up.spec(source={"connection": CONNECTION})
    with pytest.raises(SpecError, match="source.url: is not a URL such as s3://"):
        up.spec(source={"url": "s3://user:password@bucket/up"})


# Attacks CH1, CH4.
def test_a_replay_is_refused_and_followed(up: StoredUpstream, ledger: Ledger) -> None:
    """The old rows stay until a person decides; `--batches`, as the refusal says, replaces them.
    Before that, the audit cannot read the replaced output any more, and says so.
    """
    up.append(0, 10)
    up.append(10, 20)
    spec = up.spec()
    run(ledger, spec, "r1")
    replayed(up.ledger, up.declared, 1, "again")
    [refused] = run(ledger, spec, "r2").plan.refusals
    assert (refused.name, refused.reason) == ("up/b00000001", "replayed")
    verdict = audit(spec)
    assert verdict.ok and any("has replaced some of its output" in str(note) for note in verdict.notes)
    assert "`semel replay events --batches 1`" in refused.detail
    replayed(ledger, spec, 1, "down")
    assert settled(spec).ids == ids(0, 20)
    assert run(ledger, spec, "r2b").plan.refusals == () and refusals(ledger) == {}
    key = f"lake/up/_semel/markers/b{2:08d}.json"
    copy = up.s3.get(up.bucket, key)
    up.s3.delete(up.bucket, key)
    [missing] = run(ledger, spec, "r3").plan.refusals
    assert (missing.name, missing.reason) == ("up/b00000002", "missing")
    up.s3.put(up.bucket, key, copy)
    assert run(ledger, spec, "r4").plan.refusals == ()


# Attacks S6, S29.
def test_an_object_that_is_not_what_its_marker_lists(up: StoredUpstream, ledger: Ledger) -> None:
    """Other bytes, or none: an error that names the object, and nothing of it is read."""
    up.append(0, 10)
    [key] = data_keys(up)
    data = up.s3.get(up.bucket, key)
    spec = up.spec()
    up.s3.put(up.bucket, key, data[:50] + bytes([data[50] ^ 1]) + data[51:])
    with pytest.raises(SourceError, match=f"s3://{up.bucket}/{key}, a file of .*its bytes do not"):
        run(ledger, spec, "r1")
    up.s3.delete(up.bucket, key)
    with pytest.raises(SourceError, match="it does not exist"):
        run(ledger, spec, "r1")
    up.s3.put(up.bucket, key, data)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)


# Attacks W7, CH1.
def test_a_listing_that_lacks_what_is_new_is_not_complete(
    up: StoredUpstream, ledger: Ledger
) -> None:
    """A window may end by a listing only if it shows each marker as it is now."""
    from semel.pipeline.opening import open_source

    up.append(0, 10)
    source = open_source(up.spec())
    shown = source.discover()
    assert source.is_complete(shown)
    up.append(10, 20)
    assert not source.is_complete(shown)
    shown = source.discover()
    assert source.is_complete(shown)
    replayed(up.ledger, up.declared, 1, "again")
    assert not source.is_complete(shown)
    up.lose()
    assert not source.is_complete(shown)


# Attacks P12.
def test_an_output_below_the_prefix_is_refused(up: StoredUpstream) -> None:
    """Readers that list the prefix would read it."""
    below = {**up.sink(), "partition_by": [], "url": f"s3://{up.bucket}/lake/up/down"}
    with pytest.raises(SpecError, match="source.url: .*lake/up and .*lake/up/down overlap"):
        up.spec(sink=below)


# Attacks P29.
def test_a_circle_through_a_prefix_is_refused(up: StoredUpstream, bench: Workbench) -> None:
    spec = up.spec(sink={**up.sink(), "partition_by": [], "url": f"s3://{up.bucket}/lake/down"})
    assert spec.source.reads_from(up.declared.sink.whereabouts())
    with pytest.raises(SpecError, match="read the pipeline's own output|reads .* too"):
        bench.spec(
            "up", record_id=None, sink={**up.sink(), "partition_by": []},
            source={
                "type": "pipeline", "pipeline": "other", "url": f"s3://{up.bucket}/lake/up",
                "connection": CONNECTION, "schema": {"id": "string"},
            },
        )  # fmt: skip


# Attacks CH3.
def test_a_replay_goes_down_the_chain(up: StoredUpstream) -> None:
    """`--downstream` finds the pipeline that reads the prefix."""
    up.append(0, 10)
    spec: Spec = up.spec()
    run(up.ledger, spec, "r1")
    [link] = downstream.find_followers(up.ledger, load(up.bench.pipelines / "up.yaml"), {1: True})
    assert (link.spec.name, link.above, [*link.batches]) == (spec.name, "up", [2])


def test_a_store_without_markers(up: StoredUpstream, ledger: Ledger) -> None:
    """Before the first batch, and below another prefix: a refusal that says what to do."""
    spec = up.spec()
    [refused] = run(ledger, spec, "r1").plan.refusals
    assert refused.reason == "missing" and "correct source.url" in refused.detail
    up.append(0, 5)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 5)
