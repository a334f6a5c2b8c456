"""The sink seam: tasks write staged files, and a sink makes a sealed manifest visible.

Stage and commit are the same for every sink. Finalize asks a sink which parts of a committed batch
are visible already (`query_presence`), and to make the missing ones visible (`publish`). `judge`
chooses between the two by one table for all sinks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from semel.errors import NO_STEP, CorruptionError, TerminalError

if TYPE_CHECKING:
    from datetime import datetime

    import numpy as np
    import pyarrow as pa

    from semel.model.manifest import ManifestFile, Published, StagedFile
    from semel.storage import ArchivePath


_DAMAGED_SHOWN = 5
_NEAR = 20
"""How far back the search for the newest notes starts, as a multiple of their number."""


class OutputLostError(TerminalError):
    """The target's own retention or compaction has deleted published rows."""


class SupersededError(OutputLostError):
    """Raised after the surviving rows: newer rows with the same key have replaced the rest."""


class MiscountError(TerminalError):
    """Raised after the rows that exist: their number differs from the number published."""


class Presence(StrEnum):
    """State of a file or batch in a place, compared with the manifest: absent, equal, or other."""

    ABSENT = "absent"
    RIGHT = "right"
    WRONG = "wrong"


class FinalizeAction(StrEnum):
    """The action of finalize for one file of the manifest."""

    PUBLISH = "publish"
    NOTHING = "nothing"
    FAIL = "fail"


# Keeps F1.
def judge(staged: Presence, target: Presence) -> FinalizeAction:
    """The decision table, with all nine cases."""
    match staged, target:
        case Presence.RIGHT, Presence.ABSENT:
            return FinalizeAction.PUBLISH
        case ((Presence.ABSENT | Presence.RIGHT), Presence.RIGHT):
            return FinalizeAction.NOTHING
        case _:
            return FinalizeAction.FAIL


@dataclass(frozen=True, kw_only=True)
class CommittedBatch:
    """A committed batch, ready for a sink to publish.

    `files` are the data files of the winner's manifest, in its order. `schema` has their columns,
    folder columns included. `digest` covers the whole manifest: it differs if any file, row or byte
    differs. `replaces`: for a replay, the batches whose output it replaces. `ledger`: see
    `Pipeline.ledger`. `complete`: the time ranges that the ledger considers complete once this
    batch is published.
    """

    pipeline: str
    batch_id: int
    fence: int
    commit_seq: int
    files: "tuple[ManifestFile, ...]"
    schema: "pa.Schema"
    digest: str
    ledger: str
    replaces: tuple[int, ...] = ()
    complete: "tuple[tuple[datetime | None, datetime | None], ...]" = ()


@dataclass(frozen=True, kw_only=True)
class ReplacedOutput:
    """The outputs of one batch that a replay replaces.

    `batches` wrote them, in this order; all share one place in the commit order. `types` and
    `modes` are the `sink.type` and `sink.mode` of each. A mode is None for a sink without modes.
    """

    pipeline: str
    commit_seq: int
    batches: tuple[int, ...]
    types: tuple[str, ...] = ()
    modes: tuple[str | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BatchNote:
    """A target's record of a batch. `rows` counts the rows published or accepted as refused.

    `ledger`: see `Pipeline.ledger`. If the target derives its notes from the rows themselves,
    `fence` and `ledger` are None and `rows` counts the rows that the target still has.
    """

    pipeline: str
    batch_id: int
    commit_seq: int
    fence: int | None
    rows: int
    ledger: str | None


def search_starts(has: int, count: int) -> Iterable[int]:
    """The batches from which to search for the newest `count` notes: first one shortly before the
    newest known batch `has`, so that a sink need not read all notes; then 0.
    """
    return dict.fromkeys((max(0, has - _NEAR * count), 0))


def notes_of_rows(
    pipeline: str,
    starts: Iterable[int],
    most: int,
    query: Callable[[int], Sequence[tuple[int, int, int]]],
) -> list[BatchNote]:
    """The notes of the newest `most` batches in a target that derives its notes from its rows.

    `query` gets a first batch, one of `starts` after the other, and returns (batch, place in the
    commit order, number of rows) for at most `most` later batches.
    """
    batches: Sequence[tuple[int, int, int]] = ()
    for first in starts:
        if len(batches := query(first)) == most:
            break
    return [
        BatchNote(
            pipeline=pipeline, batch_id=batch, commit_seq=seq, fence=None, rows=n, ledger=None
        )
        for batch, seq, n in batches
    ]


class NotesQuery(NamedTuple):
    """Asks for the newest `count` notes of a pipeline, and any note of another pipeline.

    `has` is the batch with rows that was finalized last, or None. A sink without an index on its
    notes may read only its newest messages, and those since the attempt with the data folder
    `staged` began, provided that they include the note of `has`.
    """

    pipeline: str
    count: int
    staged: "ArchivePath"
    has: int | None


class DamagedNote(NamedTuple):
    """A note that semel cannot read. `what`: its place, and what is wrong with it."""

    batch_id: int
    what: str


class Notes(NamedTuple):
    """Notes of a target. `complete`: the query's answer is free of gaps and damaged notes."""

    batch_notes: tuple[BatchNote, ...]
    complete: bool = True
    damaged: tuple[DamagedNote, ...] = ()

    def check(self) -> None:
        """CorruptionError if any note is damaged."""
        if self.damaged:
            raise CorruptionError("; ".join(one.what for one in self.damaged[:_DAMAGED_SHOWN]))


class RefusedRows(NamedTuple):
    """Rows that a sink will refuse, as row numbers in a table (int64, ascending), and the reason.

    `reason` is one word. `detail` names the column or constraint, and quotes no value.
    """

    rows: "np.ndarray"
    reason: str
    detail: str


class RowChecker(Protocol):
    """Finds the rows that a sink will refuse. Picklable: tasks call it, without a connection."""

    notes: tuple[str, ...]
    """For the operator: the rules of the target that it cannot check."""

    def __call__(self, table: "pa.Table") -> list[RefusedRows]: ...


class Sink(ABC):
    """The place to which a pipeline's rows go. A kind implements `check`, `query_presence`,
    `publish` and `rows`. The other methods' defaults suit a sink that accepts all rows and whose
    contents the markers list completely.

    Any process can open it from a pipeline's spec. It keeps a connection only within a
    `with sink:` block, as in finalize, for one thread.
    """

    erasable: bool = True
    """A person may delete single rows there."""

    address: str
    """Canonical, without secrets. Two pipelines with the same address write to the same place."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connection, if the sink keeps one."""

    @abstractmethod
    def check(self, schema: "pa.Schema | None", staged: "ArchivePath") -> RowChecker | None:
        """Refuse early what would fail later. Stage calls it in the driver, on each attempt.

        `schema`: the output's columns; None if only the transform's job determines them.
        `staged`: the attempt's existing folder of data files; a sink may store there what its
        `publish` needs. Returns None if the sink accepts all rows.
        Raises TerminalError if the target does not fit, RetryableError if it does not answer.
        """

    def check_replace(self, old: ReplacedOutput) -> tuple[str, ...]:
        """Check that a replay can replace published output. Plan and stage call it before any work.

        Returns sentences for the operator. Raises TerminalError if this sink cannot replace it; the
        message says why and what to do instead. Raises RetryableError if it does not answer.
        """
        raise TerminalError(
            f"batch {old.batches[0]}: {self.address} cannot replace rows. Declare a pipeline with "
            "another name and another sink for the corrected transforms; it reads the source from "
            "the start"
        )

    def check_staged(self, schema: "pa.Schema", files: "Sequence[StagedFile]") -> None:
        """Check the whole output. Stage calls it before it seals the attempt.

        Raises TerminalError if these rows cannot become visible together.
        """

    def target(self, batch_id: int, fence: int, part: int, file: "StagedFile") -> str:  # noqa: ARG002
        """The final name of a data file, unique for (batch, part). Pure. Stage calls it."""
        return f"{self.address}#b{batch_id:08d}-{part:05d}"

    def repair_published(self, won: CommittedBatch) -> None:  # noqa: ARG002
        """Restore files of a published batch that have disappeared, if the target is unreadable
        without them. Finalize calls it before any query. Raises the errors of `publish`.
        """

    @abstractmethod
    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        """The state of each of `won.files`. Finalize calls it in the driver, before each publish.

        If an earlier call makes rows visible after this answer, the next publish MUST notice.
        Raises RetryableError if the sink does not answer.
        """

    @abstractmethod
    def publish(self, won: CommittedBatch, missing: "Sequence[ManifestFile]") -> None:
        """Make the rows of `missing` visible. Finalize calls it; two calls may run at once.

        Idempotent by batch. It never replaces the work of another call; the next `query_presence`
        shows what a faster call has published. Finalize calls it once more when nothing is missing:
        then the whole batch MUST be durable on return. Raises RetryableError if finalize should
        query again, TerminalError if the target refuses the rows and none is visible.
        """

    def publish_accepting(self, won: CommittedBatch, keep: "Callable[[pa.Table], None]") -> None:  # noqa: ARG002
        """Make the rows visible that the target accepts. Finalize calls it once a person has
        accepted the refusal of the others.

        `keep` gets the refused rows before the others become visible, with each row's reason in the
        last column, and makes them durable. Raises TerminalError if this sink refuses no rows.
        """
        raise TerminalError(
            f"--refused applies only if the sink refused rows, and {self.address} refused none of "
            f"batch {won.batch_id}. Run finalize again to see its error",
            next=f"semel show {won.batch_id}",
        )

    def copy_marker(self, won: CommittedBatch, marker: "ArchivePath") -> None:  # noqa: ARG002
        """Keep a copy of the marker with the output, for readers without access to the archive.

        Finalize calls it when the marker is durable, before it updates the ledger; two calls may
        run at once, and late. It never replaces a newer copy by an older one. Raises the errors of
        `publish`.
        """

    def remove_files(self, old: "Published") -> int:  # noqa: ARG002
        """Remove the files of a replaced output of an `in_files` sink. Returns the bytes freed.

        Collect calls it when `limits.keep_replaced` is over, and again if it died meanwhile. Raises
        RetryableError if the sink does not answer, TerminalError if a file is not the batch's.
        """
        return 0

    def count_refused(self, won: CommittedBatch) -> int | None:  # noqa: ARG002
        """The number of rows in a published batch whose refusal a person accepted. Returns None if
        the sink refuses no rows.
        """
        return None

    def notes(self, newest: "NotesQuery | None" = None) -> "Notes | None":  # noqa: ARG002
        """The target's own notes on published batches of any pipeline.

        Plan calls it before it registers a pipeline; stage and finalize query the `newest` before
        they write; adopt, audit and check also check that no note is damaged. Returns None if the
        markers are the only record.
        """
        return None

    def count_strays(self, batches: Collection[int]) -> dict[int, int]:  # noqa: ARG002
        """Count rows in the whole target that belong to other batches than `batches`, by batch.

        The audit calls it, within the sink's own block. Empty if files name their batches.
        """
        return {}

    def merged_windows(
        self, level: int, since: "datetime", until: "datetime | None", count: int
    ) -> "list[dict[str, Any]]":
        """The merged rows of windows that begin in [since, until), in the form of
        docs/aggregates.md: one level of aggregate.by, newest first, at most `count`. For pages.

        Raises RetryableError if the sink does not answer, TerminalError if it lacks a merging view.
        """
        raise self._no_view_error()

    def _no_view_error(self) -> TerminalError:
        return TerminalError(
            f"{self.address} lacks a view that merges the rows of a window", next=NO_STEP
        )

    def count_unmerged(self) -> int:
        """The number of partial rows that the merging view misses. The audit calls it."""
        return 0

    def merged_query(self) -> str:
        """The SQL of `merged_windows`, for a person. Raises the same TerminalError."""
        raise self._no_view_error()

    @abstractmethod
    def rows(self, marker: "Published", *, strays: bool = False) -> "Iterator[pa.Table]":
        """The rows that a finalized batch published, by its marker. For readers and the audit.

        `strays`: also rows elsewhere with this batch's number. Only the audit sets it, within the
        sink's own block; there a sink may read the notes on all batches once and keep them.
        Raises:
        - RetryableError: the sink does not answer, or a replay has just replaced the output
        - OutputLostError: the target has deleted rows by its own rules
        - SupersededError, after the remaining rows: newer rows replaced the others
        - MiscountError, after the rows: there are too few or too many
        - TerminalError: semel cannot read the rows
        """


class RemoteSink(Sink):
    """A sink in a service: a table, a topic, a store of objects.

    `replaceable`: a replay can replace a batch's rows. `self_noted`: the sink derives its notes
    from its rows.
    """

    replaceable: bool = False
    self_noted: bool = False

    @abstractmethod
    def notes(self, newest: NotesQuery | None = None) -> Notes:
        """See `Sink.notes`. Never None: markers do not list what a service contains."""

    def count_strays(self, batches: Collection[int]) -> dict[int, int]:
        """See `Sink.count_strays`. This default counts by the notes."""
        strays: dict[int, int] = {}
        for note in self.notes().batch_notes:
            if note.batch_id not in batches:
                strays[note.batch_id] = strays.get(note.batch_id, 0) + note.rows
        return strays

    @abstractmethod
    def describe_removal(self, batches: Sequence[int]) -> str:
        """How to remove the rows and notes of batches: an imperative without its full stop."""

    @abstractmethod
    def describe(self, schema: "pa.Schema | None") -> str:
        """Describe the target in words, for `semel check`.

        Changes nothing in the target, and raises the errors of `check` for `schema`.
        """
