"""Files of Parquet on Spark, by interval, and asked for again: replay, compare, a lost ledger."""

import os
import shutil
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.compares import compared
from fixtures.batches.replays import admitted, allow, proven, replayed, rows
from fixtures.batches.workbench import Workbench
from fixtures.commands.shell import Shell
from fixtures.contract.sources import Parquet
from fixtures.postgres.server import lose
from semel.errors import SourceError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.adopt import adopt
from semel.sources.files.parquet import ParquetFiles
from semel.spark.engine import SparkEngine

KINDS = {"id": "string", "n": "bigint", "x": "double"}


@pytest.fixture
def place(bench: Workbench) -> Parquet:
    return Parquet(bench)


def put(place: Parquet, name: str, numbers: range, bad: int | None = None) -> None:
    """A file with one row of NaN, if one is bad."""
    x = [float("nan") if number == bad else number / 2 for number in numbers]
    columns = {"id": [f"e{number:06d}" for number in numbers], "n": list(numbers), "x": x}
    pq.write_table(pa.table(columns), place.folder / name, row_group_size=7)


def over(place: Parquet, schema: dict[str, str] = KINDS, **changes: object) -> Spec:
    source = {"path": "in/*.parquet", "format": "parquet", "schema": schema}
    return place.bench.spec(source=source | changes.pop("source", {}), **changes)


def test_spark_gives_what_the_steps_give(
    place: Parquet, ledger: Ledger, spark_engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several tasks a file, through both shuffles: each row is once in output, drops or letters."""
    monkeypatch.setattr(ParquetFiles, "split_size", 50)
    put(place, "a.parquet", range(500), bad=77)
    put(place, "b.parquet", range(450, 800))
    spec = over(place, sink={"position_columns": True})
    counts = run(ledger, spec, "r1", engine=spark_engine).finalized.counts
    assert (counts.records_read, counts.survivors, counts.quarantined) == (850, 799, 1)
    assert settled(spec).ids == sorted({*ids(0, 800)} - {*ids(77, 78)})


def test_each_day_takes_its_own_files(place: Parquet, ledger: Ledger) -> None:
    """By the dates of their names, in any order, and each once."""
    for day in (1, 2, 3):
        put(place, f"2026-01-0{day}.parquet", range(10 * day, 10 * day + 10))
    by_day = {"select": "interval", "interval_from": "%Y-%m-%d.parquet"}
    spec = over(place, source=by_day, record_id=None)
    for day in (2, 1, 3, 2):
        start = datetime(2026, 1, day, tzinfo=UTC)
        done = run(ledger, spec, f"d{day}", (start, start + timedelta(days=1)))
        names = [name.rpartition("/")[2] for name in done.plan.names]
        assert names in ([f"2026-01-0{day}.parquet"], [])
    assert settled(spec).ids == ids(10, 40)


# Attacks P22.
def test_a_file_that_was_renamed_to_another_day(place: Parquet, ledger: Ledger) -> None:
    """It is the one that was read, also when another one has its name by now."""
    by_day = {"select": "interval", "interval_from": "%Y-%m-%d.parquet"}
    spec = over(place, source=by_day, record_id=None)
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    put(place, "2026-01-01.parquet", range(10))
    run(ledger, spec, "d1", (days[0], days[1]))
    (place.folder / "2026-01-01.parquet").rename(place.folder / "2026-01-03.parquet")
    put(place, "2026-01-01.parquet", range(10, 20))
    run(ledger, spec, "d1 again", (days[0], days[1]))
    assert run(ledger, spec, "d3", (days[2], days[3])).plan.batch is None
    assert settled(spec).ids == ids(0, 20)


@pytest.mark.parametrize("by", ["%Y-%m-%d.parquet", "mtime"])
def test_what_is_gone_fails_the_run_of_its_day(
    place: Parquet, ledger: Ledger, by: str
) -> None:
    """And no other: the time of a file is known when it is there no more."""
    spec = over(place, source={"select": "interval", "interval_from": by}, record_id=None)
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3)]
    for day in days[:2]:
        put(place, f"{day:%Y-%m-%d}.parquet", range(10 * day.day, 10 * day.day + 10))
        os.utime(place.folder / f"{day:%Y-%m-%d}.parquet", (day.timestamp(),) * 2)
    abandon(ledger, plan(ledger, spec, "r1", (days[0], days[1])).batch.batch_id, "not now")
    (place.folder / "2026-01-01.parquet").unlink()
    with pytest.raises(SourceError, match="gone: .* its rows 0 to 10 were never read"):
        plan(ledger, spec, "r1", (days[0], days[1]))
    run(ledger, spec, "r2", (days[1], days[2]))
    assert len(settled(spec).rows) == 10


def test_a_replay_reads_the_rows_that_survived(place: Parquet, ledger: Ledger) -> None:
    """By the schema of now, also from a file with another name; its account stays."""
    put(place, "a.parquet", range(30), bad=5)
    put(place, "b.parquet", range(20, 40))
    run(ledger, over(place), "r1")
    place.rename()
    spec = over(place, KINDS | {"n": "decimal(20,0)"})
    allow(ledger, spec)
    replayed(ledger, spec, 1, "again")
    proven(spec, replayed=1)
    assert [row["id"] for row in rows(spec)] == sorted({*ids(0, 40)} - {*ids(5, 6)})


@pytest.mark.parametrize("change", [{"n": "int"}, {"y": "string"}])
def test_a_replay_by_a_schema_that_the_file_does_not_have(
    place: Parquet, ledger: Ledger, change: dict[str, str]
) -> None:
    """It says which column, and the output stays what it was."""
    put(place, "a.parquet", range(10))
    run(ledger, over(place), "r1")
    spec = over(place, KINDS | change)
    allow(ledger, spec)
    with pytest.raises(SourceError, match=f"a.parquet': column '{next(iter(change))}' is"):
        replayed(ledger, spec, 1, "again")
    assert [row["id"] for row in rows(over(place))] == ids(0, 10)


def test_dead_letters_are_judged_again(place: Parquet, ledger: Ledger) -> None:
    """Without the column that was bad they are records."""
    put(place, "a.parquet", range(30), bad=5)
    run(ledger, over(place), "r1")
    spec = over(place, {"id": "string", "n": "bigint"})
    allow(ledger, spec)
    counts = admitted(ledger, spec).finalized.counts
    assert (counts.records_read, counts.survivors) == (1, 1)
    proven(spec)
    assert [row["id"] for row in rows(spec)] == ids(0, 30)


def test_one_large_batch_gives_the_same(place: Parquet, ledger: Ledger) -> None:
    """As several, which end within row groups and files."""
    spec = over(place, limits={"records_per_batch_max": 9, "quarantine_ratio_max": 1.0})
    put(place, "a.parquet", range(20), bad=5)
    put(place, "b.parquet", range(15, 30))
    for number in range(5):
        run(ledger, spec, f"r{number}")
    proven(spec)
    assert compared(ledger, spec).equal


# Attacks D4.
@pytest.mark.parametrize("then", ["there", "renamed", "copied"])
def test_a_lost_ledger_knows_its_files_by_their_content(
    place: Parquet, ledger: Ledger, then: str
) -> None:
    """Whatever they are called now; what changed is refused, and what is new is read."""
    put(place, "a.parquet", range(10))
    put(place, "b.parquet", range(10, 20))
    spec = over(place, record_id=None)
    run(ledger, spec, "r1")
    lose(ledger)
    if then == "renamed":
        place.rename()
    elif then == "copied":
        place.lose()
        shutil.copytree(place.away, place.folder, dirs_exist_ok=True)
    put(place, "c.parquet", range(20, 30))
    adopt(ledger, spec, log=quiet)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 30)


def test_commands_speak_of_rows(place: Parquet, ledger: Ledger, shell: Shell) -> None:
    """Positions are rows in each answer."""
    put(place, "a.parquet", range(10), bad=5)
    spec = over(place, sink={"position_columns": True})
    assert "rows 0 to 10" in shell.runs("gaps events", 1)
    run(ledger, spec, "r1")
    assert "rows 0 to 10" in shell.runs("show 1")
    assert "row 5" in shell.runs("letters events")
    assert "row 7" in shell.runs("find events e000007")
