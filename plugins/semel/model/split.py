"""Splits: the parts of a batch's claims, each read in one go by one task."""

import pickle
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from operator import attrgetter

from semel.model.batch import Claim

SPLITS_PER_TASK_MAX = 256
"""Splits in one task, to spread small files over all cores: some 0.2 s of work, one output file."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Part of a claimed range: lines that start in [start, end). One task reads all of it."""

    number: int
    task: int
    claim: Claim
    start: int
    end: int


class Splits(Sequence[Split]):
    """The splits of a job, by number and by task.

    How it works: pickled, it is one blob per task, and a task opens only its own. The splits of
    10,000 files take 70 ms to unpickle, and each task would pay that.
    """

    def __init__(self, splits: Iterable[Split]) -> None:
        groups = [tuple(group) for _, group in groupby(splits, attrgetter("task"))]
        self._ends = list(accumulate(map(len, groups)))
        self._open: dict[int, tuple[Split, ...]] = dict(enumerate(groups))
        self._packed: list[bytes] = []

    def __getstate__(self) -> tuple[list[int], list[bytes]]:
        return self._ends, self._packed or [pickle.dumps(self.of_task(t)) for t in self.tasks]

    def __setstate__(self, state: tuple[list[int], list[bytes]]) -> None:
        self._ends, self._packed = state
        self._open = {}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> Split:  # type: ignore[override]
        number = range(len(self))[number]
        task = self.task_of(number)
        return self.of_task(task)[number - self._ends[task]]

    def __iter__(self) -> Iterator[Split]:
        return chain.from_iterable(map(self.of_task, self.tasks))

    @property
    def tasks(self) -> range:
        """The task numbers."""
        return range(len(self._ends))

    def task_of(self, number: int) -> int:
        """The task that reads a split."""
        return bisect_right(self._ends, number)

    def of_task(self, task: int) -> tuple[Split, ...]:
        """The splits of a task, in source order."""
        if task not in self._open:
            self._open[task] = pickle.loads(self._packed[task])
        return self._open[task]


def splits_of(claims: list[Claim], split_bytes: int, *, whole: set[int]) -> Splits:
    """Cut claims into splits in source order. The same claims and size give the same splits.

    The splits of one claim have equal size, and number one, two or a multiple of four, like cores:
    so tasks end together. A task takes splits up to `split_bytes` in all and up to
    SPLITS_PER_TASK_MAX in number, so that small files make few tasks, but more than one. `whole`
    holds the ordinals of claims that cannot be cut (gzip, multiline CSV).
    """
    found: list[Split] = []
    task = held = count = 0
    for claim in claims:
        size = claim.end - claim.start
        parts = 1 if claim.ordinal in whole else max(1, -(-size // split_bytes))
        parts = parts if parts <= 2 else -(-parts // 4) * 4
        step = max(1, -(-size // parts))
        # Of an empty claim, one split: its content is part of what was read.
        for start in range(claim.start, max(claim.end, claim.start + 1), step):
            end = min(start + step, claim.end)
            if held and (held + end - start > split_bytes or count == SPLITS_PER_TASK_MAX):
                task, held, count = task + 1, 0, 0
            held, count = held + end - start, count + 1
            found.append(Split(number=len(found), task=task, claim=claim, start=start, end=end))
    return Splits(found)
