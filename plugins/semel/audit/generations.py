"""The outputs that replays replaced. The archive keeps their markers in `replaced/`.

Generation 1 is the batch's first output. Its declaration proves the verdicts on the records; the
newest one's proves the rows. A replay may have other claims than the generation before it, if
another pipeline has replaced its output. Such a replay takes the place of generation 1 for all
later ones. collect removes the files of a replaced output some time later. Each remaining file must
be whole, and no current marker may list it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from semel.archive import layout
from semel.archive.marker import Marker, judging_output, read_marker
from semel.audit.files import exists, file_problem, path_of
from semel.audit.verdict import Findings, Offender
from semel.errors import CorruptionError
from semel.model.batch import OF_THE_OUTPUT
from semel.model.manifest import Kind, MarkedFile
from semel.storage import ArchivePath

_NAME = re.compile(r"b(\d{8,18})-g(\d{4,9})\.json")
_CHECK = "generations"
_OUTPUT_KINDS = (Kind.DATA, Kind.REFUSED)
_BATCH_FIELDS = (
    "pipeline", "fence", "request_key", "commit_seq", "batch_time", "interval", "bucket_seconds",
    "admits", "buckets",
)  # fmt: skip
"""Fields of a marker that a replay MUST NOT change."""


@dataclass(frozen=True, kw_only=True)
class Generations:
    """The readable markers of replaced outputs, by batch and generation, and all their files."""

    replaced: dict[int, dict[int, Marker]] = field(default_factory=dict)
    paths: frozenset[ArchivePath] = frozenset()

    def judging_marker(self, marker: Marker) -> Marker | None:
        """The marker whose declaration judged a batch's records. None if it is unreadable."""
        readable = {**self.replaced.get(marker.batch_id, {}), marker.generation: marker}
        judge = judging_output([readable[number] for number in sorted(readable)])
        return judge if judge.generation == 1 or judge.generation - 1 in readable else None

    @property
    def markers(self) -> list[Marker]:
        """The markers of all replaced outputs."""
        return [marker for each in self.replaced.values() for _, marker in sorted(each.items())]

    @property
    def numbers(self) -> set[int]:
        """The ids of the batches that wrote the replaced outputs."""
        return {marker.writer_id for marker in self.markers}


def read_generations(
    sink: Path | None, archive: ArchivePath, markers: list[Marker], findings: Findings
) -> Generations:
    """Read the markers in `replaced/`, and compare them with `markers`, which were read earlier.

    Skips a copy of a marker that is still the newest one: finalize is at work on its replay.
    """
    newest = {marker.batch_id: marker for marker in markers}
    replaced: dict[int, dict[int, Marker]] = {m.batch_id: {} for m in markers if m.generation > 1}
    unreadable: set[tuple[int, int]] = set()
    paths = set()
    for path in _replaced_marker_paths(archive):
        match = _NAME.fullmatch(path.name)
        batch, generation = (int(match[1]), int(match[2])) if match else (0, 0)
        if path != layout.replaced_marker(archive, batch, generation):
            continue
        paths.add(path)
        marker = newest.get(batch)
        if marker is None:
            what = f"this replaced marker belongs to batch {batch}, whose current marker is missing"
            findings.blame(_CHECK, Offender(what=what, batch=batch, file=str(path)))
        elif generation < marker.generation:
            try:
                replaced[batch][generation] = read_marker(path, sink)
                _ = replaced[batch][generation].claims  # Raises here, if anywhere: they are cached.
            except CorruptionError as error:
                unreadable.add((batch, generation))
                replaced[batch].pop(generation, None)
                findings.blame(_CHECK, Offender(what=str(error), batch=batch, file=str(path)))
    result = Generations(replaced=replaced)
    _check_generations(archive, newest, result, unreadable, findings)
    files = {path_of(m, f) for m in result.markers for f in _replaced_files(m, newest[m.batch_id])}
    return replace(result, paths=frozenset(paths | files))


def _replaced_marker_paths(archive: ArchivePath) -> list[ArchivePath]:
    return sorted(layout.replaced_marker(archive, 0, 1).parent.glob("*"))


def _output_files(marker: Marker) -> list[MarkedFile]:
    """The files with an output's rows, which collect removes some time after a replay."""
    kinds = _OUTPUT_KINDS if marker.sink else _OUTPUT_KINDS[1:]
    return [file for file in marker.files if file.kind in kinds]


def _replaced_files(old: Marker, newest: Marker) -> list[MarkedFile]:
    """The files of a replaced output that the newest one does not share. If a later replay has
    judged the records again, decisions and dead letters stay in the archive.
    """
    verdicts = _shared_files(old) if old.claims != newest.claims else ()
    return [*_output_files(old), *verdicts]


def _check_generations(
    archive: ArchivePath,
    newest: dict[int, Marker],
    read: Generations,
    unreadable: set[tuple[int, int]],
    findings: Findings,
) -> None:
    current = {path_of(m, f) for m in newest.values() for f in m.files if m.sink or f.kind != "data"}
    by_writer: dict[int, Marker] = {}
    for marker in (*newest.values(), *read.markers):
        other = by_writer.setdefault(marker.writer_id, marker)
        if other is not marker:
            what = f"batch {marker.writer_id} wrote this output and also generation "
            what += f"{other.generation} of batch {other.batch_id}"
            _blame(findings, marker, what)
    for batch, generations in read.replaced.items():
        marker = newest[batch]
        for generation in range(1, marker.generation):
            findings.examine(_CHECK)
            old = generations.get(generation)
            if old is not None:
                for what, path in _problems(old, marker, generations, current):
                    _blame(findings, old, what, path)
            elif (batch, generation) not in unreadable:
                path = layout.replaced_marker(archive, batch, generation)
                what = f"a replay replaced generation {generation}, and its marker is missing"
                findings.blame(_CHECK, Offender(what=what, batch=batch, file=str(path)))


def _blame(findings: Findings, marker: Marker, what: str, path: ArchivePath | None = None) -> None:
    what = f"generation {marker.generation}: {what}"
    file = str(path or marker.path)
    findings.blame(_CHECK, Offender(what=what, batch=marker.batch_id, file=file))


def _problems(
    old: Marker, newest: Marker, generations: dict[int, Marker], current: set[ArchivePath]
) -> list[tuple[str, ArchivePath | None]]:
    """The problems of a replaced output, each with its file; None stands for the marker."""
    problems: list[tuple[str, ArchivePath | None]] = []
    for name in _BATCH_FIELDS:
        if getattr(old, name) != getattr(newest, name):
            problems.append((f"its {name} differs from the current marker's", None))
    successor = generations.get(old.generation + 1, newest)
    problems += _differences(old, successor)
    if successor.writer_id <= old.writer_id:
        what = f"batch {old.writer_id} wrote it, and batch {successor.writer_id} replaced it"
        problems.append((f"{what}; a replay must be a later batch", None))
    if old.sink and sum(file.records for file in _output_files(old)) != old.counts.rows_written:
        problems.append((f"its files do not have its {old.counts.rows_written} rows", None))
    for file in _output_files(old):
        path = path_of(old, file)
        if path in current:
            problems.append(("a replay replaced it, but a current marker lists it", path))
        # Test existence last: collect may be removing it.
        elif (what := file_problem(path, file, old.spec.sink.format)) and exists(path):
            problems.append((what, path))
    return problems


def _differences(old: Marker, successor: Marker) -> Iterator[tuple[str, None]]:
    """Changes that a replay must not make. A replay with claims of its own is not comparable with
    `old`, so this then only checks the counts of `old`: its source may no longer exist.
    """
    if old.claims != successor.claims:
        parts = [{c.ordinal: c.name for c in marker.claims} for marker in (old, successor)]
        if successor.spec.record_id or parts[0] != parts[1]:
            yield "it claims other ranges than its replay", None
        counts, claimed = old.counts, sum(c.end - c.start for c in old.claims)
        if counts.records_read != claimed or not counts.add_up:
            yield f"its counts do not add up to its {claimed} claimed records", None
        kinds = (Kind.DECISIONS, Kind.DEAD_LETTERS)
        dropped = sum(file.records for kind in kinds for file in old.of_kind(kind))
        if dropped != claimed - counts.survivors:
            expected = claimed - counts.survivors
            yield f"it has {dropped} decisions and dead letters, not {expected}", None
        return
    if old.input_digest != successor.input_digest:
        yield "its input_digest differs from its replay's", None
    for name, number in vars(old.counts).items():
        later = getattr(successor.counts, name)
        if name not in OF_THE_OUTPUT and number != later:
            yield f"its marker has {name} = {number}, its replay's has {later}", None
    if _shared_files(old) != _shared_files(successor) and not successor.erased:
        yield "its decisions, dead letters, ids or claims differ from its replay's", None


def _shared_files(marker: Marker) -> set[MarkedFile]:
    """The files that a replay takes over: decisions, dead letters, ids and claims."""
    return {file for file in marker.files if file.kind not in _OUTPUT_KINDS}
