"""What the commands say of topics: offsets and partitions, where of files it is bytes."""

from datetime import UTC, datetime, timedelta

import pytest

from fix_account import quiet
from fix_engine import LocalEngine
from fix_topics import Topic
from semel.abandon import abandon
from semel.cli import main
from semel.errors import SourceError
from semel.ledger import Ledger
from semel.plan import plan
from semel.run import run_batch
from semel.spec.pipeline import Spec


def run(ledger: Ledger, spec: Spec, key: str, interval=None):
    return run_batch(ledger, spec, key, LocalEngine(), interval, log=quiet)


@pytest.fixture
def said(ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs a command, and gives its exit code and what it said."""
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(list(words))
        return code, capsys.readouterr().out

    return call


@pytest.mark.rest
def test_find_and_letters(topic: Topic, ledger: Ledger, said) -> None:
    """A record and a dead letter are told by partition and offset."""
    topic.append(0, 5)
    topic.put([b'{"id": "bad'])
    topic.append(3, 5)
    spec = topic.spec(record_id=["id"], sink={"position_columns": True})
    run(ledger, spec, "r1")
    assert f"from '{topic.at()}' offset 2\n" in said("find", spec.name, "e000002")[1]
    assert f"duplicate_in_batch: batch 1, " in said("find", spec.name, "e000003")[1]
    assert f"from '{topic.at()}' offset 6\n" in said("find", spec.name, "e000003")[1]
    topic.append(10, 11)
    assert "1 source partition holds what none" in said("find", spec.name, "e000010")[1]
    code, told = said("letters", spec.name)
    assert code == 0 and f"batch 1, '{topic.at()}' (offset 5): malformed" in told
    assert f"claim: '{topic.at()}' offsets 0 to 8 (part=1)" in said("show", "1")[1]


def test_gaps_and_accept(topic: Topic, ledger: Ledger, said) -> None:
    """What is unread, refused or lost is told in offsets; following the advice ends it."""
    topic.append(0, 10)
    spec = topic.spec(source={"on_refused": "fail"})
    run(ledger, spec, "r1")
    topic.append(10, 20)
    opened = topic.kafka.begin(topic.name, [])
    code, told = said("gaps", spec.name)
    assert code == 1 and f"unclaimed: '{topic.at()}' offsets 10 to 20" in told
    opened.abort_transaction()
    abandon(ledger, plan(ledger, spec, "r2").batch.batch_id, "not now")
    topic.kafka.delete_records(topic.name, {0: 15})
    with pytest.raises(SourceError):
        run(ledger, spec, "r3")
    assert f"refused: '{topic.at()}': gone: offsets 10 to 15" in said("gaps", spec.name)[1]
    code, told = said("accept", spec.name, topic.at(), "--lost")
    assert code == 0 and told == f"lost: offsets 10 to 15 of '{topic.at()}'\n"
    run(ledger, spec, "r4")
    code, told = said("gaps", spec.name)
    assert code == 0 and f"lost: '{topic.at()}' offsets 10 to 15: gone, by" in told


def test_days_of_intervals(topic: Topic, ledger: Ledger, said) -> None:
    """With select: interval each day has its batch and its numbers. Of a day without one it does
    not say that nothing is there, for it is not known of which day the unread records are."""
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    for at, day in enumerate(days):
        stamp = round(day.timestamp() * 1000) + 3_600_000
        topic.append(10 * at, 10 * at + 10, timestamp_ms=stamp)
    spec = topic.spec(source={"select": "interval"})
    for day in days[:2]:
        run(ledger, spec, f"{day}", (day, day + timedelta(days=1)))
    code, told = said("days", spec.name, "--from", "2026-01-01", "--to", "2026-01-03")
    assert code == 0
    lines = [line.split() for line in told.splitlines()]
    assert [line[1:4] for line in lines if line and line[0] in ("2026-01-01", "2026-01-02")] == [
        ["done", "10", "10"]
    ] * 2
    assert "2026-01-03 no batch" in told
    assert "partitions 1 unclaimed" in told
