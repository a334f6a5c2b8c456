"""The outputs that replays replaced: each has its marker kept aside, beside the one that counts.

Generation 1 is the batch's own output: what became of its records is proven by its declaration, and
what the rows must be by the newest one's. A replay of what another pipeline has replaced has other
claims than the one before: it stands in the place of generation 1 for all that follow. The files of
a replaced output are removed some time after, so any of them may be gone; one that is there is
whole, and no marker that counts lists it.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from semel.archive import layout
from semel.archive.marker import Marker, judging_output, read_marker
from semel.audit.files import trouble
from semel.audit.verdict import Findings, Offender
from semel.errors import CorruptionError
from semel.model.batch import OF_THE_OUTPUT
from semel.model.manifest import Kind, MarkedFile

_NAME = re.compile(r"b(\d{8,18})-g(\d{4,9})\.json")
_CHECK = "generations"
_OWN = (Kind.DATA, Kind.REFUSED)
_OF_THE_BATCH = (
    "pipeline", "fence", "request_key", "commit_seq", "batch_time", "interval", "bucket_seconds",
    "admits", "buckets",
)  # fmt: skip
"""What a replay leaves as it was."""


@dataclass(frozen=True, kw_only=True)
class Generations:
    """The markers of replaced outputs, by batch and generation, and all files that belong to them.

    Those that cannot be read are left out; they were blamed.
    """

    replaced: dict[int, dict[int, Marker]] = field(default_factory=dict)
    paths: frozenset[Path] = frozenset()

    def judged(self, marker: Marker) -> Marker | None:
        """The marker by which a batch's records were judged. None: it cannot be read."""
        there = {**self.replaced.get(marker.batch_id, {}), marker.generation: marker}
        judge = judging_output([there[number] for number in sorted(there)])
        return judge if judge.generation == 1 or judge.generation - 1 in there else None

    @property
    def markers(self) -> list[Marker]:
        """The markers of all replaced outputs."""
        return [marker for found in self.replaced.values() for _, marker in sorted(found.items())]

    @property
    def numbers(self) -> set[int]:
        """The numbers of the batches that wrote the replaced outputs."""
        return {marker.writer_id for marker in self.markers}


def read(
    sink: Path | None, kept: Path, markers: list[Marker], findings: Findings
) -> Generations:
    """Read what was kept aside, after the markers, and hold it against them.

    A marker that is kept aside and not replaced yet proves nothing: its replay is being finalized.
    """
    newest = {marker.batch_id: marker for marker in markers}
    replaced: dict[int, dict[int, Marker]] = {m.batch_id: {} for m in markers if m.generation > 1}
    unreadable: set[tuple[int, int]] = set()
    paths = set()
    for path in _kept_aside(kept):
        match = _NAME.fullmatch(path.name)
        batch, generation = (int(match[1]), int(match[2])) if match else (0, 0)
        if path != layout.replaced_marker(kept, batch, generation):
            continue
        paths.add(path)
        marker = newest.get(batch)
        if marker is None:
            what = f"it was kept aside, but batch {batch} has no marker"
            findings.blame(_CHECK, Offender(what=what, batch=batch, file=str(path)))
        elif generation < marker.generation:
            try:
                replaced[batch][generation] = read_marker(path, sink)
                _ = replaced[batch][generation].claims  # From here on they can be read.
            except CorruptionError as error:
                unreadable.add((batch, generation))
                replaced[batch].pop(generation, None)
                findings.blame(_CHECK, Offender(what=str(error), batch=batch, file=str(path)))
    found = Generations(replaced=replaced)
    _check(kept, newest, found, unreadable, findings)
    own = {_path(m, f) for m in found.markers for f in _left(m, newest[m.batch_id])}
    return replace(found, paths=frozenset(paths | own))


def _kept_aside(kept: Path) -> list[Path]:
    return sorted(layout.replaced_marker(kept, 0, 1).parent.glob("*"))


def _files(marker: Marker) -> list[MarkedFile]:
    """The files of an output itself, which go some time after it was replaced."""
    of_files = _OWN if marker.sink else _OWN[1:]
    return [file for file in marker.files if file.kind in of_files]


def _left(old: Marker, newest: Marker) -> list[MarkedFile]:
    """The files of a replaced output that the newest one does not take over. Decisions and dead
    letters of one whose records were judged anew since stay there.
    """
    beside = _beside(old) if old.claims != newest.claims else ()
    return [*_files(old), *beside]


def _path(marker: Marker, file: MarkedFile) -> Path:
    return Path(os.path.normpath(marker.path_of(file)))


def _check(
    kept: Path,
    newest: dict[int, Marker],
    found: Generations,
    unreadable: set[tuple[int, int]],
    findings: Findings,
) -> None:
    counted = {_path(m, f) for m in newest.values() for f in m.files if m.sink or f.kind != "data"}
    made: dict[int, Marker] = {}
    for marker in (*newest.values(), *found.markers):
        other = made.setdefault(marker.writer_id, marker)
        if other is not marker:
            what = f"batch {marker.writer_id} made it, and generation {other.generation} of batch "
            what += f"{other.batch_id} too"
            _blame(findings, marker, what)
    for batch, before in found.replaced.items():
        marker = newest[batch]
        for generation in range(1, marker.generation):
            findings.examine(_CHECK)
            old = before.get(generation)
            if old is not None:
                for what, path in _troubles(old, marker, before, counted):
                    _blame(findings, old, what, path)
            elif (batch, generation) not in unreadable:
                path = layout.replaced_marker(kept, batch, generation)
                what = f"generation {generation} was replaced, and its marker is gone"
                findings.blame(_CHECK, Offender(what=what, batch=batch, file=str(path)))


def _blame(findings: Findings, marker: Marker, what: str, path: Path | None = None) -> None:
    what = f"generation {marker.generation}: {what}"
    file = str(path or marker.path)
    findings.blame(_CHECK, Offender(what=what, batch=marker.batch_id, file=file))


def _troubles(
    old: Marker, newest: Marker, before: dict[int, Marker], counted: set[Path]
) -> list[tuple[str, Path | None]]:
    """What is wrong with a replaced output, and the file that it is about, if not its marker."""
    found: list[tuple[str, Path | None]] = []
    for name in _OF_THE_BATCH:
        if getattr(old, name) != getattr(newest, name):
            found.append((f"its {name} is another than that of the marker", None))
    after = before.get(old.generation + 1, newest)
    found += _differences(old, after)
    if after.writer_id <= old.writer_id:
        why = f"batch {old.writer_id} made it, and batch {after.writer_id} replaced it"
        found.append((why, None))
    if old.sink and sum(file.records for file in _files(old)) != old.counts.rows_written:
        found.append((f"its files do not hold its {old.counts.rows_written} rows", None))
    for file in _files(old):
        path = _path(old, file)
        if path in counted:
            found.append(("it was replaced, and a marker that counts lists it", path))
        # Looked for last: it may be removed just now.
        elif (what := trouble(path, file, old.spec.sink.format)) and os.path.lexists(path):
            found.append((what, path))
    return found


def _differences(old: Marker, after: Marker) -> Iterator[tuple[str, None]]:
    """What a replay has not left as it was, of the ranges that it has not claimed itself. What it
    has claimed anew is held against itself: what was read of it may be gone.
    """
    if old.claims != after.claims:
        parts = [{c.ordinal: c.name for c in marker.claims} for marker in (old, after)]
        if after.spec.record_id or parts[0] != parts[1]:
            yield "it claims other ranges than the marker", None
        counts, claimed = old.counts, sum(c.end - c.start for c in old.claims)
        if counts.records_read != claimed or not counts.accounted:
            yield f"its counts do not add up to the {claimed} records that it claims", None
        kinds = (Kind.DECISIONS, Kind.DEAD_LETTERS)
        dropped = sum(file.records for kind in kinds for file in old.of_kind(kind))
        if dropped != claimed - counts.survivors:
            yield f"its decisions and dead letters are {dropped} records, not as counted", None
        return
    if old.input_digest != after.input_digest:
        yield "its input_digest is another than that of the marker", None
    for name, said in vars(old.counts).items():
        there = getattr(after.counts, name)
        if name not in OF_THE_OUTPUT and said != there:
            yield f"its marker says {name} = {said}, the one that counts {there}", None
    if _beside(old) != _beside(after) and not after.erased:
        yield "it has other decisions, dead letters, ids or claims than the marker", None


def _beside(marker: Marker) -> set[MarkedFile]:
    return {file for file in marker.files if file.kind not in _OWN}
