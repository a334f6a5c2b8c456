"""Reads the output of a batch from its success marker alone, without the ledger of its pipeline.

Any other reader can do the same (docs/protocol.md).
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any

import pyarrow as pa
import xxhash

from semel.errors import CorruptionError
from semel.formats.output import folder_values
from semel.model.arrow import arrow_type
from semel.model.manifest import MARKER_FORMAT, Kind
from semel.model.plain import parse_json
from semel.storage import checksum_of

ROWS_MAX = 1 << 32
"""Rows of one batch: more than a pipeline's limits allow, and few enough to split into tasks."""


def natural_number(plain: dict[str, Any], key: str) -> int:
    """Return an integer of 0 or more. Raises ValueError if the value is anything else."""
    value = plain[key]
    if type(value) is not int or value < 0:
        raise ValueError(f"{key} is {value!r}")
    return value


def rows_in(file: IO[bytes]) -> int:
    """The number of rows in a file's footer. Raises OSError without a valid footer."""
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(file).num_rows
    except pa.ArrowException as error:
        raise OSError(errno.EIO, str(error)) from error


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file of a batch's output. `path`: below the sink. `first`: the position of its first row in
    the batch, from 0. `fixed`: the columns in the names of its folders, each with its value.
    """

    path: PurePosixPath
    first: int
    records: int
    bytes: int
    checksum: str
    fixed: dict[str, pa.Scalar]

    # Keeps S29.
    def is_whole(self, file: IO[bytes]) -> bool:
        """Whether size, checksum and number of rows match the marker. Raises OSError if the file
        cannot be read.
        """
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        same = size == self.bytes and checksum_of(file) == self.checksum
        return same and rows_in(file) == self.records


@dataclass(frozen=True, kw_only=True)
class Output:
    """The output of one batch; its rows have the order of `files`. `content`: a digest, equal for
    equal files in any folder. `frontier`: up to this batch, the pipeline had finalized everything
    that one listing of its source showed. 0: unknown.
    """

    pipeline: str
    batch_id: int
    generation: int
    format: str
    columns: pa.Schema
    files: tuple[OutputFile, ...]
    content: str
    frontier: int

    @property
    def rows(self) -> int:
        """The number of rows of all files."""
        return sum(file.records for file in self.files)

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.bytes for file in self.files)

    def between(self, start: int, end: int) -> Iterator[OutputFile]:
        """The files with rows of [start, end)."""
        return (f for f in self.files if f.first < end and start < f.first + f.records)


# Keeps R3.
def parse_output(place: str, name: str, text: bytes) -> Output:
    """The output that a marker states. `place`: of the marker, for errors. `name`: its file name.

    Raises CorruptionError if it is invalid, or from a newer semel.
    """
    try:
        plain = parse_json(text)
        if plain["format"] != MARKER_FORMAT:
            raise ValueError(
                f"its format is {plain['format']!r}, but semel reads only {MARKER_FORMAT}"
            )
        earlier = {"batch_id": plain["batch_id"], "generation": plain.get("generation", 1) - 1}
        if "replaces" in plain and not ("replay" in plain and plain["replaces"] == [earlier]):
            raise ValueError(f"it replaces {plain['replaces']!r}: unknown to this version of semel")
        if not name.startswith(f"b{natural_number(plain, 'batch_id'):08d}"):
            raise ValueError(f"its batch_id is {plain['batch_id']}")
        return _output(plain)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise unreadable_marker(place, why) from error


def unreadable_marker(place: str, why: str) -> CorruptionError:
    """The error for a marker that cannot be read."""
    return CorruptionError(f"cannot read the marker {place}: {why}. Restore it from a backup")


def _output(plain: dict[str, Any]) -> Output:
    sink = plain["spec"]["sink"]
    columns = pa.schema([(name, arrow_type(text)) for name, text in plain["sink_schema"]])
    folders = sink.get("partition_by", ())
    windows = [one["name"] for one in folders if not isinstance(one, str)]
    columns = pa.schema([*columns, *(pa.field(name, pa.string()) for name in windows)])
    if len({*columns.names}) < len(columns):
        raise ValueError("it has a column twice")
    names = [one if isinstance(one, str) else one["name"] for one in folders]
    pipeline, batch = plain["pipeline"], plain["batch_id"]
    generation = natural_number({"generation": 1, **plain}, "generation")
    state = xxhash.xxh3_128(f"{pipeline} {batch} {generation}".encode())
    files, first = [], 0
    for file in plain["files"]:
        if file["kind"] != Kind.DATA:
            continue
        path = PurePosixPath(file["path"])
        # Keeps R4.
        if path.is_absolute() or ".." in path.parts or "\0" in file["path"]:
            raise ValueError(f"it lists {file['path']!r}, which is not below its root")
        state.update(f"\n{file['checksum']} {file['records']} {path}".encode())
        fixed = folder_values(columns, names, file["path"])
        files.append(
            OutputFile(
                path=path, first=first, records=natural_number(file, "records"),
                bytes=natural_number(file, "bytes"), checksum=file["checksum"], fixed=fixed,
            )
        )  # fmt: skip
        first += file["records"]
    if len({file.path for file in files}) < len(files):
        raise ValueError("it lists a file twice")
    if first > ROWS_MAX:
        raise ValueError(f"it has {first:,} rows, but a batch has {ROWS_MAX:,} at most")
    return Output(
        pipeline=pipeline,
        batch_id=batch,
        generation=generation,
        format=sink["format"],
        columns=columns,
        files=tuple(files),
        content=state.hexdigest(),
        frontier=natural_number({"frontier": 0, **plain}, "frontier"),
    )
