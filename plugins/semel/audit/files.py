"""What markers list against what lies below the sink: each file there, whole, and listed once."""

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
from semel.storage import checksum

_SCHEMAS = {
    Kind.DECISIONS: ("source_partition_id", "offset", "reason", "record_id"),
    Kind.DEAD_LETTERS: ("source_partition_id", "offset", "reason", "raw"),
    Kind.CLAIMS: tuple(field.name for field in fields(Claim)),
    Kind.IDS: ("h1", "h2"),
}


def below(sink: Path | None, kept: Path) -> set[Path]:
    """All files below a sink and its archive, but for staging (promised to nobody), markers, notes
    of adopt, and hidden ones of the archive, which are left from a crash."""
    skipped = {layout.staging(kept), layout.markers(kept), layout.adoptions(kept)}
    skipped.add(layout.code(kept))
    found = set()
    for root in {sink or kept, kept}:
        for folder, folders, names in os.walk(root):
            here = Path(folder)
            folders[:] = [name for name in folders if here / name not in skipped]
            if here.is_relative_to(kept):
                names = [name for name in names if not name.startswith(".")]
            found.update(here / name for name in names)
    return found


def read_markers(
    sink: Path | None, kept: Path, pipeline: str, findings: Findings
) -> list[Marker]:
    """The markers that are whole, in the order of commits; the others are blamed."""
    found: list[Marker] = []
    for path in marker_paths(kept):
        findings.examine("markers")
        try:
            marker = read_marker(path, sink)
            _ = marker.claims  # From here on they can be read.
        except CorruptionError as error:
            findings.blame("markers", Offender(what=str(error), file=str(path)))
            continue
        if marker.pipeline != pipeline:
            what = f"it belongs to pipeline {marker.pipeline!r}"
            findings.blame("markers", Offender(what=what, batch=marker.batch_id, file=str(path)))
        found.append(marker)
    found.sort(key=lambda marker: marker.commit_seq)
    _check_order(found, _lost(kept, findings), findings)
    return found


def _lost(kept: Path, findings: Findings) -> set[int]:
    """The commits that were lost with a ledger, as adopt wrote down."""
    try:
        return note.read_notes(kept)
    except CorruptionError as error:
        findings.blame("markers", Offender(what=str(error)))
        return set()


def _check_order(markers: list[Marker], lost: set[int], findings: Findings) -> None:
    expected = 1
    for marker in markers:
        if marker.commit_seq < expected:
            what = f"its place {marker.commit_seq} in the order of commits is another batch's too"
            findings.blame("markers", Offender(what=what, batch=marker.batch_id))
        elif missing := set(range(expected, marker.commit_seq)) - lost:
            what = (
                f"commits {min(missing)} to {max(missing)}, before that of batch "
                f"{marker.batch_id}, have no marker: batches that have committed and are not "
                "finalized (run finalize), or whose marker was removed"
            )
            findings.blame("markers", Offender(what=what), count=len(missing))
        expected = max(expected, marker.commit_seq + 1)


def check_files(
    there: set[Path], markers: list[Marker], replaced: Iterable[Path], findings: Findings
) -> set[int]:
    """Hold each listed file against the marker, and find those that none lists.

    `replaced`: what belongs to outputs that replays replaced. Returns the batches of which files of
    the output are gone, and which have no other trouble: a replay makes their output again.
    """
    owner: dict[Path, int] = {}
    gone, wrong = set[int](), set[int]()
    for marker in markers:
        for file in marker.files:
            if file.kind is Kind.DATA and marker.sink is None:
                continue  # Its rows are in a table.
            findings.examine("files")
            path = Path(os.path.normpath(marker.path_of(file)))
            first = owner.setdefault(path, marker.batch_id)
            what = trouble(path, file, marker.spec.sink.format)
            if first != marker.batch_id:
                what = f"batch {first} lists it too"
            elif sum(other.path == file.path for other in marker.files) > 1:
                what = "its marker lists it twice"
            if what:
                again = file.kind is Kind.DATA and not os.path.lexists(path)
                (gone if again else wrong).add(marker.batch_id)
                findings.blame(
                    "files", Offender(what=what, batch=marker.batch_id, file=str(path))
                )
        kept = [file.records for file in marker.of_kind(Kind.IDS)]
        survivors = marker.counts.survivors
        if marker.has_added_ids:  # Some of its survivors have one id, or none.
            owner[layout.ids_list(marker.archive, marker.batch_id)] = marker.batch_id
            survivors = min(survivors, sum(kept))
        if kept and sum(kept) != survivors and not marker.erased:
            what = f"its ids files hold {sum(kept)} ids of {survivors} survivors"
            findings.blame("files", Offender(what=what, batch=marker.batch_id))
    findings.examine("strays", len(there))
    # Keeps D11.
    left = (path for marker in markers for path in marker.added_ids_paths.values())
    for path in sorted(there.difference(owner, replaced, left)):
        what = "no marker lists it: its batch is being finalized just now, or it was put there"
        findings.blame("strays", Offender(what=what, file=str(path)))
    return gone - wrong


def trouble(path: Path, file: MarkedFile, form: str) -> str | None:
    """What is wrong with a listed file; `form` is the format of the output."""
    try:
        size = path.lstat().st_size
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if size != file.bytes:
        return f"it has {size} bytes, not {file.bytes}"
    if (found := checksum(path)) != file.checksum:
        return f"its bytes were changed: checksum {found}, not {file.checksum}"
    try:
        held = form if file.kind is Kind.DATA else "parquet"
        rows = sink_format(held).code().rows(path)
        missing = set(_SCHEMAS.get(file.kind, ())) - set(_columns(path, file))
    except (pa.ArrowException, OSError) as error:
        return f"it cannot be read ({error})"
    if rows != file.records:
        return f"it has {rows} rows, not {file.records}"
    return f"it lacks the columns {sorted(missing)}" if missing else None


def _columns(path: Path, file: MarkedFile) -> list[str]:
    return [] if file.kind is Kind.DATA else pq.read_schema(path).names


def check_code(markers: list[Marker], findings: Findings) -> None:
    """Hold each text that a marker names against its digest, each once."""
    seen: set[Path] = set()
    for marker in markers:
        if marker.code is None:
            continue
        if marker.code.digest != marker.code_digest:
            what = "its code_digest is not that of its code"
            findings.blame("code", Offender(what=what, batch=marker.batch_id))
        for name, path in marker.code.text_paths(layout.code(marker.archive)).items():
            if path in seen:
                continue
            seen.add(path)
            findings.examine("code")
            try:
                found = hashlib.sha256(path.read_bytes()).hexdigest()
                what = f"was changed: its SHA-256 begins with {found[:12]} now"
            except OSError as error:
                found, what = None, f"cannot be read ({error.strerror})"
            if found != marker.code.files[name]:
                what = f"the text of {name!r} {what}"
                findings.blame("code", Offender(what=what, batch=marker.batch_id, file=str(path)))


def check_claims(markers: list[Marker], findings: Findings) -> None:
    """No position of a source partition may be claimed twice."""
    claims = sorted(
        (c.source_partition_id, c.start, c.end, m.batch_id, c.name, m.spec.source.unit)
        for m in markers
        for c in m.claims
        if c.end or c.evidence.get("rows") != 0
    )
    findings.examine("claims", len(claims))
    reached: dict[int, tuple[int, int]] = {}
    for part, start, end, batch, name, unit in claims:
        before, owner = reached.get(part, (0, 0))
        if start >= end:
            findings.blame(
                "claims", Offender(what="it is empty", batch=batch, file=name, offset=start)
            )
        if start < before:
            what = f"{unit} {start} to {min(end, before)} belong to batch {owner} too"
            findings.blame("claims", Offender(what=what, batch=batch, file=name, offset=start))
        reached[part] = max((before, owner), (end, batch))
