"""The values of a plan: files that may be read on, ranges of them, and what was read of each."""

from dataclasses import dataclass, replace
from typing import Any

from semel.sources.content import Content
from semel.sources.evidence import Partition
from semel.sources.files import ListedFile

Spans = dict[int, list[tuple[int, int]]]
"""By source partition: ranges [start, end), ascending."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A file that is read on in `known`, or as a new partition; its bytes [start, end) may be.

    `whole`: as one range or not at all. `start` is behind a hole of NULs that a truncation left.
    """

    file: ListedFile
    birth_ns: int | None
    content: Content | None
    known: Partition | None
    end: int
    whole: bool = False
    start: int = 0

    @property
    def place(self) -> dict[str, Any]:
        """Where the file is, and how it looks, by the columns of its partition.

        Its size is -1, so that a plan looks again, while its content cannot be had.
        """
        file, content = self.file, self.content
        return {
            "path": file.path,
            "device": file.device,
            "inode": file.inode,
            "birth_ns": self.birth_ns,
            "size": file.size if content is not None else -1,
            "mtime_ns": file.mtime_ns,
            "ctime_ns": file.ctime_ns,
            "content": content.size if content is not None else self.known.content,
        }


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was read of a file up to `reached`: it recognises the file later."""

    reached: int
    head_length: int
    head_hash: str
    first_hash: str
    last_length: int
    last_hash: str
    tail_hash: str


NOTHING_READ = Evidence(
    reached=0, head_length=0, head_hash="", first_hash="", last_length=0, last_hash="", tail_hash=""
)


@dataclass(frozen=True, kw_only=True)
class Range:
    """What a plan takes of one file: bytes [start, end)."""

    wanted: Wanted
    start: int
    end: int
    evidence: Evidence


def unclaimed(item: Wanted, free: Spans) -> list[tuple[int, int]]:
    """The ranges of a file that may be taken. `free`: those of each known partition."""
    spans = free.get(item.known.source_partition_id, []) if item.known else [(0, item.end)]
    spans = [(max(start, item.start), end) for start, end in spans]
    return [(start, end) for start, end in spans if start < end]


def as_read(item: Wanted, last: Range | None, *, settled: bool) -> Partition:
    """A known partition as it is once the plan is written. Not `settled`: a plan looks at its file
    again, also when that did not change.
    """
    known = item.known
    place = item.place if settled else {**item.place, "size": -1}
    further = last is not None and last.evidence.reached > known.reached
    return replace(known, **place, **(vars(last.evidence) if further else {}), closed=False)
