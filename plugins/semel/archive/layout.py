"""The archive: the files that semel keeps about a pipeline's batches, beside their output.

It holds markers, decisions, dead letters, claims and ids, notes of adopt, and the staging folders
of attempts. docs/protocol.md gives each file's schema. A sink of files has its archive beside it,
so that the sink's folder holds only data files. The archive is inside (`_semel/`) if the two places
cannot share links.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from semel import settings
from semel.errors import TerminalError
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.sinks.spec import ARCHIVES


def of(spec: Spec) -> Path:
    """A pipeline's archive, as declared or found by its sink. TerminalError as in `place`."""
    if declared := spec.declared_archive():
        return declared
    sink = spec.sink_path()
    return place(sink) if sink else settings.data_roots()[0] / ARCHIVES / spec.name


# Keeps L2.
def place(sink: Path) -> Path:
    """The archive of a sink folder, or the place for a new one.

    TerminalError: there are two.
    """
    beside, inside = sink.parent / ARCHIVES / sink.name, sink / ARCHIVES
    there = [archive for archive in (beside, inside) if markers(archive).is_dir()]
    if len(there) > 1:
        raise TerminalError(
            f"{beside} and {inside} both hold markers, and a sink has one archive; move the one "
            "that does not belong here aside, or declare sink.archive"
        )
    if there:
        return there[0]
    return inside if inside.is_dir() or _is_mount(sink) else beside


def _is_mount(sink: Path) -> bool:
    """Whether a folder is a mount, so that no file beside it can be linked into it."""
    try:
        return os.path.ismount(sink) or sink.stat().st_dev != sink.parent.stat().st_dev
    except FileNotFoundError:
        return False


def attempt(archive: Path, batch_id: int, fence: int) -> Path:
    """The folder of one attempt. Only the driver makes it, and collect removes it."""
    return staging(archive) / f"b{batch_id:08d}" / f"f{fence:04d}"


def staging(archive: Path) -> Path:
    """The folder with the attempts of all batches."""
    return archive / "staging"


def markers(archive: Path) -> Path:
    """The folder of the success markers."""
    return archive / "markers"


def adoptions(archive: Path) -> Path:
    """The folder of adopt's notes, which list the commits lost with a ledger."""
    return archive / "adoptions"


def code(archive: Path) -> Path:
    """The folder of transform texts, each named by its digest."""
    return archive / "code"


def marker(archive: Path, batch_id: int) -> Path:
    """The success marker, which lists the files of a batch. Readers go by it."""
    return markers(archive) / f"b{batch_id:08d}.json"


def replaced(archive: Path, batch_id: int, generation: int) -> Path:
    """The place of a marker that a replay replaced."""
    return archive / "replaced" / f"b{batch_id:08d}-g{generation:04d}.json"


def kept(archive: Path, kind: str, batch_id: int, part: int) -> Path:
    """The final name of a `decisions`, `dead_letters`, `ids` or `claims` file."""
    return archive / kind / f"b{batch_id:08d}-{part:05d}.parquet"


def ids_list(archive: Path, batch_id: int) -> Path:
    """The list of the ids files that exact gave to a batch that was at least once."""
    return archive / Kind.IDS / f"b{batch_id:08d}.json"


def all_kept(archive: Path, kinds: Iterable[str], batch_id: int) -> dict[str, Path]:
    """For a person: glob patterns of a batch's dead letters and decisions, by kind."""
    shown = [kind for kind in (Kind.DEAD_LETTERS, Kind.DECISIONS) if kind in kinds]
    return {str(kind): archive / kind / f"b{batch_id:08d}-*.parquet" for kind in shown}
