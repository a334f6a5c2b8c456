"""An upstream is replayed while batches that have not committed have claimed its output."""

import json

import pytest

from fixtures.batches.account import advised, ids, quiet, run, settled, sql
from fixtures.batches.chains import Keeping, again, link
from fixtures.batches.replays import falls_silent
from fixtures.commands.shell import answer_in
from fixtures.contract.sources import Upstream
from fixtures.postgres.server import lose
from semel.cli import main
from semel.commit import commit
from semel.errors import CorruptionError, SourceError, StateError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import partitions, plan
from semel.repair.accept import accept_file
from semel.repair.adopt import adopt
from semel.reports.gaps import GapReason, gaps
from semel.runs import replay
from semel.sources import Partition
from semel.sources.pipeline.source import FinalizedBatches
from semel.sources.sealed.source import SealedSource
from semel.spark.check import CheckReport
from semel.stage import stage


@pytest.fixture
def up(linked: Upstream) -> Upstream:
    linked.append(0, 10)
    return linked


def staged(ledger: Ledger, spec: Spec, key: str = "r1") -> int:
    """The number of a batch that is planned and staged."""
    number = plan(ledger, spec, key).batch.batch_id
    stage(ledger, spec, number, Keeping(None), log=quiet)
    return number


def lands(ledger: Ledger, spec: Spec, number: int) -> None:
    """Commit and finalize a staged batch."""
    commit(ledger, spec, number, lambda: None, log=quiet)
    finalize(ledger, spec, number)


# Attacks CH1, P25.
@pytest.mark.parametrize("below", [5, 10, 25])
@pytest.mark.parametrize("planned", [False, True])
def test_a_staged_batch_keeps_its_claim(
    up: Upstream, ledger: Ledger, below: int, planned: bool
) -> None:
    """Another run plans after the replay, and leaves the part alone; when the staged batch has
    committed, the part is refused as replayed, and a replay makes it what a rebuild would be.

    Fewer rows, as many, and more rows than were claimed.
    """
    if below > 10:
        again(up, 3, key="fewer")
    spec = up.spec()
    batch = staged(ledger, spec)
    again(up, below)
    if planned:
        up.append(20, 25)
        run(ledger, spec, "r2")
    lands(ledger, spec, batch)
    refused = {r.name: r.reason for r in run(ledger, spec, "r3").plan.refusals}
    assert refused == {"up/b00000001": "replayed"}
    replay.run(ledger, spec, "down", batch, Keeping(None), log=quiet)
    assert run(ledger, spec, "r4").plan.refusals == ()
    more = ids(20, 25) if planned else []
    assert settled(spec).ids == sorted(ids(0, min(below, 10)) + more)


def is_replayed(ledger: Ledger, spec: Spec, root: int, key: str = "down") -> None:
    replay.run(ledger, spec, key, root, Keeping(None), log=quiet)


# Attacks CH1.
def test_plan_gaps_and_accept_name_the_batch_that_waits(
    up: Upstream, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is refused: the staged batch is named, with the claim that it has."""
    spec = up.spec()
    batch = staged(ledger, spec)
    again(up, 5)
    waits = f"'up/b00000001': batch {batch} (run r1) has claimed an output of it"
    lines: list[str] = []
    done = plan(ledger, spec, "r2", log=lines.append)
    assert done.batch is None and done.refusals == () and waits in lines[0]
    found = gaps(ledger, spec)
    assert {(gap.state, gap.start, gap.end, gap.batch_id) for gap in found.gaps} == {
        (GapReason.PLANNED, 0, 10, batch), (GapReason.WAITING, 0, 5, None)
    }  # fmt: skip
    falls_silent(ledger)
    capsys.readouterr()
    assert main(["gaps", "events"]) == 1
    told = capsys.readouterr()
    assert waits in told.err and told.out.splitlines()[-1] == "next: semel run events --request r1"
    with pytest.raises(SourceError) as refused:
        accept_file(ledger, spec, "up/b00000001", same=False)
    assert waits in str(refused.value)
    (part,) = sql(ledger, "SELECT evidence ->> 'content' AS content FROM semel.source_partition "
                  "WHERE name = 'up/b00000001'")  # fmt: skip
    (claim,) = sql(ledger, f"SELECT evidence ->> 'content' AS content FROM semel.claim "
                   f"WHERE batch_id = {batch}")  # fmt: skip
    assert part == claim


# Attacks CH1, P11.
@pytest.mark.parametrize(
    ("beside", "below"), [("nothing", 0), ("a part", 0), ("a part", 5), ("full", 0), ("full", 5)]
)
def test_an_orphan_is_taken_over_whatever_is_taken(
    up: Upstream, ledger: Ledger, beside: str, below: int
) -> None:
    """Also where the new output has no rows, or another batch uses up the limit: with the content
    the orphan goes, so it never commits. `full`: the limit is used up by the part before.
    """
    full = beside == "full"
    if beside != "nothing":
        up.append(10, 20)
    spec = up.spec(limits={"records_per_batch_max": 1} if full else {})
    batches = [staged(ledger, spec, f"r{at}") for at in range(1 + full)]
    again(up, 10 + below if full else below, root=1 + full)
    falls_silent(ledger)
    done = plan(ledger, spec, "new")
    assert set(done.taken_over) == {*batches}
    for batch in batches:
        with pytest.raises(StateError, match="was abandoned"):
            commit(ledger, spec, batch, lambda: None, log=quiet)
    for key in ("new", "next", "last"):
        run(ledger, spec, key)
    left = {
        "nothing": [],
        "a part": ids(0, below) + ids(10, 20),
        "full": ids(0, 10) + ids(10, 10 + below),
    }
    assert gaps(ledger, spec).gaps == () and gaps(ledger, spec).refusals == ()
    assert (settled(spec).ids if left[beside] else []) == left[beside]


# Attacks CH1, CH2.
def test_half_of_a_part_that_committed(
    up: Upstream, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch has committed the first rows of a part, another one died with the rest: once the
    part is replayed, the orphan goes, so that the replay of the first may read all of it.
    """
    monkeypatch.setattr(FinalizedBatches, "last_record_end", SealedSource.last_record_end)
    spec = up.spec(limits={"records_per_batch_max": 4})
    first = run(ledger, spec, "r1").plan.batch.batch_id
    orphan = staged(ledger, spec, "r2")
    falls_silent(ledger)
    again(up, 7)
    done = plan(ledger, spec, "r3")
    assert done.taken_over == (orphan,) and [r.reason for r in done.refusals] == ["replayed"]
    advised(ledger, done.refusals[0].detail, "--batches")
    done = run(ledger, spec, "r4").plan
    assert done.batch is None and done.refusals == ()
    assert gaps(ledger, spec).gaps == () and gaps(ledger, spec).refusals == ()
    assert settled(spec).ids == ids(0, 7) and first


# Attacks CH1.
def test_a_replay_that_died_is_refused_with_its_command(up: Upstream, ledger: Ledger) -> None:
    """A plan says so, and does not wait for ever; there is nothing to accept before it is ended."""
    spec = up.spec()
    batch = run(ledger, spec, "r1").plan.batch.batch_id
    again(up, 5)
    made, _ = replay.plan(ledger, spec, "down", batch)
    assert run(ledger, spec, "r2").plan.refusals == ()
    falls_silent(ledger)
    (refused,) = run(ledger, spec, "r3").plan.refusals
    assert refused.reason == "replayed" and f"`semel abandon {made.batch_id}`" in refused.detail
    with pytest.raises(SourceError, match="a replay, has claimed an output"):
        accept_file(ledger, spec, "up/b00000001", same=False)
    advised(ledger, refused.detail, "--batches")
    assert run(ledger, spec, "r4").plan.refusals == () and settled(spec).ids == ids(0, 5)


# Attacks CH1.
def test_rows_that_were_accepted_as_lost_are_none_of_another_output(
    up: Upstream, ledger: Ledger
) -> None:
    """The loss is of the older output; the new one is read from its first row."""
    spec = up.spec()
    batch = plan(ledger, spec, "r1").batch.batch_id
    marker, away = up.markers / "b00000001.json", up.bench.folder / "b00000001.json"
    marker.rename(away)
    assert main(["abandon", str(batch)]) == 0
    (refused,) = run(ledger, spec, "r2").plan.refusals
    advised(ledger, refused.detail, "--lost")
    away.rename(marker)
    assert run(ledger, spec, "r3").plan.batch is None
    again(up, 7)
    assert run(ledger, spec, "r4").plan.refusals == () and settled(spec).ids == ids(0, 7)


# Attacks C15.
def test_a_claim_on_content_that_was_replaced_never_commits(up: Upstream, ledger: Ledger) -> None:
    """Whatever changed the partition; the batch is planned again, with the content that is there."""
    spec = up.spec()
    batch = staged(ledger, spec)
    again(up, 5)
    sql(
        ledger,
        "UPDATE semel.source_partition SET evidence = evidence || CAST(:new AS jsonb)",
        new=json.dumps({"content": "another"}),
    )
    with pytest.raises(TerminalError, match="content of 'up/b00000001' that was replaced"):
        commit(ledger, spec, batch, lambda: None, log=quiet)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 5)


# Attacks P25.
def test_no_plan_changes_content_that_is_claimed(up: Upstream, ledger: Ledger) -> None:
    """Whatever its source has matched; what is not claimed may change."""
    spec = up.spec()
    batch = plan(ledger, spec, "r1").batch.batch_id
    (held,) = sql(ledger, "SELECT source_partition_id, name, generation, identity, fingerprint, "
                  "settled, reached, seen, evidence, false AS closed FROM semel.source_partition "
                  "WHERE name LIKE 'up/%'")  # fmt: skip
    other = Partition(**{**held, "evidence": held["evidence"] | {"content": "another"}})
    for update in (Partition(**held), other):
        try:
            with ledger.transaction() as connection:
                partitions.update(connection, [update])
        except StateError as error:
            assert update is other and "that a batch has claimed" in str(error)
        else:
            assert update is not other
    assert main(["abandon", str(batch)]) == 0
    with ledger.transaction() as connection:
        partitions.update(connection, [other])


# Attacks CH3.
@pytest.mark.parametrize("before", [False, True])
def test_downstream_names_a_batch_that_has_not_committed(
    up: Upstream, ledger: Ledger, capsys: pytest.CaptureFixture[str], before: bool
) -> None:
    """It will commit the older output: nothing is done, and the error says which batch it is and
    what to do. `before`: the upstream is replayed already.
    """
    spec = up.spec()
    batch = staged(ledger, spec)
    words = ["replay", "up", "--batches", "1", "--downstream", "--request", "again:5"]
    if before:
        again(up, 5)
    capsys.readouterr()
    assert main([*words, "--dry-run"]) == 1
    assert f"batch {batch}: NOT: batch {batch} (run r1) is planned" in capsys.readouterr().out
    assert main(words) == 1
    told = capsys.readouterr().err
    assert f"Let its run finish, or abandon it (`semel abandon {batch}`)" in told
    assert settled(up.declared).ids == (ids(0, 5) if before else ids(0, 10))
    lands(ledger, spec, batch)
    again(up, 5)
    assert main(words) == 0
    assert settled(spec).ids == ids(0, 5) and run(ledger, spec, "r2").plan.refusals == ()


# Attacks CH3.
def test_a_batch_that_has_claimed_what_is_there_holds_up_no_chain(
    up: Upstream, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planned after the replay, it reads the new output."""
    again(up, 5)
    spec = up.spec()
    batch = staged(ledger, spec)
    words = ["replay", "up", "--batches", "1", "--downstream", "--request", "again:5"]
    assert main(words) == 0
    assert "1 batch is up to date" in capsys.readouterr().out
    lands(ledger, spec, batch)
    assert settled(spec).ids == ids(0, 5)


# Attacks CH4, D2.
@pytest.mark.parametrize("by_id", [False, True])
def test_adopts_advice_doubles_no_pipeline_below(
    up: Upstream, ledger: Ledger, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, by_id: bool,
) -> None:  # fmt: skip
    """A damaged marker is moved aside, as the error says, and the upstream reads its records again,
    into another batch: the pipeline below reports what it has read, and begins nothing; what a
    refusal says to do reads each row once. With a record_id the repeats are dropped.
    """
    up.append(10, 20)
    changes = {"record_id": ["id"]} if by_id else {}
    spec = up.spec(**changes)
    run(ledger, spec, "r1")
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    path = up.markers / "b00000001.json"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(
        CorruptionError, match="move that marker out of.*stops if it has read that batch"
    ):
        adopt(ledger, up.declared, log=quiet)
    path.rename(up.bench.folder / path.name)
    adopt(ledger, up.declared, log=quiet)
    run(ledger, up.declared, "later", engine=Keeping(None))
    assert settled(up.declared, audited=False).ids == ids(0, 20)
    done = run(ledger, spec, "r2").plan
    (refused,) = done.refusals
    assert (refused.name, refused.reason) == ("up/b00000001", "missing")
    assert (done.batch is not None) == by_id and settled(spec, audited=False).ids == ids(0, 20)
    assert [r.name for r in gaps(ledger, spec).refusals] == ["up/b00000001"]
    monkeypatch.setattr("semel.spark.check.check", lambda *_: CheckReport())
    assert main(["check", "events", "--json"]) == 1
    found = answer_in(capsys.readouterr().out)["checks"]
    assert [c["remedy"] for c in found if "up/b00000001" in c["detail"]] == ["semel gaps events"]
    anew = link(up, "anew", "up")
    run(ledger, anew, "r1")
    assert settled(anew).ids == ids(0, 20)


# Attacks CH4.
def test_a_marker_that_is_back_ends_the_wait(up: Upstream, ledger: Ledger) -> None:
    """What came meanwhile is read then."""
    spec = up.spec()
    run(ledger, spec, "r1")
    path, away = up.markers / "b00000001.json", up.bench.folder / "b00000001.json"
    up.append(10, 20)
    path.rename(away)
    assert run(ledger, spec, "r2").plan.batch is None
    away.rename(path)
    assert run(ledger, spec, "r3").plan.refusals == () and settled(spec).ids == ids(0, 20)
