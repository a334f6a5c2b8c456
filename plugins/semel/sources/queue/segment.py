"""A segment: messages of a queue in one file, in the order in which they were received.

A file consists of frames: a head, groups, a foot; then 8 bytes with the position of the foot. A
frame has 24 bytes (magic, number of messages, length of the body, xxh3_64 of these and the body),
then the body. All numbers are little-endian. The position of a frame seeds its hash, so that a
segment sent as a message contains no valid frame of the segment around it.

- Head and foot are JSON. The head names the pipeline and the queue. The foot counts the messages
  and lists the groups. A segment without a foot is still being written, or its receiver died.
- A group is a stream of Arrow's IPC format with one record batch of SCHEMA, compressed by LZ4.

The receiver syncs each group to disk before it begins the next, so only the last can be torn.
"""

import errno
import fcntl
import io
import json
import mmap
import os
import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, Self
from uuid import uuid4

import pyarrow as pa
import xxhash

from semel import failpoints
from semel.errors import CorruptionError, SemelError, UnavailableError
from semel.storage import ArchivePath, StorePath, sync_folder, write_new

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
"""A message. `attempt`: the number of its delivery, from 1; 0 if the service does not give it."""

HEAD, GROUP, FOOT = b"SQH1", b"SQG1", b"SQF1"
_COUNTS = struct.Struct("<4sIQ")
_NUMBER = struct.Struct("<Q")
"""The format of a hash, and of the foot's position."""

PUT_SECONDS = 60
"""How long receive tries to put a segment, while it extends the deadlines of its messages."""

_START_BYTES = _COUNTS.size + _NUMBER.size
_MAGIC = re.compile(b"|".join([HEAD, GROUP, FOOT]))
_LZ4 = pa.ipc.IpcWriteOptions(compression="lz4")


class FrameGroup(NamedTuple):
    """Where a group's frame begins in the file, and how many messages it has."""

    at: int
    messages: int


@dataclass(frozen=True, kw_only=True)
class Head:
    """The origin of the messages. `address`: the queue, within which ids are unique."""

    pipeline: str
    address: str
    created: str


@dataclass(frozen=True, kw_only=True)
class Foot:
    """The content of a sealed segment. `digest`: xxh3_128 of all bytes before the foot. `at`: where
    the foot begins.
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
    """A whole frame. `at`: where it begins in its file."""

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
        """Where the next frame begins."""
        return self.at + _START_BYTES + len(self.body)

    def batch(self) -> pa.RecordBatch:
        """A group's messages."""
        with pa.ipc.open_stream(self.body) as stream:
            batch = stream.read_next_batch()
        if batch.schema != SCHEMA or batch.num_rows != self.messages:
            raise CorruptionError(f"a group of {self.messages} messages has other content")
        return batch


def frame_at(file: BinaryIO, at: int) -> Frame | None:
    """The frame that begins at a position. Returns None if no whole frame begins there."""
    file.seek(at)
    start = file.read(_START_BYTES)
    if len(start) < _START_BYTES:
        return None
    magic, messages, length = _COUNTS.unpack_from(start)
    remaining = os.fstat(file.fileno()).st_size - file.tell()
    if magic not in (HEAD, GROUP, FOOT) or length > remaining:
        return None
    frame = Frame(magic=magic, messages=messages, body=file.read(length), at=at)
    return frame if frame.start == start else None


def _write_all(file: BinaryIO, data: bytes) -> None:
    """Write all bytes: one call of an unbuffered file may write only a part."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


class SegmentWriter(Protocol):
    """Makes groups of messages durable. `end`: the bytes of a segment that is not sealed yet.
    `segments`: how many sealed ones it has written.
    """

    end: int
    segments: int

    def append(self, batch: pa.RecordBatch) -> None:
        """Write messages durably. Raises OSError if that failed."""

    def seal(self, folder: ArchivePath) -> ArchivePath | None:
        """Let plan see what was appended. Returns the segment that this call has sealed, if any."""

    def close(self) -> None:
        """Release what it holds."""


class StoredSegments(SegmentWriter):
    """Segments of one group each, as objects of a store. A put is whole and durable, so a segment
    is sealed when it appears, and a receiver that dies leaves nothing to recover.
    """

    end = 0

    def __init__(self, folder: StorePath, pipeline: str, address: str, now: datetime) -> None:
        self._folder, self.segments = folder, 0
        self._head = _head_of(pipeline, address, now)
        self._stem = f"{self._head['created']}-{uuid4().hex}"

    # Keeps Q1.
    def append(self, batch: pa.RecordBatch) -> None:
        data, writer = io.BytesIO(), _FrameWriter()
        data.write(writer.next_frame(HEAD, 0, json.dumps(self._head).encode()))
        data.write(writer.next_frame(GROUP, batch.num_rows, _group_body(batch)))
        data.write(writer.foot())
        name = f"{self._stem}-{self.segments:06d}.seg"  # They are read in the order of their names.
        failpoints.point("receive.before_put")
        self._put(self._folder / name, data.getvalue())
        failpoints.point("receive.after_put")
        self.segments += 1

    def _put(self, place: StorePath, data: bytes) -> None:
        """Put a segment, for a while also if the store does not answer. Raises OSError."""
        ends = time.monotonic() + PUT_SECONDS
        while True:
            try:
                write_new(place, data)
                return
            except SemelError as error:
                if not isinstance(error, UnavailableError) or time.monotonic() > ends:
                    raise OSError(errno.EIO, str(error)) from error
            time.sleep(1)

    def seal(self, folder: ArchivePath) -> None:
        """Nothing: all are sealed."""

    def close(self) -> None:
        """Nothing."""


class _FrameWriter:
    """Builds the frames of a segment, in their order."""

    def __init__(self) -> None:
        self.end = 0
        self.groups: list[FrameGroup] = []
        self._digest = xxhash.xxh3_128()

    def next_frame(self, magic: bytes, messages: int, body: bytes) -> bytes:
        """The bytes of the next frame, which counts as written from now on."""
        frame = Frame(magic=magic, messages=messages, body=body, at=self.end)
        return self.count(frame) + body

    def count(self, frame: Frame) -> bytes:
        """Add a frame to the digest and the groups. Returns its bytes before the body."""
        start = frame.start
        self._digest.update(start)
        self._digest.update(frame.body)
        if frame.magic == GROUP:
            self.groups.append(FrameGroup(frame.at, frame.messages))
        self.end = frame.end
        return start

    def foot(self) -> bytes:
        """The bytes of the foot, with which the segment ends."""
        plain = {"digest": self._digest.hexdigest(), "groups": self.groups}
        messages, at = sum(group.messages for group in self.groups), self.end
        return self.next_frame(FOOT, messages, json.dumps(plain).encode()) + _NUMBER.pack(at)


def _head_of(pipeline: str, address: str, now: datetime) -> dict[str, Any]:
    created = now.astimezone(UTC).strftime("%Y%m%dT%H%M%S")
    return {"format": FORMAT, "pipeline": pipeline, "address": address, "created": created}


def _group_body(batch: pa.RecordBatch) -> bytes:
    body = pa.BufferOutputStream()
    with pa.ipc.new_stream(body, SCHEMA, options=_LZ4) as stream:
        stream.write_batch(batch)
    return body.getvalue().to_pybytes()


class OpenSegment(SegmentWriter):
    """A segment that a process writes while it holds the lock.

    Its file is `<uuid>.part` in the folder `open` until it is sealed.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.segments = path, 0
        self._file, self._frames = file, _FrameWriter()
        self._broken = False

    @property
    def end(self) -> int:  # type: ignore[override]
        return self._frames.end

    # Keeps Q1.
    @classmethod
    def create(cls, folder: Path, pipeline: str, address: str, now: datetime) -> Self:
        """Begin a segment: take its lock, and make its name durable."""
        while True:
            path = folder / f"{uuid4().hex}.part"
            failpoints.point("receive.before_create")
            file = open(path, "x+b", buffering=0)  # noqa: SIM115 - closed by close()
            if lock_part(file, path):
                break
            file.close()  # Another process has sealed it as the part of a dead receiver.
        segment = cls(path, file)
        head = json.dumps(_head_of(pipeline, address, now)).encode()
        try:
            _write_all(file, segment._frames.next_frame(HEAD, 0, head))
            os.fsync(file.fileno())
            sync_folder(folder)
        except OSError:
            segment.close()
            raise
        failpoints.point("receive.after_create")
        return segment

    # Keeps Q1.
    def append(self, batch: pa.RecordBatch) -> None:
        """Write messages durably, so that they may be acknowledged.

        Raises OSError if that failed: the messages MUST NOT be acknowledged. This segment accepts
        no more messages, and `recover_part` seals it.
        """
        data = self._frames.next_frame(GROUP, batch.num_rows, _group_body(batch))
        failpoints.point("receive.before_append")
        with self._refuse_once_broken():
            _write_all(self._file, data[: len(data) // 2])
            failpoints.point("receive.torn_append")
            _write_all(self._file, data[len(data) // 2 :])
            failpoints.point("receive.before_sync")
            os.fdatasync(self._file.fileno())
        failpoints.point("receive.after_sync")

    @contextmanager
    def _refuse_once_broken(self) -> Iterator[None]:
        """Never retry a failed write: after a failed sync, the next sync may succeed although the
        bytes are only in memory.
        """
        if self._broken:
            raise OSError(errno.EIO, "an earlier write failed", str(self.path))
        try:
            yield
        except OSError:
            self._broken = True
            raise

    def count_frame(self, frame: Frame) -> None:
        """Count a frame that the file has already."""
        self._frames.count(frame)

    def seal(self, folder: Path) -> Path | None:
        """Durably write the foot, then move the file to the sealed segments. Returns None if the
        segment had no message and was removed. Raises OSError as `append` does.
        """
        if not self._frames.groups:
            self.path.unlink()
            self.close()
            return None
        foot = self._frames.foot()
        failpoints.point("receive.before_seal")
        with self._refuse_once_broken():
            _write_all(self._file, foot)
            os.fsync(self._file.fileno())
            path = self._publish(folder)
        self.segments = 1
        return path

    def close(self) -> None:
        """Close the file and release its lock. `recover_part` can seal it later."""
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


def lock_part(file: BinaryIO, path: Path) -> bool:
    """Take the lock of a part. Returns False if another process has the lock, or the file no longer
    has that name.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def is_locked(path: Path) -> bool:
    """Whether a receiver holds the lock of a part. Needs the right to read it; False without."""
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
def recover_part(path: Path, sealed: Path) -> Path | None:
    """Seal the part of a dead receiver, cut after its last whole group. Returns None if the
    receiver is alive, or left no message.

    1. Take the lock, so that no other process writes or recovers the part.
    2. Read all whole groups.
    3. Refuse damage: a whole frame never follows a torn end.
    4. Write the last group again: after a failed sync it may be whole only in memory.
    5. Save the bytes after it at `torn_path`, cut them off, and seal.

    Raises CorruptionError if the part is damaged; nothing is changed. Raises OSError if it cannot
    be read or written.
    """
    try:
        file = open(path, "r+b", buffering=0)  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return None
    with file:
        if not lock_part(file, path):
            return None
        part, last = OpenSegment(path, file), None
        while (frame := frame_at(file, part.end)) and frame.magic == (GROUP if part.end else HEAD):
            part.count_frame(frame)
            last = frame
        if (intact := _next_whole_frame(file, part.end)) is not None:
            raise CorruptionError(
                f"{path} is damaged: bytes {part.end} to {intact} cannot be read, and acknowledged "
                "messages may be among them. Nothing was changed. Restore it from a copy"
            )
        failpoints.point("receive.before_cut")
        _save_torn_end(file, path, part.end)
        if last is not None:
            file.seek(last.at)
            _write_all(file, last.start + last.body)
        file.truncate(part.end)
        file.seek(part.end)
        failpoints.point("receive.after_cut")
        return part.seal(sealed)


def torn_path(part: Path) -> Path:
    """The file for the torn end of a part."""
    return part.with_suffix(".torn")


# Keeps Q2.
def _save_torn_end(file: BinaryIO, path: Path, end: int) -> None:
    """Save bytes that are neither a group nor a foot: a group that the receiver never synced looks
    like a group that the disk damaged later.
    """
    file.seek(end)
    if (cut := file.read()) and not cut.startswith(FOOT):
        with suppress(FileExistsError):
            write_new(torn_path(path), cut)


def _frames(file: BinaryIO, at: int) -> Iterator[Frame]:
    """Search the file for whole frames, from a position on."""
    if os.fstat(file.fileno()).st_size <= at:
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in _MAGIC.finditer(data, at):
            frame = frame_at(file, match.start()) if match.start() >= at else None
            if frame:
                at = frame.end
                yield frame


def _next_whole_frame(file: BinaryIO, end: int) -> int | None:
    """Where the next whole frame after `end` begins, except a foot directly at `end`."""
    frames = _frames(file, end)
    return next((each.at for each in frames if (each.magic, each.at) != (FOOT, end)), None)


def count_whole_messages(path: Path) -> int:
    """The number of messages in the whole groups of a damaged segment. At least 1, because receive
    seals no empty segment.
    """
    with open(path, "rb") as file:
        return max(1, sum(each.messages for each in _frames(file, 0) if each.magic == GROUP))


def read_head(path: Path) -> Head:
    """Read the head of a segment. Raises CorruptionError if the file does not begin with one."""
    with open(path, "rb") as file:
        frame = frame_at(file, 0)
    if frame is None or frame.magic != HEAD:
        raise CorruptionError("it does not begin as a segment of a queue")
    head = json.loads(frame.body)
    if head["format"] != FORMAT:
        raise CorruptionError(f"its format is {head['format']!r}, but semel reads only {FORMAT}")
    return Head(**{key: head[key] for key in ("pipeline", "address", "created")})


def read_foot(path: Path) -> Foot:
    """Read the foot of a sealed segment. Raises CorruptionError if it is missing or damaged."""
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        file.seek(max(0, length - _NUMBER.size))
        at = int.from_bytes(file.read(), "little")
        frame = frame_at(file, at) if at < length else None
    if frame is None or frame.magic != FOOT or frame.end + _NUMBER.size != length:
        raise CorruptionError("it does not end as a sealed segment of a queue")
    foot = json.loads(frame.body)
    groups = tuple(FrameGroup(*group) for group in foot["groups"])
    return Foot(digest=foot["digest"], at=frame.at, groups=groups)


def read_groups(
    path: Path, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the messages [start, end) of a sealed segment by groups, each with the number of its
    first message. `end` None: all. Raises CorruptionError if the foot or a group is damaged.
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
