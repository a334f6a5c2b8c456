"""Move finalized files into a folder below the source's, if `source.after_finalize` asks for it.
Replays and the audit find them there.
"""

import os
from collections.abc import Callable
from pathlib import Path

from semel import failpoints
from semel.declare.context import Context
from semel.errors import SourceError
from semel.formats.table import source_format
from semel.sources import Partition
from semel.sources.files.content import is_gzip
from semel.storage import make_folder, sync_folder


def moved_path(context: Context, path: str) -> Path | None:
    """The path that a file moves to. Returns None if the file may grow, or if files stay."""
    option = context.declared.after_finalize
    if option == "keep" or not cannot_grow(context, path):
        return None
    root = Path(os.path.realpath(context.declared.folder()))
    return root / option.move / Path(path).relative_to(root)


def cannot_grow(context: Context, path: str) -> bool:
    """Whether the format marks the end of a file, so that nothing can be appended."""
    return source_format(context.declared.format).sealed or is_gzip(path)


# Keeps G9.
def move_finalized(
    context: Context, partition: Partition, fingerprint: Callable[[str], str]
) -> bool:
    """Move the file of a partition, if its `fingerprint` is still the one that was read. Returns
    whether it moved. Raises SourceError if it cannot be moved.

    For a moment the file has both names. If the process dies then, the next call ends the move.
    """
    target = moved_path(context, partition.name)
    if target is None:
        return False
    try:
        if fingerprint(partition.name) != partition.fingerprint:
            return False
        make_folder(target.parent)
        try:
            os.link(partition.name, target)
        except FileExistsError:
            if not os.path.samefile(partition.name, target):
                raise
        failpoints.point("away.after_link")
        sync_folder(target.parent)
        os.unlink(partition.name)
        sync_folder(os.path.dirname(partition.name))
    except FileNotFoundError:
        return False  # Another process has moved it.
    except FileExistsError as error:
        raise SourceError(
            f"{partition.name!r} is finalized, but collect did not move it: {str(target)!r} is "
            "another file; move that file aside",
        ) from error
    except OSError as error:
        raise SourceError(
            f"{partition.name!r} is finalized, but collect did not move it: {error.strerror}. Let "
            f"this user write to {str(target.parent)!r}, on the same file system",
        ) from error
    return True
