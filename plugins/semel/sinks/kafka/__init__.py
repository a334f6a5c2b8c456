"""A topic of a Kafka cluster as a sink: a batch's rows become messages, in one transaction.

Purpose: make a committed batch's rows visible in a topic, each once to who reads committed
messages.
How it works: a second, compacted topic beside it has a note of each batch that landed, written in
the transaction of its messages. A producer with the batch's own transactional.id fences the one
before, and then asks that topic, before it writes (`landing`).
What it does not do: replace what was published; hold a connection between calls.
Known limitation: a batch of more than `transaction_bytes` becomes visible part by part.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from semel import limits
from semel.errors import CorruptionError, LimitError, TerminalError
from semel.manifest import ManifestFile, StagedFile
from semel.sinks import Old, Presence, Refuses, Won
from semel.sinks.kafka import control, encode, reading
from semel.sinks.kafka.control import Note
from semel.sinks.kafka.ends import ends_of
from semel.sinks.kafka.facts import TopicFacts, control_is_there, describe, examine
from semel.sinks.kafka.landing import Refusals, land, producer_of
from semel.sinks.kafka.refused import RowCheck
from semel.sinks.kafka.target import KafkaTarget
from semel.sinks.staged import staged

if TYPE_CHECKING:
    from semel.reader import Marker

REFUSAL_COLUMN = "_semel_refusal"
_HIDDEN_SECONDS = 1.0
"""How long look waits for an open transaction before it fences the batch's own producer."""


class KafkaSink:
    """Rows go to `target`. See `semel.sinks.Sink` for when each method is called."""

    def __init__(self, target: KafkaTarget, pipeline: str) -> None:
        self._target, self._pipeline = target, pipeline
        self.address = target.address
        self._is_open = False
        self._notes: control.Notes | None = None
        self._strays: reading.Strays | None = None

    def __repr__(self) -> str:
        return f"KafkaSink({self.address})"

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open, self._notes, self._strays = False, None, None

    def check(self, schema: pa.Schema | None, staged: Path) -> Refuses:
        if schema is not None:
            encode.fit(self._target, schema)
        facts = examine(self._target)
        # The right to the transactional.id shows in no other way.
        with producer_of(self._target, self._pipeline, "check", facts):
            pass
        with self._target.cluster.admin() as admin:
            ends_of(admin, self._target.control).keep(staged)
        return self._row_check(facts)

    def describe(self, schema: pa.Schema | None) -> str:
        if schema is not None:
            encode.fit(self._target, schema)
        facts, told = describe(self._target)
        with producer_of(self._target, self._pipeline, "check", facts):
            return told

    def _row_check(self, facts: TopicFacts) -> RowCheck:
        return RowCheck(target=self._target, bytes_max=facts.bytes_max, keyed=facts.keyed)

    # Keeps KP8.
    def check_replace(self, old: Old) -> tuple[str, ...]:
        raise TerminalError(
            f"messages of {self.address} cannot be replaced: consumers have read them. Give the "
            "corrected transforms to a pipeline of another name and topic, which reads the source "
            f"from its start, and let the consumers go over to it (batch {old.batches[0]} stays "
            "as it is)"
        )

    def check_staged(self, schema: pa.Schema, files: Sequence[StagedFile]) -> None:  # noqa: ARG002
        """The columns, where only the job could tell them."""
        encode.fit(self._target, schema)

    def target(self, batch_id: int, fence: int, part: int, file: StagedFile) -> str:  # noqa: ARG002
        return f"{self.address}#b{batch_id:08d}-{part:05d}"

    # Keeps KP2.
    def look(self, won: Won) -> Sequence[Presence]:
        found = self._note(won)
        if found is None:
            presence = Presence.ABSENT
        elif found.digest != won.digest:
            presence = Presence.WRONG
        else:
            presence = Presence.RIGHT if found.landed else Presence.ABSENT
        return [presence] * len(won.files)

    def _note(self, won: Won) -> Note | None:
        """The note of a batch. What hides it is most often a producer of the batch that died: that
        one is fenced then.
        """
        place = (self._target.cluster, self._target.control, won)
        try:
            return control.of_batch(*place, _HIDDEN_SECONDS)
        except control.BlockedError:
            with producer_of(
                self._target, won.pipeline, str(won.batch_id), examine(self._target)
            ):
                return control.of_batch(*place, limits.KAFKA_TRANSACTION_SECONDS)

    def publish(self, won: Won, missing: Sequence[ManifestFile]) -> None:
        if missing:
            land(self._target, won, examine(self._target), Refusals())

    # Keeps KP9.
    def publish_accepting(self, won: Won, keep: Callable[[pa.Table], None]) -> None:
        found = self._note(won)
        if found is not None and found.landed:
            return
        facts = examine(self._target)
        numbers, rows = self._refused_of(won, facts, found or Note.of(won))
        if rows.num_rows:
            keep(rows)
        land(self._target, won, facts, Refusals(numbers=numbers))

    def _refused_of(
        self, won: Won, facts: TopicFacts, note: Note
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

    def refused(self, won: Won) -> int:
        found = self._note(won)
        return len(found.refused) if found else 0

    def batches(self, pipeline: str) -> dict[int, int]:
        """Those of which some has landed."""
        if not control_is_there(self._target):
            return {}
        landed = {}
        for batch_id, note in self._all_notes(pipeline).items():
            if isinstance(note, CorruptionError):
                raise note
            landed[batch_id] = note.commit_seq
        return landed

    def _all_notes(self, pipeline: str) -> control.Notes:
        place = (self._target.cluster, self._target.control)
        return control.of_pipeline(*place, pipeline, limits.KAFKA_TRANSACTION_SECONDS)

    # Keeps KP10.
    def rows(self, marker: "Marker", *, strays: bool = False) -> Iterator[pa.Table]:
        """Within a block of the sink's own all notes are read once, and so is the whole topic for
        the strays.
        """
        notes = self._notes
        if notes is None:
            notes = self._all_notes(self._pipeline)
            self._notes = notes if self._is_open else None
        if strays:
            if self._strays is None:
                self._strays = reading.strays(self._target, notes)
            if values := self._strays.get(marker.batch_id):
                yield reading.typed(self._target, marker, values)
        yield from reading.rows(self._target, marker, notes.get(marker.batch_id))
