"""Read the rows of a committed batch from its staged files, for sinks other than a folder."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from semel.errors import CorruptionError
from semel.formats.pieces import PIECE_BYTES_MAX, read_pieces
from semel.sinks import CommittedBatch
from semel.storage import at

if TYPE_CHECKING:
    from semel.model.manifest import ManifestFile


def staged(
    won: CommittedBatch,
    *,
    files: "Sequence[ManifestFile] | None" = None,
    bytes_max: int = PIECE_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """The rows of a batch, or of some of its files, in order, in pieces of `bytes_max` or of one
    row. Raises CorruptionError if a file is unreadable.
    """
    for file in won.files if files is None else files:
        try:
            yield from read_pieces(at(file.staged_path), won.schema.names, bytes_max)
        except pa.ArrowException as error:
            raise CorruptionError(
                f"batch {won.batch_id}: {file.staged_path} cannot be read ({error}). The batch is "
                "committed, so restore the file from a backup"
            ) from error


def check_count(
    won: CommittedBatch, landed: int, files: "Sequence[ManifestFile] | None" = None
) -> None:
    """Raises CorruptionError if the staged files have another number of rows than the manifest."""
    expected = sum(file.records for file in (won.files if files is None else files))
    if landed != expected:
        raise CorruptionError(
            f"batch {won.batch_id}: its staged files have {landed} rows, and its manifest lists "
            f"{expected}. Nothing was written. The batch is committed, so restore the files from a "
            "backup"
        )
