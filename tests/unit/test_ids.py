"""Hashing of ids: a pinned encoding, whatever the types' details, and even shards.

Also, which changes of a column's type leave the hashes of its values as they are.
"""

import decimal
import itertools
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from fixtures.files.honest import spec_of
from fixtures.files.records import read_whole
from semel.catalog import bloom, sortedids
from semel.catalog.ids import hash_ids
from semel.declare import ddl
from semel.errors import TerminalError
from semel.formats.csv import CsvFormat
from semel.formats.jsonl import JsonLines
from semel.pipeline import identity

MOMENT = datetime(2026, 7, 1, 12, 0, 0, 123456, tzinfo=UTC)


def ids(table: pa.Table, *columns: str, **options) -> list[tuple[int, int]]:
    hashed = hash_ids(table, columns or tuple(table.column_names), shards=4, **options)
    assert (hashed.h1.dtype, hashed.h2.dtype, hashed.shard.dtype) == ("u8", "u4", "u2")
    assert hashed.valid.all()
    return list(zip(hashed.h1.tolist(), hashed.h2.tolist(), hashed.shard.tolist(), strict=True))


def one(array: pa.Array) -> list[tuple[int, int]]:
    return ids(pa.table({"id": array}))


def expected(*values: bytes) -> tuple[int, int, int]:
    """The encoding of semel.catalog.ids, written again with a scalar library."""
    data = values[0]
    if len(values) > 1:
        data = b"".join(
            xxhash.xxh3_64_intdigest(value).to_bytes(8, "little")
            + xxhash.xxh64_intdigest(value).to_bytes(8, "little")
            for value in values
        )
    wide = xxhash.xxh64_intdigest(data)
    return xxhash.xxh3_64_intdigest(data), wide & 0xFFFFFFFF, (wide >> 32) % 4


# Attacks L4.
def test_stored_ids_outlive_versions():
    """These numbers are in catalogs: a version that gives others would let every duplicate pass."""
    table = pa.table({
        "text": ["order-1", "ö"],
        "number": pa.array([-7, 2**40]),
        "moment": pa.array([MOMENT, MOMENT], pa.timestamp("us", "UTC")),
        "day": pa.array([date(2026, 7, 1), date(1969, 12, 31)]),
        "flag": [True, False],
        "money": pa.array(
            [decimal.Decimal("-12.50"), decimal.Decimal("0.01")], pa.decimal128(9, 2)
        ),
    })  # fmt: skip
    assert ids(table, "text") == GOLDEN_TEXT
    assert ids(table) == GOLDEN_ALL
    assert ids(table, "text", bucket=np.array([3, -4])) == GOLDEN_BUCKET


GOLDEN_TEXT = [(6900751593513035894, 2856558765, 0), (2354209948087273117, 1909635734, 3)]
GOLDEN_ALL = [(2153801968308648084, 595738013, 3), (9875888297104066772, 1298219284, 3)]
GOLDEN_BUCKET = [(1706050146044624358, 992797, 2), (15655773277556803726, 2298770377, 2)]


@given(st.lists(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=20))
def test_the_encoding_is_the_documented_one(values):
    """The vectorised encoding agrees with its description, value by value."""
    texts, numbers = [text for text, _ in values], [number for _, number in values]
    columns = {"text": pa.array(texts, pa.string()), "number": pa.array(numbers, pa.int64())}
    table = pa.table(columns)
    encoded = [(t.encode(), n.to_bytes(8, "little", signed=True)) for t, n in values]
    assert ids(table, "text") == [expected(text) for text, _ in encoded]
    assert ids(table, "number") == [expected(number) for _, number in encoded]
    assert ids(table, "number", "text") == [expected(number, text) for text, number in encoded]
    buckets = np.arange(len(values))
    assert ids(table, "text", bucket=buckets) == [
        expected(at.to_bytes(8, "little"), text) for at, (text, _) in enumerate(encoded)
    ]


@given(st.lists(st.tuples(st.text("ab", max_size=3), st.text("ab", max_size=3)), unique=True))
def test_different_columns_never_look_alike(pairs):
    """("a", "bc") and ("ab", "c") are two ids, and so are ("a", "b") and ("b", "a")."""
    table = pa.table({"x": pa.array([x for x, _ in pairs], pa.string()),
                      "y": pa.array([y for _, y in pairs], pa.string())})  # fmt: skip
    assert len(set(ids(table))) == len(pairs)


@pytest.mark.parametrize("same", [
    [pa.array(["a", "", "ö"], kind) for kind in (pa.string(), pa.large_string(), pa.string_view())]
    + [pa.array(["a", "", "ö"]).dictionary_encode()],
    [pa.array([1, 100, 0], kind) for kind in (pa.int8(), pa.int64(), pa.uint32())],
    [pa.array([MOMENT], pa.timestamp("us", zone)) for zone in ("UTC", "Europe/Berlin")]
    + [pa.array([MOMENT], pa.timestamp("ns", "UTC"))],
    [pa.array([date(2026, 7, 1)], kind) for kind in (pa.date32(), pa.date64())],
    [pa.array([decimal.Decimal("-1.50")], kind)
     for kind in (pa.decimal128(5, 2), pa.decimal128(38, 10), pa.decimal256(50, 2))],
])  # fmt: skip
def test_the_type_in_memory_does_not_matter(same):
    """One value has one id in whichever width, unit, scale, zone or dictionary it was read."""
    assert len({tuple(one(array)) for array in same}) == 1
    padded = pa.concat_arrays([same[0], same[0]])
    assert one(padded.slice(len(same[0]))) == one(same[0])
    chunked = pa.chunked_array([same[0], same[0]])
    assert ids(pa.table({"id": chunked})) == one(same[0]) * 2


# Attacks S7.
def test_null_is_no_id_and_empty_is_one():
    """A null in any column makes a row invalid; an empty text identifies like any other."""
    table = pa.table({"x": ["a", None, "", "b"], "n": pa.array([1, 2, 3, None])})
    assert hash_ids(table, ("x",), shards=4).valid.tolist() == [True, False, True, True]
    assert hash_ids(table, ("x", "n"), shards=4).valid.tolist() == [True, False, True, False]
    assert len(hash_ids(table.slice(0, 0), ("x", "n"), shards=4).h1) == 0


@pytest.mark.parametrize("array", [pa.array([1.5]), pa.array([[1]]), pa.array([{"a": 1}])])
def test_what_cannot_identify_is_refused(array):
    """Floats and nested values have no equality to build on."""
    with pytest.raises(TypeError, match="cannot identify"):
        one(array)


def test_shards_do_not_spoil_the_filter():
    """The ids of one shard fill their filter evenly: it errs as one of random hashes does."""
    table = pa.table({"id": [f"order-{i}" for i in range(200_000)]})
    hashed = hash_ids(table, ("id",), shards=8)
    counts = np.bincount(hashed.shard)
    assert len(counts) == 8
    assert counts.min() > 24_000
    of_shard = np.sort(hashed.h1[hashed.shard == 3])
    asked = np.random.default_rng(1).integers(0, 2**64, 300_000, dtype=np.uint64)
    assert bloom.build(of_shard).probe(asked).mean() < 0.002


@given(st.lists(st.sampled_from([0, 1, 2, 3, 2**63, 2**63 + 1, 2**64 - 1]), max_size=40))
def test_order_is_that_of_a_stable_sort(values):
    """Sorting by h1 keeps source order among equal hashes, also where only low bits differ."""
    h1 = np.array(values, dtype=np.uint64)
    assert sortedids.order_of(h1).tolist() == np.argsort(h1, kind="stable").tolist()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))), st.data())
def test_ids_are_found_exactly(pairs, data):
    """Ids with one h1 and different h2 are different ids, and each is found."""
    stored = sorted(set(pairs), key=lambda pair: pair[0])
    asked = data.draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4))))

    def columns(ids):
        h1, h2 = [pair[0] for pair in ids], [pair[1] for pair in ids]
        return np.array(h1, np.uint64), np.array(h2, np.uint32)

    found = sortedids.contains(*columns(stored), *columns(asked))
    assert found.tolist() == [pair in stored for pair in asked]


TEXTS = ["0", "1", "-1", "300", "1.5", "1.50", "1.0", "1e3", "0x10", "true", "abc", "20260101"]
TEXTS += ["99999999999", "2026-01-01", "2026-01-01 10:11:12", "2026-01-01T10:11:12.5Z"]
TEXTS += ["2026-01-01T23:59:59-05:00", "1969-12-31", "1969-12-31T23:59:59.5Z"]
TYPES = [word for word in ddl.SCALARS if ddl.parse(word).identifies]
TYPES += ["decimal(10,0)", "decimal(10,2)", "decimal(38,2)"]


def tables(kind: str) -> dict[tuple[str, str], pa.Table]:
    """The one-row table of each text, by format, that a column of this type can be read from."""
    schema, found = pa.schema([("a", ddl.parse(kind).arrow())]), {}
    for text in TEXTS:
        csv = CsvFormat(delimiter=",", quote='"', multiline=False)
        read = {
            "number": read_whole(f'{{"a": {text}}}\n'.encode(), JsonLines(), schema),
            "text": read_whole(f'{{"a": "{text}"}}\n'.encode(), JsonLines(), schema),
            "csv": read_whole(f"a\n{text}\n".encode(), csv, schema, ["a"]),
        }
        for name, (blocks, _) in read.items():
            found |= {(name, text): b.table for b in blocks if b.table.num_rows}
    return found


def class_of(folder, kind: str) -> str:
    spec = spec_of(folder, source__schema={"id": kind}, record_id=["id"])
    return identity.identity_of(spec)["types"]["id"]


@pytest.fixture(scope="module")
def read() -> dict[str, dict]:
    return {kind: tables(kind) for kind in TYPES}


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(TYPES, 2)))
def test_a_class_holds_what_hashes_alike(tmp_path, read, one: str, other: str) -> None:
    """Two types are of one class when each text that both can be read from gives the same id."""
    common = set(read[one]) & set(read[other])
    alike = [ids(read[one][text], "a") == ids(read[other][text], "a") for text in common]
    if class_of(tmp_path, one) == class_of(tmp_path, other):
        assert common, "nothing proves that these hash alike"
        assert all(alike)
    else:
        assert not any(alike)


def test_every_time_gives_the_same_bucket(read) -> None:
    """So record_time may become a date, or a timestamp: what both can be read from is one time."""
    common = set(read["timestamp"]) & set(read["date"])
    assert common
    for text in common:
        at, day = (read[kind][text].column("a") for kind in ("timestamp", "date"))
        assert at.cast(pa.timestamp("s", "UTC")) == day.cast(pa.timestamp("s", "UTC"))


def test_what_changed_is_named(tmp_path) -> None:
    """Each change, its old and its new value, and the way out."""
    old = identity.to_text(identity.identity_of(spec_of(tmp_path)))
    changed = spec_of(tmp_path, record_id=["id", "n"], dedup__shards=8)
    with pytest.raises(TerminalError) as found:
        identity.check(old, changed)
    assert str(found.value) == (
        'pipeline clicks: record_id cannot change from ["id"] to ["id", "n"]; dedup.shards cannot '
        "change from 4 to 8: the ids in its catalog would not match, and every record would pass "
        "as new. Put it back, or declare a new pipeline with its own name and sink"
    )
