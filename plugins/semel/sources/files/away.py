"""Moving files that are read and finalized, below the source's folder, where
`source.after_finalize` says so: replays and the audit find them there.
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


def place_of(context: Context, path: str) -> Path | None:
    """Where a file goes; None: it may grow, or is to stay."""
    moved = context.declared.after_finalize
    if moved == "keep" or not cannot_grow(context, path):
        return None
    root = Path(os.path.realpath(context.declared.folder()))
    return root / moved.move / Path(path).relative_to(root)


def cannot_grow(context: Context, path: str) -> bool:
    """Whether a file has its end in itself."""
    return source_format(context.declared.format).sealed or is_gzip(path)


# Keeps G9.
def put_away(context: Context, known: Partition, fingerprint: Callable[[str], str]) -> bool:
    """Move the file of a partition, if it is as it was read: by the `fingerprint` that a path has
    now. Returns whether it was moved. SourceError: it cannot be.

    Both names are its own for a moment; whoever dies then leaves it to the next call.
    """
    target = place_of(context, known.name)
    if target is None:
        return False
    try:
        if fingerprint(known.name) != known.fingerprint:
            return False
        make_folder(target.parent)
        try:
            os.link(known.name, target)
        except FileExistsError:
            if not os.path.samefile(known.name, target):
                raise
        failpoints.point("away.after_link")
        sync_folder(target.parent)
        os.unlink(known.name)
        sync_folder(os.path.dirname(known.name))
    except FileNotFoundError:
        return False  # Another collect was faster, or somebody moved it.
    except FileExistsError as error:
        raise SourceError(
            f"{known.name!r} is finalized and was left: {str(target)!r} is another file; move that "
            "one aside",
        ) from error
    except OSError as error:
        raise SourceError(
            f"{known.name!r} is finalized and was left: {error.strerror}; "
            f"{str(target.parent)!r} must be a folder of the same file system that this user may "
            "write to",
        ) from error
    return True
