"""Pack the history of a pipeline: the markers of old batches into packs, and shorten their rows.

How it works, for up to PACK_BATCHES_MAX batches at once:
1. the ledger notes the name of their pack: no replay or admission of them begins any more;
2. write the pack, and read it again;
3. remove each marker whose bytes the pack has;
4. in one transaction remove what the marker has too: claims that others touch, the list of files
   and the declaration. The row of the batch stays, with its request, its place in the order of
   commits and its account.
A collect that died is continued by the next one.
"""

import json
from collections.abc import Iterator

from semel import failpoints, storage
from semel.archive import layout, ownership
from semel.errors import CorruptionError, RetryableError
from semel.ledger import Ledger, change, pipelines, rows
from semel.model.batch import Pipeline
from semel.model.plain import parse_json
from semel.pipeline.spec import Spec
from semel.storage import ArchivePath, packs

PACK_BATCHES_MIN = 100
"""Collect waits until so many batches are old enough, so that packs are few."""

PACK_BATCHES_MAX = 1_000
"""Batches of one pack: some 4 MB of markers, 200 kB in the file."""

PACK_BYTES_MAX = 16 << 20
"""Bytes of markers of one pack, which are in memory at once."""

PACKS_PER_COLLECT_MAX = 20
"""Packs that one collect writes. The next one continues."""

MARKERS_AT_ONCE = 100
"""Markers that collect reads at once, or removes while it has the pipeline's lock."""


def pack_history(
    ledger: Ledger, spec: Spec, pipeline: Pipeline
) -> tuple[int, tuple[str, ...]]:
    """Pack what `limits.keep_history` lets go. Returns the number of batches, and the errors of
    markers that are missing or damaged, or of a damaged pack.
    """
    pipeline_id, count = pipeline.pipeline_id, 0
    errors: list[str] = []
    try:
        for begun in ledger.rows("collect", "packs_begun", pipeline_id=pipeline_id):
            count += _finish(ledger, pipeline, begun["pack"], begun["batches"])
        if spec.limits.keep_history is None:
            return count, ()
        keep_seconds = spec.limits.keep_history.total_seconds()
        with ledger.transaction() as connection:
            values = {"pipeline_id": pipeline_id, "keep_seconds": keep_seconds}
            change(connection, "collect", "remove_runs", **values)
            change(connection, "collect", "remove_segments", **values)
        for _ in range(PACKS_PER_COLLECT_MAX):
            batches, errors = _begin(ledger, pipeline, keep_seconds)
            if not batches:
                break
            count += _finish(ledger, pipeline, *batches)
    except CorruptionError as error:
        errors.append(str(error))
    except OSError as error:
        archive = storage.at(pipeline.archive_path)
        raise RetryableError(
            f"collect of {spec.name}: {error}. {storage.remedy(archive)}, then run this again"
        ) from error
    return count, tuple(errors)


# Keeps HI1.
def _begin(
    ledger: Ledger, pipeline: Pipeline, keep_seconds: float
) -> tuple[tuple[str, list[int]] | None, list[str]]:
    """Note the next pack in the ledger. Returns its name and its batches, or None without enough;
    and the errors of markers that it cannot take.
    """
    values = {
        "pipeline_id": pipeline.pipeline_id,
        "keep_seconds": keep_seconds,
        "newest": ownership.NOTES_COMPARED,
    }
    found = ledger.rows("collect", "packable", count=PACK_BATCHES_MAX, **values)
    if len(found) < PACK_BATCHES_MIN:
        return None, []
    numbers = [r["batch_id"] for r in found]
    markers, errors = _read_markers(storage.at(pipeline.archive_path), numbers)
    if not markers:
        return None, errors
    pack, batches = packs.name_of(markers), list(markers)
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        noted = rows(connection, "collect", "begin_pack", pack=pack, batches=batches, **values)
        if len(noted) < len(batches):  # A replay or an erasure began meanwhile.
            connection.get_transaction().rollback()
            return None, errors
    failpoints.point("pack.after_begin")
    return (pack, batches), errors


def _read_markers(
    archive: ArchivePath, batches: list[int]
) -> tuple[dict[int, bytes], list[str]]:
    """The markers of batches, of the first of them if all have more than PACK_BYTES_MAX; and the
    errors of those that are missing or damaged.
    """
    markers, errors, size = {}, [], 0
    for part in _parts(batches):
        paths = [layout.marker(archive, number) for number in part]
        for number, text in zip(part, storage.each(archive, _read_marker, paths), strict=True):
            if isinstance(text, CorruptionError):
                errors.append(str(text))
                continue
            size += len(text)
            if markers and size > PACK_BYTES_MAX:
                return markers, errors
            markers[number] = text
    return markers, errors


def _parts(batches: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(batches), MARKERS_AT_ONCE):
        yield batches[start : start + MARKERS_AT_ONCE]


def _read_marker(path: ArchivePath) -> bytes | CorruptionError:
    try:
        text = packs.read_marker_bytes(path)
        parse_json(text)
        return text
    except (FileNotFoundError, ValueError) as error:
        what = "missing" if isinstance(error, FileNotFoundError) else f"damaged ({error})"
        return CorruptionError(
            f"{path}: this marker is {what}, though its batch is finalized. It was not packed. "
            "Restore it from a backup"
        )


def _finish(ledger: Ledger, pipeline: Pipeline, pack: str, batches: list[int]) -> int:
    """Write a pack that the ledger has noted, and end it. Returns the number of its batches."""
    archive = storage.at(pipeline.archive_path)
    path = layout.packs(archive) / pack
    values = {"pipeline_id": pipeline.pipeline_id, "pack": pack}
    if not path.exists():
        _write(ledger, pipeline, archive, pack, batches)
    markers = packs.read(path)
    failpoints.point("pack.before_remove")
    for part in _parts(batches):
        with ledger.transaction() as connection:
            # Keeps HI1. Else a twin may end the pack, and a person rewrite a marker meanwhile.
            pipelines.lock(connection, pipeline)
            storage.each(archive, lambda n: _remove(layout.marker(archive, n), markers[n]), part)
    storage.sync_folder(layout.markers(archive))
    failpoints.point("pack.after_remove")
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipeline)
        if change(connection, "collect", "end_pack", **values) < len(batches):
            connection.get_transaction().rollback()
            return 0  # A twin has ended it, or found that a marker was changed.
        spans = rows(connection, "collect", "adjacent_claims", batches=batches)
        if spans:
            text = json.dumps([dict(span) for span in spans], default=str)
            change(connection, "collect", "remove_claims", spans=text)
            change(connection, "collect", "extend_claims", spans=text)
        change(connection, "collect", "remove_manifests", batches=batches)
        failpoints.point("pack.before_end")
    failpoints.point("pack.after_end")
    return len(batches)


def _write(
    ledger: Ledger, pipeline: Pipeline, archive: ArchivePath, pack: str, batches: list[int]
) -> None:
    """Write a pack. Raises CorruptionError if the markers are not those by which it was named: then
    no pack is noted any more.
    """
    markers, errors = _read_markers(archive, batches)
    if packs.name_of(markers or {0: b""}) != pack:
        with ledger.transaction() as connection:
            pipelines.lock(connection, pipeline)
            if (layout.packs(archive) / pack).exists():
                return  # A twin has written it.
            values = {"pipeline_id": pipeline.pipeline_id, "pack": pack}
            change(connection, "collect", "release_pack", **values)
        raise CorruptionError(
            errors[0] if errors else
            f"{layout.markers(archive)}: a marker of batches {batches[0]} to {batches[-1]} was "
            "changed while collect packed them. Nothing was packed: the next collect does it"
        )  # fmt: skip
    failpoints.point("pack.before_write")
    packs.write(archive, markers)
    failpoints.point("pack.after_write")


def _remove(marker: ArchivePath, packed: bytes) -> None:
    """Remove a marker, unless it differs from the packed one: then it counts before that."""
    try:
        if marker.read_bytes() == packed:
            marker.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
