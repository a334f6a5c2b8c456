"""Output below a prefix, for readers who do not see the archive: by the copies of markers."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyarrow import fs

from semel.clients.objects import Store
from semel.clients.objects.file import ObjectFile
from semel.errors import CorruptionError, RetryableError
from semel.model.manifest import MarkedFile
from semel.sinks.objects.notes import CHECKSUM, MARKERS

READS_AT_ONCE = 8
"""Copies of markers that are read at once."""

_ROUNDS_MAX = 4  # A replay replaces a copy while it is read.


class Prefix:
    """What lies below a URL. Errors as of `Store`."""

    def __init__(self, url: str, connection: str | None) -> None:
        self._store = Store(url, connection)

    def markers(self) -> Iterator[tuple[str, bytes]]:
        """The names and texts of the copies. RetryableError: one is replaced again and again."""
        keys = [one.key for page in self._store.list(MARKERS) for one in page]
        with ThreadPoolExecutor(READS_AT_ONCE) as pool:
            yield from zip(keys, pool.map(self._text, keys), strict=True)

    def _text(self, key: str) -> bytes:
        for _ in range(_ROUNDS_MAX):
            try:
                found, _ = self._store.head(key)
                return self._store.read(key, found.etag, 0, found.size)
            except FileNotFoundError:
                continue
        raise RetryableError(f"{self._store.place}/{key} changes while it is read; try again")

    def disk(self, files: Iterable[MarkedFile]) -> fs.FileSystem:
        """The objects of these files, by their keys. One that is another one is an error."""
        return fs.PyFileSystem(_Disk(self._store, {file.path: file for file in files}))


# Keeps OB13.
class _Disk(fs.FSSpecHandler):
    """Opens the objects that markers list, as pyarrow wants it."""

    def __init__(self, store: Store, files: dict[str, MarkedFile]) -> None:
        super().__init__(None)
        self._store, self._files = store, files

    def get_type_name(self) -> str:
        return "semel"

    def open_input_file(self, path: str) -> pa.NativeFile:
        file = self._files[path]
        try:
            found, about = self._store.head(path)
        except FileNotFoundError:
            found, about = None, {}
        if found is None or (found.size, about.get(CHECKSUM)) != (file.bytes, file.checksum):
            raise CorruptionError(
                f"{self._store.place}/{path} is not the object that its marker lists: somebody has "
                "deleted or replaced it; or it was replayed and collected since: open it anew"
            )
        return pa.PythonFile(ObjectFile(self._store, path, found.etag, found.size), mode="r")

    open_input_stream = open_input_file
