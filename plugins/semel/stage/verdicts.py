"""The stored verdicts of a batch: which records did not survive, and why.

The driver checks the decisions and dead letters, and reads the verdicts from them. For each task it
writes a file of positions that a replay leaves out, or that an admission judges again. After a
replay's job it adds the records left out to the tasks' counts.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semel.archive.marker import Marker
from semel.errors import CorruptionError
from semel.formats.selection import NO_OFFSETS, Selection
from semel.model.batch import Counts
from semel.model.manifest import Kind, MarkedFile, SplitReport
from semel.model.split import Split, Splits
from semel.stage.ids_file import read_arrays, write_arrays
from semel.storage import ArchivePath, readable

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
        is_letter = [why not in _DUPLICATES for why in self.reasons]
        return self._filter(np.array([*is_letter, False])[self.reason])

    def without(self, others: "Verdicts") -> "Verdicts":
        """The verdicts except those at positions in `others`."""
        mask = np.ones(len(self.offset), bool)
        for part in np.unique(others.partition):
            in_part = self.partition == part
            other_offsets = others.offset[others.partition == part]
            mask[in_part] = ~np.isin(self.offset[in_part], other_offsets)
        return self._filter(mask)

    def _filter(self, mask: np.ndarray) -> "Verdicts":
        return replace(
            self,
            partition=self.partition[mask],
            offset=self.offset[mask],
            reason=self.reason[mask],
        )

    def select(
        self, folder: ArchivePath, splits: Splits, *, only: bool, judged: bool
    ) -> "Selected":
        """Write the positions in each task's splits to a file, if it has any. See `Selected`."""
        tasks = []
        for task in splits.tasks:
            parts = [self.offset[self._range(split)] for split in splits.of_task(task)]
            if any(map(len, parts)):
                ends = np.cumsum([len(part) for part in parts])
                write_arrays(_file(folder, task), ends=ends, offsets=np.concatenate(parts))
                tasks.append(task)
        return Selected(folder=folder, tasks=frozenset(tasks), only=only, judged=judged)

    def add_left_out(self, reports: list[SplitReport], splits: Splits) -> list[SplitReport]:
        """Add the records that the tasks left out to the counts of the reports."""
        return [
            self._add_left_out(report, split) for report, split in zip(reports, splits, strict=True)
        ]

    def _add_left_out(self, report: SplitReport, split: Split) -> SplitReport:
        in_split = self.reason[self._range(split)]
        counts_by_reason = np.bincount(in_split, minlength=len(self.reasons)).tolist()
        counted = {why: n for why, n in zip(self.reasons, counts_by_reason, strict=True) if n}
        within, earlier = (counted.pop(why, 0) for why in _DUPLICATES)
        late = counted.get(_LATE, 0)
        counts = replace(
            report.counts,
            records_read=report.counts.survivors + len(in_split),
            duplicates_batch=within,
            duplicates_catalog=earlier,
            late=late,
            quarantined=sum(counted.values()) - late,
        )
        return replace(report, counts=counts, reasons=counted)

    def _range(self, split: Split) -> slice:
        """The indices of a split's positions."""
        part = split.claim.source_partition_id
        first, end = np.searchsorted(self.partition, [part, part + 1])
        low, high = np.searchsorted(self.offset[first:end], [split.start, split.end])
        return slice(first + low, first + high)


def check(marker: Marker, counts: Counts) -> None:
    """Raises CorruptionError if a file of the verdicts is missing or damaged, or the number of
    records differs from the counts. `read` detects other damage.
    """
    files = _files(marker)
    for file in files:
        _check_file(marker, file)
    counted = counts.duplicates_batch, counts.duplicates_catalog, counts.quarantined, counts.late
    stored = sum(file.records for file in files)
    if stored != sum(counted):
        raise CorruptionError(
            f"batch {marker.batch_id}: its decisions and dead letters have {stored:,} records, but "
            f"the batch counted {sum(counted):,}. Restore them from a backup"
        )


# Keeps RP1.
def read(marker: Marker, counts: Counts) -> Verdicts:
    """Read the verdicts of a finalized batch whose winner counted `counts`.

    Raises CorruptionError if a file is missing or damaged, or the verdicts differ from the counts.
    """
    tables = [_COLUMNS.empty_table(), *(_table(marker, file) for file in _files(marker))]
    table = pa.concat_tables(tables).unify_dictionaries()
    partition, offset = (table.column(name).to_numpy() for name in _COLUMNS.names[:2])
    order = np.lexsort((offset, partition))
    partition, offset = partition[order], offset[order]
    if np.any((partition[1:] == partition[:-1]) & (offset[1:] == offset[:-1])):
        raise CorruptionError(
            f"batch {marker.batch_id}: its decisions and dead letters name a position twice. "
            "Restore them from a backup"
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
        with pq.ParquetFile(readable(path), read_dictionary=["reason"]) as letters:
            return letters.read(columns=_COLUMNS.names, use_threads=False).cast(_COLUMNS)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(marker, file, error) from error


def _check_file(marker: Marker, file: MarkedFile) -> None:
    try:
        intact = marker.is_whole(file)
    except OSError as error:
        raise _unreadable(marker, file, error) from error
    if not intact:
        raise CorruptionError(
            f"batch {marker.batch_id}: {marker.path_of(file)} differs from its marker (size or "
            "checksum), so semel does not know which records survived. Restore it from a backup"
        )


def _unreadable(marker: Marker, file: MarkedFile, error: Exception) -> CorruptionError:
    return CorruptionError(
        f"batch {marker.batch_id}: its {file.kind} {marker.path_of(file)} cannot be read "
        f"({error}), so semel does not know which records survived. Restore it from a backup"
    )


def _check_counts(verdicts: Verdicts, counts: Counts) -> None:
    totals = np.bincount(verdicts.reason, minlength=len(verdicts.reasons)).tolist()
    named = dict(zip(verdicts.reasons, totals, strict=True))
    within, earlier = (named.pop(why, 0) for why in _DUPLICATES)
    late = named.pop(_LATE, 0)
    stored = within, earlier, sum(named.values()), late
    wanted = (
        counts.duplicates_batch, counts.duplicates_catalog, counts.quarantined, counts.late,
    )  # fmt: skip
    if stored != wanted:
        raise CorruptionError(
            f"batch {verdicts.batch_id}: its decisions and dead letters name {stored} repeats in "
            "the batch, repeats of the catalog, quarantined and late records, but the batch "
            f"counted {wanted}. Restore them from a backup"
        )


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The records that a job takes from its ranges, by files of positions from the driver.

    Tasks receive it. `only`: the job takes the records at the positions, else all others.
    `judged`: it judges them like new records, else each is a survivor. `tasks`: tasks with a file.
    """

    folder: ArchivePath
    tasks: frozenset[int]
    only: bool
    judged: bool

    def of(self, split: Split, splits: Splits) -> Selection:
        """The selection for a split. Raises FileNotFoundError if its file is missing."""
        if split.task not in self.tasks:
            return Selection(offsets=NO_OFFSETS, only=self.only)
        ends, offsets = _load_positions(_file(self.folder, split.task))
        place = split.number - splits.of_task(split.task)[0].number
        in_split = offsets[ends[place - 1] if place else 0 : ends[place]]
        return Selection(offsets=in_split, only=self.only)


@lru_cache(maxsize=1)
def _load_positions(path: ArchivePath) -> tuple[np.ndarray, np.ndarray]:
    """Read a task's file: where the offsets of each split end, and the offsets."""
    arrays = read_arrays(path)
    return arrays["ends"], arrays["offsets"]


def _file(folder: ArchivePath, task: int) -> ArchivePath:
    return folder / f"v{task:05d}.npz"
