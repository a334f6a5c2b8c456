"""`semel new` on JSON Lines: keys and the types of their values."""

import json

import pytest


def lines(*records: object) -> bytes:
    """A JSON Lines file."""
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


JSON_TYPES = [
    ([1, -2], "bigint"),
    ([1, 2.5], "double"),
    ([1, "1"], "json"),
    ([2**63], "json"),
    ([True, False], "boolean"),
    ([True, 1], "json"),
    (["a", "\u00e4\n"], "string"),
    (["1", "2"], "string"),
    (["2024-01-01"], "date"),
    (["2024-01-01T10:00:00Z", "2024-01-01"], "timestamp"),
    ([[1, 2], []], "array<bigint>"),
    ([[]], "json"),
    ([{"a": 1, "b": "x"}, {"b": "y"}], "struct<a: bigint, b: string>"),
    ([{"a": 1}, {"a": "x"}], "json"),
    ([{"a b": 1}], "json"),
    ([{"a": 1, "A": 2}], "json"),
    ([[{"a": {"b": [1.5]}}]], "array<struct<a: struct<b: array<double>>>>"),
    ([{f"k{i}": i for i in range(100)}], "json"),
    ([{}], "json"),
    ([None], "json"),
]


@pytest.mark.parametrize(("values", "kind"), JSON_TYPES)
def test_type_of_a_json_key(new, values: list, kind: str) -> None:
    """A type is taken that holds all values; json where they differ, or nobody knows."""
    made = new({"a.jsonl": lines(*({"n": i, "value": v} for i in range(20) for v in values))})
    assert made.schema["value"] == kind
    assert made.answer["quarantined"] == 0


def test_json_keys(new) -> None:
    """Rare keys are columns; names that no column may have are kept in _semel_rest."""
    rows = [{"id": f"x{i}", "n": i} for i in range(100)]
    rows[7] |= {"rare": 1.5, "_semel_x": 1, "ID": 2, "a`b": 3}
    made = new({"a.jsonl": lines(*rows)})
    assert made.schema == {"id": "string", "n": "bigint", "rare": "double"}
    assert made.data["source"]["unknown"] == "keep"
    assert '"_semel_x" in 1' in made.text
    assert made.answer["quarantined"] == 0


def test_json_keys_that_are_data(new) -> None:
    """Of thousands of keys the most frequent ones are columns, the others are kept as one."""
    rows = [{"id": f"x{i}", f"k{i}": i} for i in range(3000)]
    made = new({"a.jsonl": lines(*rows)})
    assert len(made.schema) == 200 and "id" in made.schema
    assert made.data["source"]["unknown"] == "keep"


def test_json_with_bad_lines(new) -> None:
    """Lines that are no JSON are counted, and do not hide the keys of the others."""
    rows = lines(*({"id": f"x{i}", "n": i} for i in range(100)))
    made = new({"a.jsonl": b"{not json}\n" + rows + b'{"id":"x","id":"y"}\n{"id":"z","n":NaN}\n'})
    assert made.schema == {"id": "string", "n": "bigint"}
    assert made.answer["reasons"] == {"malformed": 1, "duplicate_key": 1, "type_mismatch": 1}
