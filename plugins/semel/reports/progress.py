"""progress: how far a pipeline is in a stretch of time, as the source and the ledger show it.

Days, windows and the list of pipelines share the words, their order, and one look at the source.
Three statements stay apart, because they have other grounds:
- `gaps` is about positions of the source, with or without a time;
- `model.complete` is a promise about what runs looked at, which a reader of files has to prove
  without a ledger;
- `plan.idle` explains the look that the plan itself took, and costs no second one.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from semel.ledger import Ledger
from semel.model.batch import Log
from semel.model.reasons import ExplainedEnum
from semel.pipeline.spec import Spec
from semel.reports.gaps import Gap, Gaps, gaps_beside
from semel.reports.gaps import GapReason as GapState
from semel.sources import SourceItem

_UNSETTLED = ("unclaimed", "waiting", "refused", "open")


class CellState(ExplainedEnum):
    """A pipeline's progress in one interval, or in all; the worst ones first within each half."""

    BROKEN = "broken", "Its file is wrong, and it gets no runs. `semel validate` says why."
    FINALIZED = (
        "finalized",
        "All that the source shows of it is finalized. `semel audit` proves the output.",
    )
    PARTLY = "partly", "Some of it is finalized; some is in no batch: it came late."
    UNCLAIMED = "unclaimed", "Records are there, and no batch has any of them."
    REFUSED = (
        "refused", "A file of it is refused: somebody has to decide. `semel gaps` says why."
    )  # fmt: skip
    FAILED = (
        "failed",
        "A batch of it has no attempt at work: the last one failed. Airflow tries again; after its "
        "last try a person clears the run.",
    )
    IN_WORK = "in work", "A batch that is not finalized yet has some of it."
    WAITING = (
        "waiting", "All complete records are finalized; a last line or a file is not complete."
    )  # fmt: skip
    DONE = "done", "Its batches are finalized. Whether the source holds more is not known here."
    EMPTY = (
        "empty", "The source shows nothing of it, but of time before and after: is a file missing?"
    )  # fmt: skip
    NOTHING = "nothing there", "The source shows nothing of it, and no batch is of it."
    NO_BATCH = (
        "no batch", "No batch is of it. Whether the source holds some of it is not known here."
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SourceCell:
    """The number of names (files) that the source shows in a cell, and of those not all finalized.

    `open`: an open batch has some of it. A name may count as several of unclaimed, waiting, refused
    and open; a `settled` one counts as none, since all of it is finalized. `left`: unclaimed
    positions (bytes, offsets).
    """

    shown: int = 0
    unclaimed: int = 0
    waiting: int = 0
    refused: int = 0
    open: int = 0
    settled: int = 0
    left: int = 0


@dataclass(frozen=True, kw_only=True)
class CellFacts:
    """The facts that decide a cell's state. `done`: some of it is finalized. `between`: there is
    something before it and something after it.
    """

    looked: bool
    refused: bool
    failed: bool
    open: bool
    unclaimed: bool
    waiting: bool
    done: bool
    between: bool


def judge(facts: CellFacts) -> CellState:
    """The state of a cell: the first that applies. `looked`: the source was surveyed."""
    if facts.refused:
        return CellState.REFUSED
    if facts.failed:
        return CellState.FAILED
    if facts.open:
        return CellState.IN_WORK
    if facts.unclaimed:
        return CellState.PARTLY if facts.done else CellState.UNCLAIMED
    if facts.waiting:
        return CellState.WAITING
    if facts.done:
        return CellState.FINALIZED if facts.looked else CellState.DONE
    if not facts.looked:
        return CellState.NO_BATCH
    return CellState.EMPTY if facts.between else CellState.NOTHING


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One look at the source: its gaps, and all that it shows."""

    gaps: Gaps
    found: Sequence[SourceItem] = field(repr=False)

    @classmethod
    def of(cls, ledger: Ledger, spec: Spec, log: Log = lambda _: None) -> "Sight":
        """Look at the source of a pipeline. Errors as of `gaps`."""
        gaps, shown = gaps_beside(ledger, spec, log)
        return cls(gaps=gaps, found=shown)

    @property
    def blind(self) -> bool:
        """Whether the source shows nothing and refuses something without a time, such as its
        folder.
        """
        return not self.found and any(item.when is None for item in self.gaps.refusals)

    @cached_property
    def times(self) -> dict[str, datetime | None]:
        """The time of each name that the source shows."""
        times = {item.name: item.when for item in self.found}
        return times | {item.name: item.when for item in self.gaps.refusals if item.when}

    @cached_property
    def _unread(self) -> list[datetime]:
        gaps = (gap.name for gap in self.gaps.gaps)
        names = {*gaps, *(refusal.name for refusal in self.gaps.refusals)}
        return sorted(time for time in map(self.times.get, names) if time is not None)

    def unread(self, start: datetime, end: datetime) -> int:
        """The number of names of [start, end) with something that no finalized batch has."""
        return bisect_left(self._unread, end) - bisect_left(self._unread, start)

    def shows(self, start: datetime, end: datetime) -> bool:
        """Whether the source shows something of [start, end)."""
        return any(item.when and start <= item.when < end for item in self.found)

    def seen(self, edges: list[datetime]) -> list[SourceCell]:
        """What the source shows in each cell. The last item covers everything outside the cells."""
        times = self.times
        counted: list[dict[str, set[str]]] = [defaultdict(set) for _ in edges]

        def count(kind: str, names: Iterable[str]) -> None:
            for name in names:
                when = times.get(name)
                inside = when is not None and edges[0] <= when < edges[-1]
                counted[bisect_right(edges, when) - 1 if inside else -1][kind].add(name)

        def of(*states: GapState) -> list[Gap]:
            return [gap for gap in self.gaps.gaps if gap.state in states]

        count("shown", (item.name for item in self.found))
        count("unclaimed", (gap.name for gap in of(GapState.UNCLAIMED)))
        count("waiting", (gap.name for gap in of(GapState.WAITING)))
        count("open", (gap.name for gap in of(GapState.PLANNED, GapState.COMMITTED)))
        count("refused", (refusal.name for refusal in self.gaps.refusals))
        for one in counted:
            one["settled"] = one["shown"].difference(*(one[kind] for kind in _UNSETTLED))
        left = Counter[str]()
        for gap in of(GapState.UNCLAIMED):
            left[gap.name] += gap.end - gap.start
        return [
            SourceCell(
                left=sum(left[name] for name in one["unclaimed"]),
                **{kind: len(names) for kind, names in one.items()},
            )
            for one in counted
        ]
