"""Read the output below a prefix by the copies of markers, without access to the archive."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyarrow import fs

from semel.clients.objects import Store
from semel.clients.objects.file import ObjectFile
from semel.errors import CorruptionError, RetryableError
from semel.model.manifest import MarkedFile
from semel.sinks.objects.notes import MARKERS
from semel.storage import CHECKSUM

READS_AT_ONCE = 8
"""Threads that read copies of markers."""


class Prefix:
    """The output below a URL. Raises the errors of `Store`."""

    def __init__(self, url: str, connection: str | None) -> None:
        self._store = Store(url, connection)

    def markers(self) -> Iterator[tuple[str, bytes]]:
        """The names and texts of the copies. Raises RetryableError if one is deleted meanwhile."""
        keys = [one.key for page in self._store.list(MARKERS) for one in page]
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            yield from zip(keys, pool.map(self._text, keys), strict=True)

    def _text(self, key: str) -> bytes:
        try:
            return self._store.get(key)[0]
        except FileNotFoundError:
            raise RetryableError(
                f"{self._store.place}/{key} was deleted during the read; try again"
            ) from None

    def file_system(self, files: Iterable[MarkedFile]) -> fs.FileSystem:
        """The objects of the files, by key. Opening a replaced object raises CorruptionError."""
        return fs.PyFileSystem(_MarkedObjects(self._store, {file.path: file for file in files}))


# Keeps OB13.
class _MarkedObjects(fs.FSSpecHandler):
    """A pyarrow file system of the objects that markers list."""

    def __init__(self, store: Store, files: dict[str, MarkedFile]) -> None:
        super().__init__(None)
        self._store, self._files = store, files

    def get_type_name(self) -> str:
        return "semel"

    def open_input_file(self, path: str) -> pa.NativeFile:
        file = self._files[path]
        try:
            head, metadata = self._store.head(path)
        except FileNotFoundError:
            head, metadata = None, {}
        if head is None or (head.size, metadata.get(CHECKSUM)) != (file.bytes, file.checksum):
            raise CorruptionError(
                f"{self._store.place}/{path} is not the object that its marker lists. If the batch "
                "was replayed meanwhile, open the output again. Otherwise somebody has deleted or "
                "replaced the object"
            )
        return pa.PythonFile(ObjectFile(self._store, path, head.etag, head.size), mode="r")

    open_input_stream = open_input_file
