"""The rows of a committed batch, from its staged files, as sinks that are no folder take them."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from semel.errors import CorruptionError
from semel.formats.pieces import PIECE_BYTES_MAX, pieces
from semel.sinks import CommittedBatch

if TYPE_CHECKING:
    from semel.model.manifest import ManifestFile


def staged(
    won: CommittedBatch,
    *,
    files: "Sequence[ManifestFile] | None" = None,
    bytes_max: int = PIECE_BYTES_MAX,
) -> Iterator[pa.RecordBatch]:
    """All rows of a batch, or of some of its files, in their order, in pieces of `bytes_max` or of
    one row.

    CorruptionError: a file cannot be read.
    """
    for file in won.files if files is None else files:
        try:
            yield from pieces(file.staged_path, won.schema.names, bytes_max)
        except pa.ArrowException as error:
            raise CorruptionError(
                f"batch {won.batch_id}: {file.staged_path} cannot be read ({error}); restore it "
                "from a backup: the batch has committed"
            ) from error


def check_count(
    won: CommittedBatch, landed: int, files: "Sequence[ManifestFile] | None" = None
) -> None:
    """CorruptionError when the staged files do not hold as many rows as the manifest says."""
    wanted = sum(file.records for file in (won.files if files is None else files))
    if landed != wanted:
        raise CorruptionError(
            f"batch {won.batch_id}: its staged files hold {landed} rows, and its manifest says "
            f"{wanted}; nothing was written. Restore them from a backup: the batch has committed"
        )
