"""The sink seam: tasks write staged files, and a sink makes a sealed manifest visible.

Stage and commit are the same for every sink. Finalize asks a sink which parts of a committed batch
are already there (`look`), then for the missing ones (`publish`). `judge` decides between the two
by one table for all sinks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from semel.errors import NO_STEP, CorruptionError, TerminalError

if TYPE_CHECKING:
    from datetime import datetime

    import numpy as np
    import pyarrow as pa

    from semel.model.manifest import ManifestFile, Published, StagedFile


_DAMAGED_SHOWN = 5
_NEAR = 20
"""How far back the newest notes are looked for first, as a multiple of their number."""


class OutputLostError(TerminalError):
    """Published rows were deleted by the target's own retention or compaction."""


class SupersededError(OutputLostError):
    """Raised after the surviving rows: newer rows with the same key have replaced the rest."""


class MiscountError(TerminalError):
    """Raised after the rows that exist: their number differs from the number published."""


class Presence(StrEnum):
    """What is found under a name or a batch number: nothing, what the manifest says, or another."""

    ABSENT = "absent"
    RIGHT = "right"
    WRONG = "wrong"


class FinalizeAction(StrEnum):
    """What finalize does with a file of the manifest."""

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
    `Pipeline.ledger`. `complete`: the ranges of time whose records have all come, as far as is
    known, once it is published.
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
    """The outputs of one batch that a replay replaces. `batches` made them, the first one first;
    all share one place in the commit order.

    `types` and `modes` are `sink.type` and `sink.mode` as each was declared. None: no mode.
    """

    pipeline: str
    commit_seq: int
    batches: tuple[int, ...]
    types: tuple[str, ...] = ()
    modes: tuple[str | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BatchNote:
    """A target's record of a batch. `rows` counts the rows published or accepted as refused.

    `ledger`: see `Pipeline.ledger`. `fence` and `ledger` are None where the rows themselves are the
    record: then `rows` counts those that are there, and some may have been deleted since.
    """

    pipeline: str
    batch_id: int
    commit_seq: int
    fence: int | None
    rows: int
    ledger: str | None


def search_starts(has: int, count: int) -> Iterable[int]:
    """The batches from which the newest `count` notes are looked for: first a little before the
    last one that is known, so that of many notes not all are read; then 0.
    """
    return dict.fromkeys((max(0, has - _NEAR * count), 0))


def notes_of_rows(
    pipeline: str, has: int, most: int, look: Callable[[int], Sequence[tuple[int, int, int]]]
) -> list[BatchNote]:
    """The notes of the newest `most` batches, where the rows themselves are the record. `look`:
    batch, place in the order of commits, and number of rows, of `most` batches since one.
    """
    found: Sequence[tuple[int, int, int]] = ()
    for first in search_starts(has, most):
        if len(found := look(first)) == most:
            break
    return [
        BatchNote(
            pipeline=pipeline, batch_id=batch, commit_seq=seq, fence=None, rows=n, ledger=None
        )
        for batch, seq, n in found
    ]


class NotesQuery(NamedTuple):
    """Asks for the newest `count` notes of a pipeline, and any note of another pipeline. A sink
    that would have to read everything to find them reads instead what came last, and since an
    attempt `staged` (the folder of its data files), if the note of the batch `has` is there: of
    those with rows the one that was finalized last. None: no batch is.
    """

    pipeline: str
    count: int
    staged: Path
    has: int | None


class DamagedNote(NamedTuple):
    """Something unreadable in place of a batch's note. `what`: where it is, and what is wrong."""

    batch_id: int
    what: str


class Notes(NamedTuple):
    """Notes of a target. `complete`: all that were asked for, none damaged."""

    found: tuple[BatchNote, ...]
    complete: bool = True
    damaged: tuple[DamagedNote, ...] = ()

    def check(self) -> None:
        """CorruptionError if any note is damaged."""
        if self.damaged:
            raise CorruptionError("; ".join(one.what for one in self.damaged[:_DAMAGED_SHOWN]))


class RefusedRows(NamedTuple):
    """Rows that a sink will refuse, by row number in a table (int64, ascending), and the reason.

    `reason` is one word. `detail` names the column or constraint, and quotes no value.
    """

    rows: "np.ndarray"
    reason: str
    detail: str


class RowChecker(Protocol):
    """Finds the rows that a sink will refuse. It is sent to tasks and holds no connection."""

    notes: tuple[str, ...]
    """For the operator: what it cannot tell beforehand."""

    def __call__(self, table: "pa.Table") -> list[RefusedRows]: ...


class Sink(ABC):
    """Where the rows of a pipeline go. A kind writes `check`, `look`, `publish` and `rows`; the
    other methods have a default, for a sink that takes all rows, and of which markers tell all.

    Any process makes it from a pipeline's spec. It holds no connection between calls, except within
    one `with sink:` block, as in finalize: there it may keep one, for the one thread.
    """

    erasable: bool = True
    """A person may delete rows there, which no rule of its own and no replay does."""

    address: str
    """Canonical, without secrets. Two pipelines with the same address write to the same place."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to let go of."""

    @abstractmethod
    def check(self, schema: "pa.Schema | None", staged: Path) -> RowChecker | None:
        """Refuse early whatever is known to fail. By stage, in the driver, on each attempt.

        `schema`: the columns of the output; None if only a transform's job will tell them.
        `staged`: the folder of the attempt's data files, which exists; a sink may keep there what
        it needs to know when it publishes them. Returns a finder of the rows to set aside; None:
        the sink takes all rows.
        TerminalError: the target does not fit. RetryableError: it does not answer.
        """

    def check_replace(self, old: ReplacedOutput) -> tuple[str, ...]:
        """Refuse to replace published output. By plan and stage of a replay, before any work.

        Returns sentences for the operator. TerminalError: this sink cannot replace it; the message
        says why, and what to do instead. RetryableError: it does not answer.
        """
        raise TerminalError(
            f"batch {old.batches[0]} is in {self.address}, where nothing can be replaced. Give the "
            "corrected transforms to a pipeline of another name and sink: it reads the source from "
            "its start"
        )

    def check_staged(self, schema: "pa.Schema", files: "Sequence[StagedFile]") -> None:
        """Refuse what only the whole output can show. By stage, before its seal.

        TerminalError: these rows cannot become visible together.
        """

    def target(self, batch_id: int, fence: int, part: int, file: "StagedFile") -> str:  # noqa: ARG002
        """The name that a data file will get, unique for (batch, part). Pure; by stage's seal."""
        return f"{self.address}#b{batch_id:08d}-{part:05d}"

    def repair_published(self, won: CommittedBatch) -> None:  # noqa: ARG002
        """Put there again what of a landed batch is gone, where nobody could read the target
        without. By finalize, before it asks anything. Errors as of `publish`.
        """

    @abstractmethod
    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        """Report which of `won.files` are there. By finalize, in the driver, before each publish.

        Definitive: if a call begun earlier lands something after this answer, the next publish
        notices. RetryableError: the sink does not answer.
        """

    @abstractmethod
    def publish(self, won: CommittedBatch, missing: "Sequence[ManifestFile]") -> None:
        """Make the rows of these files visible. By finalize; it may run twice, even at once.

        Idempotent by batch. It never replaces what another call has made; what a faster twin made
        shows at the next look. Called once more when nothing is missing: then everything there MUST
        be durable on return. RetryableError: look again. TerminalError: the target refuses the
        rows, and none is visible.
        """

    def publish_accepting(self, won: CommittedBatch, keep: "Callable[[pa.Table], None]") -> None:  # noqa: ARG002
        """Make visible the rows that the target takes. By finalize, once a person has accepted it.

        `keep` gets the refused rows before the others become visible, with each row's reason in the
        last column, and makes them durable. TerminalError: this sink refuses no rows.
        """
        raise TerminalError(
            f"the sink of batch {won.batch_id}, {self.address}, refuses no row; run finalize "
            "again, it says what is wrong",
            next=f"semel show {won.batch_id}",
        )

    def copy_marker(self, won: CommittedBatch, marker: Path) -> None:  # noqa: ARG002
        """Keep a copy of the marker with the output, for readers who do not see the archive. By
        finalize, once the marker is durable, and before the ledger says so; it may run twice, even
        at once, and late. It never puts an older copy over a newer one. Errors as of `publish`.
        """

    def remove_files(self, old: "Published") -> int:  # noqa: ARG002
        """Remove the files of a replaced output, where its `declared` is `in_files`. By collect,
        once `limits.keep_replaced` is over; again where it died. Returns the bytes freed.

        RetryableError: the sink does not answer. TerminalError: one is not the batch's.
        """
        return 0

    def count_refused(self, won: CommittedBatch) -> int:  # noqa: ARG002
        """The number of rows in a published batch whose refusal was accepted."""
        return 0

    def notes(self, newest: "NotesQuery | None" = None) -> "Notes | None":  # noqa: ARG002
        """The target's own notes on all batches that have landed, from any pipeline.

        By plan, before a pipeline is registered; by stage and finalize, which ask for the `newest`
        before any work and before the first row; by adopt, audit and check, which check that none
        is damaged. None: the markers are the record.
        """
        return None

    def count_strays(self, known: Collection[int]) -> dict[int, int]:  # noqa: ARG002
        """Count rows in the whole target that belong to batches other than `known`, by batch.

        By the audit, within the sink's own block. Empty if files tell it by their names.
        """
        return {}

    def merged_windows(
        self, level: int, since: "datetime", until: "datetime | None", count: int
    ) -> "list[dict[str, Any]]":
        """The merged rows of windows that begin in [since, until), as docs/aggregates.md has them:
        of one level of aggregate.by, the newest first, `count` at most. For pages.

        RetryableError: it does not answer. TerminalError: it merges none.
        """
        raise self._no_view()

    def _no_view(self) -> TerminalError:
        return TerminalError(
            f"{self.address} has no view that merges the rows of windows", next=NO_STEP
        )

    def count_unmerged(self) -> int:
        """How many partial rows readers of the merged rows do not see. By the audit."""
        return 0

    def merged_query(self) -> str:
        """A statement that reads the same. For a person. TerminalError as before."""
        raise self._no_view()

    @abstractmethod
    def rows(self, marker: "Published", *, strays: bool = False) -> "Iterator[pa.Table]":
        """The rows that a finalized batch published, by its receipt. For readers and the audit.

        `strays`: also rows elsewhere that claim to be of the batch; for the audit, within the
        sink's own block. There a sink may read once what it knows about all batches.
        RetryableError: the sink does not answer, or a replay has replaced the output meanwhile.
        OutputLostError: the target has deleted some rows by its own rules. SupersededError: the
        same, raised after the rows that remain. MiscountError, raised after the rows: some are
        missing, or there are too many. TerminalError: the rows cannot be read.
        """


class RemoteSink(Sink):
    """A sink in a service: a table, a topic, a store of objects.

    `replaceable`: a replay replaces the rows of its batch there. `self_noted`: its rows are the
    notes on its batches.
    """

    replaceable: bool = False
    self_noted: bool = False

    @abstractmethod
    def notes(self, newest: NotesQuery | None = None) -> Notes:
        """As of any sink. Markers do not tell what a service holds."""

    def count_strays(self, known: Collection[int]) -> dict[int, int]:
        """As of any sink, where rows are their own notes."""
        found: dict[int, int] = {}
        for note in self.notes().found:
            if note.batch_id not in known:
                found[note.batch_id] = found.get(note.batch_id, 0) + note.rows
        return found

    @abstractmethod
    def forget(self, batches: Sequence[int]) -> str:
        """How a person removes the rows and notes of batches: a sentence without its full stop."""

    @abstractmethod
    def describe(self, schema: "pa.Schema | None") -> str:
        """Describe the target in words. By `semel check`.

        It leaves what is there as it is, and raises what `check` would for `schema`.
        """
