"""A folder of files as a sink: a staged file gets its final name by a hard link."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from semel.declare.context import Context
from semel.formats.output import columns_in_files, dataset_of
from semel.model.manifest import Kind, StagedFile
from semel.sinks import ReplacedOutput, Sink
from semel.sinks.linked import LinkedFiles, Publisher
from semel.storage import check_links, make_folder, sync_folder

if TYPE_CHECKING:
    from semel.model.manifest import Published


def open_sink(context: Context, address: str | None, files: object) -> "Folder":
    """The folder sink at the ledger's `address`, or else at the declared path."""
    root = Path(address) if address and Path(address).is_absolute() else context.declared.folder()
    return Folder(root, context, files or LinkedFiles())


class Folder(Publisher, Sink):
    """Files below one folder, under the names that the manifest gives them."""

    def __init__(self, root: Path, context: Context, files: LinkedFiles) -> None:
        super().__init__(root, files)
        self.address = str(root)
        self._context = context

    def check(self, schema: pa.Schema | None, staged: Path) -> None:  # noqa: ARG002 - the seam's
        """Prove that staged files can be linked here."""
        make_folder(self.root)
        check_links(staged, self.root)

    def check_replace(self, old: ReplacedOutput) -> tuple[str, ...]:  # noqa: ARG002 - the seam's
        """Accepts every replay: its files have other names, and the marker lists them."""
        return ()

    def target(self, batch_id: int, fence: int, part: int, file: StagedFile) -> str:
        """The file's final path."""
        context = self._context
        return str(self.root / context.declared.path_of(context.name, batch_id, fence, part, file))

    def remove_files(self, old: "Published") -> int:
        """Unlink the files, and sync their folders."""
        freed, folders = 0, set()
        for file in old.of_kind(Kind.DATA):
            path = old.path_of(file)
            folders.add(path.parent)
            with suppress(FileNotFoundError):
                os.unlink(path)
                freed += file.bytes
        for folder in folders:
            with suppress(FileNotFoundError):
                sync_folder(folder)
        return freed

    def rows(self, marker: "Published", *, strays: bool = False) -> Iterator[pa.Table]:  # noqa: ARG002
        """The rows of the marker's data files."""
        files = marker.of_kind(Kind.DATA)
        dataset = dataset_of(self.root, marker.spec.sink, files, columns_in_files(marker))
        for batch in dataset.to_batches():
            yield pa.Table.from_batches([batch])
