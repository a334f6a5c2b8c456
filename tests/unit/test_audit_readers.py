"""The audit's two paths and semel's own readers: three readings that share no code must agree."""

import gzip
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fixtures.files.claims import claim_of
from fixtures.files.honest import HonestSink, spec_of
from fixtures.files.records import blocks_of
from semel.audit import audit, fast
from semel.audit.exact import LineKind, Rules, csv_judge, json_judge
from semel.audit.source_reader import SourceReader
from semel.clients.duck import DuckEngine
from semel.declare.ddl import ColumnType, parse
from semel.declare.naming import AS_DECLARED, Naming
from semel.declare.parts import REST_COLUMN, Unknown
from semel.formats.csv import CsvFormat
from semel.formats.jsonl import JsonLines
from semel.sources.files.audit import lines as cut
from semel.sources.files.claims import ClaimedFile
from semel.sources.reread import split_fields
from semel.sources.spec import CsvOptions as Dialect
from tiers import examples

KINDS = {
    "a": "bigint", "s": "string", "f": "double", "t": "timestamp", "d": "date",
    "m": "decimal(6,2)", "b": "boolean", "n": "struct<x: bigint, l: array<double>>",
}  # fmt: skip
COLUMNS = {name: parse(kind) for name, kind in KINDS.items()}
ARROW = pa.schema([(name, kind.arrow()) for name, kind in COLUMNS.items()])


RULES = Rules()

NAMES = {"a": ("a2", "a3"), "s": ("s2",), "t": ("t2",), "m": ("m2",), "n": ("n2",)}
"""Other names of columns, where a test draws that they are declared."""

KEYS = [*KINDS, "a2", "a3", "s2", "t2", "m2", "n2", "zz"]


def accepted(line: bytes, format, schema: pa.Schema) -> bool:
    """Whether semel's own reader takes a line for a record."""
    return any(block.table.num_rows for block in blocks_of(line, format, schema))


SCALARS = st.sampled_from(
    '1 -1 0 -0 1.0 1e2 1E400 9223372036854775807 9223372036854775808 "x" "1" null true false NaN '
    '-Infinity {} [] [1] [1.5,null] [NaN] {"x":1,"l":[1]} {"x":1,"x":1} {"x":"1"} 0.1 1.25 1.255 '
    '12345.6 -0.00 1.50000000 "12.3400000" 1234.5000 1.2550000 1e38 '
    f'1.{"0" * 60} '
    '"2020-01-01" "2020-02-30" "2020-01-01T00:00:00Z" "2020-01-01 00:00:00.123456" '
    '"2020-01-01T00:00:00.1234567Z" "0001-01-01T00:00:00+01:00" '
    '"1960-12-31T23:59:59.9999999999" "9999-12-31T23:59:59.5-00:01" '
    '"2020-01-01T10:00:00+02:00" "2020-01-01T25:00:00" "0000-01-01" '
    '"2020-01-01T00:00" "2020-01-01T00" "2020-01-01T00:00:00+0230" "2020-1-1" "" "\\ud800" 01 '
    '+1 .5 1. nan inf Infinity Inf -Inf -NaN +NaN Infi '
    '{"zz":Inf} "\\u0000" "\\/" "\\x" 1e-400 -1e-5 "2020-01-01T00:00:60Z"'.split(" ")
)


@settings(max_examples=examples(300), deadline=None)
@given(
    pairs=st.lists(st.tuples(st.sampled_from(KEYS), SCALARS), max_size=3),
    ends=st.sampled_from(["}", ",}", "}}", "} x", ""]),
    pad=st.sampled_from(["", " ", "\t", "x", "\ufeff"]),
    named=st.booleans(),
)
@example(pairs=[("m", "1.50000000")], ends="}", pad="", named=False)
@example(pairs=[("m", f"1.{'0' * 60}")], ends="}", pad="", named=False)
@example(pairs=[("a", "1"), ("a3", "2")], ends="}", pad="", named=True)
@example(pairs=[("n", "null"), ("n2", '{"x":1}')], ends="}", pad="", named=True)
def test_two_readers_of_json_agree(pairs, ends, pad, named):
    """The exact path and semel's own reader, which share no code, take the same for records."""
    line = (pad + "{" + ",".join(f'"{k}":{v}' for k, v in pairs) + ends).encode()
    others = NAMES if named else {}
    rules = replace(RULES, names=tuple(others.items()))
    word = json_judge(COLUMNS, rules)(line.removeprefix(b"\xef\xbb\xbf")).kind
    if word is not LineKind.UNSURE:
        form = JsonLines(naming=Naming(others=others))
        assert (word is LineKind.GOOD) == accepted(line, form, ARROW), line


KEYED = {
    "a": "bigint", "j": "json", "m": "map<string, struct<x: bigint, l: array<date>>>",
    "s": "struct<x: bigint, l: array<struct<y: string>>>",
}  # fmt: skip


def keyed(unknown: Unknown, *, texts: bool = True) -> dict[str, ColumnType]:
    """The declared columns; without `texts` those that pyarrow reads."""
    found = {name: parse(kind) for name, kind in KEYED.items() if texts or name in ("a", "s")}
    return found | ({REST_COLUMN: parse("json")} if unknown is Unknown.KEEP else {})


def taken(
    line: bytes, unknown: Unknown, *, texts: bool = True, naming: Naming = AS_DECLARED
) -> bool:
    """Whether semel's reader takes a line for a record."""
    kinds = keyed(unknown, texts=texts)
    schema = pa.schema([(name, kind.arrow()) for name, kind in kinds.items()])
    form = JsonLines(json=("j",) if texts else (), unknown=unknown, naming=naming)
    return accepted(line, form, schema)


@pytest.mark.parametrize("word", ["NaN", "Inf", "Infinity", "-NaN", "-Inf", "-Infinity"])
@pytest.mark.parametrize("unknown", list(Unknown))
@pytest.mark.parametrize("line", ['{"a":1,"z":%s}', '{"a":1,"z":[{"b":%s,"c":"NaN"}]}'])
def test_a_constant_in_an_unnamed_key(line: str, unknown: Unknown, word: str) -> None:
    """Ignored, it does no harm; kept, it is no JSON. The audit says so of all such words."""
    rules = Rules(unknown=unknown)
    found = json_judge(keyed(unknown), rules)((line % word).encode())
    assert (found.kind is LineKind.GOOD) == (unknown is Unknown.IGNORE)
    assert taken((line % word).encode(), unknown) == (unknown is Unknown.IGNORE)


def test_a_text_that_looks_like_a_constant_is_text() -> None:
    """What stands in quotes is left as it is, also behind escapes."""
    line = rb'{"a":1,"z":"x\\","NaN":"-Inf \" NaN","j":"Infinity"}'
    assert json_judge(keyed(Unknown.IGNORE), RULES)(line).kind is LineKind.GOOD


KEY_VALUES = st.sampled_from(
    '1 "x" null true NaN -Inf [] {} [1] {"x":1} {"x":1,"x":2} {"x":1,"z":2} {"k":{"x":1}} '
    '{"k":{"x":"1"}} {"k":{"x":1,"z":NaN}} {"k":null,"k":null} {"k":{"l":["2020-02-30"]}} '
    '{"k":{"l":["2020-02-29",null]},"\\u006b":{}} {"l":[{"y":"a"},null,{"z":1}]} {"l":[{"y":1}]} '
    '{"l":[{"y":"a","y":"b"}]} {"k":[]} {"k":Infinity} "\\ud800" '
    '{"a":[[[[{"b":"}]\\""}]]]]}'
    .split(" ")
)


@settings(max_examples=examples(400), deadline=None)
@given(
    pairs=st.lists(
        st.tuples(
            st.sampled_from([*KEYED, "a2", "j2", "m2", "s2", "z", "\\u007a", REST_COLUMN]),
            KEY_VALUES,
        )
    ),
    unknown=st.sampled_from(Unknown),
    texts=st.booleans(),
    named=st.booleans(),
)
def test_two_readers_of_keys_agree(
    pairs: list[tuple[str, str]], unknown: Unknown, texts: bool, named: bool
) -> None:
    """They share no code, and take the same for records, in every way to treat such keys."""
    line = ("{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}").encode()
    own = [name for name in keyed(unknown, texts=texts) if name in KEYED]
    others = {name: (f"{name}2",) for name in own if named}
    rules = Rules(unknown=unknown, names=tuple(others.items()))
    found = json_judge(keyed(unknown, texts=texts), rules)(line)
    assert found.kind is not LineKind.UNSURE
    naming = Naming(others=others)
    assert (found.kind is LineKind.GOOD) == taken(line, unknown, texts=texts, naming=naming), line


CSV_KINDS = {name: kind for name, kind in COLUMNS.items() if not kind.nested}
FIELDS = st.one_of(
    st.text('ab",.- 0159', max_size=5),
    st.sampled_from(
        ["", "1", "-1", "+1", " 1", "007", "1.5", "1e3", ".5", "nan", "inf", "true", "TRUE", "0",
         "1.50000000", "1.2550000",
         "2020-01-01", "2020-01-01T00:00:00Z", "2020-13-01", '"a""b"', '"x"y', '""', '"', "1.255",
         "99999999999999999999", "0x10", "-0x1", " 0X1", "2020-01-01T00:00:00.1234567891Z",
         "0000-01-01", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59.9999999-00:01"]
    ),
)  # fmt: skip
LACKS = st.sets(st.sampled_from(["a", "f", "t", "d", "b"]), max_size=4)
"""Columns that a file lacks; none is part of a record id."""


@settings(max_examples=examples(300), deadline=None)
@given(fields=st.lists(FIELDS, min_size=6, max_size=8), lacks=LACKS)
@example(
    fields=["1", "x", "1.5", "2020-01-01T00:00:00Z", "2020-01-01", "1.50000000", "true"],
    lacks=set(),
)
def test_two_readers_of_csv_agree(fields, lacks):
    """The same for CSV, also of files that lack columns."""
    line = ",".join(fields[: len(fields) - len(lacks)]).encode()
    if not line.strip(b" \t\r"):
        return
    header = [name for name in CSV_KINDS if name not in lacks]
    judge = csv_judge(CSV_KINDS, header, Dialect(), RULES)
    word = judge(line).kind
    schema = pa.schema([(name, kind.arrow()) for name, kind in CSV_KINDS.items()])
    if word is not LineKind.UNSURE:
        found = blocks_of(line, CsvFormat(header=False), schema, columns=header)
        assert (word is LineKind.GOOD) == any(block.table.num_rows for block in found), line


def read_both_ways(
    lines: list[bytes],
    format: str,
    columns: dict[str, str],
    lacks: set[str] = frozenset(),
    others: dict[str, tuple[str, ...]] = {},
) -> list[list[tuple]]:
    """(offset, verdict, id, content hash) of each line, by the vectorised and by the exact path."""
    header = tuple(name for name in columns if name not in lacks) if format == "csv" else ()
    data = b"\n".join([*([",".join(header).encode()] if header else []), *lines, b""])
    rules = {name: {"optional": True} for name in lacks}
    rules |= {name: {"names": names} for name, names in others.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(data)
        spec = spec_of(Path(folder), source__format=format, source__schema=columns,
                       source__columns=rules, record_id=["s", "m"])  # fmt: skip
        claim = ClaimedFile.of(claim_of(path, 1, 0, len(data)))
        found = []
        for letters in ({}, {(1, 1): {at: [] for at in range(len(data))}}):
            with DuckEngine("audit") as engine:
                reader = SourceReader(engine, letters)
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


@settings(max_examples=examples(25), deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from(KEYS), SCALARS), max_size=4),
            st.sampled_from(["}", "}", "}", ",}", "}\r", "} "]),
        ),
        min_size=10,
        max_size=60,
    ),
    named=st.booleans(),
)
def test_two_paths_of_json_agree(rows, named):
    """The vectorised path calls nothing good that the exact one does not, and reads the same."""
    lines = [
        ("{" + ",".join(f'"{k}":{v}' for k, v in pairs) + end).encode() for pairs, end in rows
    ]
    check_both_ways(read_both_ways(lines, "jsonl", KINDS, others=NAMES if named else {}))


@settings(max_examples=examples(25), deadline=None)
@given(
    rows=st.lists(st.lists(FIELDS, min_size=6, max_size=8), min_size=10, max_size=60), lacks=LACKS
)
def test_two_paths_of_csv_agree(rows, lacks):
    """The same for CSV."""
    columns = {name: text for name, text in KINDS.items() if name in CSV_KINDS}
    lines = [",".join(fields[: len(fields) - len(lacks)]).encode() for fields in rows]
    check_both_ways(read_both_ways(lines, "csv", columns, lacks))


def test_split_fields():
    """Quotes count at a field's start only; one that does not end is told."""
    plain = [("a", False), ('b,"c', True), ('d"e', False)]
    assert split_fields('a,"b,""c",d"e', Dialect()) == plain
    assert split_fields('a,"b,\\"c",d"e', Dialect(escape="\\")) == plain
    assert split_fields('a,"b', Dialect(quote="none")) == [("a", False), ('"b', False)]
    for text, escape in (('a,"b', None), ('"a"b', None), ('"a""b"', "\\"), (r'"a\b"', "\\")):
        with pytest.raises(ValueError):
            split_fields(text, Dialect(escape=escape))


def test_text_after_a_closing_quote() -> None:
    """A CSV record with text after a closing quote is bad."""
    judge = csv_judge({"s": parse("string")}, ["s"], Dialect(), RULES)
    assert judge(b'"a"b').kind is LineKind.BAD


def test_gzip_and_csv(tmp_path):
    """Offsets of gzip count the bytes inside; a CSV header is no record, quotes are read."""
    made = HonestSink(tmp_path, source__format="csv")
    made.land("a.csv", b"id,n,at", b'"1,a",1,2024-01-01T00:00:00Z', b"2,,", b"x,y,z", b'2,5,')
    made.land("a.csv", b",1,")
    made.batch()
    made.land("a.csv", b'2,1,', b'"3"",",7,', b"")
    made.batch()
    verdict = audit(made.spec, made.path)
    assert [check for check in verdict.checks if not check.ok] == []
    assert verdict.totals.survivors == 3
    (tmp_path / "z").mkdir()
    zipped = HonestSink(tmp_path / "z")
    zipped.land("a.jsonl", {"id": "1"}, {"id": "2"}, {"id": "2"})
    zipped.batch()
    path = zipped.source / "a.jsonl"
    path.with_name("a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    content = zipped.marker(1)
    content["claims"][0]["name"] = f"{path}.gz"
    zipped.rewrite_marker(1, content)
    assert audit(zipped.spec, zipped.path).ok


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
    assert audit(made.spec, made.path).ok
