"""Splits: parts of a batch's claims. One task reads a split at once."""

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
    """Part of a claimed range: lines that start in [start, end). One task reads them all."""

    number: int
    task: int
    claim: Claim
    start: int
    end: int


class Splits(Sequence[Split]):
    """The splits of a job, by number and by task.

    How it works: its pickle has one blob per task, and a task unpickles its blob only. The splits
    of 10,000 files take 70 ms to unpickle, which each task would pay otherwise.
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

    A claim has one, two or a multiple of four splits of equal size, like cores, so that tasks end
    together. A task takes splits of up to `split_bytes` in all, SPLITS_PER_TASK_MAX at most: small
    files make few tasks, but more than one. `whole` has the ordinals of claims that cannot be cut
    (gzip, multiline CSV).
    """
    splits: list[Split] = []
    task = task_bytes = count = 0
    for claim in claims:
        size = claim.end - claim.start
        parts = 1 if claim.ordinal in whole else max(1, -(-size // split_bytes))
        parts = parts if parts <= 2 else -(-parts // 4) * 4
        step = max(1, -(-size // parts))
        # An empty claim has one split, because its content is part of the input too.
        for start in range(claim.start, max(claim.end, claim.start + 1), step):
            end = min(start + step, claim.end)
            full = task_bytes + end - start > split_bytes or count == SPLITS_PER_TASK_MAX
            if task_bytes and full:
                task, task_bytes, count = task + 1, 0, 0
            task_bytes, count = task_bytes + end - start, count + 1
            splits.append(Split(number=len(splits), task=task, claim=claim, start=start, end=end))
    return Splits(splits)
