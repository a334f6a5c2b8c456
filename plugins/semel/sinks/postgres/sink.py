"""The PostgreSQL sink: the rows of a batch land in one transaction with its note.

Purpose: make a committed batch's rows visible in a table, each once.
How it works: finalize first inserts the batch's note into `semel_batch`. A concurrent finalize
waits for that row, or sees it. Then finalize copies the staged files and commits, so a note implies
all rows of its batch.
In mode append a replay deletes, in that transaction, the rows of the outputs that it replaces.
It keeps no connection between calls, except within `with sink:`.
Known limitation: in mode upsert a later batch replaces the rows that share its keys.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import islice
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
    CommittedBatch,
    Notes,
    NotesQuery,
    Presence,
    RemoteSink,
    ReplacedOutput,
    RowChecker,
)
from semel.sinks.keys import find_duplicate_key
from semel.sinks.postgres import batch_notes, encode, replacement, view
from semel.sinks.postgres.facts import TableFacts, create_statement, examine, output_problems
from semel.sinks.postgres.landing import (
    REFUSAL_COLUMN,
    DroppedRowsError,
    column_list,
    land,
    land_accepted,
    with_reason,
)
from semel.sinks.postgres.link import (
    Connection,
    fill_query,
    open_connection,
    refuses_rows,
    table_exists,
    transaction,
    translate_error,
)
from semel.sinks.postgres.row_check import PostgresRowCheck
from semel.sinks.postgres.target import PostgresTarget, dsn_of
from semel.storage import ArchivePath


class _RollbackError(Exception):
    """Ends a block, so that its transaction rolls back."""


def open_sink(context: Context, address: str | None, files: object) -> "PostgresSink":  # noqa: ARG001
    """Build the sink from its declaration."""
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

    def check(self, schema: pa.Schema | None, staged: ArchivePath) -> RowChecker:  # noqa: ARG002 - the seam's
        return PostgresRowCheck(facts=self.examine(schema))

    def describe(self, schema: pa.Schema | None) -> str:
        facts = self.examine(schema)
        state = "exists" if facts.exists else "does not exist yet, and finalize creates it"
        mode = f"mode {self._target.mode}"
        if rows := self.count_unmerged():
            name, parts = self._target.view.as_string(), self._target.sql_name
            raise TerminalError(
                f"the view {name} omits {rows:,} partial rows of {parts}, because "
                f"{self._target.windows.as_string()} lacks their windows. Drop the view, and "
                f"finalize creates it again with all windows: DROP VIEW {name}"
            )
        return "; ".join((f"table {self.address}: {state}, {mode}", *facts.notes))

    def check_replace(self, old: ReplacedOutput) -> tuple[str, ...]:
        with self._transaction() as connection:
            return replacement.check_replaceable(connection, self._target, old)

    def check_staged(self, schema: pa.Schema, files: Sequence[StagedFile]) -> None:
        """Checks the columns, which only the job may know, and that each key is in one row."""
        self.examine(schema)
        repeated = find_duplicate_key(files, self._target.key) if self._target.key else None
        if repeated:
            raise TerminalError(
                f"{repeated.keys} keys are in more than one row of the output ({repeated.key} in "
                f"{repeated.rows}), and mode upsert needs one row for each key. Let the last "
                "transform keep one row, or add the column that differs to sink.key"
            )

    @property
    def replaceable(self) -> bool:
        return not self._target.key

    def describe_removal(self, batches: Sequence[int]) -> str:
        table, name = self._target.sql_name, self._target.names[1]
        notes, numbers = self._target.batches.as_string(), ", ".join(map(str, batches))
        name = sql.Literal(name).as_string()
        return (
            f"Delete them: DELETE FROM {table} WHERE _semel_batch IN ({numbers}); DELETE FROM "
            f"{notes} WHERE table_name = {name} AND batch_id IN ({numbers})"
        )

    def merged_windows(
        self, level: int, since: datetime, until: datetime | None, count: int
    ) -> list[dict[str, Any]]:
        with self._transaction() as connection:
            return view.read_windows(connection, self._target, level, since, until, count)

    def count_unmerged(self) -> int:
        with self._transaction() as connection:
            return view.count_unmerged(connection, self._target)

    def merged_query(self) -> str:
        return query("postgres", "all_counted").text.format(view=self._target.view.as_string())

    # Keeps PG13.
    def notes(self, newest: NotesQuery | None = None) -> Notes:
        limit = (newest.pipeline, newest.count) if newest else None
        with self._transaction() as connection:
            notes = batch_notes.read_notes(connection, self._target, limit)
            if not (notes.batch_notes or notes.damaged):
                batch_notes.refuse_unnoted(connection, self._target)
        return notes

    def count_strays(self, known: Collection[int]) -> dict[int, int]:
        with self._transaction() as connection:
            if not table_exists(connection, self._target.identifier):
                return {}
            strays = fill_query("strays", table=self._target.identifier, known=sorted(known))
            counts = connection.execute(strays).fetchall()
        return {row["batch_id"]: row["rows"] for row in counts}

    def examine(self, schema: pa.Schema | None) -> TableFacts:
        """Like `check`, but returns the facts by which tasks find values that the table refuses."""
        with self._transaction() as connection:
            facts = examine(connection, self._target, schema)
            if schema is not None:
                self._rehearse(connection, schema, facts)
            return facts

    # Keeps PG4.
    def _rehearse(self, connection: Connection, schema: pa.Schema, facts: TableFacts) -> None:
        """Run the statements that work without rows; roll back. Raises TerminalError on failure."""
        target = self._target
        try:
            with connection.transaction(force_rollback=True):
                if self._lacks_table(connection, facts):  # Only then the user needs the right.
                    connection.execute(fill_query("lock_schema", schema=target.names[0]))
                    # Another batch may have created it. Skips the index, which takes long.
                    facts = replace(examine(connection, target, schema), has_key=True)
                    self._create_tables(connection, schema, facts)
                connection.execute(fill_query("try_note", **batch_notes.notes_location(target)))
                if target.key:
                    connection.execute(fill_query("may_replace", table=target.identifier))
        except psycopg.Error as error:
            if not isinstance(translate_error(target, connection, error), TerminalError):
                raise
            raise TerminalError(
                f"the table {target.address} does not fit: its server refuses a statement of "
                f"finalize ({first_line(error)}). Change the output or the table"
            ) from error

    # Keeps PG2.
    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        with self._transaction() as connection:
            note = self._read_note(connection, won)
        if note is None:
            presence = Presence.ABSENT
        else:
            presence = Presence.RIGHT if note["digest"] == won.digest else Presence.WRONG
        return [presence] * len(won.files)

    def publish(self, won: CommittedBatch, missing: Sequence[ManifestFile]) -> None:
        if not missing:
            return
        try:
            with self._landing_transaction(won) as (connection, facts):
                if facts is None:
                    return
                landed = land(connection, self._target, won, facts, encode.staged(won))
                encode.check_count(won, landed)
                failpoints.point("sink.before_commit")
        except TerminalError as error:
            dropped = isinstance(error, DroppedRowsError)
            of_rows = dropped or isinstance(error, encode.ValueRefusedError)
            of_rows |= bool(output_problems(self._target, won.schema))
            if isinstance(error, replacement.OldRowsRemainError):
                raise
            if not (of_rows or refuses_rows(error)):
                raise
            which = self._name_dropped_rows(won) if dropped else ""
            raise TerminalError(
                f"batch {won.batch_id}: {error}{which}. Nothing was written, and the batch stays "
                "committed. Change the table and run finalize again; or publish the other rows and "
                f"keep these in the archive: `semel accept {won.pipeline} --refused "
                f"{won.batch_id}`",
                next=AGAIN,
            ) from error

    def _name_dropped_rows(self, won: CommittedBatch) -> str:
        """The numbers of the rows that the table drops. Repeats the publication and rolls back."""
        try:
            with self._landing_transaction(won) as (connection, facts):
                rows = land_accepted(connection, self._target, won, facts) if facts else ()
                numbers = [row.number + 1 for row in islice(rows, FILES_NAMED_MAX)]
                raise _RollbackError
        except _RollbackError:
            more = " and more" if len(numbers) == FILES_NAMED_MAX else ""
            word = "row" if len(numbers) == 1 else "rows"
            return f": {word} {', '.join(map(str, numbers))}{more} of the batch" if numbers else ""

    # Keeps PG7.
    def publish_accepting(self, won: CommittedBatch, keep: Callable[[pa.Table], None]) -> int:
        """Publish the rows that the table accepts. Returns the number that it refuses.

        `keep` gets the refused rows, with their reasons in `_semel_refusal`, before COMMIT. It MUST
        write them durably, and overwrite those of a call whose COMMIT failed. It does not run if
        the batch has landed. Raises LimitError for more than REFUSED_ROWS_MAX refused rows, because
        each needs its own attempt.
        """
        why = output_problems(self._target, won.schema)
        begin = self._noting_transaction if why else self._landing_transaction
        with begin(won) as (connection, facts):
            if not facts:
                return self._refused_count(connection, won)
            if why:
                refused = [with_reason(won, rows, why[0]) for rows in encode.staged(won)]
            else:
                refused = [one.row for one in land_accepted(connection, self._target, won, facts)]
            columns = won.schema.append(pa.field(REFUSAL_COLUMN, pa.string()))
            table = pa.concat_tables(refused) if refused else columns.empty_table()
            note = fill_query("note_refused", **self._note_key(won), refused=table.num_rows)
            connection.execute(note)
            if table.num_rows:
                keep(table)
            failpoints.point("sink.before_accepted")
        return table.num_rows

    def count_refused(self, won: CommittedBatch) -> int:
        with self._transaction() as connection:
            return self._refused_count(connection, won)

    # Keeps PG11.
    def rows(self, marker: Published, *, strays: bool = False) -> Iterator[pa.Table]:  # noqa: ARG002
        """The rows of the output that a marker lists.

        Raises RetryableError if a replay has replaced them, and the marker as read does not show
        it. Raises TerminalError, after the rows, if their number differs from the number published.
        """
        count = 0
        unfit = output_problems(self._target, marker.sink_schema)  # All were accepted as refused.
        for table in () if unfit else self.rows_of(marker.writer_id, marker.sink_schema):
            count += table.num_rows
            yield table
        # Reads the notes after the rows, to see a replay that replaced the rows meanwhile.
        notes = self._table_notes(marker)
        if (newest := notes.newest) > marker.writer_id:
            raise RetryableError(
                f"{self.address} has rows of batch {newest} instead of batch {marker.writer_id}, "
                f"which the marker {marker.path} listed when semel read it. Run this again once "
                "that batch is finalized"
            )
        batch_notes.check_count(self._target, marker, notes, count)

    def _table_notes(self, marker: Published) -> batch_notes.TableNotes:
        """The table's notes on the batch that a marker lists."""
        with self._transaction() as connection:
            return batch_notes.read_table_notes(connection, self._target, marker)

    def rows_of(self, batch_id: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows of a batch in the table now, typed as `schema`, a few MiB at a time."""
        with self._transaction() as connection:
            facts = examine(connection, self._target, schema)
            if not facts.exists:
                raise TerminalError(f"{self.address} does not exist. Restore it from a backup")
            parts = [
                sql.SQL(form).format(sql.Identifier(column.name))
                for form, column in zip(
                    encode.select_expressions(facts.columns), facts.columns, strict=True
                )
            ]
            text = fill_query(
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
                for rows in cursor.fetch_record_batch():
                    yield encode.read_back(rows, schema)
        except (adbc_driver_postgresql.dbapi.OperationalError, OSError) as error:
            raise UnavailableError(
                f"{self.address}: the connection was lost ({first_line(error)}). Run this again"
            ) from error
        except adbc_driver_postgresql.dbapi.Error as error:
            raise TerminalError(
                f"semel cannot read {self.address} ({first_line(error)}). Grant SELECT to the "
                "connection's user, or restore the table"
            ) from error

    @contextmanager
    def _open_connection(self) -> Iterator[Connection]:
        """A connection for a call. Calls within `with sink:` share one.

        An error closes it, which rolls back its transaction; the next call opens another.
        """
        if self._shared is None:
            with open_connection(self._target) as connection:
                yield connection
            return
        if self._connection is None or self._connection.closed:
            self._connection = self._shared.enter_context(open_connection(self._target))
        with ExitStack() as undo:
            undo.callback(self._connection.close)
            yield self._connection
            undo.pop_all()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._open_connection() as connection, transaction(self._target, connection):
            yield connection

    def _note_key(self, won: CommittedBatch) -> dict[str, Any]:
        """The key of a batch in semel_batch, for a statement."""
        key = {"pipeline": won.pipeline, "batch_id": won.batch_id}
        return {**batch_notes.notes_location(self._target), **key}

    def _read_note(self, connection: Connection, won: CommittedBatch) -> dict[str, Any] | None:
        """The batch's row in semel_batch."""
        if not table_exists(connection, self._target.batches):
            return None
        return connection.execute(fill_query("look", **self._note_key(won))).fetchone()

    def _refused_count(self, connection: Connection, won: CommittedBatch) -> int:
        note = self._read_note(connection, won)
        return note["refused"] if note else 0

    @contextmanager
    def _landing_transaction(
        self, won: CommittedBatch
    ) -> Iterator[tuple[Connection, TableFacts | None]]:
        """The transaction in which a batch's rows land. Yields no facts if they have landed."""
        with self._open_connection() as connection:
            self._ensure_tables(connection, won)
            with transaction(self._target, connection):
                yield connection, self._begin_landing(connection, won)

    @contextmanager
    def _noting_transaction(self, won: CommittedBatch) -> Iterator[tuple[Connection, bool]]:
        """The transaction that notes a batch without rows. Yields False if it has a note."""
        with self._transaction() as connection:
            connection.execute(fill_query("lock_schema", schema=self._target.names[0]))
            connection.execute(fill_query("create_batches", batches=self._target.batches))
            is_first = self._insert_note(connection, won)
            if is_first and won.replaces:
                replacement.delete_replaced(connection, self._target, won)
            yield connection, is_first

    def _ensure_tables(self, connection: Connection, won: CommittedBatch) -> None:
        """Create missing tables. A separate transaction: others do not wait for the COPY."""
        target = self._target
        with transaction(target, connection):
            facts = examine(connection, target, won.schema)
            if facts.has_key and not self._lacks_table(connection, facts):
                return
            connection.execute(fill_query("lock_schema", schema=target.names[0]))
            self._create_tables(connection, won.schema, examine(connection, target, won.schema))

    def _lacks_table(self, connection: Connection, facts: TableFacts) -> bool:
        """Whether a table or the view is missing."""
        target = self._target
        has_view = not target.counting or table_exists(connection, target.view)
        return not (has_view and facts.exists and table_exists(connection, target.batches))

    def _create_tables(self, connection: Connection, schema: pa.Schema, facts: TableFacts) -> None:
        target = self._target
        connection.execute(fill_query("create_batches", batches=target.batches))
        if not facts.exists:
            connection.execute(create_statement(target, schema))
            connection.execute(fill_query("create_index", table=target.identifier))
        elif not facts.has_key:
            key = column_list(target.key)
            connection.execute(fill_query("create_key", table=target.identifier, key=key))
        if target.counting:
            view.create_view(connection, target, schema)

    def _insert_note(self, connection: Connection, won: CommittedBatch) -> bool:
        """Insert the batch's note, waiting for a concurrent insert. Returns False if its number has
        a note: then the next `query_presence` compares the digests.
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
        batch_notes.refuse_other_owners(connection, self._target, won)
        note = fill_query("note", **self._note_key(won), **values)
        return connection.execute(note).fetchone() is not None

    # Keeps PG1, PG2, PG3, PG9, PG13.
    def _begin_landing(self, connection: Connection, won: CommittedBatch) -> TableFacts | None:
        """Note the batch, and delete the rows that it replaces. Returns None if it has a note."""
        if not self._insert_note(connection, won):
            return None
        # This lock prevents changes of its columns.
        connection.execute(fill_query("hold_table", table=self._target.identifier))
        # Check deferred constraints before COMMIT, whose error does not name the refusal.
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
        facts = examine(connection, self._target, won.schema)
        if won.replaces:
            replacement.delete_replaced(connection, self._target, won)
        else:
            batch_notes.refuse_unnoted_batch(connection, self._target, won)
        if self._target.counting:
            view.note_batch(connection, self._target, won)
        return facts
