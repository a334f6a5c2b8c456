"""What is in an object: bytes of the version that was listed, read range by range."""

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from semel.clients.objects.file import ObjectFile
from semel.sources.files.content import Content

_READ_AHEAD_BYTES = 4 << 20
"""Bytes of one request where a packed object is unpacked from its start to its end."""

_PACKED = {".gz": "gzip", ".zst": "zstd"}


def packing(key: str) -> str | None:
    """How an object is packed, by its key."""
    return next((how for end, how in _PACKED.items() if key.endswith(end)), None)


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
