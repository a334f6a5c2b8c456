"""One version of an object as a file, read by ranges."""

import io
from collections.abc import Iterator
from contextlib import suppress

from semel.clients.objects import Store
from semel.errors import UnavailableError

_TAIL_BYTES = 64 << 10
"""The end of an object, read in one request: it contains most Parquet footers."""

_PIECE_BYTES = 1 << 20


class ObjectFile(io.RawIOBase):
    """One version of an object as a file: each `read` is one request. Reads fail once another
    version replaced it. Raises the errors of `Store.read`.
    """

    def __init__(self, store: Store, key: str, etag: str, size: int) -> None:
        super().__init__()
        self.name, self.size = key, size
        self._store, self._etag, self._position = store, etag, 0
        self._tail = b""
        self.prefetch_end = 0
        """A hint: `readinto` requests the bytes up to here."""
        self._pieces: Iterator[memoryview] = iter(())
        self._piece, self._piece_start = memoryview(b""), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}
        self._position = offset + origins[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read_at(self, start: int, length: int) -> bytes:
        """Bytes [start, start + length), fewer at the end."""
        end, tail = min(start + length, self.size), max(0, self.size - _TAIL_BYTES)
        if start < tail:
            return self._store.read(self.name, self._etag, start, end)
        if not self._tail:
            self._tail = self._store.read(self.name, self._etag, tail, self.size)
        return self._tail[start - tail : max(0, end - tail)]

    def read(self, size: int = -1) -> bytes:
        data = self.read_at(self._position, self.size if size is None or size < 0 else size)
        self._position += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:
        """Read by one request up to `prefetch_end`, so that bytes arrive while the caller works."""
        wanted, filled = min(len(buffer), self.size - self._position), 0
        while filled < wanted:
            piece = self._next_bytes(wanted - filled)
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        return filled

    def _next_bytes(self, limit: int) -> memoryview:
        """At least one byte, at most `limit`."""
        start = self._position
        if start != self._piece_start:
            self._piece, self._pieces = memoryview(b""), iter(())
        if not self._piece:
            with suppress(UnavailableError):  # The request timed out while the caller worked.
                self._piece = next(self._pieces, self._piece)
        if not self._piece:
            end = min(self.size, max(self.prefetch_end, start + limit))
            self._pieces = self._store.chunks(self.name, self._etag, start, end, _PIECE_BYTES)
            self._piece = next(self._pieces)
        data, self._piece = self._piece[:limit], self._piece[limit:]
        self._position = self._piece_start = start + len(data)
        return data
