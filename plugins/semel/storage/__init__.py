"""The files of an archive, in a folder or in an object store.

A path of an archive is a `Path` or a `StorePath`. Both read alike: `/`, `name`, `parent`,
`read_bytes()`, `exists()`, `glob()`. Each verb here looks at the type of its first argument.
"""

from pathlib import Path

from semel import settings
from semel.errors import TerminalError
from semel.storage import store  # Adds the verbs for a StorePath.
from semel.storage.facts import CHECKSUM
from semel.storage.folder import (
    check_guarantees,
    check_links,
    check_links_of,
    checksum,
    checksum_of,
    each,
    fence_off,
    files_below,
    folder_for_copies,
    link_new,
    make_folder,
    move_to_disk,
    names,
    nested_names,
    new,
    read_range,
    read_version,
    readable,
    reads_at_once,
    remedy,
    remove_empty,
    remove_folder,
    stat,
    swap,
    sync_file,
    sync_folder,
    write_new,
)
from semel.storage.store import local_file, temporary_file
from semel.storage.store_path import StorePath

ArchivePath = Path | StorePath
"""A file or a folder of an archive."""


def archives() -> StorePath | None:
    """The place below which pipelines have their archives, or None if it is not a store.

    Raises TerminalError if SEMEL_ARCHIVES is not the URL of a store. The message does not quote it,
    because it may have a login.
    """
    from semel.clients.objects.access import check_url

    text = settings.archives()
    if text is None:
        return None
    try:
        return StorePath.of(str(check_url(text)), settings.archives_connection())
    except ValueError as error:
        raise TerminalError(f"{settings.ARCHIVES_VARIABLE} {error}") from None


def at(text: str) -> ArchivePath:
    """The path for a text of the ledger or a declaration: absolute, or the URL of a store."""
    if StorePath.is_url(text):
        return StorePath.of(text, settings.archives_connection())
    return Path(text)
