"""The faults of a declaration on this machine: in its folders, and in its transforms' files.

Also limits that a file must not have. Stored specs may have them, since old markers do.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from semel import limits
from semel.declare.durations import format_duration
from semel.declare.place import PREFIX, Location
from semel.declare.yaml import Key
from semel.errors import TerminalError
from semel.pipeline import transforms as spec_transforms
from semel.pipeline.spec import Spec
from semel.sinks.spec import ARCHIVES


def problems(spec: Spec) -> Iterator[tuple[Key, str]]:
    """Each problem, with its key."""
    yield from _of_limits(spec)
    yield from _of_ids(spec)
    for at, name in enumerate(spec.transforms):
        yield from ((("transforms", at), why) for why in spec_transforms.problems(name))
    yield from _of_folders(spec)


def _of_limits(spec: Spec) -> Iterator[tuple[Key, str]]:
    # Keeps P11.
    shortest = 2 * limits.HEARTBEAT_SECONDS
    if spec.limits.orphan_after.total_seconds() < shortest:
        yield ("limits", "orphan_after"), (
            f"is shorter than {shortest} s. Stage sends a heartbeat every "
            f"{limits.HEARTBEAT_SECONDS} s, and a plan in between would take over its batch"
        )


def _of_ids(spec: Spec) -> Iterator[tuple[Key, str]]:
    """`semel exact` reads the ids of a batch again. Those of a queue are only in its spool."""
    keep = spec.source.retention if spec.source.receives and spec.record_id else None
    if keep is not None and spec.by_position and spec.hides_ids and keep < spec.dedup.horizon:
        keep, horizon = map(format_duration, (keep, spec.dedup.horizon))
        yield ("source", "keep_spool"), (
            f"{keep} is shorter than dedup.horizon, {horizon}. `semel exact` could never make this "
            "pipeline exactly once: it reads ids from the spool, because the output lacks them. "
            f"Declare {horizon} or longer, or a shorter dedup.horizon"
        )


def _of_folders(spec: Spec) -> Iterator[tuple[Key, str]]:
    try:
        source = spec.source_root()
    except TerminalError as error:
        source = None
        key, _, why = str(error).partition(": ")
        yield tuple(key.split(".")), why
    try:
        place = spec.sink.whereabouts()
    except TerminalError as error:
        key, _, why = str(error).partition(": ")
        yield tuple(key.split(".")), why
        return
    at, sink = ("sink", spec.sink.located_by), place.folder
    # Keeps P12.
    if place in spec.sink.derived_places(counts=spec.aggregate is not None):
        yield at, f"semel keeps its notes in {place}; declare another place"
    yield from _of_archive(spec, sink, source, at)
    yield from _of_prefix(spec, place)
    if source is not None and (why := spec.source.folder_problem()):
        yield ("source", "path"), why
    if source is None or sink is None:
        # Keeps P29.
        if sink is None and spec.source.reads_from(place):
            yield at, f"the source reads {place} too, so it would read the pipeline's own output"
    elif sink.is_relative_to(source):
        yield at, f"{sink} lies in the source's folder {source}; keep them apart"
    elif source.is_relative_to(sink):
        yield at, f"{sink} contains the source's folder {source}; keep them apart"


def _of_archive(
    spec: Spec, sink: Path | None, source: Path | None, at: Key
) -> Iterator[tuple[Key, str]]:
    if sink and ARCHIVES in sink.parts:
        yield at, f"{sink} lies in a folder {ARCHIVES}, which is reserved for archives"
    key = ("sink", "archive")
    try:
        archive, location = spec.declared_archive(), spec.archive_location()
    except TerminalError as error:
        yield key, str(error).removeprefix("sink.archive: ")
        return
    if location.kind == PREFIX:
        yield from _of_stored_archive(spec, location, key)
    if not isinstance(archive, Path):
        return
    if sink and sink.is_relative_to(archive):
        yield key, f"{archive} contains the sink; keep them apart"
    elif sink and spec.sink.vacuumed and archive.is_relative_to(sink):
        yield key, f"{archive} lies in the sink, where a vacuum would delete it; keep them apart"
    elif sink and archive.is_relative_to(sink) and archive != sink / ARCHIVES:
        yield key, f"{archive} lies in the sink; there it must be {sink / ARCHIVES}"
    elif source and (archive.is_relative_to(source) or source.is_relative_to(archive)):
        yield key, f"{archive} and the source's folder {source} overlap; keep them apart"


# Keeps P12.
def _of_prefix(spec: Spec, sink: Location) -> Iterator[tuple[Key, str]]:
    """Refuses a spool or an upstream's prefix that overlaps with what the pipeline writes."""
    if spec.source.folder_key is None:
        return
    with suppress(TerminalError):  # Other checks report a place that cannot be used.
        prefix, key = spec.source.place(), ("source", spec.source.folder_key)
        if prefix is not None and prefix.kind == PREFIX:
            for other in filter(prefix.overlaps, (sink, spec.archive_location())):
                yield key, f"{prefix} and {other} overlap; keep them apart"


def _of_stored_archive(spec: Spec, archive: Location, key: Key) -> Iterator[tuple[Key, str]]:
    if archive.overlaps(spec.sink.whereabouts()):
        yield key, f"{archive} and the sink overlap; keep them apart"
    elif spec.source.reads_from(archive):
        yield key, f"{archive} and the source overlap; keep them apart"
