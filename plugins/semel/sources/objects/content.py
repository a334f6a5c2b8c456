"""What is in an object: bytes of the version that was listed, read range by range."""

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from semel.clients.objects import Store
from semel.sources.files.content import Content

_READ_AHEAD_BYTES = 4 << 20
"""Bytes of one request where a packed object is unpacked from its start to its end."""

_TAIL_BYTES = 64 << 10
"""Bytes at the end that are read at once: of Parquet, most footers."""

_PACKED = {".gz": "gzip", ".zst": "zstd"}


def packing(key: str) -> str | None:
    """How an object is packed, by its key."""
    return next((how for end, how in _PACKED.items() if key.endswith(end)), None)


class ObjectFile(io.RawIOBase):
    """One version of an object as a file: each read is one request, and fails when another version
    is there. Errors as of `Store.read`.
    """

    def __init__(self, store: Store, key: str, etag: str, size: int) -> None:
        super().__init__()
        self.name, self.size = key, size
        self._store, self._etag, self._at = store, etag, 0
        self._tail = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def at(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), fewer at the end."""
        end, tail = min(start + length, self.size), max(0, self.size - _TAIL_BYTES)
        if start < tail:
            return self._store.read(self.name, self._etag, start, end)
        if not self._tail:
            self._tail = self._store.read(self.name, self._etag, tail, self.size)
        return self._tail[start - tail : max(0, end - tail)]

    def read(self, size: int = -1) -> bytes:
        data = self.at(self._at, self.size if size is None or size < 0 else size)
        self._at += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class ObjectContent(Content):
    """The bytes of an object, for who looks for the ends of lines."""

    def __init__(self, file: ObjectFile) -> None:
        self._file, self.size, self.head = file, file.size, b""

    def read(self, start: int, length: int) -> bytes:
        return self._file.at(start, length)


@contextmanager
def unpacked(file: ObjectFile) -> Iterator[BinaryIO]:
    """An object's file, or what it unpacks to, which is read from its start to its end."""
    how = packing(file.name)
    if how is None:
        yield file  # type: ignore[misc]
        return
    ahead = io.BufferedReader(file, _READ_AHEAD_BYTES)
    if how == "gzip":
        with gzip.GzipFile(filename=file.name, fileobj=ahead, mode="rb") as stream:  # type: ignore[arg-type]
            yield stream  # type: ignore[misc]
        return
    with Zstd(ahead, file.name) as stream:
        yield stream  # type: ignore[misc]


class Zstd(io.RawIOBase):
    """What frames of zstd unpack to. OSError without errno: they are damaged, or cut off."""

    def __init__(self, packed: BinaryIO, name: str) -> None:
        import pyarrow as pa

        super().__init__()
        self.name = name
        self._stream = pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()
