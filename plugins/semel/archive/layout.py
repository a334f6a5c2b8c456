"""The archive: the files that semel keeps about a pipeline's batches, in a folder or in a store.

It holds markers, decisions, dead letters, claims and ids, packs of old markers, notes of adopt, and
the staging folders of attempts. docs/protocol.md gives each file's schema. A sink's folder has its
archive next to it, and holds only data files. The archive is inside (`_semel/`) if hard links
between the two places are impossible.
"""

from collections.abc import Iterable

from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.sinks.spec import archive_of
from semel.storage import ArchivePath
from semel.storage.packs import MARKERS, PACKS, marker_name


def archive_folder(spec: Spec) -> ArchivePath:
    """A pipeline's archive, declared or its sink's. Raises TerminalError as `archive_of` does."""
    return spec.archive_apart() or archive_of(spec.sink_path())


def attempt(archive: ArchivePath, batch_id: int, fence: int) -> ArchivePath:
    """The folder of one attempt. Only the driver creates it, and collect removes it."""
    return staging(archive) / f"b{batch_id:08d}" / f"f{fence:04d}"


def staging(archive: ArchivePath) -> ArchivePath:
    """The folder with the attempts of all batches."""
    return archive / "staging"


def markers(archive: ArchivePath) -> ArchivePath:
    """The folder of the success markers."""
    return archive / MARKERS


def adoptions(archive: ArchivePath) -> ArchivePath:
    """The folder of adopt's notes, which list the commits lost with a ledger."""
    return archive / "adoptions"


def code(archive: ArchivePath) -> ArchivePath:
    """The folder of transform texts, each named by its digest."""
    return archive / "code"


def marker(archive: ArchivePath, batch_id: int) -> ArchivePath:
    """The success marker of a batch. Readers read the files that it lists."""
    return markers(archive) / marker_name(batch_id)


def replaced_marker(archive: ArchivePath, batch_id: int, generation: int) -> ArchivePath:
    """The copy of a marker that a replay replaced."""
    return archive / "replaced" / f"b{batch_id:08d}-g{generation:04d}.json"


def packs(archive: ArchivePath) -> ArchivePath:
    """The folder of the packs, each of which holds the markers of many old batches."""
    return archive / PACKS


def batch_file(archive: ArchivePath, kind: str, batch_id: int, part: int) -> ArchivePath:
    """The final name of a `decisions`, `dead_letters`, `ids` or `claims` file."""
    return archive / kind / f"b{batch_id:08d}-{part:05d}.parquet"


def ids_list(archive: ArchivePath, batch_id: int) -> ArchivePath:
    """The list of the ids files that `semel exact` added to an at-least-once batch."""
    return archive / Kind.IDS / f"b{batch_id:08d}.json"


def verdict_globs(
    archive: ArchivePath, kinds: Iterable[str], batch_id: int
) -> dict[str, ArchivePath]:
    """Glob patterns of a batch's dead letters and decisions, by kind, to print for a person."""
    verdicts = [kind for kind in (Kind.DEAD_LETTERS, Kind.DECISIONS) if kind in kinds]
    return {str(kind): archive / kind / f"b{batch_id:08d}-*.parquet" for kind in verdicts}
