"""Attacks on the cutting of a range: splits and blocks anywhere, short and damaged files."""

import gzip
import io

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from fixtures.files.records import rejected_of
from semel import limits
from semel.errors import SourceError
from semel.formats.csv import CsvFormat, read_header
from semel.formats.jsonl import JsonLines
from semel.formats.records import read_split
from semel.formats.selection import membership

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])
JSON_LINES = [
    b'{"a":1}\n',
    b'{"s":"\xc3\xa9\xf0\x9f\x98\x80"}\r\n',
    b"\n",
    b"\r\n",
    b" \n",
    b"bad\n",
    b'{"a":"x"}\r\n',
    b'{"a":1,"a":1}\n',
    b"\xef\xbb\xbf\n",
    b'{"s":"%b"}\n' % (b"y" * 90),
    b'{"s":"%b"}\r\n' % (b"z" * 300),
]
CSV_LINES = [b"1,a\n", b'2,"\xf0\x9f\x98\x80"\r\n', b'3,"\n', b"\n", b"x\n", b'4,"b""c"\n',
             b"5,%b\n" % (b"y" * 300)]


class NoSeek(io.RawIOBase):
    """A stream that gives few bytes at a time and cannot go back."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        return self._file.readinto(memoryview(buffer)[:7])


def read(data: bytes, format, *, start, end, range_start=0, range_end, file=None):
    """(rows, rejected records, digest, bytes read) of one split."""
    digest = xxhash.xxh3_128()
    columns = None
    if isinstance(format, CsvFormat):
        columns, _ = read_header(io.BytesIO(data), format, SCHEMA)
    blocks, rejected = [], []
    for block in read_split(
        file or io.BytesIO(data),
        start=start,
        end=end,
        range_start=range_start,
        range_end=range_end,
        schema=SCHEMA,
        format=format,
        digest=digest,
        columns=columns,
    ):
        blocks.append(block)
        rejected += rejected_of(block)
    rows = [row for block in blocks for row in block.table.to_pylist()]
    return rows, rejected, digest.hexdigest(), sum(block.bytes_read for block in blocks)


def owned(data: bytes, start: int, end: int) -> bytes:
    """The lines that start in [start, end), by a reading that is too simple to be wrong."""
    result, offset = b"", 0
    for line in [*(line + b"\n" for line in data.split(b"\n")[:-1]), data.rsplit(b"\n", 1)[-1]]:
        if start <= offset < end:
            result += line
        offset += len(line)
    return result


@st.composite
def cases(draw):
    """A file, a planned range in it that starts and ends at lines, and the splits of the range."""
    is_csv = draw(st.booleans())
    lines = draw(st.lists(st.sampled_from(CSV_LINES if is_csv else JSON_LINES), max_size=12))
    first = draw(st.sampled_from([b"s,a\n", b'\xef\xbb\xbf"s",a\r\n'] if is_csv else
                                 [b"", b'\xef\xbb\xbf{"a":0}\n']))
    lines = [first, *lines] if first else lines
    if draw(st.booleans()) and lines:
        lines[-1] = lines[-1].removesuffix(b"\n")
    before = draw(st.integers(0, len(lines)))
    behind = draw(st.integers(before, len(lines)))
    sizes = [len(line) for line in lines]
    start, end = sum(sizes[:before]), sum(sizes[:behind])
    cuts = draw(st.lists(st.integers(start, end), max_size=6))
    return b"".join(lines), CsvFormat() if is_csv else JsonLines(), start, end, sorted(cuts)


@given(case=cases(), block=st.integers(1, 200), step=st.integers(1, 50), stream=st.booleans())
def test_union_of_splits_is_the_range(case, block, step, stream):
    """However a range is cut, in CRLF and within characters too: the same rows, places, rejects.

    Each split's digest covers the bytes of its own lines, no more and no less.
    """
    data, format, start, end, cuts = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RECORD_BYTES_MAX", 200)
        patch.setattr(limits, "REJECTED_HEAD_BYTES", 100)
        whole = read(data, format, start=start, end=end, range_start=start, range_end=end)
        patch.setattr(limits, "BLOCK_BYTES", block)
        patch.setattr("semel.formats.blocks.LINE_STEP_BYTES", min(step, block))
        rows, rejected, size = [], [], 0
        for low, high in zip([start, *cuts], [*cuts, end], strict=True):
            file = NoSeek(data) if stream and low == 0 else None
            part = read(
                data, format, start=low, end=high, range_start=start, range_end=end, file=file
            )
            mine = owned(data[:end], low, high)
            assert part[2:] == (xxhash.xxh3_128(mine).hexdigest(), len(mine))
            rows += part[0]
            rejected += part[1]
            size += part[3]
    assert (rows, rejected, size) == (whole[0], whole[1], end - start)


@given(case=cases())
def test_bytes_behind_the_range_are_not_read(case):
    """What is behind the range, a half-written line too, changes nothing."""
    data, format, start, end, _ = case
    whole = read(data[:end], format, start=start, end=end, range_start=start, range_end=end)
    file = io.BytesIO(data[:end] + b"half a li")
    again = read(
        data[:end], format, start=start, end=end, range_start=start, range_end=end, file=file
    )
    assert again == whole
    assert file.tell() <= end


@pytest.mark.parametrize("missing", [1, 5, 20])
@pytest.mark.parametrize("start", [0, 12])
def test_file_shorter_than_planned(missing, start):
    """A file that was shortened since the plan is an error, never a smaller batch."""
    data = b'{"a":1}\n' * 5
    with pytest.raises(SourceError, match="the plan has bytes up to 40"):
        read(data[:-missing], JsonLines(), start=start, end=40, range_end=40)


def test_file_cut_below_a_split():
    """A split that lies wholly behind the file's end is an error as well."""
    with pytest.raises(SourceError):
        read(b'{"a":1}\n', JsonLines(), start=20, end=40, range_end=80)


def test_truncated_last_line_is_a_record():
    """A cut-off last line within the range is an ordinary malformed record."""
    rows, (bad,), _, _ = read(b'{"a":1}\n{"a":', JsonLines(), start=0, end=13, range_end=13)
    assert len(rows) == 1 and bad.raw == b'{"a":'


def test_gzip():
    """A compressed file is read as a stream to its end, and gives what the plain file gives."""
    data = b"".join(JSON_LINES) * 40
    stream = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(data)))
    plain = read(data, JsonLines(), start=0, end=len(data), range_end=len(data))
    assert read(b"", JsonLines(), start=0, end=None, range_end=None, file=stream) == plain
    empty = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(b"")))
    assert read(b"", JsonLines(), start=0, end=None, range_end=None, file=empty)[3] == 0


@pytest.mark.parametrize("damage", ["cut", "tail", "bytes", "checksum", "magic"])
def test_damaged_gzip(damage):
    """A truncated or corrupt stream is an error, never a smaller batch."""
    whole = gzip.compress(b"".join(b'{"a":%d}\n' % i for i in range(5_000)))
    damaged = {
        "cut": whole[: len(whole) // 2],
        "tail": whole[:-3],
        "bytes": whole[:2_000] + b"\xff" * 50 + whole[2_050:],
        "checksum": whole[:-8] + b"\0\0\0\0" + whole[-4:],
        "magic": b"PK" + whole[2:],
    }[damage]
    stream = gzip.GzipFile(fileobj=io.BytesIO(damaged))
    with pytest.raises(SourceError, match="compressed"):
        read(b"", JsonLines(), start=0, end=None, range_end=None, file=stream)
    stream.close()


def test_tables_do_not_share_the_reading_buffer(monkeypatch):
    """Blocks that are kept while later ones are read do not change."""
    monkeypatch.setattr(limits, "BLOCK_BYTES", 40)
    data = b"".join(b'{"a":%d,"s":"text %d"}\n' % (i, i) for i in range(50))
    rows, rejected, _, _ = read(data, JsonLines(), start=0, end=len(data), range_end=len(data))
    assert [(row["a"], row["s"]) for row in rows] == [(i, f"text {i}") for i in range(50)]
    assert not rejected


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(-5, 45)))
def test_which_offsets_are_chosen_ones(offsets: set[int], chosen: set[int]) -> None:
    """Each offset that was chosen is found, and no other, whatever the chosen ones are."""
    both = (np.array(sorted(one), np.int64) for one in (offsets, chosen))
    assert membership(*both).tolist() == [offset in chosen for offset in sorted(offsets)]
