"""A topic of a Kafka cluster as a sink: a batch's rows become messages, in one transaction.

Purpose: a `read_committed` consumer of the topic sees each row of a committed batch exactly once.
How it works: a second, compacted control topic has a note of each landed batch, written in the
transaction of its messages. A producer with the batch's own transactional.id fences the previous
one, and then reads the note before it writes (`landing`).
It does not replace published messages, nor hold a connection between calls.
Known limitation: a batch larger than `transaction_bytes` becomes visible in several parts.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from semel import limits, sinks
from semel.clients.kafka.cluster import Cluster
from semel.declare.context import Context
from semel.errors import CorruptionError, LimitError, TerminalError
from semel.model.manifest import ManifestFile, Published, StagedFile
from semel.sinks import (
    CommittedBatch,
    DamagedNote,
    Notes,
    NotesQuery,
    Presence,
    RemoteSink,
    ReplacedOutput,
    RowChecker,
)
from semel.sinks.kafka import control, encode, reading
from semel.sinks.kafka.control import ControlNote
from semel.sinks.kafka.ends import TopicEnds, topic_ends
from semel.sinks.kafka.facts import TopicFacts, control_exists, describe, examine, missing_topic
from semel.sinks.kafka.landing import Refusals, land, producer_of
from semel.sinks.kafka.row_check import KafkaRowCheck
from semel.sinks.kafka.spec import CONTROL
from semel.sinks.kafka.target import KafkaTarget
from semel.sinks.staged import staged
from semel.storage import ArchivePath

REFUSAL_COLUMN = "_semel_refusal"
_HIDDEN_SECONDS = 1.0
"""How long `query_presence` waits for an open transaction before it fences its producer."""


def open_sink(context: Context, address: str | None, files: object) -> "KafkaSink":  # noqa: ARG001
    """The sink of a declared topic."""
    sink = context.declared
    target = KafkaTarget(
        cluster=Cluster(connection=sink.connection, servers=sink.bootstrap_servers),
        topic=sink.topic,
        key=sink.key,
        headers=tuple(sink.headers.items()),
        create=sink.create,
        transaction_bytes=sink.transaction_bytes,
    )
    return KafkaSink(target, context.name)


class KafkaSink(RemoteSink):
    """Writes rows to `target`. See `semel.sinks.Sink` for when each method is called."""

    erasable = False

    def __init__(self, target: KafkaTarget, pipeline: str) -> None:
        self._target, self._pipeline = target, pipeline
        self.address = target.address
        self._is_open = False
        self._notes: reading.OwnNotes | None = None
        self._strays: reading.Strays | None = None

    def __repr__(self) -> str:
        return f"KafkaSink({self.address})"

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open, self._notes, self._strays = False, None, None

    def check(self, schema: pa.Schema | None, staged: ArchivePath) -> RowChecker:
        if schema is not None:
            encode.check_columns(self._target, schema)
        facts = examine(self._target)
        # This is the only way to check the right to the transactional.id.
        with producer_of(self._target, self._pipeline, "check", facts):
            pass
        with self._target.cluster.admin() as admin:
            topic_ends(admin, self._target.control).save(staged)
        return self._row_check(facts)

    def describe(self, schema: pa.Schema | None) -> str:
        if schema is not None:
            encode.check_columns(self._target, schema)
        facts, text = describe(self._target)
        with producer_of(self._target, self._pipeline, "check", facts):
            return text

    def _row_check(self, facts: TopicFacts) -> KafkaRowCheck:
        return KafkaRowCheck(target=self._target, bytes_max=facts.bytes_max, keyed=facts.keyed)

    # Keeps KP8.
    def check_replace(self, old: ReplacedOutput) -> tuple[str, ...]:
        raise TerminalError(
            f"{self.address}: its messages cannot be replaced, because consumers have read them. "
            f"Batch {old.batches[0]} stays as it is. Declare the corrected transforms in a pipeline "
            "of another name and topic. It reads the source from its start. Move the consumers to it"
        )

    def check_staged(self, schema: pa.Schema, files: Sequence[StagedFile]) -> None:  # noqa: ARG002
        """Checks the columns if only the job could determine them."""
        encode.check_columns(self._target, schema)

    # Keeps KP2.
    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        note = self._note(won)
        if note is None:
            presence = Presence.ABSENT
        elif note.digest != won.digest:
            presence = Presence.WRONG
        else:
            presence = Presence.RIGHT if note.landed else Presence.ABSENT
        return [presence] * len(won.files)

    def _note(self, won: CommittedBatch) -> ControlNote | None:
        """The note of a batch. If an open transaction hides it, it fences the batch's producer,
        which has probably died.
        """
        arguments = (self._target.cluster, self._target.control, won)
        try:
            return control.batch_note(*arguments, _HIDDEN_SECONDS)
        except control.BlockedError:
            with producer_of(
                self._target, won.pipeline, str(won.batch_id), examine(self._target)
            ):
                return control.batch_note(*arguments, limits.KAFKA_TRANSACTION_SECONDS)

    def publish(self, won: CommittedBatch, missing: Sequence[ManifestFile]) -> None:
        if missing:
            land(self._target, won, examine(self._target), Refusals())

    # Keeps KP9.
    def publish_accepting(self, won: CommittedBatch, keep: Callable[[pa.Table], None]) -> None:
        note = self._note(won)
        if note is not None and note.landed:
            return
        facts = examine(self._target)
        numbers, rows = self._refused_of(won, facts, note or ControlNote.of(won))
        if rows.num_rows:
            keep(rows)
        land(self._target, won, facts, Refusals(numbers=numbers))

    def _refused_of(
        self, won: CommittedBatch, facts: TopicFacts, note: ControlNote
    ) -> tuple[np.ndarray, pa.Table]:
        """The numbers of the rows that the topic refuses, and the rows with their reasons.

        Raises LimitError if there are more than REFUSED_ROWS_MAX.
        """
        columns = won.schema.append(pa.field(REFUSAL_COLUMN, pa.string()))
        check, start, tables = self._row_check(facts), 0, [columns.empty_table()]
        numbers: list[int] = []
        for rows in staged(won):
            table = pa.Table.from_batches([rows]).select(won.schema.names).cast(won.schema)
            why = {n - start: "it was refused earlier" for n in note.refused}
            for refused in check(table):
                for n in refused.rows.tolist():
                    if start + n >= note.rows:
                        why.setdefault(n, f"{refused.reason}: {refused.detail}")
            refused_now = sorted(n for n in why if 0 <= n < len(table))
            if refused_now:
                reasons = pa.array([why[n] for n in refused_now], pa.string())
                tables.append(table.take(pa.array(refused_now)).append_column(columns[-1], reasons))
                numbers += [start + n for n in refused_now]
            if len(numbers) > limits.REFUSED_ROWS_MAX:
                raise LimitError(
                    f"batch {won.batch_id}: {self.address} refuses more than "
                    f"{limits.REFUSED_ROWS_MAX} of its rows. Nothing was written. Raise the "
                    "topic's max.message.bytes and run finalize again"
                )
            start += len(table)
        return np.array(numbers, np.int64), pa.concat_tables(tables)

    def count_refused(self, won: CommittedBatch) -> int:
        note = self._note(won)
        return len(note.refused) if note else 0

    def describe_removal(self, batches: Sequence[int]) -> str:
        numbers = ", ".join(map(str, batches))
        keys = "".join(f'["{self._pipeline}",{number}]|NULL\\n' for number in batches)
        return (
            "Messages cannot be deleted: let the consumers skip those whose _semel_batch is one of "
            f"{numbers}. Then delete the notes of these batches from the control topic: "
            f"printf '{keys}' | kafka-console-producer.sh --bootstrap-server BROKER --topic "
            f"{CONTROL}{self._target.topic} --property parse.key=true --property "
            "'key.separator=|' --property null.marker=NULL"
        )

    def notes(self, newest: NotesQuery | None = None) -> Notes:
        """The notes of batches that have landed in part or completely.

        The newest ones are the last ones and those since stage began. An open transaction may hide
        some, but not the batch's own: `query_presence` has fenced its producer.
        """
        if not control_exists(self._target):
            return Notes(())
        complete = True
        if newest is None:
            notes = self._all_notes()
        else:
            topic = (self._target.cluster, self._target.control)
            wanted = newest.has and (self._pipeline, newest.has)
            since = TopicEnds.load(newest.staged)
            notes, complete = control.newest_notes(*topic, _HIDDEN_SECONDS, since, wanted)
        all_notes = notes.values()
        damaged = tuple(
            DamagedNote(batch_id=number, what=str(note))
            for (_, number), note in notes.items()
            if isinstance(note, CorruptionError)
        )
        batch_notes = tuple(
            sinks.BatchNote(
                pipeline=note.pipeline,
                batch_id=note.batch_id,
                commit_seq=note.commit_seq,
                fence=note.fence,
                rows=note.total,
                ledger=note.ledger,
            )
            for note in all_notes
            if isinstance(note, ControlNote)
        )
        return Notes(batch_notes, complete=complete and not damaged, damaged=damaged)

    def count_strays(self, known: Collection[int]) -> dict[int, int]:
        """The number of stray messages of each unknown batch, in the whole topic."""
        values = self._stray_values()
        return {batch: len(values[batch]) for batch in values.keys() - set(known)}

    def _stray_values(self) -> reading.Strays:
        if self._strays is None:
            self._strays = reading.strays(self._target, self._own_notes())
        return self._strays

    def _own_notes(self) -> reading.OwnNotes:
        """The notes of the pipeline's batches, read once within the sink's context."""
        notes = self._notes
        if notes is None:
            if not control_exists(self._target):
                raise TerminalError(missing_topic(self._target, self._target.control))
            items = self._all_notes().items()
            notes = {number: note for (name, number), note in items if name == self._pipeline}
            self._notes = notes if self._is_open else None
        return notes

    def _all_notes(self) -> control.Notes:
        topic = (self._target.cluster, self._target.control)
        return control.all_notes(*topic, limits.KAFKA_TRANSACTION_SECONDS)

    # Keeps KP10.
    def rows(self, marker: Published, *, strays: bool = False) -> Iterator[pa.Table]:
        """Within the sink's context it reads the notes once, and the whole topic once for strays."""
        notes = self._own_notes()
        if strays and (values := self._stray_values().get(marker.batch_id)):
            yield reading.typed_rows(self._target, marker, values)
        yield from reading.rows(self._target, marker, notes.get(marker.batch_id))
