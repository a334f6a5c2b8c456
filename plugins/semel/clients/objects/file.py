"""One version of an object as a file, read by ranges."""

import io
from collections.abc import Iterator
from contextlib import suppress

from semel.clients.objects import Store
from semel.errors import UnavailableError

_TAIL_BYTES = 64 << 10
"""Bytes at the end that are read at once: of Parquet, most footers."""

_PIECE_BYTES = 1 << 20


class ObjectFile(io.RawIOBase):
    """One version of an object as a file: each `read` is one request. Where another version is
    there, none succeeds. Errors as of `Store.read`.
    """

    def __init__(self, store: Store, key: str, etag: str, size: int) -> None:
        super().__init__()
        self.name, self.size = key, size
        self._store, self._etag, self._at = store, etag, 0
        self._tail = b""
        self.until = 0
        """Who reads on will read to here: a hint."""
        self._pieces: Iterator[memoryview] = iter(())
        self._left, self._here = memoryview(b""), 0

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
        """By a request that goes on to `until`, whose bytes come while somebody works on others."""
        wanted, filled = min(len(buffer), self.size - self._at), 0
        while filled < wanted:
            piece = self._piece(wanted - filled)
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _piece(self, most: int) -> memoryview:
        """The next bytes, at least one."""
        if self._at != self._here:
            self._left, self._pieces = memoryview(b""), iter(())
        if not self._left:
            with suppress(UnavailableError):  # It lapsed while nobody read.
                self._left = next(self._pieces, self._left)
        if not self._left:
            end = min(self.size, max(self.until, self._at + most))
            self._pieces = self._store.chunks(self.name, self._etag, self._at, end, _PIECE_BYTES)
            self._left = next(self._pieces)
        piece, self._left = self._left[:most], self._left[most:]
        self._at += len(piece)
        self._here = self._at
        return piece
