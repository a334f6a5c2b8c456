"""Checks that a store can hold an archive: for `semel check`, in the driver and in tasks."""

import secrets

from semel.errors import TerminalError
from semel.storage.folder import check_guarantees, new
from semel.storage.store_path import StorePath

REMEDY = (
    "install semel[objects] on the executors, and let them list, read, put and delete objects "
    "there; with SEMEL_ARCHIVES_CONNECTION, export the connection's variable there"
)


def describe(archive: StorePath) -> str:
    """Describe the guarantees of an archive's store. Raises as `check_guarantees` does."""
    check_guarantees(archive)
    return (
        f"{archive}: a second put of one key is refused, and so is a replacement of a changed "
        "object"
    )


def check_access(url: str, connection: str | None) -> None:
    """In a task: fail if it cannot put, list, read and delete an object of the archive."""
    folder = StorePath.of(url, connection) / "staging" / f"check-{secrets.token_hex(8)}"
    with new(folder / "task") as file:
        file.write(b"task")
    try:
        if [key.read_bytes() for key in folder.glob("*")] != [b"task"]:
            raise TerminalError(f"{url} does not list what was put there just now")
    finally:
        (folder / "task").unlink(missing_ok=True)
