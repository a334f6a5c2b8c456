"""Maps, and keys that the schema does not name: one verdict, whatever else is in the block."""

import json
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.files.records import Rejected, read_whole
from semel.declare.ddl import parse
from semel.declare.parts import REST_COLUMN, Unknown
from semel.formats.jsonl import JsonLines
from semel.formats.jsontext import KEY_CHARS_MAX
from semel.model.batch import KEYS_COUNTED_MAX, Counts, Ignored
from semel.model.manifest import SplitReport, pack_reports, unpack_reports
from tiers import examples


def read(
    lines: list[bytes], kinds: dict[str, str], unknown: str = "ignore"
) -> tuple[list[dict], list[Rejected], Ignored]:
    """Rows, rejected records and ignored keys of a file."""
    fields = [(name, parse(kind).arrow()) for name, kind in kinds.items()]
    if unknown == "keep":
        fields.append((REST_COLUMN, pa.string()))
    texts = tuple(name for name, kind in kinds.items() if kind == "json")
    form = JsonLines(json=texts, unknown=Unknown(unknown))
    blocks, rejected = read_whole(b"\n".join(lines), form, pa.schema(fields))
    rows = [row for block in blocks for row in block.table.drop("_semel_offset").to_pylist()]
    return rows, rejected, sum((block.ignored for block in blocks), Ignored())


MAPS = {
    "int": [b'{"a":1,"b":null}', b'{"a":1.5}', b'{"a":"1"}', b'{"a":2147483648}', b'{"a":NaN}'],
    "timestamp": [b'{"a":"2024-01-01T00:00:00.123456789Z"}', b'{"a":"2024-02-30"}', b'{"a":1}'],
    "date": [b'{"a":"2024-02-29"}', b'{"b":null,"a":"2024-02-30"}', b'{"a":0}'],
    "decimal(4,1)": [b'{"a":1.5,"b":"2.5"}', b'{"a":1.25}', b'{"a":12345}', b'{"a":"x"}'],
    "binary": [b'{"a":"QQ=="}', b'{"a":"QQ"}', b'{"a":1}'],
    "struct<x: int>": [b'{"a":{"x":1,"z":2}}', b'{"a":{"x":1,"x":1}}', b'{"a":1}'],
    "array<date>": [b'{"a":["2024-02-29",null]}', b'{"a":["2024-02-30"]}', b'{"a":{}}'],
    "string": [b'{"":"\\u0000","\\u00e9\\n":""}', b'{"a":1}', b'{"a":["x"]}'],
}


@pytest.mark.parametrize(("kind", "maps"), list(MAPS.items()))
def test_a_map_holds_what_a_column_holds(kind: str, maps: list[bytes]) -> None:
    """The first map is good and the others are not, alone and beside each other alike."""
    kinds = {"id": "string", "m": f"map<string, {kind}>"}
    lines = [b'{"id":"%d","m":%b}' % item for item in enumerate([*maps, b"{}", b"null", b"[]"])]
    rows, rejected, _ = read(lines, kinds)
    assert [row["id"] for row in rows] == [str(n) for n in (0, len(maps), len(maps) + 1)]
    assert [row["m"] for row in rows[1:]] == [[], None]
    alone = [read([line], kinds) for line in lines]
    assert [row for found, *_ in alone for row in found] == rows
    assert [(bad.reason, bad.detail, bad.raw) for bad in rejected] == [
        (bad.reason, bad.detail, bad.raw) for _, found, _ in alone for bad in found
    ]
    one, _, _ = read([b'{"id":"0","m":%b}' % maps[0]], kinds)
    (values,) = (read([b'{"v":%b}' % json.dumps(value).encode()], {"v": kind})[0]
                 for value in list(json.loads(maps[0]).values())[:1])  # fmt: skip
    assert one[0]["m"][0][1] == values[0]["v"]


def test_a_map_with_a_key_twice_is_a_dead_letter() -> None:
    """Also when the key is written in two ways, when the values are equal, beside odd keys."""
    maps = [b'{"a":1,"a":1}', b'{"a":1,"\\u0061":1}', b'{"b":1,"a":2,"b":null}', b'{"":1,"":1}']
    lines = [b'{"m":%b}' % one for one in maps] + [b'{"m":{"a":1}, "m":{"b":1}}']
    good = [b'{"z":{"a":1,"a":2},"m": { "a" : 1 , "b":2 } }', b"{}"]
    rows, rejected, _ = read([*lines, *good], {"m": "map<string, int>"})
    assert [bad.reason for bad in rejected] == ["duplicate_key"] * 5
    assert [row["m"] for row in rows] == [[("a", 1), ("b", 2)], None]


def test_unnamed_keys_are_counted_and_named() -> None:
    """Each with the number of good records that have it, also within structs and maps."""
    kinds = {"id": "string", "s": "struct<x: int, l: array<struct<y: int>>>"}
    lines = [
        b'{"id":"1"}',
        b'{"id":"2","u":1,"u":2,"v":NaN}',
        b'  {"id":"3","\\u0075":[[1]],"s":{"x":1,"z":1,"l":[{"z":1},{"z":NaN},null]}} ',
        b'{"id":4,"u":1}',
        b'{"id":"5","deep":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"id":"6","ID":1,"k\\n\\u001b[31m":1,"%s":1}' % (b"n" * 1_000),
    ]
    rows, rejected, ignored = read(lines, kinds)
    assert len(rows) == 5 and len(rejected) == 1 and not ignored.sampled
    assert ignored.keys == {
        "u": 2, "v": 1, "s.z": 1, "s.l.z": 1, "deep": 1, "ID": 1, "k\n\x1b[31m": 1,
        "n" * KEY_CHARS_MAX: 1,
    }  # fmt: skip
    kinds = {"id": "string", "m": "map<string, struct<x: int>>", "j": "json"}
    _, _, ignored = read([b'{"id":"1","m":{"k":{"x":1,"z":1}},"j":{"z":1},"u":1}'], kinds)
    assert ignored.keys == {"m.z": 1, "u": 1}


def test_a_rare_key_is_found() -> None:
    """One record of many has it: all are looked at, for pyarrow says that there is one."""
    lines = [b'{"id":"%d"}' % n for n in range(5_000)]
    assert read(lines, {"id": "string"})[2] == Ignored()
    lines[3_333] = b'{"id":"x","rare":1}'
    assert read(lines, {"id": "string"})[2] == Ignored(keys={"rare": 1})


def test_many_records_are_sampled() -> None:
    """What is said of a block of many records is called an estimate."""
    lines = [b'{"id":"%d","u":1}' % n for n in range(5_000)]
    assert read(lines, {"id": "string"})[2] == Ignored(keys={"u": 5_000}, sampled=True)


def test_keys_without_end_are_bounded() -> None:
    """Data as keys: the account holds so many of them and no more."""
    lines = [b'{"id":"%d","k%d":1}' % (n, n) for n in range(1_000)]
    ignored = read(lines, {"id": "string"})[2]
    assert len((ignored + ignored).keys) == KEYS_COUNTED_MAX


DEEP = b"[" * 5_000 + b"]" * 5_000
REST = {
    b'{"id":"0"}': None,
    b' { "u" : 1 , "id":"1", "v":[ 1, {"w":null} ] } ': '{"u":1,"v":[ 1, {"w":null} ]}',
    b'{"u":1,"id":"2","u":2}': '{"u":1,"u":2}',
    b'{"id":"3","\\u0075\\n\\u00e9":"\\u00e9"}': '{"u\\né":"\\u00e9"}',
    b'{"id":"4","_semel_rest":1,"ID":1}': '{"_semel_rest":1,"ID":1}',
    b'{"_semel_rest":[],"id":"4","_semel_rest":{}}': '{"_semel_rest":[],"_semel_rest":{}}',
    b'{"id":"5","u":null}': '{"u":null}',
    b'{"id":"6","s":{"x":1,"z":1}}': None,
    b'{"id":"7","u":"NaN \\" -Inf"}': '{"u":"NaN \\" -Inf"}',
    b'{"id":"8","u":%b}' % DEEP: '{"u":%s}' % DEEP.decode(),
}


@pytest.mark.parametrize("more", [{}, {"j": "json"}])
def test_unnamed_keys_are_kept(more: dict[str, str]) -> None:
    """As one object, in their order, each value's text as it stands; alone and together alike."""
    kinds = {"id": "string", "s": "struct<x: int>"} | more
    for lines in (list(REST), *([line] for line in REST)):
        rows, rejected, ignored = read(lines, kinds, "keep")
        assert [row[REST_COLUMN] for row in rows] == [REST[line] for line in lines]
        assert not rejected and not ignored.keys
    odd = [b'{"id":"x","u":NaN}', b'{"id":"x","v":1,"u":[{"a":-Inf}]}']
    rows, rejected, _ = read([*REST, *odd], kinds, "keep")
    assert len(rows) == len(REST)
    faults = [(bad.reason, bad.detail) for bad in rejected]
    assert faults == [("type_mismatch", '"u": expected JSON, found NaN or Infinity')] * 2
    rows, (bad,), _ = read([*REST, b'{"id":"x","u":1,"u":2,"id":"y"}'], kinds, "keep")
    assert len(rows) == len(REST) and (bad.reason, "id" in bad.detail) == ("duplicate_key", True)


def test_a_record_without_unnamed_keys_has_no_rest() -> None:
    """Null, also where no record has any."""
    rows, _, _ = read([b'{"id":"1"}', b'{"id":"2"}'], {"id": "string"}, "keep")
    assert [row[REST_COLUMN] for row in rows] == [None, None]


@pytest.mark.parametrize("more", [{}, {"j": "json"}, {"m": "map<string, struct<x: int>>"}])
def test_unnamed_keys_set_their_record_aside(more: dict[str, str]) -> None:
    """At any depth, with the key's name; records without one are good beside them."""
    kinds = {"id": "string", "s": "struct<x: int, l: array<struct<y: int>>>"} | more
    bad = {
        b'{"id":"x","u":1}': "u",
        b'{"id":"x","\\u0069\\u0064 ":1}': "id ",
        b'{"id":"x","s":{"x":1,"z":NaN}}': "s.z",
        b'{"id":"x","s":{"l":[null,{"y":1},{"z":1}]}}': "s.l.z",
        b'{"id":"x","u":' + b"[" * 5_000 + b"]" * 5_000 + b"}": "u",
    }
    good = [b'{"id":"1"}', b'{"s":{"l":null},"id":"2"}', b'{"id":"3","s":{"x":1,"l":[{"y":1}]}}']
    rows, rejected, ignored = read([*good, *bad], kinds, "quarantine")
    assert [row["id"] for row in rows] == ["1", "2", "3"] and not ignored.keys
    assert [(one.raw, one.reason, one.detail) for one in rejected] == [
        (raw, "unknown_key", f'the schema does not name the key "{name}"')
        for raw, name in bad.items()
    ]
    if "m" in more:
        maps = [b'{"k":{"x":1,"z":1}}', b'{"k":[1],"l":{"z":1}}', b'{"k":{"x":"1","z":1}}']
        _, (first, *others), _ = read([b'{"m":%b}' % one for one in maps], kinds, "quarantine")
        assert first.detail == 'the schema does not name the key "m.z"'
        assert [one.reason for one in others] == ["type_mismatch"] * 2


GOOD = [
    b'{"id":"1","m":{"a":1,"b":null},"j":{"x":1}, "u":{"x":1}}',
    b' {"id":"2","m": null,"j":null}\r',
    b'{"id":"3","v" : [1, 2],"u":"\xc3\xa9"}',
    b"",
    b'{"id":"4","m":{},"j":"null"}',
]


@pytest.mark.parametrize("unknown", ["ignore", "keep", "quarantine"])
def test_good_records_are_read_together(unknown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is looked at by itself: that takes twenty times as long."""

    def alone(text: bytes) -> None:
        raise AssertionError(text)

    monkeypatch.setattr("semel.formats.jsontext.members", alone)
    kinds = {"id": "string", "m": "map<string, int>", "j": "json"}
    rows, rejected, _ = read(GOOD, kinds, unknown)
    assert len(rows) + len(rejected) == 4 and {row["id"] for row in rows} >= {"2", "4"}
    assert {row["id"]: row["j"] for row in rows} | {"1": 1, "3": 1} == {
        "1": 1, "2": None, "3": 1, "4": '"null"'
    }  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize("unknown", ["ignore", "keep", "quarantine"])
def test_a_record_of_keys_without_end_takes_little_memory(unknown: str) -> None:
    """Half a million of them are never objects of Python at the same time."""
    many = b",".join(b'"%x":1' % n for n in range(500_000))
    tracemalloc.start()
    rows, rejected, ignored = read([b'{"id":"1",%b}' % many], {"id": "string"}, unknown)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 12 * len(many)
    if unknown == "ignore":
        assert len(ignored.keys) == KEYS_COUNTED_MAX
    if unknown == "keep":
        assert rows[0][REST_COLUMN] == f"{{{many.decode()}}}"
    assert [bad.reason for bad in rejected] == ["unknown_key"] * (unknown == "quarantine")


PARTS = st.sampled_from(
    [
        '"id":"a"', '"id":1', '"m":{"k":"2024-01-01","":null}', '"m":{"k":"2024-02-30"}',
        '"m":{"k":1,"l":"2024-02-30"}', '"m":{"k":null,"k":null}', '"m":[]', '"m":{"\\u006b":NaN}',
        '"j":{"x":[1,{"x":2}]}', '"j":-Inf', '"j":null', '"\\u006a":1', '"u":1', '"u":NaN',
        '"\\u0075":{"a":"}"}', '"s":{"d":1.25}', '"s":{"d":1.5,"z":1}', '"s":{"d":1,"d":2}',
        '"s":null', '"d":"2024-02-30"', '"d":"2024-02-29"', '"_semel_rest":1', '"x":[',
    ]
)  # fmt: skip
COLUMNS = {
    "id": "string", "m": "map<string, date>", "j": "json", "s": "struct<d: decimal(4,1)>",
    "d": "date",
}  # fmt: skip


@settings(max_examples=examples(300), deadline=None)
@given(
    records=st.lists(st.lists(PARTS, max_size=4), min_size=2, max_size=8),
    pad=st.lists(st.sampled_from(["", " ", "\t"]), min_size=8, max_size=8),
    unknown=st.sampled_from(Unknown),
    names=st.sets(st.sampled_from(sorted(COLUMNS)), min_size=1),
)
def test_a_verdict_depends_on_its_record_alone(
    records: list[list[str]], pad: list[str], unknown: str, names: set[str]
) -> None:
    """What is read of a record, and what is said of it, is the same alone and beside others."""
    kinds = {name: kind for name, kind in COLUMNS.items() if name in names}
    lines = [
        (space + "{" + ",".join(parts) + "}" + space).encode()
        for parts, space in zip(records, pad, strict=False)
    ]
    rows, rejected, _ = read(lines, kinds, unknown)
    alone = [read([line], kinds, unknown) for line in lines]
    assert rows == [row for found, *_ in alone for row in found]
    assert [(bad.raw, bad.reason, bad.detail) for bad in rejected] == [
        (bad.raw, bad.reason, bad.detail) for _, found, _ in alone for bad in found
    ]


ODD_KEYS = {"a\n\x1b[2J": 3, "\U0001f600é": 2, "": 1}


def test_a_report_carries_them() -> None:
    """Whatever the keys are, they pass through the shuffle as they are."""
    found = Ignored(keys=ODD_KEYS, sampled=True)
    report = SplitReport(split=0, digest="", counts=Counts(), ignored=found)
    assert unpack_reports(pack_reports([report])) == [report]


def test_splits_are_summed_up() -> None:
    """The most frequent come first and stay, in any order of splits; one sample makes all about."""
    many = Ignored(keys={f"k{n}": n for n in range(1, KEYS_COUNTED_MAX + 50)})
    both = many + Ignored(keys={"k1": 1_000}, sampled=True)
    assert both == Ignored(keys={"k1": 1_000}, sampled=True) + many
    assert next(iter(both.keys.items())) == ("k1", 1_001) and both.sampled
    assert len(both.keys) == KEYS_COUNTED_MAX and "k2" not in both.keys
