"""A person's word that rows were erased: kept, shown, honoured, and it hides no other loss."""

import re
from collections.abc import Callable

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from fixtures.airflow.pages import Pages
from fixtures.batches.account import committed, first_batch, quiet, run
from fixtures.batches.faults import dies_at
from fixtures.batches.workbench import Workbench, events
from fixtures.bigquery.outlet import NAME, BigTable
from fixtures.bigquery.server import FakeBigQuery
from fixtures.commands.shell import Shell
from fixtures.delta.outlet import Delta
from fixtures.objects.outlet import Prefix
from fixtures.objects.s3 import S3
from fixtures.postgres.server import lose
from fixtures.postgres.warehouse import Warehouse
from semel import failpoints
from semel.archive import layout
from semel.archive.marker import markers_of
from semel.audit import AuditVerdict, audit
from semel.errors import CorruptionError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.reader import dataset
from semel.repair.accept import current_user
from semel.repair.adopt import adopt
from semel.repair.erasure import accept_erased
from semel.runs import replay, requarantine

KEPT = "semel accept events --erased 2 --rows 10 --why retention"
TABLE = {"type": "postgres", "connection": "warehouse", "table": "events", "create": True}


class Output:
    """A pipeline with three batches of ten rows, and a way to delete rows from its output."""

    def __init__(
        self, bench: Workbench, ledger: Ledger, spec: Spec, delete: Callable[[str], None]
    ) -> None:
        self.bench, self.ledger, self.spec, self.delete = bench, ledger, spec, delete
        for number in (1, 2, 3):
            self.come(number)

    def come(self, number: int) -> None:
        self.bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        run(self.ledger, self.spec, f"r{number}")

    def audit(self) -> AuditVerdict:
        return audit(self.spec)

    def proven(self) -> AuditVerdict:
        verdict = self.audit()
        assert verdict.ok, {c.name: c.offenders for c in verdict.checks if not c.ok}
        return verdict


@pytest.fixture
def delta(bench: Workbench, ledger: Ledger) -> Output:
    place = Delta(bench)

    def delete(where: str) -> None:
        DeltaTable(place.where).delete(where)

    return Output(bench, ledger, place.spec(), delete)


@pytest.fixture
def table_bq(
    bench: Workbench, ledger: Ledger, bigquery: FakeBigQuery, monkeypatch: pytest.MonkeyPatch
) -> Output:
    place = BigTable(bench, bigquery, monkeypatch)

    def delete(where: str) -> None:
        def left(rows: pa.Table) -> pa.Table:
            with duckdb.connect() as engine:
                engine.register("found", rows)
                return engine.sql(f"SELECT * FROM found WHERE NOT ({where})").to_arrow_table()

        bigquery.change(NAME, left)

    return Output(bench, ledger, place.spec(), delete)


@pytest.fixture
def table(
    bench: Workbench, ledger: Ledger, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> Output:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)

    def delete(where: str) -> None:
        with psycopg.connect(warehouse.dsn) as connection:
            connection.execute(f"DELETE FROM events WHERE {where}")

    return Output(bench, ledger, bench.spec(sink=TABLE), delete)


@pytest.fixture
def files(bench: Workbench, ledger: Ledger) -> Output:
    spec = bench.spec()

    def delete(where: str) -> None:
        for path in spec.sink_path().glob("*.parquet"):
            with duckdb.connect() as engine:
                rows = engine.sql(f"SELECT * FROM '{path}' WHERE NOT ({where})").to_arrow_table()
            if not rows.num_rows:
                path.unlink()
            elif rows.num_rows < pq.read_metadata(path).num_rows:
                pq.write_table(rows, path)

    return Output(bench, ledger, spec, delete)


@pytest.fixture(params=["delta", "table_bq", "table", "files"])
def output(request: pytest.FixtureRequest) -> Output:
    return request.getfixturevalue(request.param)


# Attacks ER1, ER2.
def test_all_rows_of_a_batch_are_erased(output: Output, shell: Shell) -> None:
    """The next batch lands, the audit passes and says whose word it is, and a lost ledger is
    adopted, which knows of it."""
    output.delete("n >= 20 AND n < 30")
    assert not output.audit().ok
    told = shell.runs(KEPT)
    assert "10 rows" in told
    output.come(4)
    assert any("the erasure of" in note for note in output.proven().notes)
    assert "retention" in shell.runs("semel show 2")
    assert "10 rows erased" in " ".join(shell.runs("semel batches events").split())
    assert "retention" in shell.runs("semel gaps events")
    lose(output.ledger)
    adopt(output.ledger, output.spec, log=quiet)
    assert "retention" in shell.runs("semel show 2")
    output.come(5)
    output.proven()


# Attacks ER2, H2.
@pytest.mark.parametrize("output", ["delta", "table_bq"], indirect=True)
def test_without_a_word_the_pipeline_stops(output: Output, shell: Shell) -> None:
    """Rows that are gone are missing until somebody says so, and the advice is the command; so it
    is where the ledger is lost, too."""
    output.delete("n >= 20 AND n < 30")
    with pytest.raises(TerminalError, match=r"batch 2.*--erased 2\.\.2 --rows 10 --why TEXT"):
        output.come(4)
    assert not output.audit().ok
    lose(output.ledger)
    with pytest.raises(
        TerminalError, match=r"--erased 2\.\.2 --rows 10 --why TEXT`.*move the markers"
    ):
        adopt(output.ledger, output.spec, log=quiet)
    shell.runs("semel accept events --erased 2..2 --rows 10 --why TEXT")
    adopt(output.ledger, output.spec, log=quiet)
    run(output.ledger, output.spec, "r4")
    output.proven()


# Attacks ER1, ER3.
def test_some_rows_of_some_batches(output: Output, shell: Shell) -> None:
    """A person's rows: each other row is proven by its values, and one that is lost later is
    missed."""
    output.delete("n IN (12, 21, 22)")
    shell.runs("semel accept events --erased 1..3 --rows 3 --why 'ticket 4711'")
    output.proven()
    assert "this was recorded before" in shell.runs(
        "semel accept events --erased 1..3 --rows 3 --why 'ticket 4711'"
    )
    output.delete("n = 23")
    verdict = output.audit()
    assert {c.name for c in verdict.checks if not c.ok} - {"files"} == {"sums"}
    shell.runs("semel accept events --erased 2 --rows 1 --why 'ticket 4712'")
    output.proven()
    [two] = [m for m in markers_of(output.spec) if m.batch_id == 2]
    assert [(one.rows, one.why) for one in two.erased] == [(2, "ticket 4711"), (1, "ticket 4712")]
    assert two.counts.rows_written == 10


# Attacks ER1.
def test_a_word_hides_no_other_loss(output: Output, shell: Shell) -> None:
    """It names how many are gone: where more are, or none, nothing is recorded, and the message
    names the batches."""
    step = shell.fails("semel accept events --erased 2 --rows 1 --why x")
    assert "(nothing)" in shell.err and step == "semel audit events"
    shell.runs(step)
    output.delete("n IN (12, 21, 22)")
    step = shell.fails("semel accept events --erased 1..2 --rows 2 --why x")
    assert "3 rows and records are missing (batch 1: 1 rows" in shell.err
    assert not any(m.erased for m in markers_of(output.spec))
    shell.runs(step, code=1)
    shell.runs("semel accept events --erased 1..2 --rows 3 --why x")
    output.proven()


# Attacks ER3.
@pytest.mark.parametrize("output", ["delta"], indirect=True)
def test_rows_that_come_back(output: Output, shell: Shell) -> None:
    """Somebody restores the table with erased rows: the pipeline stops, and the audit tells."""
    table = DeltaTable(str(output.bench.data / "out" / "table"))
    version = table.version()
    output.delete("n >= 20 AND n < 30")
    shell.runs(KEPT)
    table.update_incremental()
    table.restore(version)
    assert not output.audit().ok
    with pytest.raises(TerminalError, match="batch 2"):
        output.come(4)


# Attacks ER4.
@pytest.mark.parametrize("output", ["table"], indirect=True)
def test_a_replay_brings_nothing_back(output: Output, shell: Shell) -> None:
    """Of a batch with a word, a replay is refused before any work; so is compare."""
    output.delete("n IN (21, 22)")
    shell.runs("semel accept events --erased 2 --rows 2 --why x")
    with pytest.raises(TerminalError, match="data of batch 2 were erased"):
        replay.plan(output.ledger, output.spec, "again", 2)
    assert shell.fails("semel compare events --batches 1..3") == "semel show 2"
    shell.runs("semel replay events --batches 3")
    output.proven()


# Attacks ER3, ER4.
def test_dead_letters_and_source(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """A dead letter is erased, then the file of the source: the audit says which batch it cannot
    prove, the dead letters are not judged again, and readers see the rest."""
    spec = bench.spec()
    bench.write("in/1.jsonl", events(0, 5))
    run(ledger, spec, "r1")
    source = bench.write("in/2.jsonl", [*events(5, 10), b"of a person", *events(10, 12)])
    run(ledger, spec, "r2")
    [letters] = layout.archive_folder(spec).glob("dead_letters/*.parquet")
    letters.unlink()
    source.unlink()
    shell.runs("semel accept events --erased 2 --rows 1 --why x")
    verdict = audit(spec)
    assert verdict.ok and any("cannot be proven" in note for note in verdict.notes)
    with pytest.raises(TerminalError, match="data of batch 2 were erased"):
        requarantine.plan(ledger, spec, "again", 2)
    assert "of a person" not in shell.runs("semel letters events")
    assert dataset(spec.sink_path()).count_rows() == 12
    bench.write("in/3.jsonl", events(20, 25))
    run(ledger, spec, "r3")


# Attacks ER1.
@pytest.mark.parametrize("point", ["erase.before_write", "erase.after_write"])
def test_a_kill_between_marker_and_ledger(
    bench: Workbench, ledger: Ledger, shell: Shell, point: str
) -> None:
    """The same command again completes what a killed one began, or says that it was done."""
    spec = first_batch(bench, ledger, events(0, 10))
    next(iter(spec.sink_path().glob("*.parquet"))).unlink()
    with dies_at(point):
        accept_erased(ledger, spec, (1, 1), lacking=10, why="x")
    kept = ledger.rows("accept", "erasures", pipeline_id=1, count=5)
    assert len(kept) == (point == "erase.after_write")
    shell.runs("semel accept events --erased 1 --rows 10 --why x")
    assert len(ledger.rows("accept", "erasures", pipeline_id=1, count=5)) == 1
    assert audit(spec).ok and not list(layout.archive_folder(spec).glob("markers/.*"))


# Attacks ER1.
@pytest.mark.parametrize("output", ["delta"], indirect=True)
def test_rows_that_are_erased_before_the_marker_is_there(output: Output, shell: Shell) -> None:
    """Finalize asks for them back, as the page says: then they are erased again, and recorded."""
    table = DeltaTable(str(output.bench.data / "out" / "table"))
    output.bench.write("in/4.jsonl", events(40, 50))
    batch = committed(output.ledger, output.spec, "r4")
    with dies_at("finalize.after_publish"):
        finalize(output.ledger, output.spec, batch)
    table.update_incremental()
    version = table.version()
    output.delete("n >= 40")
    accept = f"semel accept events --erased {batch} --rows 10 --why x"
    shell.fails(accept)
    with pytest.raises(CorruptionError, match="RESTORE a version that has them") as raised:
        finalize(output.ledger, output.spec, batch)
    assert "wait until the batch is finalized" in str(raised.value)
    table.update_incremental()
    table.restore(version)
    finalize(output.ledger, output.spec, batch)
    output.delete("n >= 40")
    shell.runs(accept)
    assert output.proven().batches == 4


# Attacks ER2.
def test_the_page_of_a_batch_shows_an_erasure(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """Who has erased how much, when and why; a reason is text and no markup."""
    spec = first_batch(bench, ledger, events(0, 10))
    path = "/semel/dags/events/batches/1"
    assert "<dt>erased</dt>" not in pages.get(path).text
    next(iter(spec.sink_path().glob("*.parquet"))).unlink()
    accept_erased(ledger, spec, (1, 1), lacking=10, why="request <b>4711")
    page = pages.get(path).text
    [erased] = re.findall("<dt>erased</dt><dd>(.*?)</dd>", page, re.DOTALL)
    assert "10 rows" in erased and "request &lt;b&gt;4711" in erased and current_user() in erased


# Attacks ER1.
def test_objects_go_by_a_replay(bench: Workbench, ledger: Ledger, s3: S3, shell: Shell) -> None:
    """Nothing is recorded of a sink that a replay, or its own rules, make lose rows: the audit
    names the batch that lacks some, and the replay that puts them again.
    """
    place = Prefix(bench, s3)
    bench.write("in/1.jsonl", events(0, 5))
    spec = place.spec()
    run(ledger, spec, "r1")
    [file] = markers_of(spec)[0].of_kind(Kind.DATA)
    s3.delete(place.bucket, f"{place.prefix}/{file.path}")
    step = shell.fails("semel accept events --erased 1 --rows 5 --why x")
    assert "from objects, replay with a transform" in shell.err
    *_, replay = shell.runs(step, code=1).splitlines()
    shell.runs(replay.removeprefix("next: "))
    assert audit(spec).ok


# Attacks ER1, F9.
@pytest.mark.parametrize("at", ["finalize.before_publish", "finalize.after_publish"])
@pytest.mark.parametrize("output", ["delta", "files"], indirect=True)
def test_a_finalizer_that_comes_late(output: Output, shell: Shell, at: str) -> None:
    """A twin has finalized the batch, and its rows were erased: it takes nothing back."""
    output.bench.write("in/4.jsonl", events(40, 50))
    batch = committed(output.ledger, output.spec, "r4")

    def erased() -> None:
        finalize(output.ledger, output.spec, batch)
        output.delete("n >= 40")
        shell.runs(f"semel accept events --erased {batch} --rows 10 --why x")

    with failpoints.armed(at, erased):
        assert finalize(output.ledger, output.spec, batch).found
    assert output.proven().batches == 4
    assert markers_of(output.spec)[-1].erased_rows == 10


# Attacks ER1.
def test_what_is_not_to_be_recorded(
    bench: Workbench, ledger: Ledger, table: Output, shell: Shell
) -> None:
    """Nothing while a batch is being replayed; and no rows of mode upsert, of which a later batch
    may have replaced any number."""
    table.delete("n = 21")
    replay.plan(ledger, bench.spec(sink=TABLE, source={"unknown": "quarantine"}), "again", 2)
    step = shell.fails("semel accept events --erased 2 --rows 1 --why x")
    assert "a replay of it is in progress" in shell.err and step == "semel batches events"
    upsert = {**TABLE, "table": "others", "mode": "upsert", "key": ["id"]}
    other = Output(bench, ledger, bench.spec("others", sink=upsert), table.delete)
    bench.write("in/4.jsonl", events(10, 15))
    run(ledger, other.spec, "r4")
    shell.fails("semel accept others --erased 1..99 --rows 5 --why x")
    assert "(nothing)" in shell.err


# Attacks ER3.
@pytest.mark.rest
def test_windows_of_a_person(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Partial rows of a key are erased: those that are left are counted again."""
    spec = bench.spec(
        record_time="at", window={"size": "1 hour"},
        aggregate={"by": ["id"], "columns": {"found": "count()", "sum": "sum(n)"}},
    )  # fmt: skip
    bench.write("in/1.jsonl", events(0, 5))
    run(ledger, spec, "r1")
    [file] = spec.sink_path().glob("**/*.parquet")
    rows = pq.read_table(file, partitioning=None)
    pq.write_table(rows.filter(pc.not_equal(rows["id"], "e000003")), file)
    shell.runs("semel accept events --erased 1 --rows 1 --why x")
    assert audit(spec).ok
    pq.write_table(rows.filter(pc.not_equal(rows["id"], "e000003")).slice(1), file)
    assert not audit(spec).ok
