"""What was committed is what is published: an edit of the YAML counts from the next batch on."""

from collections.abc import Callable

import pytest

from fixtures.batches.account import committed, quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.kafka.outlet import Outlet
from fixtures.postgres.warehouse import Warehouse
from fixtures.spark.local import LocalEngine
from semel.audit import audit
from semel.collect import collect
from semel.errors import StateError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.repair.accept import accept_refused
from semel.reports.find import find
from semel.runs import replay
from semel.runs.run import run_batch

APPEND = {"type": "postgres", "connection": "warehouse", "table": "events", "create": True}
UPSERT = {**APPEND, "mode": "upsert", "key": ["n"]}
OLD = "1970-01-01 00:00:00+00"


@pytest.fixture
def table(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    return warehouse


def same_keys(bench: Workbench, number: int) -> None:
    rows = [{"id": f"{number}-{n}", "n": n, "at": None} for n in range(3)]
    bench.write(f"in/{number}.jsonl", rows)


def run(ledger: Ledger, spec: Spec, key: str) -> None:
    run_batch(ledger, spec, key, LocalEngine(), log=quiet)


def counted(table: Warehouse, name: str = "events") -> list[tuple]:
    statement = f"SELECT _semel_batch, count(*) FROM {name} GROUP BY 1 ORDER BY 1"
    return table.run(statement)


def by_finalize(ledger: Ledger, spec: Spec, batch: int) -> None:
    finalize(ledger, spec, batch)


def by_collect(ledger: Ledger, spec: Spec, batch: int) -> None:
    with ledger.transaction() as connection:
        connection.exec_driver_sql(
            f"UPDATE semel.batch SET committed_at = '{OLD}', seen_at = '{OLD}' "
            f"WHERE batch_id = {batch}"
        )
    done = collect(ledger, spec, log=quiet)
    assert (done.batches_finalized, done.damaged) == (1, ())


def by_accept(ledger: Ledger, spec: Spec, batch: int) -> None:
    accept_refused(ledger, spec, batch)


# Attacks F10.
@pytest.mark.parametrize("verb", [by_finalize, by_collect, by_accept])
@pytest.mark.parametrize("first", ["append", "upsert"])
def test_a_batch_is_published_in_its_own_mode(
    bench: Workbench, ledger: Ledger, table: Warehouse, first: str, verb: Callable
) -> None:
    """The mode is edited between commit and finalize: what was appended replaces no row, and what
    was to replace rows does.
    """
    table.run("CREATE TABLE events (id text, n bigint, at timestamptz, _semel_batch bigint, "
              "_semel_seq bigint)")  # fmt: skip
    then, now = (APPEND, UPSERT) if first == "append" else (UPSERT, APPEND)
    if first == "upsert":
        table.run("CREATE UNIQUE INDEX ON events (n)")
    spec = bench.spec(sink=then)
    same_keys(bench, 1)
    run(ledger, spec, "r1")
    same_keys(bench, 2)
    batch = committed(ledger, spec, "r2")
    verb(ledger, bench.spec(sink=now), batch)
    assert counted(table) == ([(1, 3), (2, 3)] if first == "append" else [(2, 3)])


# Attacks F10.
@pytest.mark.parametrize(
    "now",
    [
        {**APPEND, "table": "others"},
        {**APPEND, "connection": "elsewhere", "table": "others"},
        {"type": "files", "path": "out/events", "format": "jsonl"},
    ],
    ids=["table", "connection", "kind"],
)
def test_a_batch_is_published_where_it_was_committed(
    bench: Workbench, ledger: Ledger, table: Warehouse, now: dict
) -> None:
    """The declaration names another place since: the batch lands in the first one, and nowhere
    else; the next plan says that the pipeline cannot go over just so.
    """
    bench.write("in/1.jsonl", events(0, 5))
    batch = committed(ledger, bench.spec(sink=APPEND), "r1")
    edited = bench.spec(sink=now)
    finalize(ledger, edited, batch)
    assert counted(table) == [(1, 5)]
    assert table.run("SELECT to_regclass('others')") == [(None,)]
    assert not (bench.data / "out" / "events").exists()


# Attacks F10.
def test_another_connection_to_the_same_place(
    bench: Workbench, ledger: Ledger, table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was renamed, and the old one is gone: the batch goes through the new one."""
    bench.write("in/1.jsonl", events(0, 5))
    # Not `warehouse`, which a stack that was started in this folder has.
    sink = {**APPEND, "connection": "former"}
    monkeypatch.setenv("AIRFLOW_CONN_FORMER", table.dsn)
    batch = committed(ledger, bench.spec(sink=sink), "r1")
    monkeypatch.delenv("AIRFLOW_CONN_FORMER")
    with pytest.raises(TerminalError, match="no connection 'former'"):
        finalize(ledger, bench.spec(sink=sink), batch)
    monkeypatch.setenv("AIRFLOW_CONN_RENAMED", table.dsn)
    finalize(ledger, bench.spec(sink={**UPSERT, "connection": "renamed"}), batch)
    assert counted(table) == [(1, 5)]


# Attacks F10.
def test_readers_follow_the_markers(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """append, then upsert over the same keys, then append again: the audit takes each batch's rows
    by its own mode; a replay of what a later batch may have replaced is refused.
    """
    table.run("CREATE TABLE events (id text, n bigint UNIQUE, at timestamptz, "
              "_semel_batch bigint, _semel_seq bigint)")  # fmt: skip
    append, upsert = bench.spec(sink=APPEND), bench.spec(sink=UPSERT)
    same_keys(bench, 1)
    run(ledger, append, "r1")
    same_keys(bench, 2)
    run(ledger, upsert, "r2")
    bench.write("in/3.jsonl", events(10, 15))
    run(ledger, append, "r3")
    assert counted(table) == [(2, 3), (3, 5)]
    verdict = audit(append)
    assert verdict.ok, [check for check in verdict.checks if not check.ok]
    assert any("last upsert as replaced" in note for note in verdict.notes)
    assert [p.batch_id for p in find(append, ["2-1"]).places if p.what == "output"] == [2]
    with pytest.raises(TerminalError, match="mode upsert"):
        replay.run(ledger, append, "again", 1, LocalEngine(), log=quiet)
    table.run("DELETE FROM events WHERE id = 'e000012'")
    assert not audit(append).ok, "a row of the last batch, which was appended, is missing"


def test_a_place_that_nobody_declares_any_more(
    bench: Workbench, ledger: Ledger, table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection leads elsewhere: nothing lands; the message names both places."""
    bench.write("in/1.jsonl", events(0, 5))
    batch = committed(ledger, bench.spec(sink=APPEND), "r1")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", table.dsn.rpartition("/")[0] + "/nowhere")
    with pytest.raises(StateError, match=r"its sink is postgresql://.*, but .* declares .*/nowhere"):
        finalize(ledger, bench.spec(sink=APPEND), batch)
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", table.dsn)
    finalize(ledger, bench.spec(sink=APPEND), batch)
    assert counted(table) == [(1, 5)]


# Attacks F10.
@pytest.mark.parametrize("now", [{"key": None, "headers": {}}, {"topic": "others"}],
                         ids=["key", "topic"])  # fmt: skip
def test_messages_are_those_that_were_committed(
    bench: Workbench, ledger: Ledger, outlet: Outlet, now: dict
) -> None:
    """Key, headers and topic of a batch of a topic are those of its own declaration."""
    then = {"type": "kafka", "bootstrap_servers": outlet.make().kafka.broker.bootstrap,
            "topic": outlet.topic, "key": "id", "headers": {"number": "id"}}  # fmt: skip
    bench.write("in/1.jsonl", events(0, 5))
    batch = committed(ledger, bench.spec(sink=then), "r1")
    finalize(ledger, bench.spec(sink={**then, **now}), batch)
    read = outlet.kafka.drain(outlet.topic)
    assert sorted(one.key for one in read) == [e["id"].encode() for e in events(0, 5)]
    assert all(one.headers for one in read)
