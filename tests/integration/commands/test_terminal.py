"""The walk of a newcomer at a terminal: each answer says what to type, in words of one meaning."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fixtures.airflow.pages import Pages
from fixtures.batches.account import committed, ids, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.postgres.server import free_port
from semel import settings
from semel.archive import layout
from semel.errors import UnavailableError
from semel.ledger import Ledger
from semel.spark import session

DAYS = {"path": "in/*.jsonl", "select": "interval", "interval_from": "%Y-%m-%d.jsonl"}

pytestmark = pytest.mark.usefixtures("ledger")


def steps(said: str) -> list[str]:
    """The commands that an answer says are next."""
    return [line.removeprefix("next: ") for line in said.splitlines() if line.startswith("next: ")]


def test_a_run_names_no_task(bench: Workbench, shell: Shell) -> None:
    """A run at a terminal has done all of its steps: nothing is next, or a command."""
    bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    said = shell.runs("semel run events")
    assert steps(said) == [] and "readers now see the whole batch" in said
    assert steps(shell.runs("semel run events")) == []
    said = shell.runs("semel replay events --batches 1 --request again")
    assert steps(said) == [] and "readers now see these outputs" in said


def test_a_run_names_the_step_of_what_it_refused(bench: Workbench, shell: Shell) -> None:
    """gaps is next, its step is typed, and then the next step: all is read."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 10))
    shell.runs("semel run events")
    path.write_bytes(b"")
    bench.write("in/a.jsonl", events(20, 25))
    for more in (False, True):  # Where nothing else is to do, and after a batch of other files.
        if more:
            bench.write("in/b.jsonl", events(30, 35))
        said = shell.runs("semel run events")
        assert "refused: " in said and steps(said) == ["semel gaps events"]
        assert said.splitlines()[-1] == "next: semel gaps events"
    said = shell.runs("semel gaps events", code=1)
    assert steps(said) == [f"semel accept events {path}"]
    [step] = steps(shell.runs(steps(said)[0]))
    assert step == "semel run events"
    shell.runs(step)
    found = settled(spec, audited=False).ids  # The first content is gone.
    assert found == [*ids(0, 10), *ids(20, 25), *ids(30, 35)]
    assert steps(shell.runs("semel gaps events")) == []


def test_gaps_of_a_file_to_correct(bench: Workbench, shell: Shell) -> None:
    """No command accepts a CSV of another header: it is corrected, and then the run is next."""
    bench.spec(source={"path": "in/*.csv", "format": "csv"})
    path = bench.data / "in/a.csv"
    path.write_text("name,n,at\ne1,1,2026-01-01T00:00:00Z\n")
    shell.runs("semel run events")
    said = shell.runs("semel gaps events", code=1)
    assert "after you have corrected the source:" in said and steps(said) == ["semel run events"]
    path.write_text("id,n,at\ne1,1,2026-01-01T00:00:00Z\n")
    assert "finalized: batch" in shell.runs(steps(said)[0])


def test_gaps_of_a_file_of_a_day_to_correct(bench: Workbench, shell: Shell) -> None:
    """The run that is next is of its day."""
    csv = {"path": "in/*.csv", "format": "csv", "interval_from": "%Y-%m-%d.csv"}
    bench.spec(source={**DAYS, **csv})
    path = bench.data / "in/2026-01-03.csv"
    path.write_text("name,n,at\ne1,1,2026-01-01T00:00:00Z\n")
    said = shell.runs("semel gaps events", code=1)
    assert steps(said) == ["semel run events --interval 2026-01-03 2026-01-04"]
    path.write_text("id,n,at\ne1,1,2026-01-01T00:00:00Z\n")
    assert "finalized: batch" in shell.runs(steps(said)[0])


@pytest.mark.parametrize("by_day", [False, True])
def test_new_columns_are_accepted_and_then(bench: Workbench, shell: Shell, by_day: bool) -> None:
    """accept --columns names the command that goes on with the batch that waits for it."""
    changes = {"source": DAYS} if by_day else {}
    interval = [" --interval 2026-01-01 2026-01-02", " --interval 2026-01-02 2026-01-03"]
    runs = [f"semel run events{span if by_day else ''}" for span in interval]
    bench.spec(**changes)
    bench.write("in/2026-01-01.jsonl", events(0, 10))
    shell.runs(runs[0])
    schema = {"id": "string", "n": "bigint", "at": "timestamp", "more": "string"}
    bench.spec(source={**changes.get("source", {}), "schema": schema})
    bench.write("in/2026-01-02.jsonl", events(10, 20))
    accept = shell.fails(runs[1])
    assert accept == "accept events --columns" or accept == "semel accept events --columns"
    [step] = steps(shell.runs(accept))
    assert "finalized: batch 2 of events, 10 rows" in shell.runs(step)


def test_a_backfill_beside_a_local_stack(
    pages: Pages, bench: Workbench, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of Airflow would make a new Airflow at home: the page is named that makes the
    backfill, and the command that needs no Airflow.
    """
    monkeypatch.setenv("SEMEL_STATE_DIR", str(bench.folder))
    settings.addresses_file().write_text(json.dumps({"AIRFLOW__API__BASE_URL": "http://there:1"}))
    source = {**DAYS, "interval_from": "day-%Y-%m-%d.jsonl"}
    bench.spec(source=source, schedule="@daily")
    bench.write("in/day-2026-11-02.jsonl", events(0, 10))
    said = shell.runs("semel gaps events", code=1)
    run_it = "semel run events --interval 2026-11-02 2026-11-03"
    assert steps(said) == [run_it], said
    [url] = re.findall(r"http://there:1(/\S+);", said)
    assert "1 run" in " ".join(re.sub("<[^>]+>", "", pages.get(url).text).split())
    shell.runs(run_it)
    assert steps(shell.runs("semel gaps events")) == []


def test_a_batch_of_several_days_shows_its_counts(bench: Workbench, shell: Shell) -> None:
    """Below the days, with why it counts in none of them."""
    bench.spec(source=DAYS)
    for number in (1, 2):
        bench.write(f"in/2026-01-0{number}.jsonl", [*events(0, 10), b"{bad"])
    shell.runs("semel run events --interval 2026-01-01 2026-01-03")
    said = shell.runs("semel days events --from 2026-01-01 --to 2026-01-02")
    assert "* batch 1 of 2026-01-01 to 2026-01-02 (22 read, 10 new, 2 set aside) spans " in said


def test_days_and_windows_say_the_same_of_an_empty_day(bench: Workbench, shell: Shell) -> None:
    """A run found nothing of it: it is complete, and empty. A day that no run has looked at is a
    hole, and nothing is known of its records.
    """
    bench.spec(source=DAYS, schedule="0 0 * * *")
    for number in (1, 3, 5):
        bench.write(f"in/2026-01-0{number}.jsonl", events(10 * number, 10 * number + 10))
    for number in (1, 2, 3, 5):
        shell.runs(f"semel run events --interval 2026-01-0{number} 2026-01-0{number + 1}")
    span = "--from 2026-01-01 --to 2026-01-05"
    days = shell.answers(f"semel days events {span}")["days"]
    found = [day["state"] for day in days]
    assert found == ["finalized", "empty", "finalized", "empty", "finalized"]
    windows = shell.answers(f"semel windows events {span}")["windows"]
    found = {window["start"][:10]: window["state"] for window in windows}
    assert found == {
        "2026-01-01": "complete", "2026-01-02": "complete", "2026-01-03": "complete",
        "2026-01-04": "hole", "2026-01-05": "complete",
    }  # fmt: skip


def test_a_failed_day_that_is_long_past_is_a_hole(bench: Workbench, shell: Shell) -> None:
    """Its time has come: it is read by the command that is printed, and is complete then."""
    bench.spec(source=DAYS, schedule="0 0 * * *")
    for number in (1, 2):
        bench.write(f"in/2026-01-0{number}.jsonl", events(10 * number, 10 * number + 10))
    shell.runs("semel run events --interval 2026-01-01 2026-01-02")
    said = shell.runs("semel windows events --from 2026-01-01 --to 2026-01-02")
    assert "not yet" not in said
    assert steps(said) == ["semel run events --interval 2026-01-02 2026-01-03"]
    shell.runs(steps(said)[0])
    said = shell.runs("semel windows events --from 2026-01-01 --to 2026-01-02")
    assert said.count("complete") == 2 and steps(said) == []


def test_the_day_that_has_just_ended_is_not_yet_a_hole(bench: Workbench, shell: Shell) -> None:
    """Its run has until the end of the next one."""
    bench.spec(source=DAYS, schedule="0 0 * * *")
    today = datetime.now(UTC).date()
    day = [today - timedelta(days=n) for n in range(4)]
    bench.write(f"in/{day[3]}.jsonl", events(0, 10))
    shell.runs(f"semel run events --interval {day[3]} {day[2]}")
    answer = shell.answers(f"semel windows events --from {day[3]} --to {day[0]}")
    states = [window["state"] for window in answer["windows"]]
    assert states == ["not yet", "not yet", "hole", "complete"]


def test_a_replay_says_which_batches_there_are(bench: Workbench, shell: Shell) -> None:
    """A range with numbers that are no batch of the pipeline is replayed as far as it goes."""
    for name in ("events", "other"):
        bench.spec(name, source={"path": f"in/{name}*.jsonl"})
        bench.write(f"in/{name}.jsonl", events(0, 10))
        shell.runs(f"semel run {name}")
    bench.write("in/events2.jsonl", events(10, 20))
    shell.runs("semel run events")
    there = "of 1 to 99, events has only batches 1, 3"
    for option in (" --dry-run", "", " --requarantine --dry-run"):
        shell.runs(f"semel replay events --batches 1..99{option}")
        assert there in shell.err
    shell.runs("semel replay events --batches 1..3 --dry-run")
    assert "events has" not in shell.err


def test_show_takes_the_pipeline_too(bench: Workbench, shell: Shell) -> None:
    """The same batch by its number, with its pipeline or without; another's is not shown."""
    for name in ("events", "other"):
        bench.spec(name)
        bench.write("in/a.jsonl", events(0, 10))
        shell.runs(f"semel run {name}")
    assert shell.runs("semel show events 1") == shell.runs("semel show 1")
    assert shell.answers("semel show other 2")["batch"]["pipeline"] == "other"
    for line, code in (("events 2", 1), ("events", 2), ("events x", 2), ("1 2 3", 2)):
        step = shell.fails(f"semel show {line}", code)
        assert step == ("semel batches events" if "events" in line else "semel show --help")
        shell.runs(step)
    shell.fails("semel show events 99")
    assert shell.fails("semel show nonsense 1", code=2) == "semel batches"


def test_audit_names_the_batch_that_lacks_its_marker(bench: Workbench, shell: Shell) -> None:
    """A committed batch before a finalized one: its step finalizes it, and the audit passes."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    with Ledger() as ledger:
        committed(ledger, spec, "cli:first")
        bench.write("in/b.jsonl", events(10, 20))
        run(ledger, spec, "cli")
    [step] = steps(shell.runs("semel audit events", code=1))
    assert step == "semel run events --request cli:first"
    shell.runs(step)
    shell.runs("semel audit events")
    layout.marker(layout.archive_folder(spec), 1).unlink()
    [step] = steps(shell.runs("semel audit events", code=1))
    assert step == "semel batches events"

COLUMNS = {"id": "string", "n": "bigint", "at": "timestamp"}
MESSAGES = {"value": "json", "schema": COLUMNS}
QUEUED = {
    **MESSAGES, "schema": {**COLUMNS, "message_id": "string"}, "spool": "spool",
    "message_id": "message_id",
}  # fmt: skip
DOWN = {"connection": "down"}
AWS = {"conn_type": "aws", "login": "a", "password": "b"}

AWAY = {
    # command, what is declared, the connection `down`: PORT is a port that nobody listens on.
    "kafka": ("gaps", {"source": {"type": "kafka", "topics": ["t"], **DOWN, **MESSAGES}},
              {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:PORT"}}),
    "nats": ("receive",
             {"source": {"type": "nats", "stream": "s", "consumer": "c", **DOWN, **QUEUED}},
             {"conn_type": "nats", "host": "127.0.0.1", "port": "PORT"}),
    "sqs": ("receive",
            {"source": {"type": "sqs", "queue": "http://127.0.0.1:PORT/1/q", **DOWN, **QUEUED}},
            {**AWS, "extra": {"region_name": "eu-west-1", "endpoint_url": "http://127.0.0.1:PORT"}}),
    "store": ("gaps", {"source": {"type": "objects", "url": "s3://lake1/in", "format": "jsonl",
                                  "schema": COLUMNS, **DOWN}},
              {**AWS, "extra": {"region_name": "us-east-1", "endpoint_url": "http://127.0.0.1:PORT"}}),
    "table": ("audit", {"sink": {"type": "postgres", "table": "events", "create": True, **DOWN}},
              {"conn_type": "postgres", "host": "127.0.0.1", "port": "PORT", "login": "u",
               "schema": "d"}),
    "topic": ("audit", {"sink": {"type": "kafka", "topic": "t", **DOWN}},
              {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:PORT"}}),
}  # fmt: skip


@pytest.mark.parametrize("kind", AWAY)
def test_a_connection_that_does_not_answer_is_named(
    bench: Workbench, shell: Shell, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The error says which connection, and that it does not answer."""
    command, declared, connection = AWAY[kind]
    port = str(free_port())

    def here(values: object) -> Any:
        return json.loads(json.dumps(values).replace("PORT", port))

    monkeypatch.setenv("AIRFLOW_CONN_DOWN", json.dumps(here(connection)))
    bench.spec(**here(declared))
    error = shell.answers(f"semel {command} events", code=1)
    assert error["kind"] == "UnavailableError" and "does not answer" in error["message"], error
    assert re.search("connection:? ?'down'", error["message"]), error


def test_a_ledger_and_a_spark_that_do_not_answer_are_named(
    bench: Workbench, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their addresses, without a password or a token."""
    port = free_port()
    bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    with monkeypatch.context() as patch:
        patch.setenv("SEMEL_LEDGER_DSN", f"postgresql://u:hidden@127.0.0.1:{port}/d")
        message = shell.answers("semel batches", code=1)["message"]
    assert f"the ledger postgresql://u:***@127.0.0.1:{port}/d does not answer" in message
    monkeypatch.undo()
    with pytest.raises(UnavailableError, match=f"Spark at sc://127.0.0.1:{port}/ does not answer"):
        with session.open_engine(f"sc://127.0.0.1:{port}/;token=hidden"):
            pass


def test_a_ledger_that_is_lost_meanwhile_is_named(ledger: Ledger) -> None:
    """Its address stands in the error."""
    lost = "SELECT pg_terminate_backend(pg_backend_pid())"
    with pytest.raises(UnavailableError, match=rf"the ledger {re.escape(str(ledger))}: .* lost"):
        with ledger.transaction() as connection:
            connection.exec_driver_sql(lost)
