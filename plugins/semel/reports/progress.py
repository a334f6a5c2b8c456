"""progress: a pipeline's progress in a period, from the source and the ledger.

Days, windows and the list of pipelines share these states, their order, and one survey.
Three statements have other grounds, and stay separate:
- `gaps` describes positions of the source, with or without a time;
- `model.complete` promises that runs have surveyed a time; a reader of the files has to prove it
  without the ledger;
- `plan.idle` explains the plan's own survey, without a second one.
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
from semel.reports.gaps import Gap, Gaps, gaps_and_items
from semel.reports.gaps import GapReason as GapState
from semel.sources import SourceItem

_UNSETTLED = ("unclaimed", "waiting", "refused", "open")


class CellState(ExplainedEnum):
    """A pipeline's progress in one interval, or in all; the worst states first in each half."""

    BROKEN = "broken", "Its file has an error, so it does not run. `semel validate` prints it."
    FINALIZED = (
        "finalized",
        "All its records in the source are finalized. `semel audit` proves the output.",
    )
    PARTLY = "partly", "Some records are finalized; others came late and are not in a batch."
    UNCLAIMED = "unclaimed", "The source has records, and no batch has read any."
    REFUSED = "refused", "Plan refuses a file. Run `semel gaps` to see why, and decide."
    FAILED = (
        "failed",
        "A batch's last attempt failed, and no attempt is running. Airflow tries again; after its "
        "last try, clear the run.",
    )
    IN_WORK = "in work", "A batch that is not finalized yet is reading some records."
    WAITING = (
        "waiting", "All complete records are finalized; a last line or a file is not complete."
    )  # fmt: skip
    BATCHES_FINALIZED = "done", "Its batches are finalized. The source may have more records."
    EMPTY = (
        "empty", "The source has earlier and later records, but none here: is a file missing?"
    )  # fmt: skip
    NOTHING = "nothing there", "There are no records in the source, and there is no batch."
    NO_BATCH = "no batch", "There is no batch. The source may have records."


@dataclass(frozen=True, kw_only=True)
class SourceCell:
    """Numbers of names (files) in a cell: all that the source lists (`shown`), and by their state.

    `open`: an open batch reads part of the name. One name may count as unclaimed, waiting, refused
    and open together. `settled`: the whole name is finalized. `left`: unclaimed positions (bytes,
    offsets).
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
    """The facts that decide a cell's state. `surveyed`: semel surveyed the source. `finalized`:
    some records are. `between`: earlier and later cells have records.
    """

    surveyed: bool
    refused: bool
    failed: bool
    open: bool
    unclaimed: bool
    waiting: bool
    finalized: bool
    between: bool


def judge(facts: CellFacts) -> CellState:
    """The state of a cell: the first that applies."""
    if facts.refused:
        return CellState.REFUSED
    if facts.failed:
        return CellState.FAILED
    if facts.open:
        return CellState.IN_WORK
    if facts.unclaimed:
        return CellState.PARTLY if facts.finalized else CellState.UNCLAIMED
    if facts.waiting:
        return CellState.WAITING
    if facts.finalized:
        return CellState.FINALIZED if facts.surveyed else CellState.BATCHES_FINALIZED
    if not facts.surveyed:
        return CellState.NO_BATCH
    return CellState.EMPTY if facts.between else CellState.NOTHING


@dataclass(frozen=True, kw_only=True)
class Sight:
    """One survey of the source: its gaps, and all its items."""

    gaps: Gaps
    items: Sequence[SourceItem] = field(repr=False)

    @classmethod
    def of(cls, ledger: Ledger, spec: Spec, log: Log = lambda _: None) -> "Sight":
        """Survey the source of a pipeline. Raises errors as `gaps` does."""
        gaps, items = gaps_and_items(ledger, spec, log)
        return cls(gaps=gaps, items=items)

    @property
    def blind(self) -> bool:
        """True if the source lists nothing and refuses a name without a time, such as its folder."""
        return not self.items and any(item.when is None for item in self.gaps.refusals)

    @cached_property
    def times(self) -> dict[str, datetime | None]:
        """The time of each name that the source lists."""
        times = {item.name: item.when for item in self.items}
        return times | {item.name: item.when for item in self.gaps.refusals if item.when}

    @cached_property
    def _unread(self) -> list[datetime]:
        gaps = (gap.name for gap in self.gaps.gaps)
        names = {*gaps, *(refusal.name for refusal in self.gaps.refusals)}
        return sorted(time for time in map(self.times.get, names) if time is not None)

    def unread(self, start: datetime, end: datetime) -> int:
        """The number of names in [start, end) with a gap or a refusal."""
        return bisect_left(self._unread, end) - bisect_left(self._unread, start)

    def shows(self, start: datetime, end: datetime) -> bool:
        """True if the source has an item in [start, end)."""
        return any(item.when and start <= item.when < end for item in self.items)

    def cells(self, edges: list[datetime]) -> list[SourceCell]:
        """Count the source's names in each cell. The last one covers all time outside the cells."""
        times = self.times
        counted: list[dict[str, set[str]]] = [defaultdict(set) for _ in edges]

        def count(kind: str, names: Iterable[str]) -> None:
            for name in names:
                when = times.get(name)
                inside = when is not None and edges[0] <= when < edges[-1]
                counted[bisect_right(edges, when) - 1 if inside else -1][kind].add(name)

        def of(*states: GapState) -> list[Gap]:
            return [gap for gap in self.gaps.gaps if gap.state in states]

        count("shown", (item.name for item in self.items))
        count("unclaimed", (gap.name for gap in of(GapState.UNCLAIMED)))
        count("waiting", (gap.name for gap in of(GapState.WAITING)))
        count("open", (gap.name for gap in of(GapState.PLANNED, GapState.COMMITTED)))
        count("refused", (refusal.name for refusal in self.gaps.refusals))
        for names in counted:
            names["settled"] = names["shown"].difference(*(names[kind] for kind in _UNSETTLED))
        unclaimed = Counter[str]()
        for gap in of(GapState.UNCLAIMED):
            unclaimed[gap.name] += gap.end - gap.start
        return [
            SourceCell(
                left=sum(unclaimed[name] for name in one["unclaimed"]),
                **{kind: len(names) for kind, names in one.items()},
            )
            for one in counted
        ]
