"""What is late: records whose ids were forgotten, and no others."""

import json
from datetime import timedelta

import pytest

from fixtures.batches.account import quiet, settled
from fixtures.batches.days import Days, of_days
from fixtures.batches.workbench import Workbench
from fixtures.postgres.server import lose
from fixtures.spark.local import LocalEngine
from semel.archive.marker import markers
from semel.audit import audit
from semel.collect.merge import merge_candidates
from semel.errors import ANEW, LimitError
from semel.ledger import Ledger
from semel.repair.adopt import adopt
from semel.runs import requarantine

@pytest.fixture
def days(bench: Workbench, ledger: Ledger) -> Days:
    return Days(bench, ledger)


# Attacks G1.
def test_what_was_never_read_is_not_late(days: Days) -> None:
    """A backfill older than the horizon, beside a live schedule: its buckets were never read."""
    assert days.read(of_days(0, 100, 0)).survivors == 100
    days.collect()
    assert days.forgotten() == "{}"
    counts = days.read(of_days(100, 600, 365, 366, 400))
    assert (counts.survivors, counts.late) == (500, 0)
    # For a horizon from its commit it is known.
    assert days.collect().runs_retired == 0
    assert days.read(of_days(100, 600, 365, 366, 400)).duplicates_catalog == 500
    assert len(settled(days.spec).ids) == 600


# Attacks G1.
def test_only_what_was_retired_is_late(days: Days) -> None:
    """The buckets of an expired batch are late from then on; those around them are not."""
    days.read(of_days(0, 10, 50, 40))
    days.read(of_days(10, 20, 0))
    assert days.expire(1).runs_retired == 2
    assert days.read(of_days(0, 10, 50, 40)).late == 10
    assert audit(days.spec).ok
    assert days.read(of_days(20, 50, 60, 45, 30)).survivors == 30
    assert days.read(of_days(10, 20, 0)).duplicates_catalog == 10


# Attacks G1, G3.
def test_merged_runs_forget_what_their_parts_had(
    days: Days, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs far apart are merged; what lies between them stays open when their run is retired."""
    monkeypatch.setitem(merge_candidates.__kwdefaults__, "live_max", 1)
    for number, day in enumerate((90, 60, 30)):
        days.read(of_days(10 * number, 10 * number + 10, day))
    assert days.collect().runs_merged == 6
    with days.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE semel.id_run SET expires_at = now()")
    assert days.collect().runs_retired == 2
    assert days.read(of_days(30, 60, 75, 45)).survivors == 30
    assert days.read(of_days(0, 30, 90)).late == 30


# Attacks C5.
def test_a_batch_around_what_is_forgotten_commits(days: Days) -> None:
    """A year's backfill that spans a forgotten bucket loses no attempt for it."""
    days.read(of_days(0, 10, 100))
    days.expire()
    counts = days.read(of_days(0, 90, 200, 100, 20))
    assert (counts.survivors, counts.late) == (60, 30)
    days.declare(dedup={"late": "accept"})
    counts = days.read(of_days(90, 180, 200, 100, 20))
    assert (counts.survivors, counts.late) == (90, 0)
    with days.ledger.transaction() as connection:
        text = "SELECT count(*) FROM semel.attempt WHERE status = 'lost'"
        assert connection.exec_driver_sql(text).scalar() == 0


# Attacks S28.
def test_a_batch_that_is_late_as_a_whole_fails(days: Days) -> None:
    """Nothing of it is visible; the error names the share, one record, and two ways out."""
    spec = days.declare(limits={"late_ratio_max": 0.5})
    assert spec.limits.late_ratio_max == type(spec.limits)().late_ratio_max
    days.read(of_days(0, 10, 30))
    days.expire()
    told = (
        r"^batch 2: 7 of 12 records are late, more than limits.late_ratio_max 0.5 allows\n"
        r"late 7, one of them: '[^\n]*2\.jsonl' line 1[^\n]*\n"
        r"    at: too late: [^\n]*\n    {[^\n]*\n"
    )
    mixed = [*of_days(0, 7, 30), *of_days(20, 25, 0)]
    with pytest.raises(LimitError, match=told) as error:
        days.read(mixed)
    assert error.value.next == ANEW
    assert len(markers(spec.sink_path())) == 1
    with pytest.raises(LimitError, match="7 of 12"):
        days.again()


# Attacks S28.
def test_late_records_are_set_aside_on_request(days: Days) -> None:
    """One way out of the message: they are dead letters, and may be taken in later."""
    days.declare(limits={"late_ratio_max": 0.5})
    days.read(of_days(0, 10, 30))
    days.expire()
    with pytest.raises(LimitError, match=r"`limits.late_ratio_max: 1.0` to make them dead letters"):
        days.read(of_days(20, 32, 30))
    days.declare(limits={"late_ratio_max": 1.0})
    counts = days.again()
    assert (counts.survivors, counts.late) == (0, 12)
    assert settled(days.spec).reasons == {"late": 12}
    spec = days.declare(limits={"late_ratio_max": 1.0}, dedup={"late": "accept"})
    done = requarantine.run(days.ledger, spec, "q", 2, LocalEngine(), log=quiet)
    assert done.finalized.counts.survivors == 12
    assert audit(spec).ok


# Attacks S28.
def test_late_records_are_taken_on_request(days: Days) -> None:
    """The other way out: they are new, and known from then on."""
    days.declare(limits={"late_ratio_max": 0.5})
    days.read(of_days(0, 10, 30))
    days.expire()
    with pytest.raises(LimitError, match=r"`dedup.late: accept` to take them"):
        days.read(of_days(20, 32, 30))
    days.declare(limits={"late_ratio_max": 0.5}, dedup={"late": "accept"})
    assert days.again().survivors == 12
    assert days.read(of_days(20, 32, 30)).duplicates_catalog == 12


def test_half_of_a_batch_may_be_late(days: Days) -> None:
    """By default; in scope horizon nothing is late, whatever it says."""
    days.declare(limits={"late_ratio_max": 0.5})
    days.read(of_days(0, 10, 30))
    days.expire()
    assert days.read([*of_days(0, 5, 30), *of_days(20, 25, 0)]).late == 5


# Attacks D8.
def test_adopt_forgets_what_had_expired_and_no_more(days: Days) -> None:
    """From markers alone: the buckets of expired batches are late, and those between are not."""
    days.read(of_days(0, 20, 200, 100))
    days.read(of_days(20, 40, 300, 0))
    days.expire(1)
    before = days.forgotten()
    first, second = markers(days.spec.sink_path())
    assert [len(marker.buckets.ranges) for marker in (first, second)] == [2, 2]
    text = first.path.read_text()
    old = (first.batch_time - timedelta(days=8)).isoformat()
    first.path.write_text(text.replace(first.batch_time.isoformat(), old))
    lose(days.ledger)
    found = adopt(days.ledger, days.spec, log=quiet)
    assert (found.ids, found.batches_expired) == (20, 1)
    assert days.forgotten() == before
    assert days.read(of_days(0, 20, 200, 100)).late == 20
    assert days.read(of_days(20, 40, 300, 0)).duplicates_catalog == 20
    assert days.read(of_days(40, 70, 250, 150, 50)).survivors == 30


def blamed(days: Days) -> list[tuple[str, str]]:
    """What an audit finds: the check, and the first thing it says."""
    return [(c.name, c.offenders[0].what) for c in audit(days.spec).checks if not c.ok]


def rewritten(days: Days, batch: int, buckets: list[list[int]]) -> None:
    """Let the marker of a batch name other buckets."""
    path = markers(days.spec.sink_path())[batch - 1].path
    path.write_text(json.dumps(json.loads(path.read_text()) | {"buckets": buckets}))


def test_an_audit_knows_what_can_be_late(days: Days) -> None:
    """From files alone: nothing is late of whose bucket no earlier batch has a record."""
    days.read(of_days(0, 10, 50, 0))
    days.read(of_days(10, 12, 30))
    with days.ledger.transaction() as connection:
        text = "UPDATE semel.pipeline SET forgotten = (SELECT range_merge(buckets) FROM semel.id_run"
        connection.exec_driver_sql(f"{text} WHERE attempt_id = 1 LIMIT 1)::int8multirange")
    days.read(of_days(20, 23, 20))
    why = "a dead letter says late, but no earlier batch has a record of its bucket"
    assert blamed(days) == [("dead letters", why)]


def test_an_audit_proves_the_buckets_of_a_marker(days: Days) -> None:
    """Each range begins and ends with a record's bucket, and each record's bucket is in one."""
    days.read(of_days(0, 10, 50, 0))
    [old, new] = map(list, markers(days.spec.sink_path())[0].buckets.ranges)
    assert audit(days.spec).ok
    rewritten(days, 1, [old])
    of = "of record_time"
    assert blamed(days) == [("records", f"its marker does not name the bucket {new[0]} {of}")]
    rewritten(days, 1, [old, [new[0], new[1] + 1]])
    why = f"its marker names the bucket {new[1]} {of}, and it has no record of it"
    assert blamed(days) == [("records", why)]
