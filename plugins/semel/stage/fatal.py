"""Fatal records: reading one kills the process, by a signal in a native library.

How it works: a task notes its current splits in the attempt's folder, and removes the note
afterwards. So a note outlives a process that died. If the last two attempts died in the same split,
the driver starts a process that reads its records again, and forks for each part. It halves
each part that dies until single records remain.

Known limitation: a process killed from outside, or for its memory use, also leaves its note. Then
the search finds no record, and the attempt continues.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import xxhash

from semel.declare import wording
from semel.errors import TerminalError
from semel.formats.selection import NO_OFFSETS, Selection
from semel.model.split import Split
from semel.sources import Source
from semel.stage.job import StageJob
from semel.storage import ArchivePath, StorePath, names

FOUND_MAX = 3
"""Fatal records to search for: each takes some twenty readings of a part of its split."""

PART_SECONDS = 120
"""Reading a part of a split for longer counts as endless."""


@contextmanager
def noted(job: StageJob, name: str, splits: Iterable[Split]) -> Iterator[None]:
    """Note within the block that splits are being read. `name`: unique at any time.

    In a store, where a note takes as long as thousands of records, the first attempt makes none.
    """
    if job.fence < first_noted(job.folder):
        yield
        return
    note = notes_folder(job.folder) / name
    note.write_bytes(json.dumps([split.number for split in splits]).encode())
    yield
    note.unlink(missing_ok=True)


def first_noted(archive: ArchivePath) -> int:
    """The fence of the first attempt that leaves notes."""
    return 2 if isinstance(archive, StorePath) else 1


def notes_folder(attempt: ArchivePath) -> ArchivePath:
    """The folder of an attempt's notes."""
    return attempt / "reading"


def died_over(attempts: Sequence[ArchivePath]) -> list[int]:
    """The numbers of the splits that each of the attempts was reading when it ended."""
    each = [set(_read_notes(attempt)) for attempt in attempts]
    return sorted(set.intersection(*each)) if each else []


def _read_notes(attempt: ArchivePath) -> Iterator[int]:
    folder = notes_folder(attempt)
    for name in names(folder):
        with suppress(ValueError, FileNotFoundError):  # Its writer died or removed it.
            yield from json.loads((folder / name).read_bytes())


@dataclass(frozen=True, kw_only=True)
class Fatal:
    """A record that kills its reader. `signal`: the number."""

    split: int
    offset: int
    signal: int


def check(job: StageJob, attempts: Sequence[ArchivePath]) -> None:
    """Raises TerminalError, with their positions, if the attempts died of fatal records."""
    numbers = died_over(attempts)
    records = search(job.source, [job.splits[n] for n in numbers], job.batch_id) if numbers else []
    if not records:
        return
    places = []
    for record in records:
        claim = job.splits[record.split].claim
        (line,) = job.source.line_numbers(claim, [record.offset], job.batch_id)
        at = wording.place(line, record.offset, job.spec.source.unit)
        places.append(f"{claim.name!r} {at} ({_name(record.signal)})")
    # A string column of JSON rejects numbers: every record would become a dead letter.
    column_type = "json" if job.spec.source.format == "jsonl" else "string"
    died = wording.count(len(attempts), "attempt")
    raise TerminalError(
        f"batch {job.batch_id}: its last {died} died while reading, and so does "
        f"any process that reads the record at {', and at '.join(places)}. Nothing was committed. "
        f"Take it out of the source, or declare its unreadable column as {column_type}. Then "
        "abandon the batch, and the next run plans its records again",
        next=f"semel abandon {job.batch_id}",
    )


def _name(number: int) -> str:
    if number == signal.SIGALRM:
        return f"not read within {PART_SECONDS} s"
    return f"signal {number}, {signal.strsignal(number)}"


def search(source: Source, splits: list[Split], batch_id: int) -> list[Fatal]:
    """Find the first fatal records of some splits, in a separate process."""
    process = subprocess.run(
        [sys.executable, "-c", "from semel.stage.fatal import main; main()"],
        input=pickle.dumps((source, splits, batch_id)), stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    lines = process.stdout.decode().splitlines()
    return [Fatal(**json.loads(line)) for line in lines if line.startswith("{")]


def main() -> None:
    """The separate process of `search`."""
    source, splits, batch_id = pickle.load(sys.stdin.buffer)
    remaining = FOUND_MAX
    for split in splits:
        for offset, number in _fatal(source, split, batch_id, remaining):
            remaining -= 1
            print(json.dumps({"split": split.number, "offset": offset, "signal": number}))


def _fatal(
    source: Source, split: Split, batch_id: int, count_max: int
) -> Iterator[tuple[int, int]]:
    """Yield the offsets of records that are fatal on their own, each with its signal."""
    parts = deque([_offsets(source, split, batch_id)])
    while parts and count_max:
        part = parts.popleft()
        number = _died(source, split, batch_id, part) if len(part) else 0
        if number and len(part) == 1:
            count_max -= 1
            yield int(part[0]), number
        elif number:
            parts.extendleft((part[len(part) // 2 :], part[: len(part) // 2]))


def _offsets(source: Source, split: Split, batch_id: int) -> np.ndarray:
    """The offsets of a split's records; none if they cannot be read. A child reads them: in a
    process that has used it, the client of a store has threads, without which it hangs in a child.
    """
    reader, writer = os.pipe()
    if child := os.fork():
        os.close(writer)
        with open(reader, "rb") as answer:
            data = answer.read()
        return NO_OFFSETS if os.waitpid(child, 0)[1] else np.frombuffer(data, NO_OFFSETS.dtype)
    status = 1
    try:
        signal.alarm(PART_SECONDS)
        nothing = Selection(offsets=NO_OFFSETS, only=True)
        blocks = source.read(split, batch_id, xxhash.xxh3_128(), nothing)
        with open(writer, "wb") as answer:
            for block in blocks:
                answer.write(block.left_out.astype(NO_OFFSETS.dtype).tobytes())
        status = 0
    finally:
        os._exit(status)


def _died(source: Source, split: Split, batch_id: int, offsets: np.ndarray) -> int:
    """The signal that killed a process reading these records. Returns 0 if it survived."""
    if child := os.fork():
        status = os.waitpid(child, 0)[1]
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    try:
        signal.alarm(PART_SECONDS)
        selection = Selection(offsets=offsets, only=True)
        for _ in source.read(split, batch_id, xxhash.xxh3_128(), selection):
            pass
    finally:
        os._exit(0)
