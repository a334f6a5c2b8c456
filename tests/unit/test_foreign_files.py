"""Files that are no text of lines: plan and `semel new` recognise them alike. And a CSV's header, whose
end each reader of it must see at the same place."""

import gzip
import io
import re
from pathlib import Path

import pyarrow as pa
import pytest

from fixtures.batches.workbench import Workbench
from fixtures.files.records import read_whole
from semel import cli
from semel.errors import SourceError
from semel.formats.csv import CsvFormat, read_header
from semel.reports.gaps import first_survey
from semel.sources.files.audit import _header_end, header_of
from semel.sources.spec import CsvOptions as Declared

ROWS = b"id,n\n1,2\n3,4\n"
TEXTS = {
    "CR alone": ROWS.replace(b"\n", b"\r"),
    "UTF-16": ROWS.decode().encode("utf-16"),
    "UTF-16LE": ROWS.decode().encode("utf-16-le"),
    "UTF-16BE": ROWS.decode().encode("utf-16-be"),
    "gzip": gzip.compress(ROWS),
    "zstd": b"\x28\xb5\x2f\xfd\x04\x58" + ROWS,
    "Parquet": b"PAR1\x15\x04" + ROWS,
    "zip archive": b"PK\x03\x04\x14\x00" + ROWS,
    "JSON array": b'[\n{"id": "1", "n": 2},\n{"id": "3", "n": 4}\n]\n',
}


# Attacks P14.
@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("closed", [True, False])
def test_a_file_that_is_no_text_of_lines(
    bench: Workbench, capsys: pytest.CaptureFixture, form: str, what: str, closed: bool
) -> None:
    """Plan refuses it alone, also one whose last line is still open, and says what `semel new` says."""
    source = {"format": form, "path": "in/*", "schema": {"id": "string", "n": "bigint"}}
    spec = bench.spec(source=source | ({"closed_after": "0 s"} if closed else {}))
    good = bench.data / "in" / "good"
    good.write_bytes(ROWS if form == "csv" else b'{"id": "1", "n": 2}\n')
    bad = bench.data / "in" / "bad"
    bad.write_bytes(TEXTS[what])
    _, wanted, refused = first_survey(spec)
    assert [(item.file.path, item.end) for item in wanted] == [(str(good), good.stat().st_size)]
    ((name, reason, detail),) = [(item.name, item.reason, item.detail) for item in refused]
    if (form, what) == ("csv", "JSON array"):
        assert (name, reason) == (str(bad), "header")
        return
    assert (name, reason) == (str(bad), "format") and what in detail
    assert cli.main(["new", "other", str(bad), "--yes"]) != 0
    told = "".join(capsys.readouterr())
    why = detail.partition("': ")[2]
    assert re.sub(r"\s+", "", why) in re.sub(r"\s+", "", told)


@pytest.mark.parametrize(
    "text",
    [b"PAR1,n\n1,2\n", b"[a],n\n1,2\n", b"id,n\r\n1,2\r\n", b"id,n\r", b'id,"n\r', b"\0" * 70 + b"\n",
     b"id" * 3_000 + b",n\r\n1,2\r\n", b"\xff\xfe\n1,2\n"],
)  # fmt: skip
def test_text_that_only_looks_like_it(bench: Workbench, text: bytes) -> None:
    """No file is refused for its first letters, nor one whose first line is still written."""
    spec = bench.spec(source={"format": "csv", "path": "in/*", "schema": {"id": "string"}})
    (bench.data / "in" / "a").write_bytes(text)
    assert "format" not in [item.reason for item in first_survey(spec)[2]]


def test_json_lines_that_begin_with_a_bracket_are_read(bench: Workbench) -> None:
    """One bad line at the top is a dead letter, where most others are objects."""
    spec = bench.spec(source={"path": "in/*"})
    (bench.data / "in" / "a").write_bytes(b'[\n{"id": "1"}\n{"id": "2"}\n')
    assert first_survey(spec)[2] == ()


BOM = b"\xef\xbb\xbf"
HEADERS = [
    (b"id,n\n1,2\n", 5),
    (b"id,n\r\n1,2\r\n", 6),
    (BOM + b"id,n\n1,2\n", 8),
    (b'"id","n"\n1,2\n', 9),
    (BOM + b'"id","n"\r\n1,2\r\n', 13),
    (b"id,n\n", 5),
    (b"id,n", 4),
    (BOM + b"id,n\n", 8),
    (b"id,n\r1,2\n3,4\n", "CR alone"),
    (b"id,n\r1,2\r3,4\r", "CR alone"),
    (b"id,n\r\r\n1,2\r\r\n", "CR alone"),
    (b"\nid,n\n1,2\n", "first line is empty"),
    (b"\r\nid,n\r\n1,2\r\n", "first line is empty"),
    (BOM + b"\nid,n\n1,2\n", "first line is empty"),
    (b" \nid,n\n1,2\n", "first line is empty"),
    (b'"id,n\n1,2\n', "header is unreadable"),
    (b'"id"x,n\n1,2\n', "header is unreadable"),
    (b"id;n\n1;2\n", "does not name"),
]
"""(text, bytes of its header, or why it is refused)"""


@pytest.mark.parametrize("multiline", [False, True])
@pytest.mark.parametrize(("text", "end"), HEADERS)
def test_one_border_of_a_header(tmp_path: Path, text: bytes, end: int | str, multiline: bool) -> None:
    """The header that is checked, the bytes that are passed over, and the audit's header end at one
    byte: no record is taken for a part of the header.
    """
    schema = pa.schema([("id", pa.string()), ("n", pa.string())])
    form, declared = CsvFormat(multiline=multiline), Declared(multiline=multiline)
    if isinstance(end, str):
        with pytest.raises(SourceError, match=end):
            read_header(io.BytesIO(text), form, schema)
        return
    assert read_header(io.BytesIO(text), form, schema) == (["id", "n"], end)
    blocks, rejected = read_whole(text, form, schema, ["id", "n"])
    offsets = [row["_semel_offset"] for block in blocks for row in block.table.to_pylist()]
    assert not rejected and offsets == ([end] if len(text) > end else [])
    assert _header_end(text, declared) == end
    path = tmp_path / "a.csv"
    path.write_bytes(text)
    assert header_of(str(path), declared) == ("id", "n")
