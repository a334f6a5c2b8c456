"""Records that are left out before the parse: the others are what they are without that."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from fixtures.files.records import Rejected, blocks_of, rejected_of
from semel import limits
from semel.declare.parts import Unknown
from semel.formats.csv import CsvFormat
from semel.formats.jsonl import JsonLines
from semel.formats.lines import RecordLines
from semel.formats.records import OFFSET
from semel.formats.selection import Selection

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])
JSON_LINES = [
    b'{"a":1}\n', b'{"a":2,"s":"\xc3\xa9"}\r\n', b'{"s":"x","b":1}\n', b' {"a":3} \n', b"\n",
    b"\r\n", b" \n", b" \t\r\n", b"bad\n", b'{"a":"x"}\r\n', b'{"a":1,"a":1}\n', b'{"s":"\xff"}\n',
    b'{"s":"\0"}\n', b'{"a":4} {"a":5}\n', b'{"a":\n', b'{"s":"%b"}\n' % (b"y" * 300),
    b" " * 202 + b"\n", b" " * 300 + b"\n",
]  # fmt: skip
CSV_LINES = [
    b"1,a\n", b'2,"\xc3\xa9"\r\n', b'3,"b""c"\n', b"\n", b"\r\n", b"  \n", b'4,"\n', b"x\n",
    b"y,z\n", b" 5,a \n", b" ,\n", b"6,\xff\n", b"7,a\rb\n", b"8,%b\n" % (b"y" * 300),
]  # fmt: skip
MULTILINE = [b'1,"a\nb"\n', b'2,"\r\n\n"\r\n', b"3,a\n", b"\n", b"x\n", b"y,z\n"]
BOM = b'\xef\xbb\xbf{"a":0}\n'
OF_FORMATS = {
    "json": (JsonLines(), JSON_LINES, [b"", BOM]),
    "json column": (JsonLines(json=("s",)), JSON_LINES, [b"", BOM]),
    "no other keys": (JsonLines(unknown=Unknown.QUARANTINE), JSON_LINES, [b"", BOM]),
    "csv": (CsvFormat(), CSV_LINES, [b"a,s\n", b"\xef\xbb\xbfa,s\r\n"]),
    "multiline": (CsvFormat(multiline=True), MULTILINE, [b"a,s\n"]),
}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What reading a file gave. `others`: offsets of records that were left out."""

    rows: list[dict]
    rejected: list[Rejected]
    others: list[int]
    digest: str
    bytes_read: int


def read(data: bytes, form: CsvFormat | JsonLines, selection: Selection | None) -> Found:
    """All records of a file."""
    digest = xxhash.xxh3_128()
    rows, rejected, others, size = [], [], [], 0
    for block in blocks_of(
        data, form, SCHEMA, digest=digest, columns=SCHEMA.names, selection=selection
    ):
        rows += block.table.to_pylist()
        rejected += rejected_of(block)
        others += block.left_out.tolist()
        size += block.bytes_read
    return Found(
        rows=rows, rejected=rejected, others=others, digest=digest.hexdigest(), bytes_read=size
    )


@given(
    kind=st.sampled_from(sorted(OF_FORMATS)), data=st.data(), only=st.booleans(),
    open_end=st.booleans(), block=st.integers(1, 400),
)  # fmt: skip
def test_it_is_as_if_all_were_parsed(
    kind: str, data: st.DataObject, only: bool, open_end: bool, block: int
) -> None:
    """Whatever is left out of whatever blocks: the rows, rejects, digest and bytes of the others
    are the same, and each record is either among them or told as left out.
    """
    form, lines, firsts = OF_FORMATS[kind]
    chosen_lines = data.draw(st.lists(st.sampled_from(lines), max_size=12))
    text = data.draw(st.sampled_from(firsts)) + b"".join(chosen_lines)
    text = text.removesuffix(b"\n") if open_end else text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RECORD_BYTES_MAX", 200)
        patch.setattr(limits, "REJECTED_HEAD_BYTES", 100)
        patch.setattr(limits, "BLOCK_BYTES", block)
        whole = read(text, form, None)
        places = [row[OFFSET] for row in whole.rows] + [bad.offset for bad in whole.rejected]
        named = sorted(data.draw(st.sets(st.sampled_from(places)))) if places else []
        found = read(text, form, Selection(offsets=np.array(named, np.int64), only=only))
    taken = {place for place in places if (place in named) == only}
    assert found == Found(
        rows=[row for row in whole.rows if row[OFFSET] in taken],
        rejected=[bad for bad in whole.rejected if bad.offset in taken],
        others=sorted(set(places) - taken),
        digest=whole.digest,
        bytes_read=len(text),
    )


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_what_is_left_out_is_not_judged(kind: str) -> None:
    """A block that is good but for lines that are left out takes one parse, and no second way."""
    form, _, (head, _) = OF_FORMATS[kind]
    good, bad = {"json": (b'{"a":1}\n', b"{bad\n"), "csv": (b"1,a\n", b"x,y,z\n")}[kind]
    text = head + good * 50 + bad + good * 50
    offsets = np.array([len(head) + 50 * len(good)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("semel.formats.records.Judge._strictly", None)
        found = read(text, form, Selection(offsets=offsets, only=False))
    assert len(found.rows) == 100 and found.others == offsets.tolist()


def test_keys_of_others_are_not_told() -> None:
    """Keys that the schema does not name are those of the records that are taken."""
    text = b'{"a":1,"b":1}\n{"a":1,"c":1}\n'
    selection = Selection(offsets=np.array([14]), only=True)
    (block,) = blocks_of(text, JsonLines(), SCHEMA, selection=selection)
    assert block.ignored.keys == {"c": 1}


def test_an_offset_where_no_record_begins() -> None:
    """It leaves out nothing, and takes nothing; a blank line is no record either."""
    text = b'{"a":1}\n \n{"a":2}\n'
    for only in (False, True):
        found = read(text, JsonLines(), Selection(offsets=np.array([3, 8, 99]), only=only))
        assert len(found.rows) == (0 if only else 2)
        assert found.others == ([0, 10] if only else [])


@given(st.sets(st.integers(0, 9)), st.lists(st.integers(0, 9)), st.booleans())
def test_more_is_left_out(named: set[int], more: list[int], only: bool) -> None:
    """A selection without some offsets takes what it took, but for these."""
    selection = Selection(offsets=np.array(sorted(named), np.int64), only=only)
    offsets = np.arange(10)
    taken = selection.takes(offsets) & ~np.isin(offsets, more)
    left = selection.without(np.array(more, np.int64))
    assert left.takes(offsets).tolist() == taken.tolist()


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=30))
def test_lines_that_move_together(parts: list[tuple[int, bool]]) -> None:
    """Each line keeps its text and place in the file, and nothing of the others is between."""
    texts = [bytes([65 + n % 26]) * (size + 1) for n, (size, _) in enumerate(parts)]
    taken = np.array([is_taken for _, is_taken in parts])
    lengths = np.array([len(text) + 1 for text in texts])
    starts = np.cumsum(lengths) - lengths
    lines = RecordLines(
        data=bytearray(b"\n".join([*texts, b""])), starts=starts, ends=starts + lengths - 1,
        offsets=starts + 7, lengths=lengths,
    )  # fmt: skip
    left = lines.compact(taken)
    kept = [text for text, is_taken in zip(texts, taken, strict=True) if is_taken]
    assert left.raws(list(range(len(left)))) == kept
    assert left.offsets.tolist() == (starts[taken] + 7).tolist()
    if kept:
        assert left.buffer().to_pybytes() == b"\n".join(kept)
