"""compare on Spark with transforms, of tables, from the command line, and not allowed."""

import json
import os
import secrets
import shlex
from contextlib import contextmanager

import psycopg
import pytest
import sqlalchemy as sa

from fix_compare import batch, compared, forge
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from fix_sink_postgres import Warehouse
from semel import requarantine
from semel.accept import accept_columns
from semel.cli import main
from semel.compare import Cause
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.spark.engine import SparkEngine

TRANSFORMS = """
from pyspark.sql import functions as F

def doubled(frame):
    return frame.withColumn("n", F.col("n") * 2)

def dice(frame):
    return frame.withColumn("n", (F.rand() * 1000000).cast("bigint"))

def per_batch(frame):
    return frame.groupBy("at").agg(F.count("*").alias("n"))

def without_id(frame):
    return frame.select(F.col("n") + 1, "at")
"""


def with_transform(bench: Workbench, name: str, **changes: object):
    (bench.transforms / "shape.py").write_text(TRANSFORMS)
    return bench.spec(transforms=[f"shape:{name}"], **changes)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("name", "by", "causes"),
    [
        ("doubled", "id", {}),
        ("without_id", "row", {}),
        ("dice", "id", {"not_deterministic": 30}),
        ("per_batch", "row", {"transform": 3}),
    ],
)
def test_transforms(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, name: str, by: str, causes: dict
) -> None:
    """A transform that treats each record by itself gives the same rows; one with random values, or
    that puts a batch's records together, is told as such.
    """
    spec = with_transform(bench, name)
    for n in range(2):
        bench.write(f"in/{n}.jsonl", events(n * 15, n * 15 + 15 + 5 * (1 - n)))
        batch(ledger, spec, spark_engine)
    found = compared(ledger, spec, engine=spark_engine)
    assert (found.by, found.causes) == (by, causes), found
    known = compared(ledger, spec, 2, engine=spark_engine)
    assert known.known == 5 and (known.equal or name == "dice")


@pytest.mark.rest
def test_changed_code(bench: Workbench, ledger: Ledger, spark_engine: SparkEngine) -> None:
    """Rows that other code made are told as that."""
    spec = with_transform(bench, "doubled")
    bench.write("in/a.jsonl", events(1, 4))
    batch(ledger, spec, spark_engine)
    (bench.transforms / "shape.py").write_text(TRANSFORMS.replace("* 2", "* 3"))
    found = compared(ledger, spec, engine=spark_engine)
    assert found.causes == {str(Cause.CODE): 3}
    assert [d.other.row["n"] for d in found.differences] == ["3", "6", "9"]


@pytest.mark.rest
def test_records_behind_a_transform(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """Behind a transform that keeps the id, it is told too that another copy won, or that the live
    path set records aside.
    """
    bucket = {"scope": "bucket", "horizon": "30 days"}
    spec = with_transform(bench, "doubled", record_time="at", dedup=bucket)
    bench.write("in/z.jsonl", events(0, 10))
    batch(ledger, spec, spark_engine)
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE semel.pipeline SET forgotten = '{[0,20000)}'")
    late = {"id": "late", "n": 1, "at": "2001-01-01T00:00:00Z"}
    os.utime(bench.write("in/a.jsonl", [late, {**events(5, 6)[0], "n": 500}]), ns=(1, 1))
    batch(ledger, spec, spark_engine)
    found = compared(ledger, spec, engine=spark_engine)
    told = {d.id: (d.cause, d.live.row and d.live.row["n"], d.other.row["n"])
            for d in found.differences}  # fmt: skip
    assert told == {
        "e000005": (Cause.COPY, "10", "1000"), "late": (Cause.LATE, None, "2")
    }  # fmt: skip


@pytest.mark.rest
@pytest.mark.parametrize("scope", ["horizon", pytest.param("bucket", marks=pytest.mark.proof)])
def test_an_admission(bench: Workbench, ledger: Ledger, scope: str) -> None:
    """Dead letters that were admitted later are their root's: both paths have them. Ids that they
    brought, or that others outside had, are known as they were.
    """
    kinds = {"id": "string", "n": "int", "at": "timestamp"}
    dedup = {"record_time": "at", "dedup": {"scope": scope, "horizon": "30 days"}}
    spec = bench.spec(source={"schema": kinds}, **dedup)
    bench.write("in/0.jsonl", events(0, 3))
    batch(ledger, spec)
    big = [{**e, "n": 1 << 40} for e in events(1, 9)]
    bench.write("in/1.jsonl", [*events(7, 12), *big])
    batch(ledger, spec)
    assert compared(ledger, spec, 2).equal
    spec = bench.spec(source={"schema": {**kinds, "n": "bigint"}}, **dedup)
    accept_columns(ledger, spec)
    before = compared(ledger, spec, 2)
    assert before.causes == {"quarantined": 6}
    assert before.apart == {"only_live": {"type_mismatch": 6}}
    done = requarantine.run(ledger, spec, "again", 2, LocalEngine(), log=lambda _: None)
    assert done.finalized.counts.survivors == 4
    bench.write("in/2.jsonl", [*events(0, 2), *big, *events(30, 33)])
    batch(ledger, spec)
    for first, last, known in ((1, 4, 0), (2, 4, 3), (4, 4, 9), (2, 2, 2)):
        found = compared(ledger, spec, first, last)
        assert found.equal and found.known == known, found
    assert found.batches == (2, 3) and not found.apart


@pytest.fixture
def table(bench: Workbench, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> dict:
    """A sink: a table of the warehouse."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    return {"type": "postgres", "connection": "warehouse", "table": "events", "create": True}


def test_a_table(
    bench: Workbench, ledger: Ledger, warehouse: Warehouse, table: dict
) -> None:
    """Rows of a table are compared, of each type; one that somebody changed is found."""
    kinds = {"id": "string", "n": "bigint", "at": "timestamp", "day": "date", "x": "double",
             "d": "decimal(9,2)", "b": "boolean", "j": "json", "a": "array<int>"}  # fmt: skip
    spec = bench.spec(sink=table, source={"schema": kinds})
    for n in range(2):
        rows = [{**e, "day": "2026-01-02", "x": 0.1 * e["n"], "d": 1.5, "b": True,
                 "j": {"b": [1, 2], "a": None}, "a": [1, None]} for e in events(n * 5, n * 5 + 8)]
        bench.write(f"in/{n}.jsonl", [*rows, {"id": f"empty{n}"}])  # fmt: skip
        batch(ledger, spec)
    found = compared(ledger, spec)
    assert found.equal and found.rows_live == 15, found
    assert compared(ledger, spec, 2).equal
    warehouse.run("UPDATE events SET n = 99 WHERE id = 'e000003'")
    warehouse.run("DELETE FROM events WHERE id = 'e000004'")
    kinds = {d.id: d.kind for d in compared(ledger, spec).differences}
    assert kinds == {"e000003": "values", "e000004": "only_other"}


def test_a_table_that_refuses(
    bench: Workbench, ledger: Ledger, warehouse: Warehouse, table: dict
) -> None:
    """Records that the table refuses are set aside by both paths; and so is the first copy of an id
    of which it takes the second one.
    """
    warehouse.run("CREATE TABLE events (id text, n int CHECK (n < 100), at timestamptz, "
                  "_semel_batch bigint, _semel_seq bigint)")  # fmt: skip
    spec = bench.spec(sink={**table, "create": False})
    for n in range(2):
        bench.write(f"in/{n}.jsonl", [{**events(3, 4)[0], "n": 1 << 40}, *events(0, 103 + n)])
        batch(ledger, spec)
    found = compared(ledger, spec)
    assert found.equal and found.counts.quarantined == 9 and found.rows_live == 100, found


def test_upsert_is_refused(bench: Workbench, ledger: Ledger, table: dict) -> None:
    """In an upsert later batches have replaced rows of earlier ones."""
    spec = bench.spec(sink={**table, "mode": "upsert", "key": ["id"]})
    with pytest.raises(TerminalError, match="mode: upsert") as caught:
        compared(ledger, spec)
    assert caught.value.next == "semel audit events"


@pytest.fixture
def command(bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys):
    """Runs a command line. Returns exit code, standard output and standard error."""

    @contextmanager
    def opened(*_: object):
        yield LocalEngine()

    monkeypatch.setattr("semel.spark.session.open_engine", opened)
    monkeypatch.setenv("SEMEL_SPARK_REMOTE", "local[1]")

    def run(line: str) -> tuple[int, str, str]:
        code = main(shlex.split(line))
        return code, *capsys.readouterr()

    return run


def test_the_command(bench: Workbench, ledger: Ledger, command) -> None:
    """Exit code 0 and `equal`, or 1 and each difference, by --interval and by --batches."""
    spec = bench.spec()
    for n in range(3):
        bench.write(f"in/{n}.jsonl", events(n * 10, n * 10 + 15))
        batch(ledger, spec)
    code, out, err = command("compare events --interval 2000-01-01 2100-01-01")
    assert (code, out.splitlines()[-1]) == (0, "equal")
    assert "batch path: attempt 1: reads 3 splits" in err
    forge(spec, 2, lambda rows: rows.slice(4))
    code, out, _ = command("compare events --batches 2..3 --limit 1")
    lines = out.splitlines()
    assert code == 1 and lines[0].startswith("id e000015: only in the batch path: unknown: ")
    assert lines[1] == "    the live path: no row"
    assert "from '" in lines[2] and "1.jsonl' line 6 (byte " in lines[2]
    assert "and 3 more differences" in lines
    assert lines[-2:] == ["different: 4 (unknown 4)", "next: semel audit events"]
    code, out, _ = command("compare events --batches 2..3 --json")
    plain = json.loads(out)
    assert code == 1 and not plain["equal"] and len(plain["answer"]["differences"]) == 4
    assert plain["answer"]["batches"] == [2, 3] and plain["answer"]["known"] == 5
    assert plain["answer"]["differences"][0]["other"]["row"]["n"] == "15"
    for wrong in ("", "--batches 3..2", "--batches x", "--interval 2026-01-02 2026-01-01",
                  "--batches 1 --with events", "--batches 1 --interval 2026-01-01 2026-01-02"):
        code, _, err = command(f"compare events {wrong}")
        assert code == 2 and "next: semel compare --help" in err, wrong
    code, _, err = command("compare events --batches 8..9")
    assert code == 1 and err.splitlines()[-1] == "next: semel batches events"


def test_a_user_who_may_not(bench: Workbench, ledger: Ledger) -> None:
    """A ledger's user who may not create databases is told what an administrator has to do; then
    the same works.
    """
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    batch(ledger, spec)
    name, password = f"semel \"role {secrets.token_hex(4)}", secrets.token_hex(8)
    quoted = '"' + name.replace('"', '""') + '"'
    with psycopg.connect(ledger.dsn.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {quoted} LOGIN PASSWORD '{password}'")
        admin.execute(f"GRANT USAGE ON SCHEMA semel TO {quoted}")
        admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA semel TO {quoted}")
        url = sa.make_url(ledger.dsn).set(username=name, password=password)
        try:
            with Ledger(url.render_as_string(hide_password=False)) as poor:
                with pytest.raises(TerminalError, match="may not create a database") as caught:
                    compared(poor, spec)
                statement = str(caught.value).partition("`")[2].partition("`")[0]
                admin.execute(statement)
                assert compared(poor, spec).equal
        finally:
            admin.execute(f"DROP OWNED BY {quoted}")
            admin.execute(f"DROP ROLE {quoted}")
