"""Each procedure of the pages, run as it is printed: what it promises holds behind it.

The mechanism is fixtures/commands/procedures.py; test_procedures_run.py has the index.
"""

import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable

from fixtures.batches.account import ids, run
from fixtures.batches.chains import Keeping, again, link, linked  # noqa: F401
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.procedures import Printed
from fixtures.commands.shell import Shell
from fixtures.contract.sources import Upstream
from fixtures.delta.outlet import Delta
from fixtures.postgres.server import database
from fixtures.postgres.warehouse import TABLE, Warehouse
from fixtures.queue.segments import Spool
from semel import settings
from semel.archive import layout
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.reader import dataset

PERSON = "n = 12"


def come(bench: Workbench, ledger: Ledger, spec: Spec, *numbers: int) -> None:
    """Batches of ten records; the second file ends with a line of the person's that is no record.
    """
    for number in numbers:
        more = [b"n = 12, too"] if number == 2 else []
        bench.write(f"in/{number}.jsonl", [*events(10 * number, 10 * number + 10), *more])
        run(ledger, spec, f"r{number}")


def waits(bench: Workbench) -> None:
    """Records that the run at the end of a procedure takes."""
    bench.write("in/9.jsonl", events(90, 95))


@pytest.fixture
def other(postgres: str) -> Iterator[str]:
    """The DSN of another database."""
    with database(postgres) as dsn:
        yield dsn


@pytest.fixture
def new_ledger(postgres: str) -> Iterator[dict[str, str]]:
    """What names a database that a procedure makes, and that goes behind the test."""
    name = f"semel_made_{secrets.token_hex(4)}"
    made = sa.make_url(postgres).set(database=name).render_as_string(hide_password=False)
    yield {"SERVER": postgres, "NAME": name, "DSN": made}
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def declared(bench: Workbench, name: str = "events") -> Path:
    return bench.pipelines / f"{name}.yaml"


def has(spec: Spec, *spans: tuple[int, int]) -> None:
    """The output is exactly these events, and the audit proves it."""
    found = sorted(dataset(spec.sink_path()).to_table(columns=["id"])["id"].to_pylist())
    assert found == [name for span in spans for name in ids(*span)]
    proven(spec)


def proven(spec: Spec) -> None:
    verdict = audit(spec)
    assert verdict.ok, {c.name: c.offenders for c in verdict.checks if not c.ok}


def test_backup_of_a_sink(bench: Workbench, ledger: Ledger, printed: Printed) -> None:
    """The copy is proven, and so is one that is put in the place of a lost sink."""
    spec = bench.spec()
    come(bench, ledger, spec, 1, 2)
    words = {"BACKUP": bench.folder / "kept", "OUT": bench.data / "out", "PIPELINE": "events"}
    assert "passed" in printed.run("backup-sink", words)
    come(bench, ledger, spec, 3)


def test_restore_of_a_ledger(
    bench: Workbench, ledger: Ledger, printed: Printed, new_ledger: dict[str, str]
) -> None:
    """The pipeline goes on with it. A dump from before a batch is refused: nothing is read twice.
    """
    spec = bench.spec()
    come(bench, ledger, spec, 1, 2)
    (bench.folder / "kept").mkdir()
    words = {
        "BACKUP": "kept", "SERVER": new_ledger["SERVER"], "RESTORED_DSN": new_ledger["DSN"],
        "RESTORED": new_ledger["NAME"], "PIPELINE": "events",
    }  # fmt: skip
    printed.run("restore-ledger", words, {"semel run": lambda: waits(bench)})
    has(spec, (10, 30), (90, 95))
    bench.write("in/10.jsonl", events(100, 105))
    with pytest.raises(TerminalError, match="markers of batch 3"):  # The first one is older now.
        run(ledger, spec, "r10")


@pytest.mark.usefixtures("bench")
def test_the_user_of_executors(ledger: Ledger, printed: Printed) -> None:
    """It reads the catalog, and may not change batches."""
    user = f"semel_{secrets.token_hex(4)}"
    printed.run("executors-user", {"USER": user, "SECRET": "secret"})
    address = sa.make_url(ledger.dsn).set(drivername="postgresql", username=user, password="secret")
    with psycopg.connect(address.render_as_string(hide_password=False)) as connection:
        assert connection.execute("SELECT count(id_run_id) FROM semel.id_run").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM semel.batch")
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP ROLE {user}")


def test_a_lost_ledger(
    bench: Workbench, ledger: Ledger, printed: Printed, new_ledger: dict[str, str]
) -> None:
    spec = bench.spec()
    come(bench, ledger, spec, 1, 2)
    words = {
        "SERVER": new_ledger["SERVER"], "EMPTY_DSN": new_ledger["DSN"],
        "EMPTY": new_ledger["NAME"], "PIPELINE": "events",
    }  # fmt: skip
    printed.run("lost-ledger", words, {"semel run": lambda: waits(bench)})
    has(spec, (10, 30), (90, 95))


def test_moving_the_source(bench: Workbench, ledger: Ledger, printed: Printed) -> None:
    spec = bench.spec()
    come(bench, ledger, spec, 1, 2)
    words = {"NEW": "disk", "OLD": "in", "FILE": declared(bench), "PIPELINE": "events"}
    printed.folder = bench.data
    more = lambda: bench.write("disk/9.jsonl", events(90, 95))  # noqa: E731
    printed.run("move-source", words, {"semel run": more})
    has(spec, (10, 30), (90, 95))


def test_moving_the_sink(bench: Workbench, ledger: Ledger, printed: Printed) -> None:
    spec = bench.spec()
    come(bench, ledger, spec, 1, 2)
    words = {"NEW": "far", "OLD": "out", "FILE": declared(bench), "PIPELINE": "events"}
    printed.folder = bench.data
    printed.run("move-sink", words, {"semel run": lambda: waits(bench)})
    assert not spec.sink_path().exists()
    has(bench.spec(sink={"path": "far/events"}), (10, 30), (90, 95))


def test_moving_a_table(
    bench: Workbench, ledger: Ledger, printed: Printed, table: Warehouse, other: str
) -> None:
    """By pg_dump and psql, as they are: rows, notes and types come over."""
    spec = bench.spec(sink=TABLE)
    come(bench, ledger, spec, 1, 2)
    words = {"OLD_DSN": table.dsn, "NEW_DSN": other, "TABLE": "events", "PIPELINE": "events"}
    printed.run("move-table", words, {"semel run": lambda: waits(bench)})
    with psycopg.connect(other) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (25,)


@pytest.mark.rest
def test_moving_a_table_of_windows(
    bench: Workbench, ledger: Ledger, printed: Printed, table: Warehouse, other: str
) -> None:
    """The view shows at the new place what it showed at the old one, and one batch more."""
    spec = bench.spec(
        sink=TABLE, record_id=None, record_time="at", window={"size": "1 hour"},
        aggregate={"columns": {"records": "count()"}},
    )  # fmt: skip
    come(bench, ledger, spec, 1, 2)
    counted = "SELECT sum(records) FROM events"
    assert table.run(counted) == [(20,)]
    words = {"OLD_DSN": table.dsn, "NEW_DSN": other, "TABLE": "events", "PIPELINE": "events"}
    printed.run("move-windows", words, {"semel run": lambda: waits(bench)})
    with psycopg.connect(other) as connection:
        assert connection.execute(counted).fetchone() == (25,)


def test_an_upgrade(
    bench: Workbench, printed: Printed, new_ledger: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger of the first revision is migrated, and its pipeline goes on; so does its dump."""
    with psycopg.connect(new_ledger["SERVER"], autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {new_ledger['NAME']}")
    monkeypatch.setenv(settings.LEDGER_VARIABLE, new_ledger["DSN"])
    first = settings.sql_dir() / "migrations" / "0001_ledger.sql"
    with psycopg.connect(new_ledger["DSN"], autocommit=True) as connection:
        connection.execute(first.read_text(encoding="utf-8"))
        connection.execute("CREATE TABLE semel_alembic (version_num varchar(32) PRIMARY KEY)")
        connection.execute("INSERT INTO semel_alembic VALUES ('0001')")
    spec = bench.spec()
    waits(bench)
    (bench.folder / "kept").mkdir()
    printed.run("upgrade", {"BACKUP": "kept", "FILE": declared(bench), "PIPELINE": "events"})
    has(spec, (90, 95))
    assert (bench.folder / "kept" / "ledger.dump").stat().st_size > 1000


def test_from_at_least_once(bench: Workbench, ledger: Ledger, printed: Printed) -> None:
    spec = bench.spec(guarantee="at_least_once")
    come(bench, ledger, spec, 1, 2)
    bench.write("in/9.jsonl", [*events(15, 20), *events(90, 95)])
    printed.run("exact", {"FILE": declared(bench), "PIPELINE": "events"})
    has(bench.spec(), (10, 30), (90, 95))


@pytest.mark.rest
def test_computing_days_again(bench: Workbench, ledger: Ledger, printed: Printed) -> None:
    """By an interval, with the names of the page."""
    come(bench, ledger, bench.spec("flights"), 1)
    spec = bench.spec("flights", source={"unknown": "quarantine"})
    [marker] = markers_of(spec)
    days = {"2013-01-01": f"{marker.batch_time:%Y-%m-%d}", "2013-01-08": "2099-01-01"}
    printed.run("replay-days", days)
    assert [m.generation for m in markers_of(spec)] == [2]
    proven(spec)


@pytest.mark.rest
def test_judging_dead_letters_again(bench: Workbench, ledger: Ledger, printed: Printed) -> None:
    bench.write("in/1.jsonl", [{**event, "more": 1} for event in events(0, 1)])
    run(ledger, bench.spec("flights", source={"unknown": "quarantine"}), "r1")
    spec = bench.spec("flights")
    printed.run("judge-again", {"17..23": "1"})
    assert dataset(spec.sink_path()).count_rows() == 1


@pytest.mark.rest
def test_a_chain_follows(
    linked: Upstream, ledger: Ledger, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First one batch of the reader, then a batch of the upstream with all that reads it."""
    monkeypatch.setattr("semel.spark.session.open_engine", lambda *_: nullcontext(Keeping(None)))
    down = link(linked, "down", "up")
    linked.append(0, 10)
    run(ledger, linked.declared, "r1", engine=Keeping(None))
    run(ledger, down, "d1")
    again(linked, 5)
    words = {"delays_by_airport": "down", "flights": "up", "batches 9": "batches 2"}
    told = printed.run("replay-chain", {**words, "17": "1"})
    assert "down" in told
    has(down, (0, 10))
    assert [m.generation for m in markers_of(down)] == [3]


# Attacks ER1, ER3.
class TestErasing:
    """A person's data go from output, archive and source, by the steps of the page in their order;
    then semel goes on, and nothing of the person is left below the data root.
    """

    @pytest.fixture
    def erase(
        self, bench: Workbench, ledger: Ledger, printed: Printed, shell: Shell
    ) -> Callable[[Spec, str, dict[str, object]], None]:
        def run_all(spec: Spec, name: str, words: dict[str, object]) -> None:
            assert "batch 1" in shell.runs("semel find events e000012")
            printed.folder = bench.data
            printed.run(name, {**words, "PREDICATE": PERSON})
            kept = layout.archive_folder(spec)
            [letters] = kept.glob("dead_letters/b00000002-*.parquet")
            printed.run("erase-archive", {"ARCHIVE": kept, "LETTERS": letters.name})
            for number in (1, 2):
                source = bench.data / f"in/{number}.jsonl"
                printed.run("erase-source", {"PIPELINE": "events", "SOURCE": source})
            words = {"PIPELINE": "events", "A..B": "1..3", "N": "2", "show A": "show 1"}
            told = printed.run("erase-accept", words, {"semel run": lambda: waits(bench)})
            assert "request 4711" in told and "passed" in told
            traces = re.compile(rb"e000012|n = 12")
            # The log of a Delta table keeps the predicate: the page says how long.
            files = [path for path in bench.data.rglob("*") if path.is_file()]
            there = [p for p in files if not {"9.jsonl", "_delta_log"} & {*p.parts}]
            assert there and not [p for p in there if traces.search(p.read_bytes())]
            proven(spec)

        return run_all

    def test_a_table(
        self, bench: Workbench, ledger: Ledger, table: Warehouse, erase: Callable
    ) -> None:
        spec = bench.spec(sink=TABLE)
        come(bench, ledger, spec, 1, 2, 3)
        erase(spec, "erase-table", {"DSN": table.dsn, "TABLE": "events"})
        assert table.run("SELECT count(*) FROM events WHERE n = 12") == [(0,)]
        assert table.run("SELECT count(*) FROM events") == [(34,)]

    def test_a_delta_table(self, bench: Workbench, ledger: Ledger, erase: Callable) -> None:
        place = Delta(bench)
        spec = place.spec()
        come(bench, ledger, spec, 1, 2, 3)
        erase(spec, "erase-delta", {"FOLDER": place.where})
        assert DeltaTable(place.where).to_pyarrow_table().num_rows == 34

    def test_files(self, bench: Workbench, ledger: Ledger, erase: Callable) -> None:
        spec = bench.spec()
        come(bench, ledger, spec, 1, 2, 3)
        [file] = spec.sink_path().glob("*b00000001*.parquet")
        erase(spec, "erase-files", {"FILE": file})
        assert dataset(spec.sink_path()).count_rows() == 34

    def test_a_spool(self, bench: Workbench, ledger: Ledger, printed: Printed) -> None:
        """collect takes all segments, as it is to: the audit passes, and the next one is read."""
        place = Spool(bench)
        spec = place.spec(guarantee=None, source={"keep_spool": "7 days"})
        place.append(0, 10)
        run(ledger, spec, "r1")
        collect = {"semel collect": lambda: time.sleep(1)}
        printed.run("erase-spool", {"FILE": declared(bench), "PIPELINE": "events"}, collect)
        assert not list(place.sealed.iterdir())
        proven(spec)
        place.append(10, 20)
        run(ledger, spec, "r2")
        has(spec, (0, 20))


def test_backup_of_a_spool(bench: Workbench, ledger: Ledger, printed: Printed) -> None:
    """It is lost with a segment that was not read yet, and comes back: all is read once."""
    place = Spool(bench)
    spec = place.spec()
    place.append(0, 10)
    run(ledger, spec, "r1")
    place.append(10, 20)
    (bench.folder / "kept").mkdir()
    words = {"SPOOL": place.spool, "BACKUP": "kept"}
    printed.run("backup-spool", words)
    shutil.rmtree(place.spool)
    words["PIPELINE"] = "events"
    printed.run("restore-spool", words)
    has(spec, (0, 20))
