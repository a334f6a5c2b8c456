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
from typing import BinaryIO, NamedTuple, Self
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
_COUNTS = struct.Struct("<4sIQ")
_NUMBER = struct.Struct("<Q")
"""A hash, and the position of the foot."""

_START_BYTES = _COUNTS.size + _NUMBER.size
_MAGIC = re.compile(b"|".join([HEAD, GROUP, FOOT]))
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


class FrameGroup(NamedTuple):
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
    """The content of a sealed segment. `digest`: xxh3_128 of all bytes before the foot, which
    begins `at` a position.
    """

    digest: str
    at: int
    groups: tuple[FrameGroup, ...] = field(repr=False)

    @property
    def messages(self) -> int:
        """The messages of all groups."""
        return sum(group.messages for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A whole frame, which begins `at` a position of its file."""

    magic: bytes
    messages: int
    body: bytes
    at: int

    @property
    def start(self) -> bytes:
        """Its bytes before the body."""
        counts = _COUNTS.pack(self.magic, self.messages, len(self.body))
        checksum = xxhash.xxh3_64(counts, seed=self.at)
        checksum.update(self.body)
        return counts + _NUMBER.pack(checksum.intdigest())

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.at + _START_BYTES + len(self.body)

    def batch(self) -> pa.RecordBatch:
        """A group's messages."""
        with pa.ipc.open_stream(self.body) as stream:
            batch = stream.read_next_batch()
        if batch.schema != SCHEMA or batch.num_rows != self.messages:
            raise CorruptionError(f"a group of {self.messages} messages has other content")
        return batch


def frame_at(file: BinaryIO, at: int) -> Frame | None:
    """The frame that begins at a position. None: there is no whole one."""
    file.seek(at)
    start = file.read(_START_BYTES)
    if len(start) < _START_BYTES:
        return None
    magic, messages, length = _COUNTS.unpack_from(start)
    left = os.fstat(file.fileno()).st_size - file.tell()
    if magic not in (HEAD, GROUP, FOOT) or length > left:
        return None
    frame = Frame(magic=magic, messages=messages, body=file.read(length), at=at)
    return frame if frame.start == start else None


def _put(file: BinaryIO, data: bytes) -> None:
    """Write all of it: an unbuffered file may take a part."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


class OpenSegment:
    """A segment that is written to, by the process that holds its lock.

    Its file is `<uuid>.part` in the folder of open ones until it is sealed.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.end = path, 0
        self._file, self._digest, self._groups = file, xxhash.xxh3_128(), []
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
        made = cls(path, file)
        created = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S")
        head = {"format": FORMAT, "pipeline": pipeline, "address": address, "created": created}
        try:
            _put(file, made._next(HEAD, 0, json.dumps(head).encode()))
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
        data = self._next(GROUP, batch.num_rows, body.getvalue().to_pybytes())
        failpoints.point("receive.before_append")
        with self._once_broken():
            _put(self._file, data[: len(data) // 2])
            failpoints.point("receive.torn_append")
            _put(self._file, data[len(data) // 2 :])
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

    def _next(self, magic: bytes, messages: int, body: bytes) -> bytes:
        """The bytes of the next frame, which counts as written from now on."""
        frame = Frame(magic=magic, messages=messages, body=body, at=self.end)
        return self.pass_frame(frame) + body

    def pass_frame(self, frame: Frame) -> bytes:
        """Count a frame at the end of the others. Returns its bytes before the body."""
        start = frame.start
        self._digest.update(start)
        self._digest.update(frame.body)
        if frame.magic == GROUP:
            self._groups.append(FrameGroup(frame.at, frame.messages))
        self.end = frame.end
        return start

    def seal(self, folder: Path) -> Path | None:
        """End the segment: its foot, then its name among the sealed ones, each durably. None: it
        has no message, and was removed. OSError: as of `append`.
        """
        if not self._groups:
            self.path.unlink()
            self.close()
            return None
        foot = {"digest": self._digest.hexdigest(), "groups": self._groups}
        messages, at = sum(group.messages for group in self._groups), self.end
        data = self._next(FOOT, messages, json.dumps(foot).encode())
        failpoints.point("receive.before_seal")
        with self._once_broken():
            _put(self._file, data + _NUMBER.pack(at))
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
        part, last = OpenSegment(path, file), None
        while (frame := frame_at(file, part.end)) and frame.magic == (GROUP if part.end else HEAD):
            part.pass_frame(frame)
            last = frame
        if (behind := _whole_behind(file, part.end)) is not None:
            raise CorruptionError(
                f"{path} is damaged: a whole frame begins at byte {behind}, behind bytes from "
                f"{part.end} on that are none. Messages in it were acknowledged, so nothing was "
                "changed; restore it from a copy"
            )
        failpoints.point("receive.before_cut")
        _keep_torn(file, path, part.end)
        if last is not None:
            file.seek(last.at)
            _put(file, last.start + last.body)
        file.truncate(part.end)
        file.seek(part.end)
        failpoints.point("receive.after_cut")
        return part.seal(sealed)


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


def _frames(file: BinaryIO, at: int) -> Iterator[Frame]:
    """The whole frames from a position on, wherever they are."""
    if os.fstat(file.fileno()).st_size <= at:
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in _MAGIC.finditer(data, at):
            frame = frame_at(file, match.start()) if match.start() >= at else None
            if frame:
                at = frame.end
                yield frame


def _whole_behind(file: BinaryIO, end: int) -> int | None:
    """Where a whole frame begins behind the groups; their own foot does not count."""
    frames = _frames(file, end)
    return next((each.at for each in frames if (each.magic, each.at) != (FOOT, end)), None)


def whole_messages(path: Path) -> int:
    """How many messages the whole groups of a damaged segment have, wherever they are; at least 1,
    as receive seals no segment without a message.
    """
    with open(path, "rb") as file:
        return max(1, sum(each.messages for each in _frames(file, 0) if each.magic == GROUP))


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
    """The content of a sealed segment. CorruptionError: it has no foot, or a damaged one."""
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        file.seek(max(0, length - _NUMBER.size))
        at = int.from_bytes(file.read(), "little")
        frame = frame_at(file, at) if at < length else None
    if frame is None or frame.magic != FOOT or frame.end + _NUMBER.size != length:
        raise CorruptionError("it does not end as a sealed segment of a queue")
    found = json.loads(frame.body)
    groups = tuple(FrameGroup(*group) for group in found["groups"])
    return Foot(digest=found["digest"], at=frame.at, groups=groups)


def read_groups(
    path: Path, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The messages [start, end) of a sealed segment, group by group, each batch with the number of
    its first message. `end`: None: all. CorruptionError: the foot or a group is damaged.
    """
    foot, first = read_foot(path), 0
    end = foot.messages if end is None else end
    with open(path, "rb") as file:
        for group in foot.groups:
            low, high = max(start - first, 0), min(end - first, group.messages)
            if low < high:
                frame = frame_at(file, group.at)
                if frame is None or (frame.magic, frame.messages) != (GROUP, group.messages):
                    raise CorruptionError(f"the group at byte {group.at} is damaged")
                yield first + low, frame.batch().slice(low, high - low)
            first += group.messages
