"""Bad records through all verbs: each is accounted for, and its neighbours pass."""

import gzip
import json
import os
import time
from pathlib import Path

import psycopg
import pytest

from fixtures.batches.account import Letter, ids, lines, refusals, run, settled
from fixtures.batches.workbench import Workbench, events
from semel import limits
from semel.archive.marker import markers
from semel.audit import audit
from semel.formats.table import SINKS
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.reader import dataset
from semel.repair.adopt.history import histories
from semel.repair.adopt.ids import ids_of
from semel.reports.find import find
from semel.reports.gaps import gaps

GOOD, ALSO = b'{"id": "good", "n": 1}', b'{"id": "also", "n": 2}'

BAD_LINES = {
    "malformed": (b'{"id": "x", "n": 1', "malformed"),
    "trailing_comma": (b'{"id": "x",}', "malformed"),
    "no_object": (b'["x"]', "malformed"),
    "null": (b"null", "malformed"),
    "two_objects": (b'{"id": "x"} {"id": "y"}', "malformed"),
    "two_objects_touching": (b'{"id": "x"}{"id": "y"}', "malformed"),
    "two_objects_with_cr": (b'{"id": "x"}\r{"id": "y"}', "malformed"),
    "bom_within": (b'\xef\xbb\xbf{"id": "x"}', "malformed"),
    "half_surrogate": (b'{"id": "\\ud800"}', "malformed"),
    "not_utf8": (b'{"id": "x\xff"}', "encoding"),
    "not_utf8_unnamed_key": (b'{"id": "x", "other": "\xc3("}', "encoding"),
    "nul": (b'{"id": "x\0"}', "encoding"),
    "nul_behind": (b'{"id": "x"}\0', "encoding"),
    "id_missing": (b'{"n": 5}', "id_missing"),
    "id_other_case": (b'{"ID": "x"}', "id_missing"),
    "id_null": (b'{"id": null}', "id_missing"),
    "id_nested": (b'{"id": {"id": "x"}}', "type_mismatch"),
    "id_array": (b'{"id": ["x"]}', "type_mismatch"),
    "id_number": (b'{"id": 5}', "type_mismatch"),
    "text_for_number": (b'{"id": "x", "n": "5"}', "type_mismatch"),
    "beyond_64_bits": (b'{"id": "x", "n": 9223372036854775808}', "type_mismatch"),
    "fraction": (b'{"id": "x", "n": 1.5}', "type_mismatch"),
    "nan": (b'{"id": "x", "n": NaN}', "type_mismatch"),
    "no_such_day": (b'{"id": "x", "at": "2026-02-30T00:00:00Z"}', "type_mismatch"),
    "duplicate_key": (b'{"id": "x", "id": "y"}', "duplicate_key"),
    "duplicate_key_equal": (b'{"id": "x", "n": 1, "n": 1}', "duplicate_key"),
}
"""Name: the line, and the reason that its dead letter gives."""

BAD_CSV = {
    "too_few": (b"x,1", "field_count"),
    "too_many": (b"x,1,,4", "field_count"),
    "number": (b"x,one,", "type_mismatch"),
    "beyond_64_bits": (b"x,9223372036854775808,", "type_mismatch"),
    "no_such_day": (b"x,1,2026-02-30T00:00:00Z", "type_mismatch"),
    "id_empty": (b",1,", "id_missing"),
    "open_quote": (b'"x,1,', "malformed"),
    "lone_cr": (b"x,1,\ry,2,", "malformed"),
    "not_utf8": (b"x\xff,1,", "encoding"),
    "nul": (b"x\0,1,", "encoding"),
}

FORMS = {
    "jsonl": (BAD_LINES, [], b'{"id": "g%d", "n": %d}', b'{"id": "x", "n": 3}'),
    "csv": (BAD_CSV, [b"id,n,at"], b"g%d,%d,", b"x,3,"),
}
"""Of each format: bad lines, what a file begins with, good lines, and one that was corrected."""


def age(path: Path, seconds: int = 3600) -> None:
    """Let a file look as if nobody had written to it for so long."""
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.parametrize("form", FORMS)
def test_a_bad_line_is_a_dead_letter(bench: Workbench, ledger: Ledger, form: str) -> None:
    """It is kept as it came, at its offset, with its reason; its neighbours are in the output.

    Its id is not registered: the corrected record passes later. That a verdict is the same whatever
    stands beside a line is shown in tests/unit.
    """
    bad, written, good, corrected = FORMS[form]
    letters: list[Letter] = []
    for number, (line, reason) in enumerate(bad.values()):
        one = good % (number, number)
        at = sum(len(each) + 1 for each in [*written, one])
        letters.append((f"a.{form}", at, reason, line))
        written = [*written, one, line, one]
    spec = bench.spec(source={"path": "in/*", "format": form}, sink={"position_columns": True})
    bench.write(f"in/a.{form}", written)
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.letters == letters
    assert found.ids == sorted(f"g{n}" for n in range(len(bad)))
    assert found.counts.duplicates_batch == len(bad)
    bench.write(f"in/a.{form}", [corrected], mode="ab")
    run(ledger, spec, "r2")
    assert settled(spec).ids == [*found.ids, "x"]


def test_bom_crlf_and_blank_lines_are_fine(bench: Workbench, ledger: Ledger) -> None:
    """A mark of UTF-8 at the start, CRLF and blank lines are no records and cost none.

    The position of a row, and of a repeat, is that of its record's first byte.
    """
    spec = bench.spec(sink={"position_columns": True})
    data = b'\xef\xbb\xbf{"id": "a"}\r\n\r\n  \t\r\n\n{"id": "b"}\r\n{"id": "c"}\n\n{"id": "b"}\n'
    (bench.data / "in" / "a.jsonl").write_bytes(data)
    run(ledger, spec, "r1")
    found = settled(spec)
    assert {(row["id"], row["_semel_offset"]) for row in found.rows} == {
        (name, data.index(b'{"id": "%b' % name.encode())) for name in "abc"
    }
    assert found.decisions == [("a.jsonl", data.rindex(b'{"id": "b"'), "duplicate_in_batch")]
    assert found.counts.records_read == 4


def test_text_of_any_kind_survives(bench: Workbench, ledger: Ledger) -> None:
    """Escapes, a NUL written as an escape, emoji, the empty text and deep nesting are data."""
    texts = ["", "\0", "a\nb", 'q"q', "\U0001f600", "ä", "a\u0308", "\u2028", " x "]
    spec = bench.spec()
    deep = b'{"id": "deep", "other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    records = [json.dumps({"id": value}).encode() for value in texts]
    bench.write("in/a.jsonl", [*records, *records, deep])
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.ids == sorted([*texts, "deep"])
    assert found.counts.duplicates_batch == len(texts)


def test_an_empty_file_is_nothing(bench: Workbench, ledger: Ledger) -> None:
    """An empty file, and one of blank lines, makes no record; it is read when it grows."""
    spec = bench.spec()
    path = bench.data / "in" / "a.jsonl"
    path.touch()
    assert run(ledger, spec, "r1").plan.batch is None
    path.write_bytes(b"\n \n")
    assert run(ledger, spec, "r2").finalized.counts.records_read == 0
    bench.write("in/a.jsonl", events(0, 3), mode="ab")
    run(ledger, spec, "r3")
    assert len(settled(spec).ids) == 3


# Attacks P6.
def test_an_open_last_line_waits(bench: Workbench, ledger: Ledger) -> None:
    """A last line without newline is not read before its end has come; then it is read once."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", [GOOD])
    with path.open("ab") as file:
        file.write(ALSO[:9])
    run(ledger, spec, "r1")
    assert settled(spec).ids == ["good"]
    assert run(ledger, spec, "r2").plan.batch is None
    with path.open("ab") as file:
        file.write(ALSO[9:] + b"\n")
    run(ledger, spec, "r3")
    assert settled(spec).ids == ["also", "good"]


def test_an_open_last_line_is_taken_when_closed(bench: Workbench, ledger: Ledger) -> None:
    """With closed_after, an old file's last line is a record, or a dead letter when cut off.

    Without closed_after it waits for ever; declared later, it is taken once.
    """
    spec = bench.spec(source={"closed_after": "10 minutes"})
    paths = {name: bench.data / "in" / f"{name}.jsonl" for name in ("whole", "cut")}
    for (name, path), end in zip(paths.items(), (ALSO, ALSO[:9]), strict=True):
        path.write_bytes(GOOD.replace(b"good", name.encode()) + b"\n" + end)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ["cut", "whole"]
    for path in paths.values():
        age(path)
    assert run(ledger, bench.spec(), "r2").plan.batch is None
    spec = bench.spec(source={"closed_after": "10 minutes"})
    run(ledger, spec, "r3")
    assert run(ledger, spec, "r4").plan.batch is None
    found = settled(spec)
    assert found.ids == ["also", "cut", "whole"]
    assert [(n, reason, raw) for n, _, reason, raw in found.letters] == [
        ("cut.jsonl", "malformed", ALSO[:9])
    ]


def test_a_closed_file_that_grows_after_all(bench: Workbench, ledger: Ledger) -> None:
    """What is appended to a line that was taken as closed begins a record at that byte."""
    spec = bench.spec(source={"closed_after": "10 minutes"})
    path = bench.write("in/a.jsonl", [GOOD])
    with path.open("ab") as file:
        file.write(ALSO)
    age(path)
    run(ledger, spec, "r1")
    with path.open("ab") as file:
        file.write(b'\n{"id": "late"}\n')
    run(ledger, spec, "r2")
    found = settled(spec)
    assert found.ids == ["also", "good", "late"]
    assert found.letters == []


def test_a_line_beyond_the_limit_is_set_aside(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line longer than RECORD_BYTES_MAX is a dead letter that keeps its beginning."""
    monkeypatch.setattr(limits, "RECORD_BYTES_MAX", 1 << 20)
    spec = bench.spec()
    long = b'{"id": "long", "other": "' + b"x" * (9 << 20) + b'"}'
    bench.write("in/a.jsonl", [GOOD, long, ALSO])
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.ids == ["also", "good"]
    head = long[: limits.REJECTED_HEAD_BYTES]
    assert found.letters == [("a.jsonl", len(GOOD) + 1, "too_long", head)]


def csv_spec(bench: Workbench) -> Spec:
    """A pipeline over in/*.csv*."""
    source = {"path": "in/*.csv*", "format": "csv", "closed_after": "10 minutes"}
    return bench.spec(source=source)


def test_a_csv_header_decides_the_order(bench: Workbench, ledger: Ledger) -> None:
    """Each file's own header orders its columns, also for what is appended in a later batch."""
    spec = csv_spec(bench)
    bench.write("in/a.csv", [b"id,n,at", b"a,1,"])
    bench.write("in/b.csv", [b"\xef\xbb\xbfat,\"n\",id\r", b",2,b\r"])
    run(ledger, spec, "r1")
    bench.write("in/b.csv", [b",3,c\r"], mode="ab")
    run(ledger, spec, "r2")
    assert sorted((row["id"], row["n"]) for row in settled(spec).rows) == [
        ("a", 1), ("b", 2), ("c", 3),
    ]  # fmt: skip


HEADERS = [b"id,n", b"id,n,at,extra", b"ID,n,at", b"id,n,n", b'"id,n,at']


# Attacks P14.
def test_another_csv_header_is_refused(bench: Workbench, ledger: Ledger) -> None:
    """A file whose header is not the schema's is left alone and named; mended, it is read."""
    spec = csv_spec(bench)
    bench.write("in/a.csv", [b"id,n,at", b"a,1,"])
    for n, header in enumerate(HEADERS):
        bench.write(f"in/{n}.csv", [header, b"%d,2," % n])
    run(ledger, spec, "r1")
    assert refusals(ledger) == {f"{n}.csv": "header" for n in range(len(HEADERS))}
    assert settled(spec).ids == ["a"]
    for n in range(len(HEADERS)):
        bench.write(f"in/{n}.csv", [b"id,n,at", b"%d,2," % n])
    run(ledger, spec, "r2")
    assert refusals(ledger) == {}
    assert settled(spec).ids == [*map(str, range(len(HEADERS))), "a"]


POSTGRES = [
    ("FORMAT csv, HEADER", {"multiline": True}),
    ("FORMAT csv, HEADER, ESCAPE '\\'", {"multiline": True, "escape": "\\"}),
    ("FORMAT csv, HEADER, FORCE_QUOTE *", {"multiline": True}),
    ("FORMAT csv, HEADER, QUOTE '^', DELIMITER '|'",
     {"multiline": True, "quote": "^", "delimiter": "|"}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "dialect"), POSTGRES)
def test_csv_that_postgres_wrote(
    bench: Workbench, ledger: Ledger, options: str, dialect: dict
) -> None:
    """Whatever COPY writes is read as it was, and the audit agrees: quotes, escapes, line ends, null."""
    values = ["a", "", None, '5" pipe', "a,b", "a\nb", "C:\\dir", "\\.", 'q"\\', '\\"', "it's", "a|^", "é"]
    rows = [(f"{number:02}", value) for number, value in enumerate(values)]
    with psycopg.connect(ledger.dsn.replace("+psycopg", "")) as connection:
        with connection.cursor() as cursor:
            cursor.execute("CREATE TEMP TABLE made (id text, s text)")
            cursor.executemany("INSERT INTO made VALUES (%s, %s)", rows)
            with cursor.copy(f"COPY made TO STDOUT ({options})") as copy:
                data = b"".join(map(bytes, copy))
    (bench.data / "in" / "a.csv").write_bytes(data)
    source = {
        "path": "in/*.csv", "format": "csv", "closed_after": "0 s", "csv": dialect,
        "schema": {"id": "string", "s": "string"},
    }  # fmt: skip
    spec = bench.spec(source=source)
    run(ledger, spec, "r1")
    found = settled(spec)
    assert not found.letters and sorted((row["id"], row["s"]) for row in found.rows) == rows


def test_newlines_in_csv_fields_need_multiline(bench: Workbench, ledger: Ledger) -> None:
    """Without multiline each line is judged alone; with it the field is one record's."""
    data = b'id,n,at\na,1,\n"b\nb",2\nc,3,\n'
    path = bench.write("in/a.csv", [])
    path.write_bytes(data)
    age(path)
    spec = csv_spec(bench)
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.ids == ["a", "c"]
    assert [(at, reason) for _, at, reason, _ in found.letters] == [
        (13, "malformed"), (16, "field_count"),
    ]  # fmt: skip
    path.write_bytes(data.replace(b'b",2\n', b'b",2,\n'))
    age(path)
    whole = bench.spec(
        "whole",
        source={
            "path": "in/*.csv", "format": "csv", "closed_after": "10 minutes",
            "csv": {"multiline": True},
        },
    )  # fmt: skip
    run(ledger, whole, "r1")
    assert settled(whole).ids == ["a", "b\nb", "c"]


def test_gzip_is_read_when_its_stream_is_complete(bench: Workbench, ledger: Ledger) -> None:
    """Its own end says that it is whole; until then it waits. Positions count its content."""
    spec = bench.spec(source={"path": "in/*.gz"})
    path = bench.data / "in" / "a.jsonl.gz"
    whole = gzip.compress(GOOD + b"\n{broken\n") + gzip.compress(ALSO + b"\n")
    path.write_bytes(whole[:-3])
    planned = run(ledger, spec, "r1").plan
    assert (planned.batch, planned.refusals) == (None, ())
    assert [gap.state for gap in gaps(ledger, spec).gaps] == ["waiting"]
    path.write_bytes(whole)
    run(ledger, spec, "r2")
    found = settled(spec)
    assert found.ids == ["also", "good"]
    assert found.letters == [("a.jsonl.gz", len(GOOD) + 1, "malformed", b"{broken")]


def test_damaged_gzip_is_refused_alone(bench: Workbench, ledger: Ledger) -> None:
    """A stream that is damaged, or has no end and is older than closed_after: refused, by name."""
    spec = bench.spec(source={"path": "in/*", "closed_after": "10 minutes"})
    bench.write("in/good.jsonl", events(0, 5))
    whole = [gzip.compress(lines(1000 * n + 5, 1000 * n + 905)) for n in range(3)]
    middle = len(whole[1]) // 2
    damaged = [
        whole[0][:-20],
        whole[1][:middle] + bytes([whole[1][middle] ^ 255]) + whole[1][middle + 1 :],
        b"plain text\n",
    ]
    paths = [bench.data / "in" / f"{n}.jsonl.gz" for n in range(3)]
    for path, data in zip(paths, damaged, strict=True):
        path.write_bytes(data)
        age(path)
    found = run(ledger, spec, "r1").plan.refusals
    assert {one.name: one.reason for one in found} == {str(path): "damaged" for path in paths}
    assert all("replace the file" in one.detail for one in found)
    assert settled(spec).ids == ids(0, 5)
    for path, data in zip(paths, whole, strict=True):
        path.write_bytes(data)
    assert run(ledger, spec, "r2").plan.refusals == ()
    assert len(settled(spec).ids) == 5 + 2700


def proved(
    bench: Workbench, ledger: Ledger, form: str, source: dict, texts: dict[str, str]
) -> None:
    """Long records come out as they went in, for each way to read a sink."""
    schema = {"id": "string", "text": "string"}
    spec = bench.spec(source={"schema": schema, **source}, sink={"format": form})
    run(ledger, spec, "r1")
    rows = dataset(spec.sink_path()).to_table().to_pylist()
    same = {row["id"]: row["text"] == texts[row["id"]] for row in rows}
    assert same == dict.fromkeys(texts, True)
    verdict = audit(spec)
    assert verdict.ok, [c.offenders for c in verdict.checks if not c.ok]
    assert [place.what for place in find(spec, ["long"]).places] == ["output"]
    (marker,) = markers(spec.sink_path())
    (bench.data / "in").rename(bench.data / "away")  # So that adopt has the output alone.
    [batch] = histories([marker])
    assert sum(len(part.h1) for part in ids_of(batch, batch.claims)) == len(texts)


@pytest.mark.parametrize("form", SINKS)
def test_a_long_record(bench: Workbench, ledger: Ledger, form: str) -> None:
    """One between a block and the longest that is a record, and the longest: each reader has them
    whole. It takes seconds, as only a record of this length shows what readers have room for.
    """
    texts = {"short": "x"}
    for name, size in {"middle": 2 << 20, "long": limits.RECORD_BYTES_MAX}.items():
        texts[name] = "x" * (size - len(json.dumps({"id": name, "text": ""})))
    bench.write("in/a.jsonl", [{"id": name, "text": text} for name, text in texts.items()])
    proved(bench, ledger, form, {}, texts)


@pytest.mark.rest
@pytest.mark.parametrize("form", SINKS)
def test_a_record_that_grows(bench: Workbench, ledger: Ledger, form: str) -> None:
    """What is short in its source and long in its sink is read too: JSON escapes six for one."""
    texts = {"short": "x", "long": "\x01" * (12 << 20)}
    lines = [f"{name},{text}".encode() for name, text in texts.items()]
    bench.write("in/a.csv", [b"id,text", *lines])
    proved(bench, ledger, form, {"path": "in/*.csv", "format": "csv"}, texts)
