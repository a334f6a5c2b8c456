"""Files of any bytes: every line is a row or a rejected record with its bytes, and nothing raises.

What is a line, and which lines are blank, is said here a second time, as simply as can be.
"""

import gzip
import io
from itertools import pairwise

import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fixtures.batches.workbench import Workbench
from fixtures.files.hostile import FILES, lines_of
from fixtures.files.records import read_whole
from semel import limits
from semel.errors import SourceError
from semel.formats.csv import CsvFormat
from semel.formats.jsonl import JsonLines
from semel.formats.records import OFFSET, read_split
from semel.reports.gaps import first_survey
from tiers import examples

SCHEMA = pa.schema(
    [("id", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))]
)
HEADER = b"id,n,at\n"

FEW = settings(derandomize=True, database=None, deadline=None, max_examples=examples(60))

def read(data: bytes, format: JsonLines | CsvFormat) -> tuple[list[dict], dict[int, bytes]]:
    """Rows, and the raw bytes of what was rejected, by offset."""
    columns = SCHEMA.names if isinstance(format, CsvFormat) else None
    blocks, rejected = read_whole(data, format, SCHEMA, columns)
    assert all(r.reason and r.detail.isprintable() for r in rejected)
    raws = {record.offset: record.raw for record in rejected}
    assert len(raws) == len(rejected)
    return [row for block in blocks for row in block.table.to_pylist()], raws


@FEW
@given(data=FILES)
def test_any_file_as_json_lines(data: bytes) -> None:
    """Each line that is not blank is a row or rejected, once, whatever stands around it."""
    rows, rejected = read(data, JsonLines())
    lines = lines_of(data, b" \t\r")
    offsets = [row[OFFSET] for row in rows]
    assert sorted([*offsets, *rejected]) == sorted(lines)
    assert all(raw == lines[at] for at, raw in rejected.items())
    for row in rows:
        assert lines[row[OFFSET]].strip(b" \t").startswith(b"{")


@FEW
@given(data=FILES, header=st.booleans())
def test_any_file_as_csv(data: bytes, header: bool) -> None:
    """The same of CSV, with the header left out where there is one."""
    head = HEADER if header else b""
    rows, rejected = read(head + data, CsvFormat(header=header))
    lines = lines_of(head + data, b" \t\r")
    if header:
        del lines[0]
    assert sorted([row[OFFSET] for row in rows] + [*rejected]) == sorted(lines)
    assert all(raw == lines[at] for at, raw in rejected.items())


@FEW
@given(data=FILES)
def test_any_file_as_csv_of_several_lines(data: bytes) -> None:
    """Where fields may hold newlines the records still are the file, one behind the other."""
    rows, rejected = read(HEADER + data, CsvFormat(multiline=True))
    starts = sorted([row[OFFSET] for row in rows] + [*rejected])
    assert len({*starts}) == len(starts)
    whole = HEADER + data
    ends = [*starts, len(whole)]
    assert not whole[len(HEADER) : ends[0]].strip(b" \t\r\n")
    for start, end in pairwise(ends):
        assert whole[start - 1 : start] == b"\n"
        if start in rejected:
            rest = whole[start:end].removeprefix(rejected[start])
            assert not rest.strip(b" \t\r\n")


@FEW
@given(data=FILES, at=st.integers(0, 400), byte=st.integers(0, 255), cut=st.booleans())
@example(data=b"x" * 50, at=10, byte=7, cut=False)  # No block has this type.
def test_any_damage_to_a_gzip_file(data: bytes, at: int, byte: int, cut: bool) -> None:
    """A compressed file gives what was compressed, or a SourceError; never less, never another."""
    whole = gzip.compress(data, mtime=0)
    at = min(at, len(whole) - 1)
    damaged = whole[:at] if cut else whole[:at] + bytes([byte]) + whole[at + 1 :]
    found: list[dict] = []
    with gzip.GzipFile(fileobj=io.BytesIO(damaged)) as stream:
        try:
            for block in read_split(
                stream, start=0, end=None, range_start=0, range_end=None, schema=SCHEMA,
                format=JsonLines(), digest=xxhash.xxh3_128(),
            ):  # fmt: skip
                found += block.table.to_pylist()
        except SourceError:
            return
    # A flag or a name in the header may change; an empty file is an empty stream.
    assert found == (read(data, JsonLines())[0] if damaged else [])


def test_a_damaged_csv_gz_is_refused_by_name(bench: Workbench) -> None:
    """Plan goes on without a compressed CSV file that is damaged, and says which."""
    spec = bench.spec(
        source={"format": "csv", "path": "in/*", "closed_after": "0 s",
                "schema": {"id": "string", "n": "bigint"}},
    )  # fmt: skip
    whole = gzip.compress(b"id,n\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(9_000)))
    bad = bench.data / "in" / "bad.csv.gz"
    bad.write_bytes(whole[:20] + bytes(40) + whole[60:])
    (bench.data / "in" / "good.csv").write_bytes(b"id,n\na,1\n")
    _, (wanted,), refused = first_survey(spec)
    assert wanted.file.path == str(bench.data / "in" / "good.csv")
    assert [(item.name, item.reason) for item in refused] == [(str(bad), "damaged")]


def test_a_long_record_in_any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is longer than the limit is rejected with its head, and its neighbours are read."""
    monkeypatch.setattr(limits, "RECORD_BYTES_MAX", 50)
    monkeypatch.setattr(limits, "REJECTED_HEAD_BYTES", 10)
    good = b'{"id":"a"}'
    for long in (b"x" * 51, b'{"id":"' + b"y" * 60 + b'"}', b"\xff" * 200):
        rows, rejected = read(b"\n".join([good, long, good]), JsonLines())
        assert [row[OFFSET] for row in rows] == [0, len(good) + len(long) + 2]
        assert rejected == {len(good) + 1: long[:10]}
