"""Packs: files that each hold the markers of many old batches, so that an archive keeps few files.

`semel collect` writes one if the pipeline declares `limits.keep_history`. Its name has the first
and last batch and a hash of the markers, so its content never changes. A marker in the archive's
folder of markers counts before a packed one: a person may have recorded an erasure since.
"""

import io
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING

import xxhash

from semel import failpoints
from semel.errors import CorruptionError
from semel.storage import ArchivePath, each, make_folder, names, read_version, readable, write_new

if TYPE_CHECKING:
    import pyarrow as pa

MARKERS, PACKS = "markers", "packs"
"""The folders of an archive with the markers and with the packs."""

PACKS_IN_MEMORY = 2
"""Packs whose markers a process keeps: readers of many markers read them in their order."""

_PACK = re.compile(r"b(\d{8,})-b(\d{8,})-([0-9a-f]{32})\.parquet", re.ASCII)
MARKER = re.compile(r"b(\d{8,})\.json", re.ASCII)
"""The name of a marker, with its batch."""

_loading = Lock()

_indexes: dict[ArchivePath, dict[int, ArchivePath]] = {}
"""The pack of each packed batch, by archive, as `packed` found them last."""


def marker_name(batch_id: int) -> str:
    """The name of the marker of a batch."""
    return f"b{batch_id:08d}.json"


def name_of(markers: Mapping[int, bytes]) -> str:
    """The name of the pack with these markers, by batch."""
    digest = xxhash.xxh3_128()
    for batch_id in sorted(markers):
        digest.update(f"{batch_id} {len(markers[batch_id])}\n".encode())
        digest.update(markers[batch_id])
    return f"b{min(markers):08d}-b{max(markers):08d}-{digest.hexdigest()}.parquet"


def batches_named(pack: str) -> tuple[int, int] | None:
    """The first and last batch in the name of a pack. Returns None for another file's name."""
    match = _PACK.fullmatch(pack)
    return (int(match[1]), int(match[2])) if match else None


def _schema() -> "pa.Schema":
    import pyarrow as pa  # Commands that list files start without Arrow.

    fields = [pa.field("batch_id", pa.int64(), False), pa.field("marker", pa.string(), False)]
    return pa.schema(fields)


def write(archive: ArchivePath, markers: Mapping[int, bytes]) -> None:
    """Write the pack with these markers, which are UTF-8, unless it exists. Raises CorruptionError
    if another file has its name.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"batch_id": list(markers), "marker": list(markers.values())}
    file = io.BytesIO()
    pq.write_table(
        pa.table(columns, schema=_schema()), file,
        compression="zstd", use_dictionary=False, write_statistics=False,
    )  # fmt: skip
    path = archive / PACKS / name_of(markers)
    make_folder(path.parent)
    try:
        write_new(path, file.getvalue())
    except FileExistsError:
        read(path)


# Keeps HI5.
def read(path: ArchivePath) -> dict[int, bytes]:
    """The markers in a pack, by batch. Raises CorruptionError if the pack is damaged or missing."""
    table = _read_columns(path, ["batch_id", "marker"])
    batches, texts = (column.to_pylist() for column in table.columns)
    markers = {batch_id: text.encode() for batch_id, text in zip(batches, texts, strict=True)}
    if not markers or name_of(markers) != path.name:
        raise _damaged(path, "its markers do not match the hash in its name")
    return markers


@lru_cache(PACKS_IN_MEMORY)
def _load(path: ArchivePath) -> dict[int, bytes]:
    return read(path)


@lru_cache(maxsize=10_000)
def _batches(path: ArchivePath) -> frozenset[int]:
    batches = frozenset(_read_columns(path, ["batch_id"]).column(0).to_pylist())
    if not batches or batches_named(path.name) != (min(batches), max(batches)):
        raise _damaged(path, "its batches do not match its name")
    return batches


def _read_columns(path: ArchivePath, columns: list[str]) -> "pa.Table":
    """Raises CorruptionError if the pack is missing or damaged, OSError if it is unreadable now."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = pa.schema([_schema().field(name) for name in columns])
    try:
        table = pq.read_table(readable(path), partitioning=None, columns=columns)
    except FileNotFoundError as error:
        raise _damaged(path, "it does not exist") from error
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise _damaged(path, str(error)) from error  # pyarrow's own OSError has no number.
    if table.schema != wanted or any(column.null_count for column in table.columns):
        raise _damaged(path, "its columns are not those of a pack")
    return table


def _damaged(path: ArchivePath, why: str) -> CorruptionError:
    return CorruptionError(
        f"{path}: semel cannot read this pack of markers: {why}. Restore it from a backup"
    )


def paths(archive: ArchivePath) -> list[ArchivePath]:
    """The packs of an archive, oldest batches first. Ignores other files in their folder."""
    folder = archive / PACKS
    return [folder / name for name in sorted(names(folder)) if batches_named(name)]


def packed(archive: ArchivePath) -> dict[int, str]:
    """The batches whose markers lie in packs, each with the name of its pack.

    Raises CorruptionError if a pack is damaged.
    """
    return {batch_id: path.name for batch_id, path in _index(archive).items()}


def _index(archive: ArchivePath) -> dict[int, ArchivePath]:
    index = {batch_id: path for path in paths(archive) for batch_id in _batches(path)}
    _indexes[archive] = index
    return index


def read_marker_bytes(path: ArchivePath) -> bytes:
    """The bytes of a marker, in the folder of markers or in a pack.

    Raises FileNotFoundError without one, and CorruptionError if its pack is damaged.
    """
    return read_marker_version(path)[0]


def read_marker_version(path: ArchivePath) -> tuple[bytes, object]:
    """As `storage.read_version`. The version of a packed marker is None, as it is in no file of its
    own. Raises as `read_marker_bytes`.
    """
    try:
        return read_version(path)
    except FileNotFoundError:
        if (text := read_packed_marker(path)) is None:
            raise
        return text, None


def has_marker(path: ArchivePath) -> bool:
    """Whether a marker exists, in the folder of markers or in a pack."""
    return path.exists() or _find(path) is not None


def read_packed_marker(path: ArchivePath) -> bytes | None:
    """The bytes of a marker in a pack. Returns None if no pack has it. Raises CorruptionError."""
    if (found := _find(path)) is None:
        return None
    pack, batch_id = found
    with _loading:  # Threads that read neighbouring markers load their pack once.
        return _load(pack)[batch_id]


def pack_of(marker: ArchivePath) -> str | None:
    """The name of the pack that has a marker. Returns None without one."""
    found = _find(marker)
    return found[0].name if found else None


def _find(marker: ArchivePath) -> tuple[ArchivePath, int] | None:
    """The pack that has a marker, and the number of its batch."""
    archive, match = marker.parents[1], MARKER.fullmatch(marker.name)
    if match is None or marker.parent.name != MARKERS:
        return None
    batch_id = int(match[1])
    pack = _indexes.get(archive, {}).get(batch_id) or _index(archive).get(batch_id)
    return (pack, batch_id) if pack else None


def unpack(archive: ArchivePath) -> int:
    """Write all packed markers to the folder of markers again, then remove the packs. Only for a
    person who wants to move a marker away, while nobody reads them.

    Returns the number of packs. The same call again goes on. Raises CorruptionError if a pack is
    damaged.
    """
    packs = paths(archive)
    for path in packs:
        markers = {archive / MARKERS / marker_name(n): text for n, text in read(path).items()}
        make_folder(archive / MARKERS)
        each(archive, lambda marker, texts=markers: _restore(marker, texts[marker]), markers)
        failpoints.point("packs.before_unpacked")
        path.unlink(missing_ok=True)
    _indexes.pop(archive, None)
    return len(packs)


def _restore(marker: ArchivePath, text: bytes) -> None:
    if not marker.exists():
        with suppress(FileExistsError):  # A twin unpacks it, too.
            write_new(marker, text)
