"""The content of an object: range requests for the version that was listed."""

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from semel.clients.objects.file import ObjectFile
from semel.sources.files.content import Content

_READ_AHEAD_BYTES = 4 << 20
"""Bytes of one request when semel decompresses an object from start to end."""

_PACKED = {".gz": "gzip", ".zst": "zstd"}


def packing(key: str) -> str | None:
    """The compression of an object, by the ending of its key. None if it is not compressed."""
    return next((how for end, how in _PACKED.items() if key.endswith(end)), None)


class ObjectContent(Content):
    """The bytes of an object, to find the ends of its lines."""

    def __init__(self, file: ObjectFile) -> None:
        self._file, self.size, self.head = file, file.size, b""

    def read(self, start: int, length: int) -> bytes:
        return self._file.read_at(start, length)


@contextmanager
def open_unpacked(file: ObjectFile) -> Iterator[BinaryIO]:
    """An object's file; if it is compressed, a stream of its content."""
    how = packing(file.name)
    if how is None:
        yield file  # type: ignore[misc]
        return
    ahead = io.BufferedReader(file, _READ_AHEAD_BYTES)
    if how == "gzip":
        with gzip.GzipFile(filename=file.name, fileobj=ahead, mode="rb") as stream:  # type: ignore[arg-type]
            yield stream  # type: ignore[misc]
        return
    with ZstdStream(ahead, file.name) as stream:
        yield stream  # type: ignore[misc]


class ZstdStream(io.RawIOBase):
    """The content of zstd frames. Raises OSError without errno if they are damaged or truncated."""

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
