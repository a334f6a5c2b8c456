"""SQL transforms on real Spark: alone, in a row with Python, and when Spark refuses them."""

import threading

import pytest

from fixtures.batches.account import ids, run, settled
from fixtures.batches.workbench import Workbench
from semel.errors import SpecError, TerminalError
from semel.ledger import Ledger
from semel.plan.abandon import abandon
from semel.spark.engine import SparkEngine
from semel.spark.transforms import load_transforms


def on_days(start: int, stop: int) -> list[dict]:
    """Records of three days, one after the other."""
    return [
        {"id": f"e{n:06d}", "n": n, "at": f"2026-01-0{1 + n % 3}T05:00:00Z"}
        for n in range(start, stop)
    ]


def written(bench: Workbench, **files: str) -> None:
    """Write SQL files, by their names without ending."""
    for name, text in files.items():
        (bench.transforms / f"{name}.sql").write_text(text)


@pytest.mark.rest
def test_sql_and_python_in_a_row(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """`records` is what the transform before made, whatever other views that one left."""
    written(
        bench,
        more="SELECT id, n + 1 AS n FROM records",
        last="SELECT id, n * 10 AS n FROM Records WHERE n < 5",
    )
    (bench.transforms / "own_view.py").write_text(
        "def own(frame):\n"
        "    frame.createOrReplaceTempView('records')\n"
        "    return frame.sparkSession.sql('SELECT id, n + 1 AS n FROM records')\n"
    )
    spec = bench.spec(transforms=["more.sql", "own_view:own", "more.sql", "last.sql"])
    bench.write("in/a.jsonl", on_days(0, 100))
    run(ledger, spec, "r1", engine=spark_engine)
    assert sorted((row["id"], row["n"]) for row in settled(spec).rows) == [
        ("e000000", 30), ("e000001", 40)
    ]  # fmt: skip


# fmt: off
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT id,\n  nope\nFROM records", "bad.sql, line 2, raised AnalysisException.*`nope`"),
        ("SELECT id,\n\n  nofun(n) FROM records", "bad.sql, line 3, raised.*`nofun`"),
        ("SELECT id,\n  n AS x, n AS X FROM records", "bad.sql returned a column 'x' twice"),
        ("SELECT id, INTERVAL '1' YEAR AS span FROM records", "bad.sql returned .*span"),
        ("SELECT id,\n n,\n 1 / (n - 3) AS x FROM records", "bad.sql, line 3, raised.*DIVIDE_BY"),
        ("SELECT CAST(id AS int) AS n FROM records", "bad.sql, line 1, raised .*CAST_INVALID"),
        ("SELECT id FROM records WHERE n = :p", "bad.sql.* raised .*UNBOUND_SQL_PARAMETER"),
        ("SELECT id FROM records LIMIT -1", "bad.sql.* raised"),
    ],
)
# fmt: on
def test_sql_that_spark_refuses_stops_the_batch(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, text: str, said: str
) -> None:
    """A terminal error names the file, the line and what is wrong, and no other transform.

    Nothing is committed; without the transform, abandoned and planned anew, all is there.
    """
    written(bench, good="SELECT id, n, n + 0 AS m FROM records", bad=text)
    spec = bench.spec(transforms=["good.sql", "bad.sql"])
    bench.write("in/a.jsonl", on_days(0, 10))
    with pytest.raises(TerminalError, match=said) as raised:
        run(ledger, spec, "r1", engine=spark_engine)
    assert "good.sql" not in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert settled(spec).ids == []
    abandon(ledger, 1, "its transform is wrong")
    mended = bench.spec()
    run(ledger, mended, "r1")
    assert settled(mended).ids == ids(0, 10)


@pytest.mark.rest
def test_sql_that_changed_after_it_was_declared(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """S25: stage reads the file anew, and refuses what reads a table, also one that Spark has."""
    session = spark_engine.session
    session.sql("CREATE TABLE others (id STRING) USING parquet")
    try:
        written(bench, daily="SELECT id FROM records")
        spec = bench.spec(transforms=["daily.sql"])
        bench.write("in/a.jsonl", on_days(0, 10))
        written(bench, daily="SELECT id FROM records\nUNION ALL SELECT id FROM others")
        with pytest.raises(TerminalError, match=r"daily\.sql:2:26: reads the table others"):
            run(ledger, spec, "r1", engine=spark_engine)
        with pytest.raises(SpecError, match="reads the table others"):
            bench.spec(transforms=["daily.sql"])
        (bench.transforms / "daily.sql").unlink()
        with pytest.raises(TerminalError, match=r"cannot read .*daily\.sql: No such file"):
            run(ledger, spec, "r1", engine=spark_engine)
        written(bench, daily="SELECT id FROM records")
        run(ledger, spec, "r1", engine=spark_engine)
    finally:
        session.sql("DROP TABLE others")
    assert settled(spec).ids == ids(0, 10)


@pytest.mark.rest
def test_a_table_of_that_name_is_not_read(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """S25: `records` is the batch's own, whatever the Spark's catalog or an older view calls so."""
    session = spark_engine.session
    session.sql("CREATE TABLE records (id STRING) USING parquet")
    session.range(3).createOrReplaceGlobalTempView("records")
    try:
        written(bench, daily="SELECT id FROM records")
        spec = bench.spec(transforms=["daily.sql"])
        bench.write("in/a.jsonl", on_days(0, 10))
        run(ledger, spec, "r1", engine=spark_engine)
    finally:
        session.sql("DROP TABLE records")
        session.catalog.dropGlobalTempView("records")
    assert settled(spec).ids == ids(0, 10)


@pytest.mark.rest
def test_threads_of_one_session_keep_their_records_apart(
    bench: Workbench, spark_engine: SparkEngine
) -> None:
    """S25: a driver that stages two batches at once in one session mixes none of their rows."""
    written(bench, same="SELECT id FROM records")
    (transform,) = load_transforms(("same.sql",), {"same.sql": b"SELECT id FROM records"})
    wrong: list[tuple[int, list]] = []
    barrier = threading.Barrier(4)

    def apply(number: int) -> None:
        for _ in range(15):
            frame = spark_engine.session.range(number, number + 1)
            barrier.wait()
            try:
                found = [row.id for row in transform.apply(frame).collect()]
            except Exception as error:  # noqa: BLE001 - it is what the test looks for
                found = [repr(error)[:200]]
            if found != [number]:
                wrong.append((number, found))

    threads = [threading.Thread(target=apply, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
