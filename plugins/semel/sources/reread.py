"""The seam through which the audit reads claims again.

Each kind of source implements it in its own package, with readers that stage does not use.
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
"""The memory of one fault, in bytes, about."""


class RecordsLostError(SourceError):
    """The source has deleted records, as it is configured to."""


@dataclass(frozen=True, kw_only=True)
class ClaimedRecords:
    """Records of one claim, one after the other: data[bounds[i]:bounds[i + 1]], line ends included.

    `positions` (int64) are their places in the source; `is_record` is false for blank lines and
    header lines. The other fields are for messages and rows. By index of the record: `faults` of a
    record that is invalid whatever its text, `doubts` where readers may disagree, `unreadable`
    where it cannot be read any more. `is_null` marks a missing value; `unparsed_columns` has the
    columns that do not come from the text, as a struct.
    """

    batch: int
    claim: Claim
    data: bytes
    bounds: np.ndarray
    positions: np.ndarray
    is_record: np.ndarray
    faults: Mapping[int, str] = field(default_factory=dict)
    doubts: Mapping[int, str] = field(default_factory=dict)
    unreadable: Mapping[int, str] = field(default_factory=dict)
    is_null: np.ndarray | None = None
    unparsed_columns: pa.StructArray | None = None

    def raw(self, index: int) -> bytes:
        """One record without its line end."""
        record = self.data[self.bounds[index] : self.bounds[index + 1]].removesuffix(b"\n")
        # CR CR LF ends with LF alone.
        return record if record.endswith(b"\r\r") else record.removesuffix(b"\r")

    def text(self, index: int) -> bytes:
        """The bytes that the audit parses."""
        return self.raw(index)

    @property
    def bytes_read(self) -> int:
        """Their size in the source."""
        return len(self.data)

    @property
    def nbytes(self) -> int:
        """Their size in memory, about."""
        arrays = (self.positions, self.unparsed_columns)
        size = sum(array.nbytes for array in arrays if array is not None)
        return len(self.data) + size + len(self.faults) * _BAD_BYTES


@dataclass(frozen=True, kw_only=True)
class ClaimedMessages(ClaimedRecords):
    """The messages of a range of positions: a record is a message's value, unchanged.

    `values`: the original values, if `data` has Avro values converted to JSON.
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
    """Reads the claims of one kind of source; a context manager opens it."""

    @abstractmethod
    def read(
        self, claim: Claim, batch: int, source: SourceSpec, record_id: Collection[str]
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        """The order of the columns in CSV, and the records of a claim, in pieces. `source`: the
        batch's declaration. `record_id`: the columns to convert without loss.

        Raises RecordsLostError if the source has deleted records, SourceError if its content is
        missing or differs; the iterator raises them, too. Raises CorruptionError if the claim
        belongs to another kind.
        """

    def is_compacted(self, claim: Claim) -> bool:  # noqa: ARG002 - most kinds keep what they have
        """True if log compaction may have removed records of the claim."""
        return False


def open_auditor(source: SourceSpec, claims: Iterable[Claim]) -> AbstractContextManager[Auditor]:
    """Open the auditor of a declared source, for all these claims.

    Raises TerminalError or UnavailableError if the source is unreachable, also within the block.
    """
    return import_module(f"{source.package()}.audit").opened(source, claims)


def text_columns(source: SourceSpec) -> tuple[str, ...]:
    """The columns of a record's text, in the schema's order."""
    return tuple(name for name in source.columns if name not in source.unparsed_columns)


def csv_options(source: SourceSpec) -> CsvOptions | None:
    """The options of CSV. Returns None for other formats.

    Raises TerminalError if the audit lacks a reader for the format.
    """
    match source.format:
        case "jsonl" | "bytes" | "parquet":
            return None
        case "csv":
            return source.csv
        case other:
            raise TerminalError(
                f"source.format {other!r}: this version of semel cannot audit it. Run "
                "the audit with the version that read the batch"
            )


def csv_faults(values: Mapping[int, bytes], delimiter: str) -> dict[int, str]:
    """The values that are not a CSV record, whatever the columns, and why."""
    bad, blank = {}, b" \t".replace(delimiter.encode(), b"")
    for at, value in values.items():
        if b"\n" in value or b"\r" in value:
            bad[at] = "it has a line break"
        elif not value.strip(blank):
            bad[at] = "it is blank"
    return bad


def text_column(name: str, values: Sequence[bytes | None]) -> tuple[pa.Array, dict[int, str]]:
    """Values as a text column, null where missing; and faults of values that are not text."""
    texts, bad = [], {}
    for at, value in enumerate(values):
        try:
            text = None if value is None or b"\0" in value else value.decode()
        except UnicodeDecodeError:
            text = None
        if text is None and value is not None:
            bad[at] = f"{name} is not text"
        texts.append(text)
    return pa.array(texts, pa.string()), bad


def time_column(
    name: str, values: Sequence[int | None], per_second: int
) -> tuple[pa.Array, dict[int, str]]:
    """Values as a time column, null where missing; and faults outside the years 1 to 9999."""
    low, high = -62_135_596_800 * per_second, 253_402_300_800 * per_second
    valid = [value if value is not None and low <= value < high else None for value in values]
    bad = {
        at: f"{name} lies outside the years 1 to 9999"
        for at, (value, time) in enumerate(zip(values, valid, strict=True))
        if value != time
    }
    unit = {1_000: "ms", 1_000_000: "us"}[per_second]
    return pa.array(valid, pa.int64()).cast(pa.timestamp(unit)), bad


def build_columns(
    types: Mapping[str, str],
    raw: Mapping[str, Sequence[bytes | None]],
    times: Mapping[str, Sequence[int | None]],
    *,
    per_second: int,
) -> tuple[pa.StructArray | None, dict[int, str]]:
    """The metadata columns of messages in their declared types; and faults of values that do not
    fit. `per_second`: the unit of the times.
    """
    columns: dict[str, pa.Array] = {}
    bad: dict[int, str] = {}
    for name, values in raw.items():
        if types[name] == "binary":
            columns[name] = pa.array(values, pa.binary())
        else:
            columns[name], unfit = text_column(name, values)
            bad |= unfit
    for name, values in times.items():
        columns[name], unfit = time_column(name, values, per_second)
        bad |= unfit
    if not columns:
        return None, bad
    return pa.StructArray.from_arrays(list(columns.values()), list(columns)), bad


def split_fields(text: str, csv: CsvOptions) -> list[tuple[str, bool]]:
    """The fields of a CSV record, each with whether it was quoted. Raises ValueError."""
    fields: list[tuple[str, bool]] = []
    at = 0
    while True:
        value, quoted = "", csv.quote != NO_QUOTE and text.startswith(csv.quote, at)
        if quoted:
            start, at = at + 1, _quoted_end(text, at, csv.quote, csv.escape)
            if at < 0:
                raise ValueError("a quote does not end")
            value = _unescape(text[start : at - 1], csv)
        end = text.find(csv.delimiter, at)
        tail = text[at : end if end >= 0 else len(text)]
        if quoted and tail:
            raise ValueError("text follows a closing quote")
        fields.append((value + tail, quoted))
        if end < 0:
            return fields
        at = end + 1


def _quoted_end(text: AnyStr, at: int, quote: AnyStr, escape: AnyStr | None) -> int:
    """The offset after the quoted field that begins at `at`. Returns -1 if it does not end."""
    at += 1
    while (end := text.find(quote, at)) >= 0:
        escaped = text.find(escape, at, end) if escape else -1
        if escaped < 0 and (escape or not text.startswith(quote, end + 1)):
            return end + 1
        at = (end if escaped < 0 else escaped) + 2
    return -1


def _unescape(text: str, csv: CsvOptions) -> str:
    """The value of a quoted text. Raises ValueError if an escape precedes other text."""
    if not csv.escape:
        return text.replace(csv.quote * 2, csv.quote)
    value, *parts = text.replace(csv.escape * 2, "\0").split(csv.escape)
    if not all(part.startswith(csv.quote) for part in parts):
        raise ValueError("an escape precedes neither a quote nor an escape")
    return "".join((value, *parts)).replace("\0", csv.escape)


def record_end(text: bytes, start: int, csv: CsvOptions) -> int:
    """The offset after a CSV record and its LF; quoted fields may contain line ends."""
    at, delimiter, quote = start, csv.delimiter.encode(), csv.quote.encode()
    while True:
        if text.startswith(quote, at):
            at = _quoted_end(text, at, quote, csv.escape.encode() if csv.escape else None)
            if at < 0:
                return len(text)
        line, field = text.find(b"\n", at), text.find(delimiter, at)
        if line < 0 and field < 0:
            return len(text)
        if field < 0 or 0 <= line < field:
            return line + 1
        at = field + 1
