"""Replays that travel down a chain: what reads an output that was replayed reads the new one."""

import json
import shlex

import pytest

from fixtures.batches.account import advised, ids, quiet, run, settled, sql
from fixtures.batches.chains import again, link
from fixtures.batches.compares import compared
from fixtures.batches.faults import dies_at
from fixtures.batches.replays import broken, falls_silent, proven, refusal, replayed
from fixtures.batches.workbench import Workbench
from fixtures.commands.shell import answer_in
from fixtures.contract.sources import Upstream
from fixtures.postgres.server import lose
from fixtures.postgres.warehouse import TABLE, Warehouse
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.archive.marker import markers_of
from semel.cli import main
from semel.errors import CorruptionError, RetryableError, SourceError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.accept import accept_file
from semel.repair.adopt import adopt
from semel.reports.dead_letters import letters
from semel.reports.gaps import gaps
from semel.runs import replay, requarantine
from semel.spark.engine import SparkEngine
from semel.stage import stage


@pytest.fixture
def up(linked: Upstream) -> Upstream:
    return linked


def read(up: Upstream, ledger: Ledger, **changes: object) -> Spec:
    """Two batches of the upstream, read by one: batch 3."""
    up.append(0, 10)
    up.append(10, 20)
    spec = up.spec(**changes)
    run(ledger, spec, "r1")
    return spec


# Attacks CH2.
def test_a_replay_reads_the_new_output(up: Upstream, ledger: Ledger) -> None:
    """Of two parts the one that was replayed anew, of the other what was read; the next run has
    nothing to do with either, and the next replay takes the new verdicts.
    """
    spec = read(up, ledger)
    again(up, 5)
    done = replayed(ledger, spec, 3, "down")
    assert done.batch.judges and done.batch.generation == 2
    assert settled(spec).ids == ids(0, 5) + ids(10, 20)
    up.append(20, 25)
    for key in ("r2", "r3"):
        assert run(ledger, spec, key).plan.refusals == ()
    assert gaps(ledger, spec).gaps == () and gaps(ledger, spec).refusals == ()
    assert settled(spec).ids == ids(0, 5) + ids(10, 25)
    third = replayed(ledger, spec, 3, "same").batch
    assert (third.generation, third.judged_by) == (3, done.batch.batch_id)
    assert settled(spec).ids == ids(0, 5) + ids(10, 25)


# Attacks CH1, CH2.
def test_what_a_planned_replay_has_claimed_waits_for_it(up: Upstream, ledger: Ledger) -> None:
    """It is neither refused nor read by a run; given up, it is refused again."""
    spec = read(up, ledger)
    again(up, 5)
    made, _ = replay.plan(ledger, spec, "down", 3)
    done = run(ledger, spec, "r2").plan
    assert done.batch is None and done.refusals == ()
    assert main(["abandon", str(made.batch_id)]) == 0
    (refused,) = run(ledger, spec, "r3").plan.refusals
    assert refused.reason == "replayed" and settled(spec).ids == ids(0, 20)
    advised(ledger, refused.detail, "--batches")
    assert run(ledger, spec, "r4").plan.refusals == ()
    assert settled(spec).ids == ids(0, 5) + ids(10, 20)


# Attacks CH1, CH2.
@pytest.mark.parametrize("runs", [False, True])
def test_a_later_replay_that_was_given_up(up: Upstream, ledger: Ledger, runs: bool) -> None:
    """Its part is refused again: whatever of it was known is no content that was read. `runs`: a
    plan has looked between the two replays.
    """
    spec = read(up, ledger)
    again(up, 5)
    replayed(ledger, spec, 3, "down")
    if runs:
        run(ledger, spec, "r2")
    again(up, 7)
    made, _ = replay.plan(ledger, spec, "more", 3)
    assert main(["abandon", str(made.batch_id)]) == 0
    (refused,) = run(ledger, spec, "r3").plan.refusals
    assert refused.reason == "replayed" and settled(spec).ids == ids(0, 5) + ids(10, 20)
    advised(ledger, refused.detail, "--batches")
    assert settled(spec).ids == ids(0, 7) + ids(10, 20)


# Attacks CH2.
def test_a_batch_that_has_no_rows_now(up: Upstream, ledger: Ledger) -> None:
    """Its old rows are gone, with nothing in their place; when rows come back they are read."""
    spec = read(up, ledger)
    again(up, 0)
    replayed(ledger, spec, 3, "down")
    assert settled(spec).ids == ids(10, 20)
    assert run(ledger, spec, "r2").plan.refusals == ()
    lose(ledger)
    adopt(ledger, up.declared, log=quiet)
    adopt(ledger, spec, log=quiet)
    assert run(ledger, spec, "r3").plan.batch is None
    again(up, 3, key="back")
    replayed(ledger, spec, 3, "down")
    assert settled(spec).ids == ids(0, 3) + ids(10, 20)


# Attacks CH2.
def test_all_parts_have_no_rows(up: Upstream, ledger: Ledger) -> None:
    up.append(0, 10)
    spec = up.spec()
    run(ledger, spec, "r1")
    again(up, 0)
    replayed(ledger, spec, 2, "down")
    assert settled(spec).ids == []


# Attacks CH2, P21.
@pytest.mark.parametrize("point", ["replay.after_write", "stage.after_job", "stage.after_seal"])
def test_it_is_replayed_again_before_the_stage(up: Upstream, ledger: Ledger, point: str) -> None:
    """What has not committed is planned anew by its request, for the newest output."""
    spec = read(up, ledger)
    again(up, 5)
    with dies_at(point):
        replayed(ledger, spec, 3, "down")
    again(up, 7)
    falls_silent(ledger)
    replayed(ledger, spec, 3, "down")
    assert settled(spec).ids == ids(0, 7) + ids(10, 20)


# Attacks S6.
def test_a_stage_that_meets_another_output(up: Upstream, ledger: Ledger) -> None:
    """Nothing of it is written, the error says what to do, and the same request does it."""
    spec = read(up, ledger)
    again(up, 5)
    made, _ = replay.plan(ledger, spec, "down", 3)
    again(up, 7)
    with pytest.raises(SourceError, match="its content changed") as told:
        stage(ledger, spec, made.batch_id, LocalEngine(), log=quiet)
    assert f"semel abandon {made.batch_id}" in str(told.value)
    assert main(["abandon", str(made.batch_id)]) == 0
    replayed(ledger, spec, 3, "down")
    assert settled(spec).ids == ids(0, 7) + ids(10, 20)


ADMISSION = """
INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec, spec_digest, split_bytes, admits,
                         admission)
SELECT pipeline_id, 'q', 1, spec, spec_digest, split_bytes, 3, 1
FROM semel.batch WHERE batch_id = 3"""
"""An admission of batch 3, as one is planned."""

APART = {
    "record_id": "the catalog has the ids",
    "accepted": "reads some of it too, because a person accepted that",
    "admitted": "has judged some of its dead letters again",
}


# Attacks CH2.
@pytest.mark.parametrize("case", APART)
def test_what_cannot_be_judged_anew(up: Upstream, ledger: Ledger, case: str) -> None:
    """It says why, nothing is planned, and the whole chain is refused before anything is done."""
    spec = read(up, ledger, **{"record_id": ["id"]} if case == "record_id" else {})
    again(up, 5)
    if case == "admitted":
        sql(ledger, ADMISSION)
    if case == "accepted":
        accept_file(ledger, spec, "up/b00000001", same=False)  # What is refused names this, too.
        run(ledger, spec, "r2")
        again(up, 7)
    assert APART[case] in str(refusal(ledger, spec, 3))
    before = [marker.writer_id for marker in markers_of(up.declared)]
    assert main(["replay", "up", "--batches", "1", "--downstream"]) == 1
    assert [marker.writer_id for marker in markers_of(up.declared)] == before
    settled(spec)


# Attacks CH1.
def test_an_acceptance_is_of_one_output(up: Upstream, ledger: Ledger) -> None:
    """One that came after it, before the accepted one was read, is refused like any other."""
    spec = read(up, ledger)
    again(up, 5)
    accept_file(ledger, spec, "up/b00000001", same=False)
    again(up, 7)
    (refused,) = run(ledger, spec, "r2").plan.refusals
    assert refused.reason == "replayed" and settled(spec).ids == ids(0, 20)
    advised(ledger, refused.detail)
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert settled(spec).ids == sorted(ids(0, 20) + ids(0, 7))


# Attacks CH1, CH2.
@pytest.mark.parametrize("claimed", [False, True])
def test_what_is_accepted_and_not_read_yet(
    up: Upstream, ledger: Ledger, claimed: bool
) -> None:
    """It is the next run's, so no replay takes it, too. `claimed`: a run had planned it, and was
    given up.
    """
    spec = read(up, ledger)
    again(up, 5)
    accept_file(ledger, spec, "up/b00000001", same=False)
    if claimed:
        made = plan(ledger, spec, "r2").batch
        assert main(["abandon", str(made.batch_id)]) == 0
    assert "no batch has read these yet" in str(refusal(ledger, spec, 3))
    assert main(["replay", "up", "--batches", "1", "--downstream"]) == 1
    run(ledger, spec, "r3")
    assert settled(spec).ids == sorted(ids(0, 20) + ids(0, 5))


# Attacks CH2, D2, D3.
def test_a_lost_ledger_has_it_again(up: Upstream, ledger: Ledger) -> None:
    """Generations, verdicts and claims: the next replays go on as before, judged anew or not."""
    spec = read(up, ledger)
    again(up, 5)
    replayed(ledger, spec, 3, "down")
    replayed(ledger, spec, 3, "same")
    lose(ledger)
    adopt(ledger, up.declared, log=quiet)
    adopt(ledger, spec, log=quiet)
    assert run(ledger, spec, "r3").plan.batch is None
    assert run(ledger, spec, "r4").plan.refusals == ()
    assert not replayed(ledger, spec, 3, "more").batch.judges
    assert settled(spec).ids == ids(0, 5) + ids(10, 20)
    again(up, 7, key="later")
    (refused,) = run(ledger, spec, "r5").plan.refusals
    assert refused.name == "up/b00000001"
    assert replayed(ledger, spec, 3, "last").batch.judges
    assert settled(spec).ids == ids(0, 7) + ids(10, 20)


# Attacks CH2, RP9.
def test_a_table_and_its_dead_letters(
    up: Upstream, ledger: Ledger, table: Warehouse
) -> None:
    """Rows are replaced, what the table refuses is judged anew, and nobody admits a dead letter of
    before while a replay is at work; those of the new output are admitted as of any batch.
    """
    up.append(0, 10)
    spec = up.spec(sink=TABLE)
    run(ledger, spec, "r1")
    table.run("ALTER TABLE events ADD CHECK (n <> 3 AND n <> 7 AND n <> 12) NOT VALID")
    up.append(10, 20)
    run(ledger, spec, "r2")
    again(up, 15, root=3)
    replay.plan(ledger, spec, "down", 4)
    with pytest.raises(SourceError, match="its content changed"):
        requarantine.run(ledger, spec, "q", 4, LocalEngine(), log=quiet)
    replayed(ledger, spec, 4, "down")
    found = letters(spec, batch_id=4, count=9).letters
    assert [(one.source, one.offset) for one in found] == [("up/b00000003", 2)]
    rows = table.run("SELECT _semel_seq, array_agg(n ORDER BY n) FROM events GROUP BY 1 ORDER BY 1")
    assert rows == [(1, [*range(10)]), (2, [10, 11, 13, 14])]
    table.run("ALTER TABLE events DROP CONSTRAINT events_n_check")
    done = requarantine.run(ledger, spec, "q", 4, LocalEngine(), log=quiet)
    assert done.finalized.counts.survivors == 1
    proven(spec, replayed=1)
    assert "has judged some of its dead letters again" in str(refused_again(up, ledger, spec))


def refused_again(up: Upstream, ledger: Ledger, spec: Spec) -> Exception:
    again(up, 14, root=3, key="later")
    return refusal(ledger, spec, 4)


def test_what_else_asks_what_a_batch_reads(
    up: Upstream, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """A compare reads again what the newest output is of, also of a part without rows; `semel show`
    tells what each output is of.
    """
    spec = read(up, ledger)
    up.append(20, 30)
    run(ledger, spec, "r2")
    again(up, 0)
    again(up, 15, root=2)
    number = replayed(ledger, spec, 3, "down").batch.batch_id
    found = compared(ledger, spec, 3, 5)
    assert (found.rows_live, found.rows_other, found.total) == (15, 15, 0)
    capsys.readouterr()
    assert main(["show", str(number), "--json"]) == 0
    claims = answer_in(capsys.readouterr().out)["claims"]
    assert [(c["name"], c["start"], c["end"]) for c in claims] == [
        ("up/b00000001", 0, 0), ("up/b00000002", 0, 5)
    ]  # fmt: skip
    assert main(["show", "3", "--json"]) == 0
    assert [c["end"] for c in answer_in(capsys.readouterr().out)["claims"]] == [10, 10]


# Attacks RP2, CH2.
def test_two_requests_at_once(up: Upstream, ledger: Ledger) -> None:
    """The second is told of the first; once that is silent, it goes on in its place."""
    spec = read(up, ledger)
    again(up, 5)
    with dies_at("replay.after_write"):
        replay.plan(ledger, spec, "one", 3)
    with pytest.raises(RetryableError, match="is at work on batch 3"):
        replay.plan(ledger, spec, "two", 3)
    falls_silent(ledger)
    replayed(ledger, spec, 3, "two")
    assert settled(spec).ids == ids(0, 5) + ids(10, 20)


def chain(up: Upstream, ledger: Ledger) -> tuple[Spec, Spec]:
    """up -> a -> b, and one that has read nothing yet."""
    up.append(0, 10)
    up.append(10, 20)
    a = link(up, "a", "up")
    run(ledger, a, "a1")
    b = link(up, "b", "a")
    run(ledger, b, "b1")
    link(up, "c", "a")
    return a, b


# Attacks CH3.
def test_the_chain_follows(
    up: Upstream, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told first, then done in its order, and not again."""
    a, b = chain(up, ledger)
    again(up, 5)
    words = ["replay", "up", "--batches", "1", "--downstream", "--json", "--request", "again:5"]
    assert main([*words, "--dry-run"]) == 0
    told = answer_in(capsys.readouterr().out)
    behind = {"batch_id": 3, "behind": True, "why": None}
    assert told["downstream"] == [
        {"pipeline": "a", "reads": "up", "batches": [behind]},
        {"pipeline": "b", "reads": "a", "batches": [behind | {"batch_id": 4}]},
    ]
    assert main([word for word in words if word != "--json"] + ["--dry-run"]) == 0
    assert "a, which reads up:\n  batch 3: would follow" in capsys.readouterr().out
    assert main(words) == 0
    done = answer_in(capsys.readouterr().out)
    assert done["left_alone"] == [1]
    assert [link["replayed"][0]["batch_id"] for link in done["downstream"]] == [3, 4]
    assert settled(a).ids == settled(b).ids == ids(0, 5) + ids(10, 20)
    assert main(words) == 0
    done = answer_in(capsys.readouterr().out)
    assert [(x["replayed"], x["left_alone"]) for x in done["downstream"]] == [([], [3]), ([], [4])]


# Attacks CH3.
def test_it_stops_where_something_is_wrong(
    up: Upstream, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says where, what is done stays, and the command that it names goes on from there."""
    a, b = chain(up, ledger)
    again(up, 5)
    held = b.sink_path().parent / "_semel" / "b" / "markers" / "b00000004.json"
    text = held.read_bytes()
    held.unlink()
    assert main(["replay", "up", "--batches", "1", "--downstream", "--request", "again:5"]) == 1
    told = capsys.readouterr().err
    assert "stopped at batch 4 of b, which reads a: " in told
    held.write_bytes(text)
    command = told.splitlines()[-1].removeprefix("next: semel ")
    assert main(command.split()) == 0
    assert settled(a).ids == settled(b).ids == ids(0, 5) + ids(10, 20)


# Attacks CH3.
def test_only_what_moves_can_refuse(up: Upstream, ledger: Ledger) -> None:
    """Of a part that stays another batch has read the output before: no reason not to follow."""
    spec = read(up, ledger)
    again(up, 15, root=2)
    accept_file(ledger, spec, "up/b00000002", same=False)
    up.append(20, 30)
    second = run(ledger, spec, "r2").plan.batch
    root = max(replay.roots(ledger, up.declared, batches=(1, second.batch_id)))
    again(up, 25, root)
    words = ["replay", "up", "--batches", str(root), "--downstream", "--request", "again:25"]
    assert main(words) == 0
    assert settled(spec).ids == sorted(ids(0, 20) + ids(10, 15) + ids(20, 25))
    assert main(["replay", "up", "--batches", f"2..{root}", "--downstream"]) == 1


def test_a_refusal_names_no_replay_that_is_refused(
    up: Upstream, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the command that tells why, and accepts; and the output that was read last."""
    spec = read(up, ledger)
    again(up, 5)
    replayed(ledger, spec, 3, "down")
    again(up, 7)
    (refused,) = run(ledger, spec, "r2").plan.refusals
    assert "generation 2, 5 rows read); it has 7 rows now" in refused.detail
    sql(ledger, ADMISSION)
    (refused,) = run(ledger, spec, "r3").plan.refusals
    assert "--downstream" not in refused.detail
    told = "`semel replay events --batches 3 --dry-run` explains why"
    assert told in refused.detail
    capsys.readouterr()
    assert main(["replay", "events", "--batches", "3", "--dry-run"]) == 1
    assert APART["admitted"] in capsys.readouterr().out
    advised(ledger, refused.detail)
    run(ledger, spec, "r4")
    assert settled(spec).ids == sorted(ids(0, 5) + ids(10, 20) + ids(0, 7))


def test_a_replay_that_died_is_told_and_goes_on(
    up: Upstream, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """`semel gaps` names the command that goes on with it, and there is nothing to accept."""
    spec = read(up, ledger)
    again(up, 5)
    replay.plan(ledger, spec, "down 1", 3)
    with pytest.raises(SourceError, match=r"\(run down 1\), a replay, has claimed an output"):
        accept_file(ledger, spec, "up/b00000001", same=False)
    falls_silent(ledger)
    capsys.readouterr()
    assert main(["gaps", "events"]) == 1
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == "next: semel replay events --batches 3 --request 'down 1'"
    assert main(shlex.split(told.removeprefix("next: semel "))) == 0
    assert main(["gaps", "events"]) == 0
    assert settled(spec).ids == ids(0, 5) + ids(10, 20)


# Attacks CH2, D2.
@pytest.mark.parametrize("name", ["records_read", "survivors", "claims"])
def test_a_replaced_marker_that_was_edited(up: Upstream, ledger: Ledger, name: str) -> None:
    """The audit tells it, though what was read for it has other content now; and adopt is refused
    where the account does not add up.
    """
    spec = read(up, ledger)
    again(up, 5)
    replayed(ledger, spec, 3, "down")
    path = layout.replaced_marker(layout.archive_folder(spec), 3, 1)
    plain = json.loads(path.read_text())
    if name == "claims":
        plain["claims"][1]["end"] = 9
    else:
        plain["counts"][name] -= 1
    path.write_text(json.dumps(plain))
    assert broken(spec) == {"generations"}
    if name != "claims":
        lose(ledger)
        with pytest.raises(CorruptionError, match="do not add up"):
            adopt(ledger, spec, log=quiet)


# Attacks CH2.
@pytest.mark.proof
def test_on_spark(bench: Workbench, ledger: Ledger, spark: object) -> None:
    """Real transforms, and a part that has no rows left, alone in its batch. It takes some 60 s:
    the local engine has no transforms and no tasks.
    """
    up, engine = Upstream(bench, ledger), SparkEngine(spark)
    keep = bench.transforms / "keep.sql"
    keep.write_text("SELECT * FROM records")
    first = up.files.spec(name="up", transforms=["keep.sql"])
    up.files.append(0, 10)
    run(ledger, first, "up1", engine=engine)
    (bench.transforms / "more.sql").write_text("SELECT *, n + 1 AS m FROM records")
    spec = up.spec(transforms=["more.sql"])
    run(ledger, spec, "r1", engine=engine)
    for at, (below, left) in enumerate([("n < 0", 0), ("n < 4", 4)]):
        keep.write_text(f"SELECT * FROM records WHERE {below}")
        replay.run(ledger, first, f"up{at}", 1, engine, log=quiet)
        replay.run(ledger, spec, f"down{at}", 2, engine, log=quiet)
        assert settled(spec).ids == ids(0, left)
