"""A segment: messages of a queue in one file, in the order in which they were received.

A file is frames: a head, groups, a foot; behind the foot are 8 bytes, the position of its frame. A
frame is 24 bytes (magic, number of messages, length of its body, xxh3_64 of these and the body),
and its body. All numbers are little-endian. The position of a frame is the seed of its hash: a
segment that somebody sends as a message has no whole frame within this one.

- Head and foot are JSON. The head says whose messages these are; the foot counts them and lists the
  groups: a segment without it is still written to, or its receiver died.
- A group is a stream of Arrow's IPC format with one record batch of SCHEMA, compressed by LZ4.

Each group is synced to disk before the next one is begun, so only the last one can be torn.
"""

import errno
import fcntl
import json
import mmap
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa
import xxhash

from semel import failpoints
from semel.errors import CorruptionError
from semel.storage import sync_folder, write_new

FORMAT = 1

SCHEMA = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("published", pa.timestamp("us", "UTC")),
        pa.field(
            "attributes",
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            nullable=False,
        ),
        pa.field("ordering_key", pa.string()),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""A message. `attempt`: the number of its delivery, from 1; 0 where the service does not say."""

HEAD, GROUP, FOOT = b"SQH1", b"SQG1", b"SQF1"
_FRAME = struct.Struct("<4sIQQ")
_HASHED = struct.Struct("<4sIQ")
_END = struct.Struct("<Q")
_MAGIC = re.compile(b"|".join([HEAD, GROUP, FOOT]))
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


class Group(NamedTuple):
    """Where a group's frame begins in the file, and how many messages it has."""

    at: int
    messages: int


@dataclass(frozen=True, kw_only=True)
class Head:
    """Whose messages these are. `address`: the queue that ids are unique within."""

    pipeline: str
    address: str
    created: str


@dataclass(frozen=True, kw_only=True)
class Foot:
    """What a segment has. `size`: the bytes of the values; `redelivered`: messages that the service
    said it delivers again; `oldest`, `newest`: of the times of publishing, in microseconds since
    1970; `digest`: xxh3_128 of all bytes before the foot, which begins `at` a position.
    """

    messages: int
    size: int
    redelivered: int
    oldest: int | None
    newest: int | None
    digest: str
    at: int
    groups: tuple[Group, ...] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A whole frame, and where the next one begins. `start`: its bytes before the body."""

    magic: bytes
    messages: int
    start: bytes
    body: bytes
    at: int
    end: int

    def batch(self) -> pa.RecordBatch:
        """A group's messages."""
        with pa.ipc.open_stream(self.body) as stream:
            batch = stream.read_next_batch()
        if batch.schema != SCHEMA or batch.num_rows != self.messages:
            raise CorruptionError(f"a group of {self.messages} messages has other content")
        return batch


def framed(magic: bytes, messages: int, body: bytes, at: int) -> bytes:
    """The bytes of a frame that begins at a position."""
    return _FRAME.pack(magic, messages, len(body), _hash(magic, messages, body, at)) + body


def _hash(magic: bytes, messages: int, body: bytes, at: int) -> int:
    found = xxhash.xxh3_64(_HASHED.pack(magic, messages, len(body)), seed=at)
    found.update(body)
    return found.intdigest()


def _put(file: BinaryIO, data: bytes) -> None:
    """Write all of it: an unbuffered file may take a part."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def frame_at(file: BinaryIO, at: int) -> Frame | None:
    """The frame that begins at a position. None: there is no whole one."""
    file.seek(at)
    start = file.read(_FRAME.size)
    if len(start) < _FRAME.size:
        return None
    magic, messages, length, checksum = _FRAME.unpack(start)
    end = at + _FRAME.size + length
    if magic not in (HEAD, GROUP, FOOT) or end > os.fstat(file.fileno()).st_size:
        return None
    body = file.read(length)
    if len(body) < length or _hash(magic, messages, body, at) != checksum:
        return None
    return Frame(magic=magic, messages=messages, start=start, body=body, at=at, end=end)


@dataclass(kw_only=True)
class _Sum:
    """The foot of what was written so far."""

    digest: Any = field(default_factory=xxhash.xxh3_128)
    groups: list[Group] = field(default_factory=list)
    size: int = 0
    redelivered: int = 0
    oldest: int | None = None
    newest: int | None = None

    def add(self, at: int, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        self.groups.append(Group(at, batch.num_rows))
        self.size += pc.sum(pc.binary_length(batch.column("value"))).as_py() or 0
        self.redelivered += pc.sum(pc.greater(batch.column("attempt"), 1)).as_py() or 0
        times = pc.min_max(batch.column("published").cast(pa.int64())).as_py()
        if times["min"] is not None:
            self.oldest = min(times["min"], times["min"] if self.oldest is None else self.oldest)
            self.newest = max(times["max"], times["max"] if self.newest is None else self.newest)

    @property
    def messages(self) -> int:
        return sum(group.messages for group in self.groups)

    def body(self) -> bytes:
        return json.dumps(
            {
                "messages": self.messages,
                "size": self.size,
                "redelivered": self.redelivered,
                "oldest": self.oldest,
                "newest": self.newest,
                "digest": self.digest.hexdigest(),
                "groups": self.groups,
            }
        ).encode()


class Part:
    """A segment that is written to, by the process that holds its lock.

    Its file is `<uuid>.part` in the folder of open ones until it is sealed.
    """

    def __init__(self, path: Path, file: BinaryIO, found: _Sum, end: int) -> None:
        self.path = path
        self._file, self._sum, self.end = file, found, end
        self._broken = False

    # Keeps Q1.
    @classmethod
    def create(cls, folder: Path, pipeline: str, address: str, now: datetime) -> Self:
        """Begin a segment: its lock is held, its name is durable."""
        while True:
            path = folder / f"{uuid4().hex}.part"
            failpoints.point("receive.before_create")
            file = open(path, "x+b", buffering=0)  # noqa: SIM115 - closed by close()
            if hold(file, path):
                break
            file.close()  # Somebody took it for one that a dead receiver left.
        made = cls(path, file, _Sum(), 0)
        created = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S")
        head = {"format": FORMAT, "pipeline": pipeline, "address": address, "created": created}
        try:
            made._write(framed(HEAD, 0, json.dumps(head).encode(), 0))
            os.fsync(file.fileno())
            sync_folder(folder)
        except OSError:
            made.close()
            raise
        failpoints.point("receive.after_create")
        return made

    # Keeps Q1.
    def append(self, batch: pa.RecordBatch) -> None:
        """Write messages, durably: they may be acknowledged when this returns.

        OSError: they may not; nothing more can be written to this segment, and `recover` seals it.
        """
        body = pa.BufferOutputStream()
        with pa.ipc.new_stream(body, SCHEMA, options=_LZ4) as stream:
            stream.write_batch(batch)
        data = framed(GROUP, batch.num_rows, body.getvalue().to_pybytes(), self.end)
        failpoints.point("receive.before_append")
        self._sum.add(self.end, batch)
        with self._once_broken():
            self._write(data[: len(data) // 2])
            failpoints.point("receive.torn_append")
            self._write(data[len(data) // 2 :])
            failpoints.point("receive.before_sync")
            os.fdatasync(self._file.fileno())
        failpoints.point("receive.after_sync")

    @contextmanager
    def _once_broken(self) -> Iterator[None]:
        """What failed is not tried again: after a sync that failed, the next one may say that all
        is well of bytes that are in memory alone.
        """
        if self._broken:
            raise OSError(errno.EIO, "an earlier write failed", str(self.path))
        try:
            yield
        except OSError:
            self._broken = True
            raise

    def _write(self, data: bytes) -> None:
        _put(self._file, data)
        self._sum.digest.update(data)
        self.end += len(data)

    def seal(self, folder: Path) -> Path | None:
        """End the segment: its foot, then its name among the sealed ones, each durably. None: it
        has no message, and was removed. OSError: as of `append`.
        """
        if not self._sum.groups:
            self.path.unlink()
            self.close()
            return None
        at = self.end
        foot = framed(FOOT, self._sum.messages, self._sum.body(), at)
        failpoints.point("receive.before_seal")
        with self._once_broken():
            self._write(foot + _END.pack(at))
            os.fsync(self._file.fileno())
            return self._publish(folder)

    def close(self) -> None:
        """Let go of it, and of its lock: what is not sealed is for `recover`."""
        self._file.close()

    def _publish(self, folder: Path) -> Path:
        head = read_head(self.path)
        target = folder / f"{head.created}-{self.path.stem}.seg"
        os.rename(self.path, target)
        failpoints.point("receive.after_rename")
        sync_folder(folder)
        sync_folder(self.path.parent)
        self.close()
        return target


def hold(file: BinaryIO, path: Path) -> bool:
    """Take the lock of an open segment, if nobody has it and the file still has that name."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def is_held(path: Path) -> bool:
    """Whether a receiver holds an open segment, for who may read it at most. False where it may not
    even be read.
    """
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return True  # It was sealed meanwhile.
    except OSError:
        return False
    return False


# Keeps Q2.
def recover(path: Path, sealed: Path) -> Path | None:
    """Seal what a dead receiver left, cut behind its last whole group. None: it is not dead, or
    it left no message.

    1. Take the lock: nobody writes to it, and nobody else recovers it.
    2. Read all whole groups.
    3. Refuse damage: a whole frame behind bytes that are none is no torn end.
    4. Write the last group once more: if its sync failed, it is whole in memory alone.
    5. Cut behind it, and seal. What is cut is kept beside it, as `torn` says.

    CorruptionError: it is damaged; nothing is changed. OSError: it cannot be read or written.
    """
    try:
        file = open(path, "r+b", buffering=0)  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return None
    with file:
        if not hold(file, path):
            return None
        found, last, end = _walk(file)
        if (behind := _whole_behind(file, end)) is not None:
            raise CorruptionError(
                f"{path} is damaged: a whole frame begins at byte {behind}, behind bytes from "
                f"{end} on that are none. Messages in it were acknowledged, so nothing was "
                "changed; restore it from a copy"
            )
        failpoints.point("receive.before_cut")
        _keep_torn(file, path, end)
        if last is not None:
            file.seek(last.at)
            _put(file, last.start + last.body)
        file.truncate(end)
        file.seek(end)
        failpoints.point("receive.after_cut")
        return Part(path, file, found, end).seal(sealed)


def torn(part: Path) -> Path:
    """Where the end that is cut from a part is kept."""
    return part.with_suffix(".torn")


# Keeps Q2.
def _keep_torn(file: BinaryIO, path: Path, end: int) -> None:
    """Keep what is no whole group, nor a foot: no one can tell a group that was never synced from
    one that the disk has damaged since.
    """
    file.seek(end)
    if (cut := file.read()) and not cut.startswith(FOOT):
        with suppress(FileExistsError):
            write_new(torn(path), cut)


def _walk(file: BinaryIO) -> tuple[_Sum, Frame | None, int]:
    """What the whole groups at the beginning come to, the last of them, and where it ends."""
    found, last, end = _Sum(), None, 0
    while (frame := frame_at(file, end)) and frame.magic == (GROUP if end else HEAD):
        found.digest.update(frame.start)
        found.digest.update(frame.body)
        if frame.magic == GROUP:
            found.add(end, frame.batch())
            last = frame
        end = frame.end
    return found, last, end


def _whole_behind(file: BinaryIO, end: int) -> int | None:
    """Where a whole frame begins behind the groups; their own foot is none of these."""
    if os.fstat(file.fileno()).st_size <= end:
        return None
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in _MAGIC.finditer(data, end):
            frame = frame_at(file, match.start())
            if frame and not (frame.magic == FOOT and frame.at == end):
                return frame.at
    return None


def whole_messages(path: Path) -> int:
    """How many messages the whole groups of a damaged segment have, wherever they are; at least 1,
    as none is sealed without.
    """
    found = end = 0
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                for match in _MAGIC.finditer(data):
                    frame = frame_at(file, match.start()) if match.start() >= end else None
                    if frame:
                        end = frame.end
                        found += frame.messages if frame.magic == GROUP else 0
    return max(found, 1)


def read_head(path: Path) -> Head:
    """Whose messages a segment has. CorruptionError: it does not begin as one."""
    with open(path, "rb") as file:
        frame = frame_at(file, 0)
    if frame is None or frame.magic != HEAD:
        raise CorruptionError("it does not begin as a segment of a queue")
    found = json.loads(frame.body)
    if found["format"] != FORMAT:
        raise CorruptionError(f"its format is {found['format']!r}, and {FORMAT} is known")
    return Head(**{k: found[k] for k in ("pipeline", "address", "created")})


def read_foot(path: Path) -> Foot:
    """What a sealed segment has. CorruptionError: it has no foot, or a damaged one."""
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        file.seek(max(0, length - _END.size))
        end = file.read()
        at = _END.unpack(end)[0] if len(end) == _END.size else length
        frame = frame_at(file, at) if at < length else None
    if frame is None or frame.magic != FOOT or frame.end + _END.size != length:
        raise CorruptionError("it does not end as a sealed segment of a queue")
    found = json.loads(frame.body)
    groups = tuple(Group(*group) for group in found.pop("groups"))
    return Foot(**found, at=frame.at, groups=groups)


def read_groups(
    path: Path, foot: Foot, start: int, end: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The groups with messages of [start, end), whole, each with the number of its first message.

    CorruptionError: one is damaged.
    """
    with open(path, "rb") as file:
        first = 0
        for group in foot.groups:
            if first < end and start < first + group.messages:
                frame = frame_at(file, group.at)
                if frame is None or (frame.magic, frame.messages) != (GROUP, group.messages):
                    raise CorruptionError(f"the group at byte {group.at} is damaged")
                yield first, frame.batch()
            first += group.messages
