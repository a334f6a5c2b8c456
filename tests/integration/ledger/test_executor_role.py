"""The role of executors: tasks do all their work with it, and it has no right besides.

Spark's workers have it in every test that takes the fixture `ledger`; here tasks run in this process.
"""

from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from psycopg import errors as pg

from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.postgres.server import as_executor, database, grant_executors
from fixtures.spark.local import LocalEngine
from semel import settings
from semel.collect import collect
from semel.errors import Doing, TerminalError
from semel.ledger import Ledger
from semel.ledger.migrate import migrate
from semel.spark.engine import Outcome
from semel.stage import shard
from semel.stage.job import StageJob

_RUN_READ = {
    "id_run_id", "pipeline_id", "attempt_id", "shard", "buckets", "seq_min", "seq_max",
    "expires_at", "segment_id", "ids", "filter_bytes", "checksum",
}  # fmt: skip
_RUN_WRITTEN = {
    "pipeline_id", "attempt_id", "shard", "buckets", "segment_id", "ids", "filter_bytes",
    "checksum", "asked", "false_hits",
}  # fmt: skip
_PAYLOAD = {"id_run_id", "piece", "kind", "payload"}
RIGHTS = {
    ("semel.attempt", "SELECT"): {"attempt_id", "started_at"},
    ("semel.id_run", "SELECT"): _RUN_READ,
    ("semel.id_run", "INSERT"): _RUN_WRITTEN,
    ("semel.ids_1", "SELECT"): _PAYLOAD,
    ("semel.ids_1", "INSERT"): _PAYLOAD,
}
"""All rights of the role, by table and column."""

STATEMENTS = {
    "SELECT": "SELECT {column} FROM {table} LIMIT 0",
    "INSERT": "INSERT INTO {table} ({column}) VALUES (DEFAULT)",
    "UPDATE": "UPDATE {table} SET {column} = DEFAULT WHERE false",
    "DELETE": "DELETE FROM {table} WHERE false",
    "TRUNCATE": "TRUNCATE {table}",
    "LOCK": "SELECT FROM {table} FOR KEY SHARE",
}
_COLUMNS = """
SELECT format('%I.%I', relnamespace::regnamespace, relname), relkind, array_agg(attname::text)
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
WHERE relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND relnamespace::regnamespace::text
      NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
GROUP BY 1, 2
"""


class TwiceRun(LocalEngine):
    """Runs each job twice, as speculation does with a task."""

    def run(self, job: StageJob) -> Outcome:
        super().run(job)
        return super().run(job)


@pytest.fixture
def owner(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The owner's DSN of a migrated ledger; tasks of this process are executors there."""
    with database(postgres) as dsn:
        migrate(dsn)
        monkeypatch.setenv(settings.LEDGER_VARIABLE, as_executor(dsn))
        yield dsn
        shard.ledger_at(as_executor(dsn)).engine.dispose()


def grant(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        grant_executors(connection)


@pytest.mark.parametrize(
    "changes",
    [
        {"dedup": {"shards": 1}},
        {"dedup": {"shards": 1, "scope": "bucket", "horizon": "3650 d"}, "record_time": "at"},
    ],
    ids=["horizon", "bucket"],
)
def test_tasks_need_no_other_right(
    bench: Workbench, owner: str, changes: dict[str, object]
) -> None:
    """They look ids up in a run from before the role, in later ones and in a merged one, and store
    theirs, also as the second of two. A statement that a task gains needs its grant in roles.sql.
    """
    spec = bench.spec(**changes)
    with Ledger(owner) as ledger:
        bench.write("in/a.jsonl", events(0, 5))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(settings.LEDGER_VARIABLE, owner)
            run(ledger, spec, "r1")
        for start in range(3, 45, 3):
            grant(owner)
            bench.write(f"in/{start}.jsonl", events(start, start + 5))
            run(ledger, spec, f"r{start}", engine=TwiceRun())
        before = _live_runs(ledger)
        collect(ledger, spec, quiet)
        assert _live_runs(ledger) < before
        bench.write("in/z.jsonl", events(0, 70))
        run(ledger, spec, "last")
    assert settled(spec).ids == ids(0, 70)


def _live_runs(ledger: Ledger) -> int:
    with ledger.engine.connect() as connection:
        text = "SELECT count(*) FROM semel.id_run WHERE retired_at IS NULL"
        return connection.exec_driver_sql(text).scalar_one()


def test_every_other_right_is_denied(bench: Workbench, owner: str) -> None:
    """Each table, view and sequence, each column and each right: the server denies what is not
    listed here. Nor can the role make a table, call another function or become the owner.
    """
    grant(owner)
    with Ledger(owner) as ledger:
        bench.write("in/a.jsonl", events(0, 5))
        run(ledger, bench.spec(), "r1")
    with psycopg.connect(owner) as connection:
        tables = connection.execute(_COLUMNS).fetchall()
        user = connection.info.user
    assert {"semel.batch", "semel.reads", "public.semel_alembic", "semel.ids_1"} <= {
        table for table, _, _ in tables
    }
    with psycopg.connect(as_executor(owner), autocommit=True) as connection:
        rights: dict[tuple[str, str], set[str]] = {}
        for table, kind, columns in tables:
            for right, text in STATEMENTS.items():
                for column in columns:
                    if allows(connection, text.format(table=table, column=column)):
                        rights.setdefault((table, right), set()).add(column)
            more = ("USAGE", "UPDATE") if kind == "S" else ("REFERENCES", "TRIGGER")
            of = "sequence" if kind == "S" else "table"
            for right in more:
                [has] = connection.execute(
                    f"SELECT has_{of}_privilege(%s, %s)", (table, right)
                ).fetchone()
                assert not has, (table, right)
        assert rights == RIGHTS
        for text in ("CREATE TABLE semel.more ()", f"SET ROLE {user}", "DROP TABLE semel.ids_1"):
            assert not allows(connection, text), text
        functions = connection.execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'semel'::regnamespace"
            " AND has_function_privilege(oid, 'EXECUTE')"
        ).fetchall()
        assert functions == [("share_attempt",)]


def allows(connection: psycopg.Connection, text: str) -> bool:
    """Whether the server lets the user run a statement, even if a constraint then refuses the row.
    """
    try:
        with suppress(psycopg.IntegrityError), connection.transaction(force_rollback=True):
            connection.execute(text)
    except pg.InsufficientPrivilege:
        return False
    except (psycopg.NotSupportedError, psycopg.OperationalError, psycopg.ProgrammingError):
        return False  # A view or sequence that nobody can write to.
    return True


def test_nobody_else_gets_the_lock(owner: str) -> None:
    """Without the role, a user of the server cannot lock an attempt by the function."""
    with psycopg.connect(owner, autocommit=True) as connection:
        [everybody] = connection.execute(
            "SELECT has_function_privilege('public', 'semel.share_attempt(bigint)', 'EXECUTE')"
        ).fetchone()
    assert not everybody


def test_a_right_that_is_missing(
    bench: Workbench, owner: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task whose statement has no grant ends its attempt at once, with the command that prints
    the grants; after them the same batch goes on.
    """
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    grant(owner)
    with Ledger(owner) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(
                shard, "contains", lambda ledger, *_: ledger.rows("stage", "latest", batch_id=1)
            )
            with pytest.raises(TerminalError, match="denies its user a right .*attempt") as caught:
                run(ledger, spec, "r1")
        assert as_executor(owner) not in str(caught.value)
        step = caught.value.next_step(Doing(again="", anew=""))
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute("REVOKE ALL ON ALL TABLES IN SCHEMA semel FROM semel_executor")
            with pytest.raises(TerminalError, match="denies its user a right"):
                run(ledger, spec, "r1")
            printed = shell.runs(step)
            assert shell.answers(step) == {"sql": printed.removesuffix("\n")}
            connection.execute(printed)
        run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 5)
