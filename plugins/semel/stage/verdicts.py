"""The stored verdicts of a batch: which of its records did not survive, and why.

The driver checks the decisions and dead letters, and reads the verdicts from them. For each task it
writes a file of positions: those that a replay leaves out, or those that an admission judges again.
After a replay's job it adds the records left out to the tasks' counts.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semel.archive.marker import Marker
from semel.errors import CorruptionError
from semel.formats.selection import NONE, Selection
from semel.model.batch import Counts
from semel.model.manifest import Kind, MarkedFile, SplitReport
from semel.model.split import Split, Splits

_COLUMNS = pa.schema(
    [
        ("source_partition_id", pa.int64()),
        ("offset", pa.int64()),
        ("reason", pa.dictionary(pa.int32(), pa.string())),
    ]
)
_DUPLICATES = ("duplicate_in_batch", "duplicate_in_catalog")
_LATE = "late"


@dataclass(frozen=True, kw_only=True, eq=False)
class Verdicts:
    """Positions (source partition and offset, int64, ascending), each with a reason.

    `reason` holds indices into `reasons`.
    """

    batch_id: int
    partition: np.ndarray
    offset: np.ndarray
    reason: np.ndarray
    reasons: tuple[str, ...]

    def letters(self) -> "Verdicts":
        """Only the verdicts from dead letters."""
        own = [why not in _DUPLICATES for why in self.reasons]
        return self._where(np.array([*own, False])[self.reason])

    def without(self, others: "Verdicts") -> "Verdicts":
        """The verdicts at positions where `others` has none."""
        left = np.ones(len(self.offset), bool)
        for part in np.unique(others.partition):
            own = self.partition == part
            left[own] = ~np.isin(self.offset[own], others.offset[others.partition == part])
        return self._where(left)

    def _where(self, left: np.ndarray) -> "Verdicts":
        return replace(
            self,
            partition=self.partition[left],
            offset=self.offset[left],
            reason=self.reason[left],
        )

    def select(self, folder: Path, splits: Splits, *, only: bool, judged: bool) -> "Selected":
        """Write for each task the positions in its splits, if any. See `Selected`."""
        tasks = []
        for task in splits.tasks:
            parts = [self.offset[self._of(split)] for split in splits.of_task(task)]
            if any(map(len, parts)):
                ends = np.cumsum([len(part) for part in parts])
                np.savez(_file(folder, task), ends=ends, offsets=np.concatenate(parts))
                tasks.append(task)
        return Selected(folder=folder, tasks=frozenset(tasks), only=only, judged=judged)

    def settled(self, reports: list[SplitReport], splits: Splits) -> list[SplitReport]:
        """The reports, with the records that the tasks left out counted in."""
        return [
            self._settled(report, split) for report, split in zip(reports, splits, strict=True)
        ]

    def _settled(self, report: SplitReport, split: Split) -> SplitReport:
        own = self.reason[self._of(split)]
        found = np.bincount(own, minlength=len(self.reasons)).tolist()
        counted = {why: n for why, n in zip(self.reasons, found, strict=True) if n}
        within, earlier = (counted.pop(why, 0) for why in _DUPLICATES)
        late = counted.get(_LATE, 0)
        counts = replace(
            report.counts,
            records_read=report.counts.survivors + len(own),
            duplicates_batch=within,
            duplicates_catalog=earlier,
            late=late,
            quarantined=sum(counted.values()) - late,
        )
        return replace(report, counts=counts, reasons=counted)

    def _of(self, split: Split) -> slice:
        """The places of a split's positions."""
        part = split.claim.source_partition_id
        first, behind = np.searchsorted(self.partition, [part, part + 1])
        low, high = np.searchsorted(self.offset[first:behind], [split.start, split.end])
        return slice(first + low, first + high)


def check(marker: Marker, counts: Counts) -> None:
    """CorruptionError: a file of the verdicts is gone or damaged, or the files do not have as many
    records as were counted. `read` finds the rest.
    """
    files = _files(marker)
    for file in files:
        _check_file(marker, file)
    counted = counts.duplicates_batch, counts.duplicates_catalog, counts.quarantined, counts.late
    there = sum(file.records for file in files)
    if there != sum(counted):
        raise CorruptionError(
            f"batch {marker.batch_id}: its decisions and dead letters are {there:,} records, and "
            f"it counted {sum(counted):,}; restore them from a backup"
        )


# Keeps RP1.
def read(marker: Marker, counts: Counts) -> Verdicts:
    """The verdicts of a finalized batch whose winner counted `counts`.

    CorruptionError: a file of them is gone or damaged, or they differ from the counts.
    """
    tables = [_COLUMNS.empty_table(), *(_table(marker, file) for file in _files(marker))]
    table = pa.concat_tables(tables).unify_dictionaries()
    partition, offset = (table.column(name).to_numpy() for name in _COLUMNS.names[:2])
    order = np.lexsort((offset, partition))
    partition, offset = partition[order], offset[order]
    if np.any((partition[1:] == partition[:-1]) & (offset[1:] == offset[:-1])):
        raise CorruptionError(
            f"batch {marker.batch_id}: its decisions and dead letters name a position twice; "
            "restore them from a backup"
        )
    words = table.column("reason").combine_chunks()
    verdicts = Verdicts(
        batch_id=marker.batch_id,
        partition=partition,
        offset=offset,
        reason=words.indices.to_numpy()[order],
        reasons=tuple(words.dictionary.to_pylist()),
    )
    _check_counts(verdicts, counts)
    return verdicts


def _files(marker: Marker) -> list[MarkedFile]:
    return [*marker.of_kind(Kind.DECISIONS), *marker.of_kind(Kind.DEAD_LETTERS)]


def _table(marker: Marker, file: MarkedFile) -> pa.Table:
    _check_file(marker, file)
    path = marker.path_of(file)
    try:
        with pq.ParquetFile(path, read_dictionary=["reason"]) as letters:
            return letters.read(columns=_COLUMNS.names, use_threads=False).cast(_COLUMNS)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(marker, file, error) from error


def _check_file(marker: Marker, file: MarkedFile) -> None:
    try:
        whole = marker.is_whole(file)
    except OSError as error:
        raise _unreadable(marker, file, error) from error
    if not whole:
        raise CorruptionError(
            f"batch {marker.batch_id}: {marker.path_of(file)} is not what its marker says (size or "
            "checksum), so nobody knows which of its records survived; restore it from a backup"
        )


def _unreadable(marker: Marker, file: MarkedFile, error: Exception) -> CorruptionError:
    return CorruptionError(
        f"batch {marker.batch_id}: its {file.kind} {marker.path_of(file)} cannot be read "
        f"({error}), so nobody knows which of its records survived; restore it from a backup"
    )


def _check_counts(verdicts: Verdicts, counts: Counts) -> None:
    found = np.bincount(verdicts.reason, minlength=len(verdicts.reasons)).tolist()
    named = dict(zip(verdicts.reasons, found, strict=True))
    within, earlier = (named.pop(why, 0) for why in _DUPLICATES)
    late = named.pop(_LATE, 0)
    there = within, earlier, sum(named.values()), late
    wanted = (
        counts.duplicates_batch, counts.duplicates_catalog, counts.quarantined, counts.late,
    )  # fmt: skip
    if there != wanted:
        raise CorruptionError(
            f"batch {verdicts.batch_id}: its decisions and dead letters name {there} repeats in "
            "the batch, repeats of the catalog, quarantined and late records, and it counted "
            f"{wanted}; restore them from a backup"
        )


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The records of its ranges that a job takes, by files of positions that the driver wrote.

    It goes to tasks. `only`: the job takes the records at the positions, else all others. `judged`:
    it judges them like new records, else each is a survivor. `tasks`: those with a file.
    """

    folder: Path
    tasks: frozenset[int]
    only: bool
    judged: bool

    def of(self, split: Split, splits: Splits) -> Selection:
        """The selection for a split. FileNotFoundError: its file is gone."""
        if split.task not in self.tasks:
            return Selection(offsets=NONE, only=self.only)
        ends, offsets = _left(_file(self.folder, split.task))
        place = split.number - splits.of_task(split.task)[0].number
        own = offsets[ends[place - 1] if place else 0 : ends[place]]
        return Selection(offsets=own, only=self.only)


@lru_cache(maxsize=1)
def _left(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """One task's file: where the offsets of each of its splits end, and the offsets."""
    with np.load(path) as left:
        return left["ends"], left["offsets"]


def _file(folder: Path, task: int) -> Path:
    return folder / f"v{task:05d}.npz"
