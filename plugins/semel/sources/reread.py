"""Reading claims again, for the audit: what it asks of a kind of source, and what it is given.

A kind's part of it lies in its own room. It has readers of its own, and shares none with stage.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import AnyStr

import numpy as np
import pyarrow as pa

from semel.declare.parts import NO_QUOTE
from semel.errors import SourceError, TerminalError
from semel.model.batch import Claim
from semel.sources.spec import CsvOptions, SourceSpec

_BAD_BYTES = 500
"""What one record takes that is judged alone."""


class RecordsLostError(SourceError):
    """What was read is not there any more, as the source's own configuration wants it."""


@dataclass(frozen=True, kw_only=True)
class ClaimedRecords:
    """Records of one claim, one after the other: data[bounds[i]:bounds[i + 1]], line ends included.

    `positions` (int64) are their places in the source; `kept` leaves out what is no record, such as
    blank lines. Of what is no line of a file: `bad` names records, by their index, that are no good
    whatever their text says, and why; `doubts` those of which readers may differ, and why;
    `unknown` those that nobody can read any more, and why; `nothing` marks those without any value;
    `beside` holds the columns that are not of the text, as a struct.
    """

    batch: int
    claim: Claim
    data: bytes
    bounds: np.ndarray
    positions: np.ndarray
    is_record: np.ndarray
    bad: Mapping[int, str] = field(default_factory=dict)
    doubts: Mapping[int, str] = field(default_factory=dict)
    unknown: Mapping[int, str] = field(default_factory=dict)
    nothing: np.ndarray | None = None
    beside: pa.StructArray | None = None

    def raw(self, index: int) -> bytes:
        """One record without its line end."""
        record = self.data[self.bounds[index] : self.bounds[index + 1]].removesuffix(b"\n")
        # A CR before the CR makes it no line end.
        return record if record.endswith(b"\r\r") else record.removesuffix(b"\r")

    def text(self, index: int) -> bytes:
        """What is judged of it."""
        return self.raw(index)

    @property
    def bytes_read(self) -> int:
        """What the source holds of them."""
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """What they take in memory, about."""
        held = sum(some.nbytes for some in (self.positions, self.beside) if some is not None)
        return len(self.data) + held + len(self.bad) * _BAD_BYTES


@dataclass(frozen=True, kw_only=True)
class ClaimedMessages(ClaimedRecords):
    """The messages of a range of positions: a record is a message's value, as it is.

    `values`: the values where `data` holds what they mean as JSON, those of Avro.
    """

    values: Sequence[bytes | None] | None = None

    def raw(self, index: int) -> bytes:
        return self.text(index) if self.values is None else self.values[index] or b""

    def text(self, index: int) -> bytes:
        return self.data[self.bounds[index] : self.bounds[index + 1]]

    @property
    def bytes_read(self) -> int:
        return len(self.data) if self.values is None else sum(map(len, filter(None, self.values)))


class Auditor(ABC):
    """Reads the claims of one kind of source, within a block."""

    @abstractmethod
    def read(
        self, claim: Claim, batch: int, source: SourceSpec, record_id: Collection[str]
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        """What a claim is of: the order of the columns in CSV, and its records, in pieces; as a
        batch declares its source. `record_id`: the columns whose values lose nothing.

        Raises RecordsLostError if the source has deleted some, and SourceError if it has other
        records or cannot be read, both also while the caller takes pieces; and CorruptionError if
        the claim belongs to another kind.
        """

    def compacted(self, claim: Claim) -> bool:  # noqa: ARG002 - most kinds keep what they have
        """Whether the source removes records from between others."""
        return False


def auditor(source: SourceSpec, claims: Iterable[Claim]) -> AbstractContextManager[Auditor]:
    """What reads all these claims again, where they are by a declaration.

    TerminalError, UnavailableError: it cannot be reached, also within the block.
    """
    return import_module(f"{source.package()}.audit").opened(source, claims)


def in_order(source: SourceSpec) -> tuple[str, ...]:
    """The columns of a record's text, as the schema has them."""
    return tuple(name for name in source.columns if name not in source.unparsed_columns)


def csv_of(source: SourceSpec) -> CsvOptions | None:
    """How CSV is written; None: it is JSON, or bytes as they are.

    TerminalError: the audit reads none of the format by itself, and proves nothing.
    """
    match source.format:
        case "jsonl" | "bytes" | "parquet":
            return None
        case "csv":
            return source.csv
        case other:
            raise TerminalError(
                f"source.format {other!r} has no reader in the audit, which shares none with "
                "semel's stage; audit with the semel that read it"
            )


def bad_csv(values: Mapping[int, bytes], delimiter: str) -> dict[int, str]:
    """Which values are no record of CSV, whatever the columns are, and why."""
    bad, blank = {}, b" \t".replace(delimiter.encode(), b"")
    for at, value in values.items():
        if b"\n" in value or b"\r" in value:
            bad[at] = "it has a line break"
        elif not value.strip(blank):
            bad[at] = "there is nothing in it"
    return bad


def texts_of(name: str, values: Sequence[bytes | None]) -> tuple[pa.Array, dict[int, str]]:
    """A column of text, nulls where there is none; and which values are no text."""
    texts, bad = [], {}
    for at, value in enumerate(values):
        try:
            text = None if value is None or b"\0" in value else value.decode()
        except UnicodeDecodeError:
            text = None
        if text is None and value is not None:
            bad[at] = f"{name} is no text"
        texts.append(text)
    return pa.array(texts, pa.string()), bad


def times_of(
    name: str, values: Sequence[int | None], per_second: int
) -> tuple[pa.Array, dict[int, str]]:
    """A column of times, nulls where there is none; and which values are of no year 1 to 9999."""
    low, high = -62_135_596_800 * per_second, 253_402_300_800 * per_second
    known = [value if value is not None and low <= value < high else None for value in values]
    bad = {
        at: f"{name} is of no year from 1 to 9999"
        for at, (value, time) in enumerate(zip(values, known, strict=True))
        if value != time
    }
    unit = {1_000: "ms", 1_000_000: "us"}[per_second]
    return pa.array(known, pa.int64()).cast(pa.timestamp(unit)), bad


def columns_of(
    types: Mapping[str, str],
    raw: Mapping[str, Sequence[bytes | None]],
    times: Mapping[str, Sequence[int | None]],
    *,
    per_second: int,
) -> tuple[pa.StructArray | None, dict[int, str]]:
    """The columns next to a message's value, each of its declared type; and the messages with a
    value that does not fit. `per_second`: the unit of the times.
    """
    columns: dict[str, pa.Array] = {}
    bad: dict[int, str] = {}
    for name, values in raw.items():
        if types[name] == "binary":
            columns[name] = pa.array(values, pa.binary())
        else:
            columns[name], unfit = texts_of(name, values)
            bad |= unfit
    for name, values in times.items():
        columns[name], unfit = times_of(name, values, per_second)
        bad |= unfit
    if not columns:
        return None, bad
    return pa.StructArray.from_arrays(list(columns.values()), list(columns)), bad


def split_fields(text: str, csv: CsvOptions) -> list[tuple[str, bool]]:
    """The fields of one CSV record, each with whether it was quoted. ValueError: it has none."""
    fields: list[tuple[str, bool]] = []
    at = 0
    while True:
        value, quoted = "", csv.quote != NO_QUOTE and text.startswith(csv.quote, at)
        if quoted:
            start, at = at + 1, _closed(text, at, csv.quote, csv.escape)
            if at < 0:
                raise ValueError("a quote does not end")
            value = _meant(text[start : at - 1], csv)
        end = text.find(csv.delimiter, at)
        rest = text[at : end if end >= 0 else len(text)]
        if quoted and rest:
            raise ValueError("text follows a closing quote")
        fields.append((value + rest, quoted))
        if end < 0:
            return fields
        at = end + 1


def _closed(text: AnyStr, at: int, quote: AnyStr, escape: AnyStr | None) -> int:
    """The offset behind a quoted field that begins at `at`; -1: it does not end."""
    at += 1
    while (end := text.find(quote, at)) >= 0:
        escaped = text.find(escape, at, end) if escape else -1
        if escaped < 0 and (escape or not text.startswith(quote, end + 1)):
            return end + 1
        at = (end if escaped < 0 else escaped) + 2
    return -1


def _meant(text: str, csv: CsvOptions) -> str:
    """What is written between two quotes. ValueError: an escape stands before other text."""
    if not csv.escape:
        return text.replace(csv.quote * 2, csv.quote)
    value, *parts = text.replace(csv.escape * 2, "\0").split(csv.escape)
    if not all(part.startswith(csv.quote) for part in parts):
        raise ValueError("an escape stands before neither a quote nor an escape")
    return "".join((value, *parts)).replace("\0", csv.escape)


def record_end(text: bytes, start: int, csv: CsvOptions) -> int:
    """The offset behind a CSV record that may hold line ends within quotes, LF included."""
    at, delimiter, quote = start, csv.delimiter.encode(), csv.quote.encode()
    while True:
        if text.startswith(quote, at):
            at = _closed(text, at, quote, csv.escape.encode() if csv.escape else None)
            if at < 0:
                return len(text)
        line, field = text.find(b"\n", at), text.find(delimiter, at)
        if line < 0 and field < 0:
            return len(text)
        if field < 0 or 0 <= line < field:
            return line + 1
        at = field + 1
