"""A database that rows go to, and batches that have committed, by hand: staged files and `Won`."""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa

from fix_pipelines import Workbench
from fix_postgres import database
from fix_sinks import Place, won_of
from semel.sinks import Presence, Won
from semel.sinks.postgres.sink import PostgresSink
from semel.sinks.postgres.target import PostgresTarget

TABLE = {"type": "postgres", "connection": "warehouse", "table": "events", "create": True}
"""The `sink` of a pipeline into the table of the fixture `table`."""

OWN = "_semel_batch bigint, _semel_seq bigint"
"""The two columns that a table needs for semel."""

UPSERT = {"mode": "upsert", "key": ("id",)}
MODES = pytest.mark.parametrize("mode", [{}, UPSERT], ids=["append", "upsert"])

_EMPTY = """
DO $$
DECLARE found text;
BEGIN
    FOR found IN SELECT pubname FROM pg_publication LOOP
        EXECUTE format('DROP PUBLICATION %I', found);
    END LOOP;
    FOR found IN SELECT nspname FROM pg_namespace
                 WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' LOOP
        EXECUTE format('DROP SCHEMA %I CASCADE', found);
    END LOOP;
    EXECUTE format('ALTER DATABASE %I RESET ALL', current_database());
END $$;
CREATE SCHEMA public;
GRANT USAGE ON SCHEMA public TO PUBLIC;
"""
_PLAIN = "-c default_transaction_read_only=off -c client_min_messages=warning"


def flights(ids: Iterable[int], city: str = "Oslo") -> pa.Table:
    """Rows with these ids."""
    ids = pa.array(ids, pa.int64())
    return pa.table({"id": ids, "city": [city] * len(ids)})


def never(_: pa.Table) -> None:
    raise AssertionError("nothing is to be kept")


@dataclass
class Warehouse:
    """A database that is no ledger, and whose tables are all this test's; and a folder for staged
    files.
    """

    dsn: str
    folder: Path

    def sink(self, table: str = "flights", **declared: Any) -> PostgresSink:
        declared = {"dsn": self.dsn, "create": True, **declared}
        return PostgresSink(PostgresTarget(table=table, **declared))

    def run(self, statement: str, *values: object) -> list[tuple]:
        """Run a statement as a user would; returns its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            found = connection.execute(statement, values or None)
            return found.fetchall() if found.description else []

    def role(self) -> "Role":
        """A user without any right, who is gone with the server."""
        name, password = f"semel_role_{secrets.token_hex(4)}", secrets.token_hex(8)
        self.run(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        url = sa.make_url(self.dsn).set(username=name, password=password)
        return Role(name=name, dsn=url.render_as_string(hide_password=False))

    def won(self, *tables: pa.Table, batch_id: int = 1, commit_seq: int | None = None) -> Won:
        """A committed batch whose files hold these tables, a file each."""
        return won_of(
            self.folder, lambda *_: "somewhere", tables,
            pipeline="flights", batch_id=batch_id, commit_seq=commit_seq,
        )  # fmt: skip

    def replay(self, *tables: pa.Table, batch_id: int, of: tuple[int, ...] = (1,)) -> Won:
        """A committed replay of the first of some outputs, which replaces all of them."""
        won = self.won(*tables, batch_id=batch_id, commit_seq=of[0])
        return replace(won, replaces=of)

    def finalize(self, won: Won, sink: PostgresSink) -> None:
        """What finalize does: look, and publish what is missing."""
        absent = [f for f, p in zip(won.files, sink.look(won), strict=True) if p == "absent"]
        sink.publish(won, absent)


LANDINGS = ("append", "upsert", "replay")


class Landing:
    """A batch that has committed and is to land: in either mode, or as a replay, whose old rows are
    there until it has landed.
    """

    def __init__(self, warehouse: Warehouse, kind: str, count: int) -> None:
        self.warehouse, self.kind = warehouse, kind
        self.declared = UPSERT if kind == "upsert" else {}
        self.sink = warehouse.sink(**self.declared)
        if kind == "replay":
            warehouse.finalize(warehouse.won(flights(range(300), "old")), self.sink)
        make = warehouse.replay if kind == "replay" else warehouse.won
        self.won = make(flights(range(count), "new"), batch_id=2)
        self.before = self.there()
        self.after = [("new", count, count)]

    def there(self) -> list[tuple]:
        """Rows and different ids by their city."""
        if self.warehouse.run("SELECT to_regclass('flights')") == [(None,)]:
            return []
        counts = "SELECT city, count(*), count(DISTINCT id) FROM flights GROUP BY 1"
        return self.warehouse.run(counts)

    def publish(self, sink: PostgresSink | None = None) -> None:
        (sink or self.sink).publish(self.won, self.won.files)

    def ends(self) -> None:
        """Run again it lands, once, and whole."""
        for _ in range(2):
            self.warehouse.finalize(self.won, self.sink)
        assert self.there() == self.after
        assert self.sink.look(self.won) == [Presence.RIGHT]
        noted = self.warehouse.run("SELECT count(*) FROM semel_batch WHERE table_name = 'flights'")
        assert noted == [(2 if self.kind == "replay" else 1,)]


class Table(Place):
    """A table of the warehouse, read by psycopg. Its Airflow connection is `warehouse`."""

    half = "sink.before_commit"

    def __init__(
        self, bench: Workbench, warehouse: Warehouse, patch: pytest.MonkeyPatch, mode: str
    ) -> None:
        super().__init__(bench)
        self._warehouse, self._mode = warehouse, mode
        url = sa.make_url(warehouse.dsn)
        plain = {"conn_type": "postgres", "host": url.host.upper(), "port": url.port,
                 "login": url.username, "password": url.password, "schema": url.database}
        patch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
        patch.setenv("AIRFLOW_CONN_SAME", json.dumps(plain))

    @property
    def declared(self) -> dict[str, Any]:
        key = {"key": ["id"]} if self._mode == "upsert" else {}
        return {"type": "postgres", "connection": "warehouse", "table": "events",
                "mode": self._mode, "create": True, **key}  # fmt: skip

    @property
    def harms(self) -> dict[str, Callable[[], object]]:
        run = self._warehouse.run
        return {
            "removed": lambda: run("DELETE FROM events WHERE id = 'e000003'"),
            "doubled": lambda: run("INSERT INTO events SELECT 'e9', n, at, _semel_batch, "
                                   "_semel_seq FROM events LIMIT 1"),
            "changed": lambda: run("UPDATE events SET n = 99 WHERE id = 'e000003'"),
            "gone": lambda: run("DROP TABLE events"),
        }  # fmt: skip

    def spellings(self) -> list[dict[str, Any]]:
        names = ("events", "public.events", '"public"."events"')
        same = [{**self.declared, "table": name} for name in names]
        return [*same, {**self.declared, "connection": "same"}, {**self.declared, "table": "other"}]

    def rows(self) -> list[tuple[int, str]]:
        [(made,)] = self._warehouse.run("SELECT to_regclass('events')")
        return self._warehouse.run("SELECT _semel_batch, id FROM events ORDER BY 1, 2") if made \
            else []

    def unfit(self, patch: pytest.MonkeyPatch) -> str:  # noqa: ARG002 - the suite's
        self._warehouse.run("CREATE TABLE events (id text PRIMARY KEY, _semel_batch bigint, "
                            "_semel_seq bigint)")  # fmt: skip
        return "lacks the column 'n'"

    def mended(self) -> None:
        self._warehouse.run("ALTER TABLE events ADD n bigint, ADD at timestamptz")


@dataclass(frozen=True, kw_only=True)
class Role:
    """A user of the warehouse, and how that one connects."""

    name: str
    dsn: str


@pytest.fixture(scope="session")
def warehouse_dsn(postgres: str) -> Iterator[str]:
    """A database that tests use one after the other."""
    with database(postgres) as dsn:
        yield dsn


@pytest.fixture
def warehouse(warehouse_dsn: str, tmp_path: Path) -> Warehouse:
    """A database with nothing in it: to empty one costs a fraction of making one."""
    with psycopg.connect(warehouse_dsn, autocommit=True, options=_PLAIN) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        connection.execute(_EMPTY)
    return Warehouse(dsn=warehouse_dsn, folder=tmp_path)


@pytest.fixture
def table(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """The warehouse as the Airflow connection `warehouse`."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    return warehouse
