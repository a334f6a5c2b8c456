"""One version of an object as a file, read by ranges."""

import io

from semel.clients.objects import Store

_TAIL_BYTES = 64 << 10
"""Bytes at the end that are read at once: of Parquet, most footers."""


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
