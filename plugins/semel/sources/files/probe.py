"""Whether files can be read: for `semel check`, in the driver and in tasks."""

import hashlib
import os
from pathlib import Path

from semel.declare.context import Context
from semel.declare.wording import FILES_NAMED_MAX
from semel.errors import SourceError
from semel.sources import ExecutorCheck
from semel.sources.files.content import HEAD_BYTES
from semel.sources.files.listing import list_files

_REMEDY = "mount the source's folder there, under the driver's path, and let that user read it"


def probe(context: Context) -> tuple[str, ExecutorCheck]:
    """As `Source.probe`. Executors check the folder, and the newest file in it."""
    try:
        listing = list_files(context)
        closed = [f"{each.name}: {each.reason}" for each in listing.refusals]
        trouble = "" if listing.complete else "; ".join(closed[:FILES_NAMED_MAX])
        newest = [str(listing.root / file.path) for file in listing.items[-1:]]
        summary = f"{len(listing.items)} files of {context.name} in {listing.root}"
        result = folder_check(summary, listing.root, newest)
    except OSError as error:
        trouble = str(error)
    if trouble:
        raise SourceError(
            f"{trouble}; make or mount {context.declared.folder()}, and let user {os.geteuid()} "
            "read all below it"
        )
    return result


def folder_check(summary: str, root: Path, newest: list[str]) -> tuple[str, ExecutorCheck]:
    """The summary, and a check of a folder and its `newest` file. Raises OSError."""
    right = f"{root}, and its newest file" if newest else str(root)
    values = str(root), [_beginning(path) for path in newest]
    return summary, ExecutorCheck("source", __name__, values, right, _REMEDY)


def check_access(root: str, files: list[tuple[str, int, str]]) -> None:
    """In a task: fail unless the folder and these files look as they do to the driver."""
    os.listdir(root)
    for path, length, digest in files:
        if _beginning(path, length)[2] != digest:
            raise LookupError(f"{path} differs from the file that the driver reads")


def _beginning(path: str, length: int = HEAD_BYTES) -> tuple[str, int, str]:
    """A file's path, the count of its first bytes, at most `length`, and their SHA-256."""
    with open(path, "rb") as file:
        head = file.read(length)
    return path, len(head), hashlib.sha256(head).hexdigest()
