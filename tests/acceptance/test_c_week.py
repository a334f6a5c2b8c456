"""The demo as a user meets it: `semel demo`, again and again; and its weeks in other ways."""

import json
import subprocess
import sys
from datetime import date
from operator import add

import psutil
import psycopg
import pytest

from fix_stack import BY_DAY, COMMAND_SECONDS_MAX, WEEKS, Stack, answer_of
from fixtures.wait import wait_for
from semel import pipeline, reader, settings
from semel_local import stack as semel_stack
from semel.sinks.postgres.target import dsn_of


def test_the_first_week_is_exact(stack: Stack) -> None:
    """Week 1 lands and runs in Airflow: all numbers are the truth, the audit passes.

    The command that users try first, with all that it stands on, is shown by running it.
    """
    code, answer, said = stack.call("demo")
    assert (code, answer["ok"], answer["week"]) == (0, True, 1), said
    assert answer["found"] == answer["truth"]
    assert answer["found"]["records_read"] == 6284
    assert answer["found"]["new"] == answer["found"]["rows_finalized"] == 6098
    assert answer["audit"]["ok"]
    assert answer["audit"]["totals"]["survivors"] == 6098
    assert set(answer["seconds"]) == {"plan", "stage", "commit", "finalize", "all"}
    chained = answer["by_airport"]
    assert chained["found"] == chained["truth"] and chained["audit"]["ok"]
    assert sum(each["flights"] for each in chained["found"]) == 6098
    assert "/runs/asset_triggered__" in chained["run"]
    assert len(list((stack.data / "flights").iterdir())) == 7
    sums_are_exact(stack, answer)


@pytest.fixture
def first_week(stack: Stack) -> None:
    """The demo was run once; its test may be of another run of the tests."""
    if not stack.batches(WEEKS[0]):
        code, _, said = stack.call("demo")
        assert code == 0, said


@pytest.mark.rest
@pytest.mark.usefixtures("first_week")
def test_the_next_week_survives_a_failed_run(stack: Stack) -> None:
    """Of a failed task the log's end is printed; the next call goes on with the same run.

    Week 2 brings repeats of week 1, which the catalog knows. The table's pipeline, whose run has
    succeeded, is not run again.
    """
    run, airflow = "demo-week-02", stack.airflow
    demo = stack.begin("demo")
    planned = (
        "SELECT FROM semel.batch JOIN semel.pipeline USING (pipeline_id)"
        " WHERE name = 'flights' AND status = 'planned'"
    )
    wait_for(lambda: stack.query(planned), "its plan", COMMAND_SECONDS_MAX, poll=0.05)
    with psycopg.connect(settings.ledger_dsn()) as held:
        # Stage waits for this lock: a stage of two seconds may be over before one looks.
        held.execute("SELECT FROM semel.pipeline WHERE name = 'flights' FOR NO KEY UPDATE")
        wait_for(lambda: airflow.tasks("flights", run)["stage"].state == "running", "its stage")
        airflow.fail("flights", run, "stage")
    code, answer, said = answer_of(demo)
    assert code == 1
    assert f"run {run} of flights failed" in answer["message"]
    assert "end of the log of flights stage, try 1:" in said

    code, answer, said = stack.call("demo")
    assert (code, answer["ok"], answer["week"]) == (0, True, 2), said
    assert answer["found"] == answer["truth"]
    assert answer["found"]["duplicates_against_the_catalog"] == 8
    assert answer["audit"]["batches"] == 2
    assert len(list((stack.data / "flights").iterdir())) == 14
    sums_are_exact(stack, answer)


@pytest.mark.proof
@pytest.mark.follows("test_the_next_week_survives_a_failed_run")
def test_every_way_gives_the_same_rows(stack: Stack) -> None:
    """The weeks through Airflow, `semel run` and spark-submit: one set of rows, each row once.

    A connection of type `spark` stages under spark-submit, and no log shows the ledger's password.
    """
    by_hand = stack.begin("run", "flights_by_hand")
    submitted = _test_dag(stack, "flights_submitted", "local[2]")
    code, _, said = answer_of(by_hand)
    assert code == 0, said
    assert submitted.returncode == 0, submitted.stdout[-4000:]
    assert "Spark-Submit cmd: spark-submit --master local[2]" in submitted.stdout
    assert settings.ledger_dsn() not in submitted.stdout
    assert submitted.stdout.count("staged, not committed: batch") == 1

    tables = [reader.dataset(pipeline.find(name).sink_path()).to_table() for name in WEEKS]
    rows = [{tuple(row.values()) for row in table.to_pylist()} for table in tables]
    assert [table.num_rows for table in tables] == [6098 + 6109] * 3
    assert len(rows[0]) == 6098 + 6109
    assert rows[0] == rows[1] == rows[2]
    accounts = stack.query(
        "SELECT sum(records_read)::int, sum(survivors)::int, sum(quarantined)::int,"
        " sum(duplicates_batch + duplicates_catalog)::int"
        " FROM semel.attempt JOIN semel.batch USING (batch_id) JOIN semel.pipeline"
        " USING (pipeline_id) WHERE attempt.status = 'won' AND name = ANY (%s) GROUP BY name",
        list(WEEKS),
    )
    assert len(accounts) == 3 and len(set(accounts)) == 1, accounts


@pytest.mark.rest
@pytest.mark.usefixtures("first_week")
def test_a_late_file_is_counted_in_its_day(stack: Stack) -> None:
    """A day's file that comes late, with repeats: only its day grows, by what is new, and stays
    final.
    """
    before = rows_of()
    day = stack.data / "flights" / "flights-2013-01-03.jsonl"
    known = [line for line in day.read_bytes().splitlines() if line.startswith(b'{"year"')][:20]
    late = {
        "year": 2013, "month": 1, "day": 3, "carrier": "ZZ", "origin": "JFK", "dep_time": 517,
        "time_hour": "2013-01-03T10:00:00Z",
    }  # fmt: skip
    new = [json.dumps(late | {"flight": n, "dep_delay": n}).encode() for n in (1, 2, 3)]
    stack.write("flights/flights-2013-01-03-late.jsonl", [*known, *new])
    run = stack.airflow.run(BY_DAY)
    after = rows_of()
    [(_, _, *in_all, final)] = [row for row in before - after if row[1] is None]
    assert final
    assert after - before == {
        (date(2013, 1, 3), "ZZ", 3, 3, 6, True),
        (date(2013, 1, 3), None, *map(add, in_all, (3, 3, 6)), True),
    }, run
    assert len(before - after) == 1
    code, verdict, said = stack.call("audit", BY_DAY)
    assert (code, verdict["ok"]) == (0, True), said


def sums_are_exact(stack: Stack, answer: dict) -> None:
    """The view's sums are the truth, the audit passes, and the printed command finds the same. All
    days but the last are final.
    """
    said = answer["by_day"]
    in_all = [each for each in said["truth"] if each["carrier"] is None]
    assert said["found"] == said["truth"] and len(said["truth"]) > 10 * len(in_all)
    assert said["final"] == [True] * (len(in_all) - 1) + [False]
    assert said["audit"]["ok"]
    printed = [
        {
            **{name: str(value) for name, value in day.items() if name != "carrier"},
            "final": "t" if final else "f",
        }
        for day, final in zip(in_all, said["final"], strict=True)
    ]
    assert printed == stack.query_printed(answer)
    assert sum(day["flights"] for day in in_all) == said["audit"]["totals"]["survivors"]


def rows_of() -> set[tuple]:
    """All rows of the view, as the command line's connection finds them."""
    with psycopg.connect(dsn_of("warehouse")) as connection:
        assert connection.execute("SELECT current_user::text").fetchone() == ("warehouse",)
        found = connection.execute(
            "SELECT CAST(window_start AT TIME ZONE 'America/New_York' AS date), carrier, flights,"
            " departed, dep_delay_minutes, final FROM flights_by_day"
        ).fetchall()
    assert len(found) == len(set(found))
    return set(found)


def _test_dag(stack: Stack, dag: str, master: str) -> subprocess.CompletedProcess[str]:
    """Run a DAG in a process of its own, with another `spark_default` than the stack has."""
    stack.airflow.pause(dag)  # Otherwise the scheduler would take the run's tasks, over Connect.
    scheduler = next(part for part in semel_stack.status().parts if part.name == "scheduler")
    environment = psutil.Process(scheduler.pid).environ()
    environment["AIRFLOW_CONN_SPARK_DEFAULT"] = json.dumps({"conn_type": "spark", "host": master})
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return subprocess.run(
        [sys.executable, "-m", "airflow", "dags", "test", dag],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        cwd=stack.folder,
    )
