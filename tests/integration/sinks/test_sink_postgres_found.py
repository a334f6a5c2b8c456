"""What a table would refuse once a batch has committed is found before; its errors are semel's."""

import re
from collections.abc import Callable

import pyarrow as pa
import pytest
import sqlalchemy as sa

from fixtures.batches.account import committed
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.warehouse import Warehouse
from semel.cli import main
from semel.errors import SemelError, TerminalError
from semel.ledger import Ledger
from semel.sinks.postgres.sink import PostgresSink

OWN = "_semel_batch bigint, _semel_seq bigint"
TABLE = f"CREATE TABLE flights (id bigint, city text, {OWN})"
KEY = {"mode": "upsert", "key": ("id",)}


def flights(*ids: int, city: str = "Oslo") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "city": [city] * len(ids)})


def unlogged(warehouse: Warehouse) -> PostgresSink:
    warehouse.run(TABLE.replace("TABLE", "UNLOGGED TABLE"))
    return warehouse.sink()


def rule(warehouse: Warehouse) -> PostgresSink:
    warehouse.run(TABLE)
    warehouse.run("CREATE UNIQUE INDEX ON flights (id)")
    warehouse.run('CREATE RULE "no!" AS ON INSERT TO flights DO ALSO NOTIFY came')
    return warehouse.sink(**KEY)


def repeats(warehouse: Warehouse) -> PostgresSink:
    warehouse.run(TABLE)
    warehouse.run("INSERT INTO flights (id) VALUES (7), (7), (8)")
    return warehouse.sink(**KEY)


def of_another_owner(warehouse: Warehouse) -> PostgresSink:
    warehouse.run(TABLE)
    role = warehouse.role()
    warehouse.run(f"GRANT ALL ON flights TO {role.name}")
    warehouse.run(f"GRANT CREATE ON SCHEMA public TO {role.name}")
    return warehouse.sink(dsn=role.dsn, **KEY)


def columns_alone(warehouse: Warehouse) -> PostgresSink:
    warehouse.run(TABLE)
    role = warehouse.role()
    warehouse.run(f"GRANT INSERT (id, city, _semel_batch, _semel_seq) ON flights TO {role.name}")
    warehouse.run(f"GRANT CREATE ON SCHEMA public TO {role.name}")
    return warehouse.sink(dsn=role.dsn)


REMEDIES: dict[Callable[[Warehouse], PostgresSink], tuple[str, str]] = {
    unlogged: ("is UNLOGGED", r"ALTER TABLE \S+ SET LOGGED"),
    rule: ('its rule "no!" rewrites inserts', r'DROP RULE "no!" ON \S+'),
    repeats: ("several of its rows share a key", "DELETE FROM flights WHERE id = 7"),
    of_another_owner: ("only its owner can create one", r"CREATE UNIQUE INDEX ON .*"),
    columns_alone: ("except in some columns", r"GRANT INSERT ON \S+"),
}


# Attacks PG4.
@pytest.mark.parametrize("change", REMEDIES)
def test_it_is_refused_before_any_work(warehouse: Warehouse, change: Callable) -> None:
    """Each is named by what stage and `semel check` ask; what the message says lets a batch land."""
    sink = change(warehouse)
    why, remedy = REMEDIES[change]
    with pytest.raises(TerminalError, match=why) as told:
        sink.examine(flights(1).schema)
    found = re.search(remedy, str(told.value))
    statement = found[0] if found else remedy
    if statement.startswith("GRANT"):
        statement += f" TO {sa.make_url(sink._target.dsn).username}"
    warehouse.run(statement)
    sink.examine(flights(1).schema)
    warehouse.finalize(warehouse.won(flights(1, 2)), sink)
    assert warehouse.run("SELECT count(*) FROM flights WHERE _semel_batch = 1") == [(2,)]


# Attacks PG5.
def test_a_text_is_never_cut(warehouse: Warehouse) -> None:
    """A column that was narrowed after stage takes no text whose blanks it would cut off; the other
    rows can land.
    """
    warehouse.run(TABLE)
    sink = warehouse.sink()
    won = warehouse.won(flights(1, 2, city="Oslo  "), flights(3, city="Bonn"))
    warehouse.run("ALTER TABLE flights ALTER city TYPE varchar(4)")
    with pytest.raises(TerminalError, match=r"too long for the column 'city' \(varchar\(4\)\)"):
        warehouse.finalize(won, sink)
    kept: list[pa.Table] = []
    sink.publish_accepting(won, kept.append)
    assert kept[0].column("city").to_pylist() == ["Oslo  "] * 2
    assert warehouse.run("SELECT id, city FROM flights") == [(3, "Bonn")]


# Attacks PG5.
def test_a_role_of_another_isolation(warehouse: Warehouse) -> None:
    """A default of REPEATABLE READ would show the table as it was before the lock was had: a column
    that was changed while a batch waited for it is seen.
    """
    warehouse.run("CREATE TABLE flights (id bigint, x numeric, " + OWN + ")")
    name = sa.make_url(warehouse.dsn).database
    warehouse.run(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    sink = warehouse.sink(create=False)
    with sink._open_connection() as connection:
        with connection.transaction():
            [found] = connection.execute("SHOW transaction_isolation").fetchall()
    assert found["transaction_isolation"] == "read committed"


RAISES = """CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS
'begin if new.id = 2 then raise exception ''not that one'' using errcode = ''QQ001''; end if;
return new; end'"""


def raising(warehouse: Warehouse, name: str) -> None:
    warehouse.run(RAISES.replace("new.id = 2", "new.id::text LIKE ''%2''"))
    warehouse.run(f"CREATE TRIGGER no BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION no()")


# Attacks PG7.
def test_a_trigger_with_a_code_of_its_own(warehouse: Warehouse) -> None:
    """It refuses a row: the message says how to go on, and the others can land."""
    warehouse.run(TABLE)
    raising(warehouse, "flights")
    sink, won = warehouse.sink(), warehouse.won(flights(1, 2, 3))
    with pytest.raises(TerminalError, match=r"refuses rows: .*QQ001.*accept flights --refused 1"):
        warehouse.finalize(won, sink)
    assert sink.publish_accepting(won, lambda _: None) == 1
    assert warehouse.run("SELECT id FROM flights ORDER BY id") == [(1,), (3,)]


def test_whatever_else_a_server_says(warehouse: Warehouse) -> None:
    """An error that nobody expects here is semel's too, with its code."""
    warehouse.run(TABLE)
    sink = warehouse.sink()
    with pytest.raises(SemelError, match="SQLSTATE 3B001"):
        with sink._transaction() as connection:
            connection.execute("ROLLBACK TO SAVEPOINT none")


# Attacks G8.
def test_collect_goes_on_with_the_next_pipeline(
    bench: Workbench, ledger: Ledger, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A batch whose table refuses a row by a code of its own: `semel collect` names it, and
    finalizes that of another pipeline.
    """
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    bench.write("in/1.jsonl", events(0, 5))
    for name in ("a", "b"):
        sink = {"type": "postgres", "connection": "warehouse", "table": name, "create": True}
        committed(ledger, bench.spec(name, sink=sink), "r1")
        warehouse.run(f"CREATE TABLE {name} (id text, n bigint, at timestamptz, {OWN})")
    raising(warehouse, "a")
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE semel.batch SET committed_at = '1970-01-01', "
                                   "seen_at = '1970-01-01'")  # fmt: skip
    assert main(["collect"]) == 1
    told = capsys.readouterr()
    assert "QQ001" in told.out + told.err
    assert warehouse.run("SELECT count(*) FROM b") == [(5,)]
