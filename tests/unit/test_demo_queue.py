"""`semel demo --queue` without a server: what it compares, what it counts, what it leaves."""

import datetime as dt
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from semel import failpoints, pipeline
from semel.archive import layout
from semel.clients.queue import PulledMessages
from semel.errors import TerminalError
from semel.pipeline.spec import Spec
from semel.sources.queue.receive import to_record_batch
from semel.sources.queue.segment import OpenSegment
from semel.sources.queue.spool import Spool
from semel_local.demo import exact, flights, queue, stream
from semel_local.demo.progress import DemoProgress

ROOT = Path(__file__).resolve().parents[2]
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """The demo's pipeline, in a folder where it alone is; state and data are this test's own."""
    monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(tmp_path / "data"))
    monkeypatch.setenv("SEMEL_PIPELINES_DIR", str(tmp_path / "pipelines"))
    stream.declare(tmp_path / "pipelines", [queue.FILE])
    return pipeline.find(queue.PIPELINE)


def segment(spec: Spec, numbers: list[int], attempt: int = 1) -> Path:
    """A sealed segment with the messages of these numbers."""
    spool = Spool(spec.source.spool_of(spec.name))
    spool.create_folders()
    part = OpenSegment.create(spool.open, spec.name, "nats:flights", NOW)
    n = len(numbers)
    part.append(
        to_record_batch(
            PulledMessages(
                ids=[f"{number}-1700000000000000000" for number in numbers],
                published=[None] * n, attributes=[[]] * n, ordering_keys=[None] * n,
                attempts=[attempt] * n, values=[b"{}"] * n, handles=[None] * n,
            )
        )
    )  # fmt: skip
    return part.seal(spool.sealed)


@pytest.mark.parametrize("left", ["segment", "marker"])
def test_a_spool_of_a_forgotten_demo_is_refused(spec: Spec, left: str) -> None:
    """Without state, what was received or finalized would not be of this stream."""
    assert queue._next_week(spec) == 1
    if left == "segment":
        segment(spec, [1])
    else:
        marker = layout.marker(layout.archive_folder(spec), 1)
        marker.parent.mkdir(parents=True)
        marker.touch()
    with pytest.raises(TerminalError, match=r"earlier demo.*flights_queue.*make reset"):
        queue._next_week(spec)
    DemoProgress(week=2, done=False).save(queue.NAME)
    assert queue._next_week(spec) == 2
    assert DemoProgress.load() == DemoProgress()  # The other demo has its own.


def test_what_came_is_counted_in_the_spool(spec: Spec) -> None:
    """Of each message how often it is there, over all segments, and what was delivered again."""
    assert queue.read_spool(queue._sealed(spec)) == queue.SpoolContents()
    segment(spec, [1, 2, 3])
    segment(spec, [3, 4, 2], attempt=2)
    segment(spec, [3], attempt=3)
    came = queue.read_spool(queue._sealed(spec))
    assert came.copies == Counter({1: 1, 2: 2, 3: 3, 4: 1})
    assert came.again == Counter({2: 1, 3: 2}) and came.redelivered == 4


def test_what_comes_again_is_a_repeat_or_one_more_dead_letter() -> None:
    """The truth counts a broken message as often as it came, under its reason; the sums hold."""
    once = exact.weeks_truth(1)
    lines = [line for day in flights.days_of(1) for line in flights.lines_of(day)[0]]
    broken = next(at for at, line in enumerate(lines, 1) if line.broken == "encoding")
    good = next(at for at, line in enumerate(lines, 1) if not line.broken)
    copies = Counter(range(1, len(lines) + 1))
    copies.update({broken: 2, good: 3})
    came = queue.SpoolContents(copies=Counter({**dict.fromkeys(copies, 1), broken: 3, good: 4}))
    true = queue.spool_truth(1, came)
    changed = {"messages_read": 5, "repeats": 3, "quarantined": 2, "quarantined:encoding": 2}
    assert true == once | {name: once[name] + n for name, n in changed.items()}
    assert true["messages_read"] == true["new"] + true["repeats"] + true["quarantined"]
    told = queue.spool_numbers(1, came, true)
    assert told["received"] == told["published"] + told["received_again"]
    assert true["repeats"] == told["repeated_by_the_publisher"] + told["repeated_by_the_queue"]
    # Each broken line of the days is known by its reason, and none else.
    reasons = Counter(queue._broken(1).values())
    assert {f"quarantined:{reason}": n for reason, n in reasons.items()}.items() <= once.items()
    assert reasons.total() == once["quarantined"]


def test_a_message_that_never_came_is_not_thought_to_have_come() -> None:
    """The truth has each message at least once, whatever the spool has."""
    assert queue.spool_truth(1, queue.SpoolContents(copies=Counter({7: 1}))) == exact.weeks_truth(1)


def payload(ok: bool) -> dict:
    true = exact.weeks_truth(1) | {"left_in_the_queue": 0}
    spool = queue.SpoolContents(redelivered=700, copies=Counter({2: 501}))
    came = queue.spool_numbers(1, spool, true)
    return {
        "ok": ok, "week": 1, "output": "data/out", "nats": "127.0.0.1:1",
        "seconds": {"receive": 6.0, "plan": 1.0, "all": 60.0},
        "airflow": {"url": "http://a", "user": "u", "password": "p", "run": "r", "dag": "d"},
        "found": true, "truth": true, "came": came,
    }  # fmt: skip


class Passes:
    """A verdict that all is well."""

    checks, batches, ok, proved_by = (), 1, True, "ids"


def test_a_wrong_number_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """Also a message that is left in the queue; and it is not said to be exact."""
    wrong = payload(False)
    wrong["found"] = wrong["found"] | {"left_in_the_queue": 1}
    queue._show(wrong, Passes())
    said = capsys.readouterr().out
    assert said.count("DIFFERENT") == 1 and "NOT THE KNOWN TRUTH" in said and "Exact." not in said


def test_what_is_proved_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    """What came is told, with where to look."""
    queue._show(payload(True), Passes())
    said = capsys.readouterr().out
    assert "DIFFERENT" not in said and "seconds: receive 6.0, plan 1.0\n" in said
    assert "Exact. 6,284 messages were published, of 6,098 flights" in said
    assert "700 messages again, and 500 of these were in the spool already" in said
    assert "the DAG: d, this run: r" in said


@pytest.mark.parametrize("code", [0, failpoints.EXIT_CODE, 1])
def test_the_receiver_that_is_killed(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that fails in another way ends the demo; it is told what happened."""
    seen: list[dict] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess:
        seen.append({"command": command, **options})
        return subprocess.CompletedProcess(command, code, "", "why it failed")

    monkeypatch.setattr(subprocess, "run", run)
    if code == 1:
        with pytest.raises(TerminalError, match="receive flights_queue.* failed: why it failed"):
            queue._kill_a_receiver()
        return
    queue._kill_a_receiver()
    said = "killed before it acknowledged" if code else "found nothing to receive"
    assert said in capsys.readouterr().err
    name, kind = seen[0]["env"]["SEMEL_FAULTS"].split(":")
    assert name in failpoints.points() and kind == "exit"
    count = str(queue.KILLED_MESSAGES)
    assert seen[0]["command"][-4:] == ["receive", queue.PIPELINE, "--messages", count]


class Stream:
    """A stream that takes what is published, and dies with the `dies`th message."""

    def __init__(self, dies: int | None = None) -> None:
        self.lines: list[flights.FlightLine] = []
        self.dies, self.befell = dies, []

    def published(self) -> int:
        return len(self.lines)

    def publish(self, lines: list[flights.FlightLine], after: int) -> None:
        assert after == len(self.lines)
        self.lines += lines[: self.dies and self.dies - after]
        if self.dies and len(self.lines) == self.dies:
            raise KeyboardInterrupt

    def forget(self, messages: int) -> int:
        self.befell.append(f"{messages} forgotten after {len(self.lines)}")
        return messages


@pytest.mark.parametrize(("week", "length"), [(1, 7), (2, 7), (1, 1)])
def test_a_publisher_that_died_goes_on(
    week: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nth message is the nth line, whichever call has sent it; what befalls the messages does
    so once, also in a week of one day, as the year's last one is. A call that finds all there
    sends nothing.
    """
    days_of = flights.days_of
    monkeypatch.setattr(flights, "days_of", lambda number: days_of(number)[:length])
    days = [day for number in range(1, week + 1) for day in flights.days_of(number)]
    wanted = [line for day in days for line in flights.lines_of(day)[0]]
    earlier = sum(flights.truth_of(number).counts.records_read for number in range(1, week))
    made = Stream(dies=earlier + 300)
    made.lines = wanted[:earlier]
    monkeypatch.setattr(
        queue, "_kill_a_receiver", lambda: made.befell.append(f"killed after {len(made.lines)}")
    )
    with pytest.raises(KeyboardInterrupt):
        queue._publish(week, made)
    made.dies = None
    queue._publish(week, made)
    queue._publish(week, made)
    assert [line.raw for line in made.lines] == [line.raw for line in wanted]
    counts = [len(flights.lines_of(day)[0]) for day in flights.days_of(week)]
    assert made.befell == [
        f"{queue.FORGOTTEN_MESSAGES} forgotten after {earlier + counts[0]}",
        f"killed after {earlier + sum(counts[:4])}",
    ]
