"""`semel demo --kafka` without a broker: what it compares, what it waits for, what it leaves."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from semel import pipeline
from semel.archive import layout
from semel.errors import TerminalError, UnavailableError
from semel.pipeline.spec import Spec
from semel_local.demo import exact, flights, follow, stream
from semel_local.demo.airflow_api import DagRun, TaskState
from semel_local.demo.progress import DemoProgress

DAYS = [dt.date(2013, 1, 1), dt.date(2013, 1, 2)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pipelines with those of the demo; state and data are this test's own."""
    monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(tmp_path / "data"))
    monkeypatch.setenv("SEMEL_PIPELINES_DIR", str(tmp_path / "pipelines"))
    stream.declare(tmp_path / "pipelines")
    return tmp_path / "pipelines"


@pytest.fixture
def live(folder: Path) -> Spec:  # noqa: ARG001 - it is where the pipelines are
    return pipeline.find(stream.LIVE)


def test_its_pipelines_are_declared_where_they_are_missing(folder: Path) -> None:
    """One that a user has changed is left alone."""
    changed = folder / "flights_live.yaml"
    text = changed.read_text().replace('"* * * * *"', '"*/5 * * * *"')
    changed.write_text(text)
    (folder / "flights_by_date.yaml").unlink()
    stream.declare(folder)
    assert changed.read_text() == text
    assert sorted(path.name for path in folder.iterdir()) == [
        "flights_by_date.yaml", "flights_live.yaml",
    ]  # fmt: skip


def test_files_of_a_forgotten_demo_are_refused(live: Spec) -> None:
    """Without state, batches that are there would not be of this topic."""
    by_date = pipeline.find(stream.BY_DATE)
    assert stream._next_week(live, by_date) == 1
    marker = layout.marker(layout.archive_folder(live), 1)
    marker.parent.mkdir(parents=True)
    marker.touch()
    with pytest.raises(TerminalError, match=r"earlier demo.*flights_by_date.*make reset"):
        stream._next_week(live, by_date)
    DemoProgress(week=2, done=False).save(stream.NAME)
    assert stream._next_week(live, by_date) == 2
    assert DemoProgress.load() == DemoProgress()  # The other demo has its own.


def test_the_truth_adds_up() -> None:
    """Of the weeks so far; and each row is what the flights alone say."""
    weeks = [flights.truth_of(1), flights.truth_of(2)]
    true, rows = exact.weeks_truth(2), exact.true_rows(2)
    assert true["messages_read"] == sum(week.counts.records_read for week in weeks)
    assert true["messages_read"] == true["new"] + true["repeats"] + true["quarantined"]
    assert true["quarantined"] == sum(n for name, n in true.items() if ":" in name)
    new = sum(day.flights for day in flights.sums_by_day(2))
    assert true["rows_finalized"] == true["new"] == rows.num_rows == new
    [first] = rows.slice(0, 1)["time_hour"].to_pylist()
    assert first == dt.datetime(2013, 1, 1, 10, tzinfo=dt.UTC)
    assert true["rows_that_are_wrong"] == 0


def test_wrong_rows_are_counted() -> None:
    """One that is missing, too much, there twice, or has another value; order and types count not.
    """
    true = exact.true_rows(1).slice(0, 100)
    assert exact.count_wrong(true, true) == 0
    other = true.take(pa.array(range(99, -1, -1)))
    at = other.column_names.index("month")
    other = other.set_column(at, "month", other["month"].cast(pa.int32()))
    assert exact.count_wrong(other, true) == 0
    assert exact.count_wrong(true.slice(1), true) == 1
    assert exact.count_wrong(pa.concat_tables([true, true.slice(0, 1)]), true) == 1
    changed = true.set_column(at, "month", pa.array([2] + true["month"].to_pylist()[1:]))
    assert exact.count_wrong(changed, true) == 2  # The right one is missing too.


@pytest.mark.parametrize("name", [*exact.weeks_truth(1), "quarantined:too_long"])
def test_a_wrong_number_is_seen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each number is told where it is another one, in each pipeline; a reason that the truth does
    not know, too."""
    true = exact.weeks_truth(1)
    found = {stream.LIVE: true, stream.BY_DATE: true | {name: true.get(name, 0) + 1}}
    payload = {
        "ok": False, "week": 1, "output": {stream.LIVE: "flights_once"}, "kafka": "127.0.0.1:1",
        "airflow": {"url": "http://a", "user": "u", "password": "p", "runs": {}},
        "found": found, "truth": true,
    }  # fmt: skip
    stream._show(payload, {})
    said = capsys.readouterr().out
    assert said.count("DIFFERENT") == 1 and "NOT THE KNOWN TRUTH" in said and "Exact." not in said


class Airflow:
    """An Airflow whose backfill's runs end one after the other, one a look."""

    url = "http://airflow"

    def __init__(self, *states: str) -> None:
        self.states = states
        self.looks = 0
        self.failed: list[DagRun] = []

    def runs_of(self, name: str, first: dt.date, last: dt.date) -> list[DagRun]:
        assert (name, [first, last]) == (stream.BY_DATE, DAYS)
        self.looks += 1
        done = self.states[: self.looks]
        states = [*done, *["running"] * (len(DAYS) - len(done))]
        return [
            DagRun(run_id=f"backfill__{day}", state=state, date=day, seconds=1.0)
            for day, state in zip(DAYS, states, strict=True)
        ]

    def failed_since(self, name: str, since: dt.datetime) -> list[DagRun]:  # noqa: ARG002
        assert name == stream.LIVE
        return self.failed

    def tasks(self, name: str, run_id: str) -> dict[str, TaskState]:  # noqa: ARG002
        times = {"started": None, "ended": None}
        return {"stage": TaskState(task_id="stage", state="failed", try_number=4, **times)}

    def log(self, name: str, run_id: str, task: TaskState) -> list[str]:
        return [f"why {name} {run_id} {task.task_id} failed"]

    def run_url(self, name: str, run_id: str) -> str:
        return f"{self.url}/{name}/{run_id}"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stream, "POLL_SECONDS", 0)
    yield


def batch(live: Spec, number: int, messages: int) -> None:
    """What the demo reads of a success marker."""
    path = layout.marker(layout.archive_folder(live), number)
    path.parent.mkdir(parents=True, exist_ok=True)
    key = f"airflow:{live.name}:scheduled__{number}"
    path.write_text(f'{{"request_key": "{key}", "counts": {{"records_read": {messages}}}}}')


def test_both_are_waited_for(live: Spec, capsys: pytest.CaptureFixture[str]) -> None:
    """The live pipeline has read all, and each day's run has ended: told once, as it comes."""
    batch(live, 1, 30)
    watch = stream.Watch(api=Airflow("success", "success"), live=live, days=DAYS)
    batch(live, 2, 40)
    watch.until(70)
    watch.until(70, backfill=True)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "  flights_live: a batch of 40 messages, by the run scheduled__2",
        "  flights_by_date: 2013-01-01 success after 1.0 s",
        "  flights_by_date: 2013-01-02 success after 1.0 s",
    ]


@pytest.mark.parametrize("which", ["live", "backfill"])
def test_a_run_that_fails_is_told(
    live: Spec, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the end of its log, where to look, and how to go on; nothing is waited for any more."""
    airflow = Airflow("success", "failed")
    if which == "live":
        airflow.failed = [DagRun(run_id="r", state="failed", date=None, seconds=1.0)]
    watch = stream.Watch(api=airflow, live=live, days=DAYS)
    with pytest.raises(TerminalError, match=r"failed, see http://airflow/.*resumes the run"):
        watch.until(1, backfill=which == "backfill")
    assert "| why flights_" in capsys.readouterr().err


def test_what_does_not_end_is_told(live: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that is bounded the message says what is missing."""
    monkeypatch.setattr(follow, "RUN_SECONDS_MAX", -1)
    watch = stream.Watch(api=Airflow("success"), live=live, days=DAYS)
    batch(live, 1, 30)
    with pytest.raises(UnavailableError, match=r"read 30 of 70 messages.*1 runs have ended"):
        watch.until(70, backfill=True)
