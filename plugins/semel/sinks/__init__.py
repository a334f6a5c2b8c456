"""The seam to sinks: tasks write staged files, and a sink makes a sealed manifest visible.

Stage and commit are the same for every sink. A sink is asked what of a committed batch is there
already (`look`), and then for what is missing (`publish`). `judge` decides between the two, for
all sinks by one table.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from semel.errors import CorruptionError, TerminalError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from semel.model.manifest import ManifestFile, Published, StagedFile


_DAMAGED_SHOWN = 5


class OutputGoneError(TerminalError):
    """Rows that were published are gone, as the target's own configuration wants it."""


class SupersededError(OutputGoneError):
    """The same of rows of which later ones have the key; the others of the batch were given."""


class MiscountError(TerminalError):
    """A batch has not as many rows as were put in; those that are there were given."""


class Presence(StrEnum):
    """What is under a name, or under a batch's number: nothing, what the manifest says, another."""

    ABSENT = "absent"
    RIGHT = "right"
    WRONG = "wrong"


class Act(StrEnum):
    """What finalize does about a file of the manifest."""

    PUBLISH = "publish"
    NOTHING = "nothing"
    FAIL = "fail"


# Keeps F1.
def judge(staged: Presence, target: Presence) -> Act:
    """The decision table: all nine cases."""
    match staged, target:
        case Presence.RIGHT, Presence.ABSENT:
            return Act.PUBLISH
        case ((Presence.ABSENT | Presence.RIGHT), Presence.RIGHT):
            return Act.NOTHING
        case _:
            return Act.FAIL


@dataclass(frozen=True, kw_only=True)
class Won:
    """A committed batch: what a sink publishes.

    `files` are the data files of the winner's manifest, in its order; `schema` are their columns,
    those of folders included. `digest` is of the whole manifest: two that differ in a file, a row
    or a byte differ in it. A replay `replaces` what these batches published. `ledger`: as
    `Pipeline.ledger`.
    """

    pipeline: str
    batch_id: int
    fence: int
    commit_seq: int
    files: "tuple[ManifestFile, ...]"
    schema: "pa.Schema"
    digest: str
    replaces: tuple[int, ...] = ()
    ledger: str | None = None


@dataclass(frozen=True, kw_only=True)
class Old:
    """The outputs of one batch that a replay of it replaces: the batches that made them, first ones
    first, and their one place in the order of commits.

    `types`, `modes`: `sink.type` and `sink.mode` as each was declared; no mode is None.
    """

    pipeline: str
    commit_seq: int
    batches: tuple[int, ...]
    types: tuple[str, ...] = ()
    modes: tuple[str | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a target says of a batch. `rows` are those that were put in or refused, as was accepted.

    `ledger`: whose batch it is; None in notes of earlier versions.
    """

    pipeline: str
    batch_id: int
    commit_seq: int
    fence: int
    rows: int
    ledger: str | None = None


class Newest(NamedTuple):
    """Which notes are enough: the newest of a pipeline, up to `count`, and any of another one. A
    sink that cannot find these without reading all reads what came since an attempt `staged` (the
    folder of its data files), if the pipeline has `begun`: a batch of it is finalized.
    """

    pipeline: str
    count: int
    staged: Path
    begun: bool


class Damaged(NamedTuple):
    """What stands in the place of a batch's note, and is none. `what`: where, and why."""

    batch_id: int
    what: str


class Notes(NamedTuple):
    """Notes of a target. `complete`: all that were asked for, and none of them is damaged."""

    found: tuple[Note, ...]
    complete: bool = True
    damaged: tuple[Damaged, ...] = ()

    def check(self) -> None:
        """CorruptionError: some are damaged."""
        if self.damaged:
            raise CorruptionError("; ".join(one.what for one in self.damaged[:_DAMAGED_SHOWN]))


class Refused(NamedTuple):
    """Rows that a sink will refuse: their numbers in a table (int64, ascending), and why.

    `reason` is one word; `detail` names the column or the constraint, and quotes no value.
    """

    rows: "np.ndarray"
    reason: str
    detail: str


class Refuses(Protocol):
    """Finds the rows that a sink will refuse. It goes to tasks, and holds no connection."""

    notes: tuple[str, ...]
    """What it cannot tell beforehand, for the operator."""

    def __call__(self, table: "pa.Table") -> list[Refused]: ...


class Sink(ABC):
    """Where the rows of a pipeline go. A kind writes `check`, `look`, `publish` and `rows`; the
    other methods have a default, for a sink that takes all rows, and of which markers tell all.

    Made from a pipeline's spec in whichever process needs it; it holds no connection between calls,
    unless they lie in one `with sink:`, as those of finalize do: then it may, for the one thread.
    """

    address: str
    """Canonical, without secrets: two pipelines with one address write to one place."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to let go of."""

    @abstractmethod
    def check(self, schema: "pa.Schema | None", staged: Path) -> Refuses | None:
        """Refuse before any work what can be known to fail. By stage, in the driver, each attempt.

        `schema`: the columns of the output; None where only a transform's job will tell them.
        `staged`: the folder of the attempt's data files, which is there; a sink may keep there what
        it wants to know when it publishes them. Returns what finds the rows that are to be set
        aside; None: the sink takes all rows.
        TerminalError: the target does not fit. RetryableError: it does not answer.
        """

    def check_replace(self, old: Old) -> tuple[str, ...]:
        """Refuse to replace what was published. By plan and stage of a replay, before any work.

        Returns what an operator should know of it, in sentences. TerminalError: this sink cannot.
        The message says why, and what to do instead. RetryableError: it does not answer.
        """
        raise TerminalError(
            f"batch {old.batches[0]} is in {self.address}, where nothing can be replaced. Give the "
            "corrected transforms to a pipeline of another name and sink: it reads the source from "
            "its start"
        )

    def check_staged(self, schema: "pa.Schema", files: "Sequence[StagedFile]") -> None:
        """Refuse what only the whole output shows. By stage, before its seal.

        TerminalError: these rows cannot become visible together.
        """

    def target(self, batch_id: int, fence: int, part: int, file: "StagedFile") -> str:  # noqa: ARG002
        """The name that a data file will have, unique for (batch, part). Pure; by stage's seal."""
        return f"{self.address}#b{batch_id:08d}-{part:05d}"

    @abstractmethod
    def look(self, won: Won) -> Sequence[Presence]:
        """What is there of each of `won.files`. By finalize, in the driver, before each publish.

        Definitive: nothing that an earlier call began can land after this answer without the next
        publish noticing. RetryableError: it does not answer.
        """

    @abstractmethod
    def publish(self, won: Won, missing: "Sequence[ManifestFile]") -> None:
        """Make these files' rows visible. By finalize; it may run twice, also at once.

        Idempotent by batch; it never replaces what another call has made, and what a faster twin
        made shows at the next look. Called once more when nothing is missing: then all that is
        there MUST be durable on return. RetryableError: look again. TerminalError: the target
        refuses the rows, and none of them is visible.
        """

    def publish_accepting(self, won: Won, keep: "Callable[[pa.Table], None]") -> None:  # noqa: ARG002
        """Make visible what the target takes. By finalize, when a person has accepted that.

        `keep` is given the refused rows before the others are visible, with the reason of each in
        the last column, and makes them durable. TerminalError: this sink refuses no rows.
        """
        raise TerminalError(
            f"the sink of batch {won.batch_id}, {self.address}, refuses no row; run finalize "
            "again, it says what is wrong"
        )

    def refused(self, won: Won) -> int:  # noqa: ARG002
        """How many rows of a published batch were refused, and that was accepted."""
        return 0

    def notes(self, newest: "Newest | None" = None) -> "Notes | None":  # noqa: ARG002
        """What the target itself says of all batches that have landed, of whichever pipeline.

        By plan, before a pipeline is registered; by stage and finalize, before any work and before
        the first row, which ask for the `newest`; by adopt, audit and check, which check that none
        is damaged. None where markers tell it.
        """
        return None

    def strays(self, known: Collection[int]) -> dict[int, int]:  # noqa: ARG002
        """How many rows the whole target has of batches besides the known ones, by number.

        By the audit, within the sink's own block. Empty where files tell it by their names.
        """
        return {}

    @abstractmethod
    def rows(self, marker: "Published", *, strays: bool = False) -> "Iterator[pa.Table]":
        """What a finalized batch has published, by its receipt. For readers and the audit.

        `strays`: and what says that it is of the batch, and lies elsewhere; for the audit, within
        the sink's own block. There a sink may read what it knows of all batches once.
        RetryableError: the sink does not answer, or a replay has replaced it meanwhile.
        OutputGoneError: the target has deleted some, as it is to. SupersededError, behind those
        that are left: the same. MiscountError, behind them: some are missing, or too many.
        TerminalError: they cannot be read.
        """


class Remote(Sink):
    """A sink in a service: a table, a topic.

    `replaceable`: a replay puts rows in the place of those of its batch.
    """

    replaceable: bool = False

    @abstractmethod
    def notes(self, newest: Newest | None = None) -> Notes:
        """As of any sink. Markers do not tell what a service holds."""

    @abstractmethod
    def forget(self, batches: Sequence[int]) -> str:
        """How a person takes out the rows and notes of batches, as a sentence without its end."""

    @abstractmethod
    def describe(self, schema: "pa.Schema | None") -> str:
        """What the target is like, in words. By `semel check`.

        It changes nothing there, makes nothing, and raises what `check` would of `schema`.
        """
