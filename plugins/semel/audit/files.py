"""Compares markers with the files below the sink: each exists, is whole, and is listed once."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from semel.archive import layout, note
from semel.archive.marker import Marker, marker_paths, read_marker
from semel.audit.verdict import Findings, Offender
from semel.errors import CorruptionError
from semel.formats.table import sink_format
from semel.model.batch import Claim
from semel.model.manifest import Kind, MarkedFile
from semel.storage import ArchivePath, checksum, files_below as stored_below, packs, readable, stat

_SCHEMAS = {
    Kind.DECISIONS: ("source_partition_id", "offset", "reason", "record_id"),
    Kind.DEAD_LETTERS: ("source_partition_id", "offset", "reason", "raw"),
    Kind.CLAIMS: tuple(field.name for field in fields(Claim)),
    Kind.IDS: ("h1", "h2"),
}


def files_below(sink: Path | None, archive: ArchivePath) -> set[ArchivePath]:
    """All files below a sink and its archive, except staging, markers, packs of markers, texts of
    code, adopt's notes, and the archive's hidden files, which are remains of a crash."""
    skipped = {layout.staging(archive), layout.markers(archive), layout.adoptions(archive)}
    skipped.add(layout.code(archive))
    found = {
        path
        for root in {sink or archive, archive}
        for path in stored_below(root, skipped)
        if not (path.name.startswith(".") and path.is_relative_to(archive))
    }
    return found.difference(packs.paths(archive))


def read_markers(
    sink: Path | None, archive: ArchivePath, pipeline: str, findings: Findings
) -> list[Marker]:
    """The whole markers, in the order of commits. Blames the others."""
    markers: list[Marker] = []
    for path in _readable_marker_paths(archive, findings):
        findings.examine("markers")
        try:
            marker = read_marker(path, sink)
            _ = marker.claims  # Raises here, if anywhere: they are cached.
        except CorruptionError as error:
            findings.blame("markers", Offender(what=str(error), file=str(path)))
            continue
        if marker.pipeline != pipeline:
            what = f"it belongs to pipeline {marker.pipeline!r}"
            findings.blame("markers", Offender(what=what, batch=marker.batch_id, file=str(path)))
        markers.append(marker)
    markers.sort(key=lambda marker: marker.commit_seq)
    _check_order(markers, _lost_commits(archive, findings), findings)
    return markers


def _readable_marker_paths(archive: ArchivePath, findings: Findings) -> list[ArchivePath]:
    """The paths of the markers. Blames each damaged pack; then those of all packs are missing."""
    damaged = 0
    for path in packs.paths(archive):
        findings.examine("markers")
        try:
            packs.read(path)
        except CorruptionError as error:
            damaged += 1
            findings.blame("markers", Offender(what=str(error), file=str(path)))
    if damaged:
        return sorted(layout.markers(archive).glob("b*.json"))
    return marker_paths(archive)


def _lost_commits(archive: ArchivePath, findings: Findings) -> set[int]:
    """The commits that a lost ledger took with it, by adopt's note."""
    try:
        return note.read_notes(archive)
    except CorruptionError as error:
        findings.blame("markers", Offender(what=str(error)))
        return set()


def _check_order(markers: list[Marker], lost: set[int], findings: Findings) -> None:
    expected = 1
    for marker in markers:
        if marker.commit_seq < expected:
            what = f"another batch has the commit number {marker.commit_seq}, too"
            findings.blame("markers", Offender(what=what, batch=marker.batch_id))
        elif missing := set(range(expected, marker.commit_seq)) - lost:
            first, last = min(missing), max(missing)
            commits = f"commit {first} has" if first == last else f"commits {first} to {last} have"
            what = (
                f"{commits} no marker, and batch {marker.batch_id} after it does: either finalize "
                "has not finished it (run finalize), or its marker was removed"
            )
            findings.blame("markers", Offender(what=what), count=len(missing))
        expected = max(expected, marker.commit_seq + 1)


def check_files(
    paths: set[ArchivePath],
    markers: list[Marker],
    replaced: Iterable[ArchivePath],
    findings: Findings,
) -> set[int]:
    """Compare each listed file with its marker, and blame files that no marker lists.

    `replaced`: files of outputs that replays replaced. Returns the batches whose only damage is
    missing output files: a replay makes their output again.
    """
    owner: dict[ArchivePath, int] = {}
    lacking, wrong = set[int](), set[int]()
    for marker in markers:
        for file in marker.files:
            if file.kind is Kind.DATA and marker.sink is None:
                continue  # A table has its rows.
            findings.examine("files")
            path = path_of(marker, file)
            first = owner.setdefault(path, marker.batch_id)
            what = file_problem(path, file, marker.spec.sink.format)
            if first != marker.batch_id:
                what = f"batch {first} lists it too"
            elif sum(other.path == file.path for other in marker.files) > 1:
                what = "its marker lists it twice"
            if what:
                missing = file.kind is Kind.DATA and not exists(path)
                (lacking if missing else wrong).add(marker.batch_id)
                findings.blame(
                    "files", Offender(what=what, batch=marker.batch_id, file=str(path))
                )
        ids = [file.records for file in marker.of_kind(Kind.IDS)]
        survivors = marker.counts.survivors
        if marker.has_added_ids:  # Its survivors may share an id or lack one.
            owner[layout.ids_list(marker.archive, marker.batch_id)] = marker.batch_id
            survivors = min(survivors, sum(ids))
        if ids and sum(ids) != survivors and not marker.erased:
            what = f"its ids files have {sum(ids)} ids for {survivors} survivors"
            findings.blame("files", Offender(what=what, batch=marker.batch_id))
    findings.examine("strays", len(paths))
    # Keeps D11.
    added = (path for marker in markers for path in marker.added_ids_paths.values())
    for path in sorted(paths.difference(owner, replaced, added)):
        what = "no marker lists it: finalize is at work on its batch, or semel did not write it"
        findings.blame("strays", Offender(what=what, file=str(path)))
    return lacking - wrong


def path_of(marker: Marker, file: MarkedFile) -> ArchivePath:
    """The path of a listed file, without `..` in it."""
    path = marker.path_of(file)
    return Path(os.path.normpath(path)) if isinstance(path, Path) else path


def exists(path: ArchivePath) -> bool:
    """Whether a name exists, even that of a broken link."""
    try:
        stat(path)
    except OSError:
        return False
    return True


def file_problem(path: ArchivePath, file: MarkedFile, form: str) -> str | None:
    """The problem of a listed file, or None. `form` is the format of the output."""
    try:
        size = stat(path).size
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if size != file.bytes:
        return f"it has {size} bytes, not {file.bytes}"
    if (actual := checksum(path)) != file.checksum:
        return f"its bytes were changed: checksum {actual}, not {file.checksum}"
    try:
        name = form if file.kind is Kind.DATA else "parquet"
        rows = sink_format(name).code().count_rows(readable(path))
        missing = set(_SCHEMAS.get(file.kind, ())) - set(_columns(path, file))
    except (pa.ArrowException, OSError) as error:
        return f"it cannot be read ({error})"
    if rows != file.records:
        return f"it has {rows} rows, not {file.records}"
    return f"it lacks the columns {sorted(missing)}" if missing else None


def _columns(path: ArchivePath, file: MarkedFile) -> list[str]:
    return [] if file.kind is Kind.DATA else pq.read_schema(readable(path)).names


def check_code(markers: list[Marker], findings: Findings) -> None:
    """Compare each text of a marker's code with its digest, each text once."""
    checked: set[ArchivePath] = set()
    for marker in markers:
        if marker.code is None:
            continue
        if marker.code.digest != marker.code_digest:
            what = "its code_digest does not match its code"
            findings.blame("code", Offender(what=what, batch=marker.batch_id))
        for name, path in marker.code.text_paths(layout.code(marker.archive)).items():
            if path in checked:
                continue
            checked.add(path)
            findings.examine("code")
            try:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                what = f"was changed: its SHA-256 now begins with {digest[:12]}"
            except OSError as error:
                digest, what = None, f"cannot be read ({error.strerror})"
            if digest != marker.code.files[name]:
                what = f"the text of {name!r} {what}"
                findings.blame("code", Offender(what=what, batch=marker.batch_id, file=str(path)))


def check_claims(markers: list[Marker], findings: Findings) -> None:
    """Blame empty claims, and positions of a source partition that two batches claim."""
    claims = sorted(
        (c.source_partition_id, c.start, c.end, m.batch_id, c.name, m.spec.source.unit)
        for m in markers
        for c in m.claims
        if c.end or c.evidence.get("rows") != 0
    )
    findings.examine("claims", len(claims))
    reached: dict[int, tuple[int, int]] = {}
    for part, start, end, batch, name, unit in claims:
        last_end, owner = reached.get(part, (0, 0))
        if start >= end:
            findings.blame(
                "claims", Offender(what="it is empty", batch=batch, file=name, offset=start)
            )
        if start < last_end:
            what = f"{unit} {start} to {min(end, last_end)} belong to batch {owner} too"
            findings.blame("claims", Offender(what=what, batch=batch, file=name, offset=start))
        reached[part] = max((last_end, owner), (end, batch))
