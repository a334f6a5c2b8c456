"""A topic of a Kafka cluster as a sink: a batch's rows become messages, in one transaction.

Purpose: make a committed batch's rows visible in a topic, each once to who reads committed
messages.
How it works: a second, compacted topic beside it has a note of each batch that landed, written in
the transaction of its messages. A producer with the batch's own transactional.id fences the one
before, and then asks that topic, before it writes (`landing`).
What it does not do: replace what was published; hold a connection between calls.
Known limitation: a batch of more than `transaction_bytes` becomes visible part by part.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from semel import limits, sinks
from semel.clients.kafka.cluster import Cluster
from semel.declare.context import Context
from semel.errors import CorruptionError, LimitError, TerminalError
from semel.model.manifest import ManifestFile, Published, StagedFile
from semel.sinks import (
    DamagedNote,
    NotesQuery,
    Notes,
    ReplacedOutput,
    Presence,
    RowChecker,
    RemoteSink,
    CommittedBatch,
)
from semel.sinks.kafka import control, encode, reading
from semel.sinks.kafka.control import ControlNote
from semel.sinks.kafka.ends import TopicEnds, topic_ends
from semel.sinks.kafka.facts import TopicFacts, control_exists, describe, examine, missing_topic
from semel.sinks.kafka.landing import Refusals, land, producer_of
from semel.sinks.kafka.refused import KafkaRowCheck
from semel.sinks.kafka.spec import CONTROL
from semel.sinks.kafka.target import KafkaTarget
from semel.sinks.staged import staged

REFUSAL_COLUMN = "_semel_refusal"
_HIDDEN_SECONDS = 1.0
"""How long look waits for an open transaction before it fences the batch's own producer."""


def opened(context: Context, address: str | None, looks: object) -> "KafkaSink":  # noqa: ARG001
    """The topic."""
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
    """Rows go to `target`. See `semel.sinks.Sink` for when each method is called."""

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

    def check(self, schema: pa.Schema | None, staged: Path) -> RowChecker:
        if schema is not None:
            encode.check_columns(self._target, schema)
        facts = examine(self._target)
        # The right to the transactional.id shows in no other way.
        with producer_of(self._target, self._pipeline, "check", facts):
            pass
        with self._target.cluster.admin() as admin:
            topic_ends(admin, self._target.control).save(staged)
        return self._row_check(facts)

    def describe(self, schema: pa.Schema | None) -> str:
        if schema is not None:
            encode.check_columns(self._target, schema)
        facts, told = describe(self._target)
        with producer_of(self._target, self._pipeline, "check", facts):
            return told

    def _row_check(self, facts: TopicFacts) -> KafkaRowCheck:
        return KafkaRowCheck(target=self._target, bytes_max=facts.bytes_max, keyed=facts.keyed)

    # Keeps KP8.
    def check_replace(self, old: ReplacedOutput) -> tuple[str, ...]:
        raise TerminalError(
            f"messages of {self.address} cannot be replaced: consumers have read them. Give the "
            "corrected transforms to a pipeline of another name and topic, which reads the source "
            f"from its start, and let the consumers go over to it (batch {old.batches[0]} stays "
            "as it is)"
        )

    def check_staged(self, schema: pa.Schema, files: Sequence[StagedFile]) -> None:  # noqa: ARG002
        """The columns, where only the job could tell them."""
        encode.check_columns(self._target, schema)

    # Keeps KP2.
    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        found = self._note(won)
        if found is None:
            presence = Presence.ABSENT
        elif found.digest != won.digest:
            presence = Presence.WRONG
        else:
            presence = Presence.RIGHT if found.landed else Presence.ABSENT
        return [presence] * len(won.files)

    def _note(self, won: CommittedBatch) -> ControlNote | None:
        """The note of a batch. What hides it is most often a producer of the batch that died: that
        one is fenced then.
        """
        place = (self._target.cluster, self._target.control, won)
        try:
            return control.batch_note(*place, _HIDDEN_SECONDS)
        except control.BlockedError:
            with producer_of(
                self._target, won.pipeline, str(won.batch_id), examine(self._target)
            ):
                return control.batch_note(*place, limits.KAFKA_TRANSACTION_SECONDS)

    def publish(self, won: CommittedBatch, missing: Sequence[ManifestFile]) -> None:
        if missing:
            land(self._target, won, examine(self._target), Refusals())

    # Keeps KP9.
    def publish_accepting(self, won: CommittedBatch, keep: Callable[[pa.Table], None]) -> None:
        found = self._note(won)
        if found is not None and found.landed:
            return
        facts = examine(self._target)
        numbers, rows = self._refused_of(won, facts, found or ControlNote.of(won))
        if rows.num_rows:
            keep(rows)
        land(self._target, won, facts, Refusals(numbers=numbers))

    def _refused_of(
        self, won: CommittedBatch, facts: TopicFacts, note: ControlNote
    ) -> tuple[np.ndarray, pa.Table]:
        """The rows that the topic refuses, by their numbers in the batch; and with the reasons.

        LimitError: more than REFUSED_ROWS_MAX.
        """
        columns = won.schema.append(pa.field(REFUSAL_COLUMN, pa.string()))
        check, start, tables = self._row_check(facts), 0, [columns.empty_table()]
        numbers: list[int] = []
        for rows in staged(won):
            table = pa.Table.from_batches([rows]).select(won.schema.names).cast(won.schema)
            why = {n - start: "it was refused before" for n in note.refused}
            for one in check(table):
                for n in one.rows.tolist():
                    if start + n >= note.rows:
                        why.setdefault(n, f"{one.reason}: {one.detail}")
            own = sorted(n for n in why if 0 <= n < len(table))
            if own:
                reasons = pa.array([why[n] for n in own], pa.string())
                tables.append(table.take(pa.array(own)).append_column(columns[-1], reasons))
                numbers += [start + n for n in own]
            if len(numbers) > limits.REFUSED_ROWS_MAX:
                raise LimitError(
                    f"batch {won.batch_id}: {self.address} refuses more than "
                    f"{limits.REFUSED_ROWS_MAX} of its rows; nothing was written. Raise the "
                    "topic's max.message.bytes, and run finalize again"
                )
            start += len(table)
        return np.array(numbers, np.int64), pa.concat_tables(tables)

    def count_refused(self, won: CommittedBatch) -> int:
        found = self._note(won)
        return len(found.refused) if found else 0

    def forget(self, batches: Sequence[int]) -> str:
        shown = ", ".join(map(str, batches))
        keys = "".join(f'["{self._pipeline}",{number}]|NULL\\n' for number in batches)
        return (
            "Messages cannot be taken back: let the consumers pass over those whose _semel_batch is "
            f"one of {shown}; then take the notes of these batches out of the control topic: "
            f"printf '{keys}' | kafka-console-producer.sh --bootstrap-server BROKER --topic "
            f"{CONTROL}{self._target.topic} --property parse.key=true --property "
            "'key.separator=|' --property null.marker=NULL"
        )

    def notes(self, newest: NotesQuery | None = None) -> Notes:
        """Those of batches of which some has landed. The newest ones are the last ones and those
        since stage began, but for what a transaction hides that is open: `look` fences the batch's
        own.
        """
        if not control_exists(self._target):
            return Notes(())
        whole = True
        if newest is None:
            notes = self._all_notes()
        else:
            place = (self._target.cluster, self._target.control)
            has = newest.has and (self._pipeline, newest.has)
            since = TopicEnds.load(newest.staged)
            notes, whole = control.newest_notes(*place, _HIDDEN_SECONDS, since, has)
        every = notes.values()
        damaged = tuple(
            DamagedNote(batch_id=number, what=str(note))
            for (_, number), note in notes.items()
            if isinstance(note, CorruptionError)
        )
        found = tuple(
            sinks.BatchNote(
                pipeline=note.pipeline,
                batch_id=note.batch_id,
                commit_seq=note.commit_seq,
                fence=note.fence,
                rows=note.total,
                ledger=note.ledger,
            )
            for note in every
            if isinstance(note, ControlNote)
        )
        return Notes(found, complete=whole and not damaged, damaged=damaged)

    def count_strays(self, known: Collection[int]) -> dict[int, int]:
        """Of batches that no note speaks of, the messages of the whole topic."""
        found = self._stray_values()
        return {batch: len(found[batch]) for batch in found.keys() - set(known)}

    def _stray_values(self) -> reading.Strays:
        if self._strays is None:
            self._strays = reading.strays(self._target, self._own_notes())
        return self._strays

    def _own_notes(self) -> reading.OwnNotes:
        """The notes of the pipeline's batches: within a block of the sink's own read once."""
        notes = self._notes
        if notes is None:
            if not control_exists(self._target):
                raise TerminalError(missing_topic(self._target, self._target.control))
            every = self._all_notes().items()
            notes = {number: note for (name, number), note in every if name == self._pipeline}
            self._notes = notes if self._is_open else None
        return notes

    def _all_notes(self) -> control.Notes:
        place = (self._target.cluster, self._target.control)
        return control.all_notes(*place, limits.KAFKA_TRANSACTION_SECONDS)

    # Keeps KP10.
    def rows(self, marker: Published, *, strays: bool = False) -> Iterator[pa.Table]:
        """Within a block of the sink's own all notes are read once, and so is the whole topic for
        the strays.
        """
        notes = self._own_notes()
        if strays and (values := self._stray_values().get(marker.batch_id)):
            yield reading.typed_rows(self._target, marker, values)
        yield from reading.rows(self._target, marker, notes.get(marker.batch_id))
