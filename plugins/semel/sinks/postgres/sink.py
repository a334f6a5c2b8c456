"""A table of some PostgreSQL as a sink: the rows of a batch land in one transaction with its note.

Purpose: make a committed batch's rows visible in a table, each once.
How it works: a row in `semel_batch`, beside the table, is inserted first: a twin waits for it, or
finds it. Behind it the staged files are copied, and all is committed at once. Whoever finds the row
of a batch finds all of its rows.
In mode append a replay deletes, in that transaction, the rows of the outputs that it replaces.
What it does not do: hold a connection between calls, but within a block of its own (`with sink:`).
Known limitation: in mode upsert a batch's row goes when a later batch has its key.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Self

import adbc_driver_postgresql.dbapi
import psycopg
import pyarrow as pa
from psycopg import sql

from semel import failpoints
from semel.clients.sql import query
from semel.declare.context import Context
from semel.declare.wording import FILES_NAMED_MAX
from semel.errors import AGAIN, RetryableError, TerminalError, UnavailableError, first_line
from semel.model.manifest import ManifestFile, Published, StagedFile
from semel.sinks import (
    NotesQuery,
    Notes,
    ReplacedOutput,
    Presence,
    RowChecker,
    RemoteSink,
    CommittedBatch,
)
from semel.sinks.keys import find_duplicate_key
from semel.sinks.postgres import encode, noted, replaced, view
from semel.sinks.postgres.facts import TableFacts, create_statement, examine, of_output
from semel.sinks.postgres.landing import (
    REFUSAL_COLUMN,
    KeptBackError,
    land,
    land_most,
    named,
    with_reason,
)
from semel.sinks.postgres.link import (
    Connection,
    connected,
    filled,
    is_there,
    meaning,
    refuses_rows,
    within,
)
from semel.sinks.postgres.refused import PostgresRowCheck
from semel.sinks.postgres.target import PostgresTarget, dsn_of


class _SeenError(Exception):
    """Ends a transaction of which nothing is to stay."""


def open_sink(context: Context, address: str | None, files: object) -> "PostgresSink":  # noqa: ARG001
    """The table."""
    sink = context.declared
    target = PostgresTarget(
        dsn=dsn_of(sink.connection),
        table=sink.table,
        mode=sink.mode,
        key=sink.key,
        create=sink.create,
        counting=context.counting,
        json_columns=context.json_columns,
        connection=sink.connection,
    )
    return PostgresSink(target)


class PostgresSink(RemoteSink):
    """Rows go to `target`. See `semel.sinks.Sink` for when each method is called."""

    def __init__(self, target: PostgresTarget) -> None:
        self._target = target
        self.address = target.address
        self._shared: ExitStack | None = None
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"PostgresSink({self.address})"

    def __enter__(self) -> Self:
        self._shared = ExitStack()
        return self

    def __exit__(self, *_: object) -> None:
        self._shared.close()
        self._shared = self._connection = None

    def check(self, schema: pa.Schema | None, staged: Path) -> RowChecker:  # noqa: ARG002 - the seam's
        return PostgresRowCheck(facts=self.examine(schema))

    def describe(self, schema: pa.Schema | None) -> str:
        facts = self.examine(schema)
        there = "there" if facts.exists else "not there yet, and finalize makes it"
        mode = f"mode {self._target.mode}"
        if rows := self.count_unmerged():
            name, parts = self._target.view.as_string(), self._target.shown
            raise TerminalError(
                f"the view {name} passes over {rows:,} partial rows of {parts}, because "
                f"{self._target.windows.as_string()} lacks their windows. Let finalize make the "
                f"view again, with all windows: DROP VIEW {name}"
            )
        return "; ".join((f"table {self.address}: {there}, {mode}", *facts.notes))

    def check_replace(self, old: ReplacedOutput) -> tuple[str, ...]:
        with self._transaction() as connection:
            return replaced.check(connection, self._target, old)

    def check_staged(self, schema: pa.Schema, files: Sequence[StagedFile]) -> None:
        """The columns, where only the job could tell them; and each key once."""
        self.examine(schema)
        found = find_duplicate_key(files, self._target.key) if self._target.key else None
        if found:
            raise TerminalError(
                f"{found.keys} keys are in more than one row of the output ({found.key} in "
                f"{found.rows}), and in mode upsert a batch has one row for a key; let the last "
                "transform keep one of them (or add to sink.key what tells them apart)"
            )

    @property
    def replaceable(self) -> bool:
        return not self._target.key

    def describe_removal(self, batches: Sequence[int]) -> str:
        table, name = self._target.shown, self._target.names[1]
        notes, shown = self._target.batches.as_string(), ", ".join(map(str, batches))
        return (
            f"Take them out: DELETE FROM {table} WHERE _semel_batch IN ({shown}); DELETE FROM "
            f"{notes} WHERE table_name = {sql.Literal(name).as_string()} AND batch_id IN ({shown})"
        )

    def merged_windows(
        self, level: int, since: datetime, until: datetime | None, count: int
    ) -> list[dict[str, Any]]:
        with self._transaction() as connection:
            return view.rows(connection, self._target, level, since, until, count)

    def count_unmerged(self) -> int:
        with self._transaction() as connection:
            return view.unmerged(connection, self._target)

    def merged_query(self) -> str:
        return query("postgres", "all_counted").text.format(view=self._target.view.as_string())

    # Keeps PG13.
    def notes(self, newest: NotesQuery | None = None) -> Notes:
        asked = (newest.pipeline, newest.count) if newest else None
        with self._transaction() as connection:
            found = noted.notes_of(connection, self._target, asked)
            if not (found.batch_notes or found.damaged):
                noted.refuse_unnoted(connection, self._target)
        return found

    def count_strays(self, known: Collection[int]) -> dict[int, int]:
        with self._transaction() as connection:
            if not is_there(connection, self._target.identifier):
                return {}
            strays = filled("strays", table=self._target.identifier, known=sorted(known))
            found = connection.execute(strays).fetchall()
        return {row["batch_id"]: row["rows"] for row in found}

    def examine(self, schema: pa.Schema | None) -> TableFacts:
        """Like `check`; returns what tasks need to find values that the table will refuse."""
        with self._transaction() as connection:
            facts = examine(connection, self._target, schema)
            if schema is not None:
                self._rehearse(connection, schema, facts)
            return facts

    # Keeps PG4.
    def _rehearse(self, connection: Connection, schema: pa.Schema, facts: TableFacts) -> None:
        """Do what needs no row, and roll back. TerminalError: the server refuses it."""
        target = self._target
        try:
            with connection.transaction(force_rollback=True):
                if self._lacks(connection, facts):  # Who makes nothing needs no right to.
                    connection.execute(filled("lock_schema", schema=target.names[0]))
                    # Another batch may have made it. An index over its rows takes long.
                    now = replace(examine(connection, target, schema), has_key=True)
                    self._make(connection, schema, now)
                connection.execute(filled("try_note", **noted.places(target)))
                if target.key:
                    connection.execute(filled("may_replace", table=target.identifier))
        except psycopg.Error as error:
            if not isinstance(meaning(target, connection, error), TerminalError):
                raise
            raise TerminalError(
                f"the table {target.address} does not fit: its server refuses what finalize does "
                f"there ({first_line(error)}). Change the output, or what the server names"
            ) from error

    # Keeps PG2.
    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        with self._transaction() as connection:
            found = self._found(connection, won)
        if found is None:
            presence = Presence.ABSENT
        else:
            presence = Presence.RIGHT if found["digest"] == won.digest else Presence.WRONG
        return [presence] * len(won.files)

    def publish(self, won: CommittedBatch, missing: Sequence[ManifestFile]) -> None:
        if not missing:
            return
        try:
            with self._landing(won) as (connection, facts):
                if facts is None:
                    return
                landed = land(connection, self._target, won, facts, encode.staged(won))
                encode.check_count(won, landed)
                failpoints.point("sink.before_commit")
        except TerminalError as error:
            kept_back = isinstance(error, KeptBackError)
            of_rows = kept_back or isinstance(error, encode.ValueRefusedError)
            of_rows |= bool(of_output(self._target, won.schema))
            if not (of_rows or refuses_rows(error)) or isinstance(error, replaced.StayedError):
                raise
            which = self._kept_back(won) if kept_back else ""
            raise TerminalError(
                f"batch {won.batch_id}: {error}{which}; it has committed and stays so. Change the "
                f"table and run finalize again, or `semel accept {won.pipeline} --refused "
                f"{won.batch_id}` lands the other rows and keeps these in the archive",
                next=AGAIN,
            ) from error

    def _kept_back(self, won: CommittedBatch) -> str:
        """Which rows the table keeps back: it takes the others once more, and forgets them."""
        shown = FILES_NAMED_MAX
        try:
            with self._landing(won) as (connection, facts):
                found = land_most(connection, self._target, won, facts) if facts else ()
                numbers = [one.number + 1 for one in islice(found, shown)]
                raise _SeenError
        except _SeenError:
            more = " and more" if len(numbers) == shown else ""
            rows = "row" if len(numbers) == 1 else "rows"
            return f": {rows} {', '.join(map(str, numbers))}{more} of the batch" if numbers else ""

    # Keeps PG7.
    def publish_accepting(self, won: CommittedBatch, keep: Callable[[pa.Table], None]) -> int:
        """Publish the rows that the table takes. Returns how many it refuses.

        `keep` is given the refused rows, with the reason of each in `_semel_refusal`, before the
        others are committed: what it writes must be durable, and replaces what an earlier call
        wrote, whose COMMIT did not land. It is not called for a batch that has landed already.
        LimitError: more than REFUSED_ROWS_MAX are refused, each of which had to be tried.
        """
        why = of_output(self._target, won.schema)
        with self._noting(won) if why else self._landing(won) as (connection, facts):
            if not facts:
                return self._refused(connection, won)
            if why:
                refused = [with_reason(won, rows, why[0]) for rows in encode.staged(won)]
            else:
                refused = [one.row for one in land_most(connection, self._target, won, facts)]
            columns = won.schema.append(pa.field(REFUSAL_COLUMN, pa.string()))
            table = pa.concat_tables(refused) if refused else columns.empty_table()
            note = filled("note_refused", **self._of_batch(won), refused=table.num_rows)
            connection.execute(note)
            if table.num_rows:
                keep(table)
            failpoints.point("sink.before_accepted")
        return table.num_rows

    def count_refused(self, won: CommittedBatch) -> int:
        with self._transaction() as connection:
            return self._refused(connection, won)

    # Keeps PG11.
    def rows(self, marker: Published, *, strays: bool = False) -> Iterator[pa.Table]:  # noqa: ARG002
        """The rows of the output that a marker lists.

        RetryableError: they were replaced, and the marker not yet, or not when it was read.
        TerminalError, behind them: they are not as many as were put in.
        """
        count = 0
        nowhere = of_output(self._target, marker.sink_schema)  # All were accepted as refused.
        for some in () if nowhere else self.rows_of(marker.made_by, marker.sink_schema):
            count += some.num_rows
            yield some
        # Behind them: who replaced them before they were read is seen now.
        told = self._told(marker)
        if (newest := told.newest) > marker.made_by:
            raise RetryableError(
                f"{self.address} has rows of batch {newest} in the place of those of batch "
                f"{marker.made_by}, which the marker {marker.path} listed when it was read; run "
                "this again when that batch is finalized"
            )
        noted.check_count(self._target, marker, told, count)

    def _told(self, marker: Published) -> noted.TableNotes:
        """What the table says of the batch that a marker lists."""
        with self._transaction() as connection:
            return noted.of_marker(connection, self._target, marker)

    def rows_of(self, batch_id: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows that the table has of a batch now, typed as `schema`, some MiB at once."""
        with self._transaction() as connection:
            facts = examine(connection, self._target, schema)
            if not facts.exists:
                raise TerminalError(f"{self.address} is not there; restore it from a backup")
            parts = [
                sql.SQL(form).format(sql.Identifier(column.name))
                for form, column in zip(encode.selected(facts.columns), facts.columns, strict=True)
            ]
            text = filled(
                "rows",
                columns=sql.SQL(", ").join(parts),
                table=self._target.identifier,
                batch_id=batch_id,
            ).as_string(connection)
        try:
            with (
                adbc_driver_postgresql.dbapi.connect(self._target.dsn) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(text)
                for some in cursor.fetch_record_batch():
                    yield encode.read_back(some, schema)
        except (adbc_driver_postgresql.dbapi.OperationalError, OSError) as error:
            raise UnavailableError(
                f"{self.address}: the connection was lost ({first_line(error)}); run this again"
            ) from error
        except adbc_driver_postgresql.dbapi.Error as error:
            raise TerminalError(
                f"{self.address} cannot be read ({first_line(error)}); give the user of its "
                "connection the right to SELECT, or restore the table"
            ) from error

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A connection for a call: within the sink's own block its calls share one.

        After an error that one is closed, with what it began; the next call makes another.
        """
        if self._shared is None:
            with connected(self._target) as connection:
                yield connection
            return
        if self._connection is None or self._connection.closed:
            self._connection = self._shared.enter_context(connected(self._target))
        with ExitStack() as undo:
            undo.callback(self._connection.close)
            yield self._connection
            undo.pop_all()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._connected() as connection, within(self._target, connection):
            yield connection

    def _of_batch(self, won: CommittedBatch) -> dict[str, Any]:
        """The key of a batch in semel_batch, for a statement."""
        key = {"pipeline": won.pipeline, "batch_id": won.batch_id}
        return {**noted.places(self._target), **key}

    def _found(self, connection: Connection, won: CommittedBatch) -> dict[str, Any] | None:
        """The batch's row in semel_batch."""
        if not is_there(connection, self._target.batches):
            return None
        return connection.execute(filled("look", **self._of_batch(won))).fetchone()

    def _refused(self, connection: Connection, won: CommittedBatch) -> int:
        found = self._found(connection, won)
        return found["refused"] if found else 0

    @contextmanager
    def _landing(self, won: CommittedBatch) -> Iterator[tuple[Connection, TableFacts | None]]:
        """The transaction that a batch's rows land in. None: they have landed before."""
        with self._connected() as connection:
            self._prepare(connection, won)
            with within(self._target, connection):
                yield connection, self._begin(connection, won)

    @contextmanager
    def _noting(self, won: CommittedBatch) -> Iterator[tuple[Connection, bool]]:
        """The transaction that notes a batch of which no row lands. False: it was noted before."""
        with self._transaction() as connection:
            connection.execute(filled("lock_schema", schema=self._target.names[0]))
            connection.execute(filled("create_batches", batches=self._target.batches))
            is_first = self._note(connection, won)
            if is_first and won.replaces:
                replaced.delete(connection, self._target, won)
            yield connection, is_first

    def _prepare(self, connection: Connection, won: CommittedBatch) -> None:
        """Make what is missing of the tables, in a transaction of its own: nobody waits for it."""
        target = self._target
        with within(target, connection):
            facts = examine(connection, target, won.schema)
            if facts.has_key and not self._lacks(connection, facts):
                return
            connection.execute(filled("lock_schema", schema=target.names[0]))
            self._make(connection, won.schema, examine(connection, target, won.schema))

    def _lacks(self, connection: Connection, facts: TableFacts) -> bool:
        """Whether a table or the view is missing."""
        target = self._target
        there = not target.counting or is_there(connection, target.view)
        return not (there and facts.exists and is_there(connection, target.batches))

    def _make(self, connection: Connection, schema: pa.Schema, facts: TableFacts) -> None:
        target = self._target
        connection.execute(filled("create_batches", batches=target.batches))
        if not facts.exists:
            connection.execute(create_statement(target, schema))
            connection.execute(filled("create_index", table=target.identifier))
        elif not facts.has_key:
            key = named(target.key)
            connection.execute(filled("create_key", table=target.identifier, key=key))
        if target.counting:
            view.make(connection, target, schema)

    def _note(self, connection: Connection, won: CommittedBatch) -> bool:
        """Note the batch, or wait for a twin that does. False: one has landed under its number.

        Whether that was this one shows at the next look.
        """
        values = {
            "fence": won.fence,
            "commit_seq": won.commit_seq,
            "digest": won.digest,
            "rows": sum(file.records for file in won.files),
            "generation": len(won.replaces) + 1,
            "ledger": won.ledger,
            "mode": self._target.mode,
        }
        noted.refuse_others(connection, self._target, won)
        note = filled("note", **self._of_batch(won), **values)
        return connection.execute(note).fetchone() is not None

    # Keeps PG1, PG2, PG3, PG9, PG13.
    def _begin(self, connection: Connection, won: CommittedBatch) -> TableFacts | None:
        """Note the batch, and delete the rows that it replaces. None: see `_note`."""
        if not self._note(connection, won):
            return None
        # From here on nobody changes its columns.
        connection.execute(filled("hold_table", table=self._target.identifier))
        # A refusal is to be known before COMMIT, whose error says nothing of it.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        facts = examine(connection, self._target, won.schema)
        if won.replaces:
            replaced.delete(connection, self._target, won)
        else:
            noted.refuse_landed(connection, self._target, won)
        if self._target.counting:
            view.note(connection, self._target, won)
        return facts
