"""The audit against a sink that an honest toy wrote: it passes, and each break of it is told."""

import gzip
import io
import json
import os
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import xxhash
from fix_sink import HonestSink, spec_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel import limits
from semel.audit import Verdict, audit, fast
from semel.audit.engine import Engine, SourceReader
from semel.audit.exact import Word, csv_judge, json_judge, split_fields
from semel.audit.source import lines as cut
from semel.batch import Claim
from semel.ddl import parse
from semel.sources.csv import Csv
from semel.sources.jsonl import JsonLines
from semel.sources.records import OFFSET, read_split


def broken(verdict: Verdict) -> set[str]:
    """The names of the checks that failed."""
    assert verdict.ok == all(check.ok for check in verdict.checks)
    return {check.name for check in verdict.checks if not check.ok}


def offender(verdict: Verdict, name: str):
    """The first offender of a check."""
    return next(check.offenders[0] for check in verdict.checks if check.name == name)


@pytest.fixture
def sink(tmp_path: Path) -> HonestSink:
    return filled(tmp_path)


def filled(folder: Path, **changes) -> HonestSink:
    """Two batches with a duplicate of each kind and dead letters of two reasons."""
    made = HonestSink(folder, **changes)
    made.land("a.jsonl", {"id": "1", "n": 1}, {"id": "2", "n": 2}, b"{broken", {"id": "1", "n": 9})
    made.batch()
    made.land("a.jsonl", {"id": "2"}, {"id": "3", "n": 3}, {"n": 4})
    made.land("b.jsonl", {"id": "4", "at": "2024-01-01T00:00:00Z"}, b"", {"id": "3"})
    made.batch()
    return made


@pytest.mark.parametrize(
    ("changes", "proved_by"),
    [
        ({}, "record id"),
        ({"sink__partition_by": ["n"]}, "record id"),
        ({"sink__format": "jsonl"}, "record id"),
        ({"record_id": [], "sink__position_columns": True}, "position"),
        ({"record_id": []}, "the markers' counts and checksums"),
    ],
)
def test_honest_sink_passes(tmp_path, changes, proved_by):
    """An honest sink passes whatever its form, and the verdict says by what it was proved."""
    verdict = audit((made := filled(tmp_path, **changes)).spec, made.path)
    assert broken(verdict) == set()
    assert verdict.proved_by == proved_by
    assert verdict.batches == 2
    assert verdict.totals.records_read == 9
    assert verdict.totals.survivors == (4 if made.spec.record_id else 8)


def test_empty_sink_says_so(tmp_path):
    """Without a marker there is nothing to prove, which is no failure."""
    made = HonestSink(tmp_path)
    verdict = audit(made.spec, made.path)
    assert (verdict.ok, verdict.batches) == (True, 0)
    assert verdict.notes == ("no batch has been finalized here",)


def test_several_id_columns(tmp_path):
    """Ids of several columns meet across JSON, Parquet, decisions and folders of partitions."""
    made = HonestSink(tmp_path, record_id=["id", "n"], sink__partition_by=["id"])
    made.land("a.jsonl", {"id": "x", "n": 1}, {"id": "x", "n": 1}, {"id": "x", "n": 2})
    made.land("a.jsonl", {"id": "a/\u00e9 [", "n": 1}, {"id": "x"})
    made.batch()
    assert broken(audit(made.spec, made.path)) == set()
    made.rewrite(1, "data", lambda t: t.slice(0, t.num_rows - 1), at=1)
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == {"output", "sums"}
    assert offender(verdict, "output").id == '["x","2"]'


def test_removed_row(sink):
    """A row removed from the output is named, also when file, checksum and rows agree."""
    sink.rewrite(1, "data", lambda table: table.slice(1))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"output", "sums"}
    found = offender(verdict, "output")
    assert (found.id, found.batch, found.offset) == ("1", 1, 0)
    assert found.file.endswith("a.jsonl")


def test_row_twice(sink):
    """A record that is in the output twice is named."""
    sink.rewrite(1, "data", lambda table: pa.concat_tables([table, table.slice(1)]))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"output", "sums"}
    assert offender(verdict, "output").id == "2"


def test_removed_row_without_ids(tmp_path):
    """By content, where neither id nor position reach the output, a swapped row is found."""
    made = filled(tmp_path, record_id=[])
    made.rewrite(1, "data", lambda t: pa.concat_tables([t.slice(1), t.slice(1, 1)]))
    verdict = audit(made.spec, made.path)
    assert broken(verdict) == {"output"}
    assert offender(verdict, "output").offset == 0


def test_row_of_a_stranger(sink):
    """A row whose id no record has is named, with its file."""
    sink.rewrite(2, "data", lambda t: t.set_column(0, "id", pa.array(["3", "9"])))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"output"}
    assert {o.id for c in verdict.checks for o in c.offenders} == {"4", "9"}


def test_other_values(sink):
    """A row that has its id but not its record's values is named."""
    sink.rewrite(1, "data", lambda t: t.set_column(1, "n", pa.array([1, 3], pa.int64())))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"content"}
    assert offender(verdict, "content").id == "2"


def test_doubled_file(sink):
    """A copy of a listed file under another name is a stray."""
    (data,) = sink.path.glob("*b00000001-*")
    shutil.copy(data, data.with_name("clicks-b00000009-00000.parquet"))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"strays"}
    assert offender(verdict, "strays").file == "clicks-b00000009-00000.parquet"


def test_edited_file(sink):
    """One changed byte, with the same size, is found by the checksum."""
    (data,) = sink.path.glob("*b00000001-*")
    content = bytearray(data.read_bytes())
    content[6] ^= 1
    data.write_bytes(content)
    assert "files" in broken(audit(sink.spec, sink.path))


@pytest.mark.parametrize("kind", ["data", "decisions", "dead_letters"])
def test_missing_file(sink, kind):
    """A listed file that is gone is named, and so are the records that it held."""
    entry = next(file for file in sink.marker(1)["files"] if file["kind"] == kind)
    (sink.path / entry["path"]).unlink()
    verdict = audit(sink.spec, sink.path)
    assert {"files", "sums"} < broken(verdict)
    assert offender(verdict, "files").file == entry["path"]


def test_missing_dead_letter(sink):
    """A bad line that is in no dead letter counts as a survivor, and is told."""
    sink.rewrite(1, "dead_letters", lambda table: table.slice(1))
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"records", "output", "sums"}
    assert "no record" in offender(verdict, "records").what


def test_valid_record_as_dead_letter(tmp_path):
    """A valid record may not be put away as malformed, nor as one without id."""
    for reason in ("malformed", "id_missing", "late", "invented"):
        (tmp_path / reason).mkdir()
        made = HonestSink(tmp_path / reason)
        good = {"id": "1", "n": 1, "at": None}
        made._parse = lambda raw, at, why=reason, good=good: why if b"2" in raw else good
        made.land("a.jsonl", {"id": "1", "n": 1}, {"id": "2", "n": 1})
        made.batch()
        verdict = audit(made.spec, made.path)
        assert broken(verdict) == {"dead letters"} | ({"sums"} if reason == "late" else set())
        assert offender(verdict, "dead letters").id == "2"


def test_dead_letter_with_other_bytes(sink):
    """A dead letter keeps the record as the source has it."""
    other = pa.array([b"{brokem"])
    sink.rewrite(1, "dead_letters", lambda t: t.set_column(5, "raw", other))
    assert broken(audit(sink.spec, sink.path)) == {"dead letters"}


@pytest.mark.parametrize("number", [1, 2])
def test_decision_without_survivor(sink, number):
    """A duplicate whose first record does not survive is told, for both reasons."""
    other = "duplicate_in_catalog" if number == 1 else "duplicate_in_batch"
    sink.rewrite(
        number,
        "decisions",
        lambda t: t.set_column(2, "reason", pa.array([other] * t.num_rows)),
    )
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"decisions", "sums"}
    assert other in offender(verdict, "decisions").what


def test_decision_with_another_id(sink):
    """The id is read from the source, so a decision cannot lie about it."""
    ids = pa.array([{"id": "2"}])
    sink.rewrite(1, "decisions", lambda t: t.set_column(3, "record_id", ids))
    assert broken(audit(sink.spec, sink.path)) == {"decisions"}


def test_position_that_is_no_record(sink):
    """Decisions may only name places where a claimed record begins, and each once."""
    sink.rewrite(1, "decisions", lambda t: t.set_column(1, "offset", pa.array([1])))
    assert "accounted" in broken(audit(sink.spec, sink.path))
    sink.rewrite(2, "decisions", lambda t: pa.concat_tables([t, t.slice(1)]))
    assert "accounted" in broken(audit(sink.spec, sink.path))


@pytest.mark.parametrize("number", [1, 2])
def test_marker_removed(sink, number):
    """Without its marker, a batch's files are strays, and its place among the commits is empty."""
    sink.marker_path(number).unlink()
    verdict = audit(sink.spec, sink.path)
    assert "strays" in broken(verdict)
    assert number == 2 or "markers" in broken(verdict)


def test_marker_damaged(sink):
    """A marker that cannot be read is told, and does not stop the audit."""
    sink.marker_path(2).write_text("{")
    assert {"markers", "strays"} <= broken(audit(sink.spec, sink.path))


def test_file_listed_twice(sink):
    """Two markers that list one file are told."""
    content = sink.marker(2)
    content["files"].append(sink.marker(1)["files"][0])
    sink.rewrite_marker(2, content)
    assert "files" in broken(audit(sink.spec, sink.path))


def test_claims_overlap(sink):
    """A byte that two batches claim is told."""
    content = sink.marker(2)
    content["claims"][0]["start"] -= 1
    sink.rewrite_marker(2, content)
    assert "claims" in broken(audit(sink.spec, sink.path))


def test_source_line_that_is_nowhere(sink):
    """A line within the claimed range that is neither written, decided nor put away is told."""
    path = sink.source / "a.jsonl"
    content = sink.marker(2)
    sink.land("a.jsonl", {"id": "lost"})
    data = path.read_bytes()
    claim = content["claims"][0]
    claim.update(end=len(data), tail_hash=xxhash.xxh3_128_hexdigest(data[-4096:]))
    sink.rewrite_marker(2, content)
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"output", "sums"}
    assert offender(verdict, "output").id == "lost"


def test_id_survives_twice(tmp_path):
    """An id that two batches wrote is told; beyond the horizon it is a new record."""
    for name, horizon in (("short", "30 minutes"), ("long", "30 days")):
        (tmp_path / name).mkdir()
        made = HonestSink(tmp_path / name, dedup__horizon=horizon)
        for _ in range(2):
            made.land("a.jsonl", {"id": "1"})
            made._ids.clear()
            made.batch()
        assert broken(audit(made.spec, made.path)) == ({"ids"} if name == "long" else set())


def test_source_renamed_and_lost(sink):
    """A rotated file is found by its bytes; one that is gone or edited cannot be proven."""
    path = sink.source / "b.jsonl"
    path.rename(sink.source / "b.jsonl.1")
    (sink.source / "b.jsonl").write_bytes(b'{"id": "new"}\n')
    assert broken(audit(sink.spec, sink.path)) == set()
    shutil.copy(sink.source / "b.jsonl.1", sink.source / "copy")
    os.unlink(sink.source / "b.jsonl.1")
    assert broken(audit(sink.spec, sink.path)) == set()
    os.unlink(sink.source / "copy")
    verdict = audit(sink.spec, sink.path)
    assert broken(verdict) == {"source"}
    assert "cannot be proven" in offender(verdict, "source").what


@pytest.mark.parametrize("keep", [lambda row: row["id"] != "2", lambda row: True])
def test_transformed(tmp_path, keep):
    """A transform may filter rows, which the count must show; a row twice is told all the same."""
    made = HonestSink(tmp_path, transforms=["mod:fun"])
    made.land("a.jsonl", {"id": "1"}, {"id": "2"}, {"id": "3"}, {"id": "2"})
    made.batch(keep)
    assert broken(audit(made.spec, made.path)) == set()
    made.rewrite(1, "data", lambda t: pa.concat_tables([t.slice(0, 1), t.slice(0, t.num_rows - 1)]))
    assert broken(audit(made.spec, made.path)) == {"output"}
    made.rewrite(1, "data", lambda t: t.slice(1))
    assert broken(audit(made.spec, made.path)) == {"sums"}


def test_gzip_and_csv(tmp_path):
    """Offsets of gzip count the bytes inside; a CSV header is no record, quotes are read."""
    made = HonestSink(tmp_path, source__format="csv")
    made.land("a.csv", b"id,n,at", b'"1,a",1,2024-01-01T00:00:00Z', b"2,,", b"x,y,z", b'2,5,')
    made.land("a.csv", b",1,")
    made.batch()
    made.land("a.csv", b'2,1,', b'"3"",",7,', b"")
    made.batch()
    verdict = audit(made.spec, made.path)
    assert (broken(verdict), verdict.totals.survivors) == (set(), 3)
    (tmp_path / "z").mkdir()
    zipped = HonestSink(tmp_path / "z")
    zipped.land("a.jsonl", {"id": "1"}, {"id": "2"}, {"id": "2"})
    zipped.batch()
    path = zipped.source / "a.jsonl"
    data = gzip.compress(path.read_bytes())
    path.with_name("a.jsonl.gz").write_bytes(data)
    path.unlink()
    content = zipped.marker(1)
    content["counts"]["bytes_read"] = len(data)
    content["claims"][0].update(
        path=str(path) + ".gz", end=len(data), head_length=len(data),
        head_hash=xxhash.xxh3_128_hexdigest(data), tail_hash=xxhash.xxh3_128_hexdigest(data),
    )  # fmt: skip
    zipped.rewrite_marker(1, content)
    assert broken(audit(zipped.spec, zipped.path)) == set()


def test_multiline_csv(tmp_path):
    """Fields that hold line ends: records are cut as the format says, not by lines."""
    made = HonestSink(tmp_path, source__format="csv", source__csv={"multiline": True})
    text = b'id,n,at\n"1\n,x",1,\n2,2,\n"3\n'
    made.land("a.csv", text[:-1])
    made._read = lambda path, part, start, end, seen, rows, decisions, letters: (
        rows.extend(
            {"id": i, "n": n, "at": None, "_semel_source": 1, "_semel_offset": 0}
            for i, n in (("1\n,x", 1), ("2", 2))
        ),
        letters.append((part, text.index(b'"3'), 3, "malformed", "", b'"3')),
    )
    made.batch()
    assert broken(audit(made.spec, made.path)) == set()


def test_bucket_scope(tmp_path):
    """In scope bucket an id may come back in another bucket of record time, not in the same."""
    made = HonestSink(
        tmp_path, record_time="at", dedup={"scope": "bucket", "horizon": "32 days"}
    )
    made.land("a.jsonl", {"id": "1", "at": "2024-01-01T00:00:00Z"})
    made.batch()
    for at, expected in (("2024-01-02T00:00:00Z", set()), ("2024-01-01T23:00:00Z", {"ids"})):
        made.land("a.jsonl", {"id": "1", "at": at})
        made._ids.clear()
        made.batch()
        assert broken(audit(made.spec, made.path)) == expected


LINES = st.one_of(
    st.sampled_from([b"", b" ", b"{", b"null", b"[]", b'{"id":1}', b'{"id":"a","n":1.5}', b"\xff",
                     b'{"id":"a","n":1}{"id":"b"}', b'{"id":"a",}', b'{"id":"a","id":"b"}']),
    st.builds(
        lambda ident, n: json.dumps({"id": ident, "n": n}).encode(),
        st.one_of(st.none(), st.sampled_from("abcdef"), st.text(max_size=3)),
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    ),
)  # fmt: skip


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    batches=st.lists(st.lists(LINES, min_size=1, max_size=12), min_size=1, max_size=3),
    lost=st.integers(0, 10),
)
def test_simulated(batches, lost):
    """Any honest history passes; the same history with any one output row removed does not."""
    with tempfile.TemporaryDirectory() as folder:
        made = HonestSink(Path(folder))
        judge = json_judge({name: parse(kind) for name, kind in made.spec.source.columns.items()})
        honest = made._parse

        def parsed(raw, position):
            bad = raw.strip() and judge(raw).word is Word.BAD
            return "malformed" if bad else honest(raw, position)

        made._parse = parsed
        for lines in batches:
            made.land("a.jsonl", *[line for line in lines if b"\xed" not in line])
            made.batch()
        assert broken(audit(made.spec, made.path)) == set()
        number = lost % made.batches + 1
        entries = [file for file in made.marker(number)["files"] if file["kind"] == "data"]
        if entries:
            rows = entries[0]["records"]
            gone = pc.not_equal(pa.array(range(rows)), lost % rows)
            made.rewrite(number, "data", lambda table: table.filter(gone))
            assert "output" in broken(audit(made.spec, made.path))


KINDS = {
    "a": "bigint", "s": "string", "f": "double", "t": "timestamp", "d": "date",
    "m": "decimal(6,2)", "b": "boolean", "n": "struct<x: bigint, l: array<double>>",
}  # fmt: skip
COLUMNS = {name: parse(kind) for name, kind in KINDS.items()}
ARROW = pa.schema([(name, kind.arrow()) for name, kind in COLUMNS.items()])


def accepted(line: bytes, format, schema: pa.Schema) -> bool:
    """Whether semel's own reader takes a line for a record."""
    blocks = read_split(
        io.BytesIO(line), start=0, end=len(line), range_start=0, range_end=len(line),
        schema=schema, format=format, digest=xxhash.xxh3_128(),
    )  # fmt: skip
    return any(block.table.num_rows for block in blocks)


SCALARS = st.sampled_from(
    '1 -1 0 -0 1.0 1e2 1E400 9223372036854775807 9223372036854775808 "x" "1" null true false NaN '
    '-Infinity {} [] [1] [1.5,null] [NaN] {"x":1,"l":[1]} {"x":1,"x":1} {"x":"1"} 0.1 1.25 1.255 '
    '12345.6 -0.00 "2020-01-01" "2020-02-30" "2020-01-01T00:00:00Z" "2020-01-01 00:00:00.123456" '
    '"2020-01-01T00:00:00.1234567Z" "2020-01-01T10:00:00+02:00" "2020-01-01T25:00:00" "0000-01-01" '
    '"2020-01-01T00:00" "2020-01-01T00" "2020-01-01T00:00:00+0230" "2020-1-1" "" "\\ud800" 01 '
    '+1 .5 1. nan inf Infinity "a\\u0000" "\\/" "\\x" 1e-400 -1e-5 "2020-01-01T00:00:60Z"'.split(" ")
)


@settings(max_examples=200, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.sampled_from([*KINDS, "zz"]), SCALARS), max_size=3),
    ends=st.sampled_from(["}", ",}", "}}", "} x", ""]),
    pad=st.sampled_from(["", " ", "\t", "x", "\ufeff"]),
)
def test_two_readers_of_json_agree(pairs, ends, pad):
    """The exact path and semel's own reader, which share no code, take the same for records."""
    line = (pad + "{" + ",".join(f'"{k}":{v}' for k, v in pairs) + ends).encode()
    word = json_judge(COLUMNS)(line.removeprefix(b"\xef\xbb\xbf")).word
    if word is not Word.UNSURE:
        assert (word is Word.GOOD) == accepted(line, JsonLines(), ARROW), line


CSV_KINDS = {name: kind for name, kind in COLUMNS.items() if not kind.nested}
FIELDS = st.one_of(
    st.text('ab",.- 0159', max_size=5),
    st.sampled_from(
        ["", "1", "-1", "+1", " 1", "007", "1.5", "1e3", ".5", "nan", "inf", "true", "TRUE", "0",
         "2020-01-01", "2020-01-01T00:00:00Z", "2020-13-01", '"a""b"', '"x"y', '""', '"', "1.255",
         "99999999999999999999", "0x10"]
    ),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(fields=st.lists(FIELDS, min_size=6, max_size=8))
def test_two_readers_of_csv_agree(fields):
    """The same for CSV."""
    line = ",".join(fields).encode()
    if not line.strip(b" \t\r"):
        return
    judge = csv_judge(CSV_KINDS, list(CSV_KINDS), ",", '"', False)
    word = judge(line).word
    schema = pa.schema([(name, kind.arrow()) for name, kind in CSV_KINDS.items()])
    if word is not Word.UNSURE:
        assert (word is Word.GOOD) == accepted(line, Csv(header=False), schema), line


def read_both_ways(lines: list[bytes], format: str, columns: dict[str, str]) -> list[list[tuple]]:
    """(offset, verdict, id, content hash) of each line, by the vectorised and by the exact path."""
    data = b"\n".join([*([",".join(columns).encode()] if format == "csv" else []), *lines, b""])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(data)
        spec = spec_of(Path(folder), source__format=format, source__schema=columns,
                       record_id=["s", "m"])  # fmt: skip
        claim = Claim(ordinal=0, source_partition_id=1, path=str(path), device=0, inode=0,
                      head_length=0, head_hash="", start=0, end=len(data),
                      tail_hash="")  # fmt: skip
        found = []
        for letters in ({}, {(1, 1): {at: [] for at in range(len(data))}}):
            with Engine() as engine:
                reader = SourceReader(engine, letters)
                header = tuple(columns) if format == "csv" else ()
                for piece in cut(1, claim, str(path), spec.source.csv if header else None):
                    reader.read(piece, fast.dialect(spec, header, 60))
                reader.flush()
                found.append(
                    engine.connection.execute(
                        "SELECT pos, word, id, content FROM source ORDER BY pos"
                    ).fetchall()
                )
        return found


def check_both_ways(found: list[list[tuple]]) -> None:
    for quick, exact in zip(*found, strict=True):
        if exact[1] != "unsure":
            assert quick == exact


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from([*KINDS, "zz"]), SCALARS), max_size=4),
            st.sampled_from(["}", "}", "}", ",}", "}\r", "} "]),
        ),
        min_size=10,
        max_size=60,
    )
)
def test_two_paths_of_json_agree(rows):
    """The vectorised path calls nothing good that the exact one does not, and reads the same."""
    lines = [
        ("{" + ",".join(f'"{k}":{v}' for k, v in pairs) + end).encode() for pairs, end in rows
    ]
    check_both_ways(read_both_ways(lines, "jsonl", KINDS))


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(st.lists(FIELDS, min_size=6, max_size=8), min_size=10, max_size=60))
def test_two_paths_of_csv_agree(rows):
    """The same for CSV."""
    columns = {name: text for name, text in KINDS.items() if name in CSV_KINDS}
    lines = [",".join(fields).encode() for fields in rows]
    check_both_ways(read_both_ways(lines, "csv", columns))


def test_split_fields():
    """Quotes count at a field's start only; one that does not end is told."""
    assert split_fields('a,"b,""c",d"e', ",", '"') == [("a", False), ('b,"c', True), ('d"e', False)]
    assert split_fields('a,"b', ",", '"') is None


def test_chunks_do_not_matter(sink, monkeypatch):
    """The verdict does not depend on where the source is cut into chunks."""
    for size in (1, 7, 64):
        monkeypatch.setattr(limits, "AUDIT_CHUNK_BYTES", size)
        assert broken(audit(sink.spec, sink.path)) == set()


def test_only_files_are_read(sink, monkeypatch):
    """Nothing of the ledger or of semel's own readers of records takes part."""
    def forbidden(*args, **kwargs):
        raise AssertionError("the audit must not call this")

    monkeypatch.setattr("semel.ledger.Ledger.__init__", forbidden)
    monkeypatch.setattr("semel.sources.records.read_split", forbidden)
    monkeypatch.setattr("semel.sources.jsonl._JsonParser.parse", forbidden)
    assert broken(audit(sink.spec, sink.path)) == set()


def test_staging_is_promised_to_nobody(sink):
    """What lies in the folder of an attempt is no stray."""
    folder = sink.path / "_semel" / "staging" / "b00000003" / "f0001" / "data"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), folder / "x")
    assert broken(audit(sink.spec, sink.path)) == set()
