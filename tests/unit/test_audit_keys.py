"""The audit and semel's own reader agree on keys that the schema does not name, and on maps."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fix_records import read_whole
from semel.audit.exact import Rules, Word, json_judge
from semel.formats.jsonl import JsonLines
from semel.spec.ddl import PARSER_RULES, ColumnType, parse
from semel.spec.parts import REST_COLUMN, Unknown
from tiers import examples

KINDS = {
    "a": "bigint", "j": "json", "m": "map<string, struct<x: bigint, l: array<date>>>",
    "s": "struct<x: bigint, l: array<struct<y: string>>>",
}  # fmt: skip


def columns(unknown: Unknown, *, texts: bool = True) -> dict[str, ColumnType]:
    """The declared columns; without `texts` those that pyarrow reads."""
    found = {name: parse(kind) for name, kind in KINDS.items() if texts or name in ("a", "s")}
    return found | ({REST_COLUMN: parse("json")} if unknown is Unknown.KEEP else {})


def taken(line: bytes, unknown: Unknown, *, texts: bool = True) -> bool:
    """Whether semel's reader takes a line for a record."""
    kinds = columns(unknown, texts=texts)
    schema = pa.schema([(name, kind.arrow()) for name, kind in kinds.items()])
    form = JsonLines(json=("j",) if texts else (), unknown=unknown)
    return any(block.table.num_rows for block in read_whole(line, form, schema)[0])


@pytest.mark.parametrize("word", ["NaN", "Inf", "Infinity", "-NaN", "-Inf", "-Infinity"])
@pytest.mark.parametrize("unknown", list(Unknown))
@pytest.mark.parametrize("line", ['{"a":1,"z":%s}', '{"a":1,"z":[{"b":%s,"c":"NaN"}]}'])
def test_a_constant_in_an_unnamed_key(line: str, unknown: Unknown, word: str) -> None:
    """Ignored, it does no harm; kept, it is no JSON. The audit says so of all such words."""
    rules = Rules(number=PARSER_RULES, unknown=unknown)
    found = json_judge(columns(unknown), rules)((line % word).encode())
    assert (found.word is Word.GOOD) == (unknown is Unknown.IGNORE)
    assert taken((line % word).encode(), unknown) == (unknown is Unknown.IGNORE)


def test_a_text_that_looks_like_a_constant_is_text() -> None:
    """What stands in quotes is left as it is, also behind escapes."""
    line = rb'{"a":1,"z":"x\\","NaN":"-Inf \" NaN","j":"Infinity"}'
    rules = Rules(number=PARSER_RULES)
    assert json_judge(columns(Unknown.IGNORE), rules)(line).word is Word.GOOD


VALUES = st.sampled_from(
    '1 "x" null true NaN -Inf [] {} [1] {"x":1} {"x":1,"x":2} {"x":1,"z":2} {"k":{"x":1}} '
    '{"k":{"x":"1"}} {"k":{"x":1,"z":NaN}} {"k":null,"k":null} {"k":{"l":["2020-02-30"]}} '
    '{"k":{"l":["2020-02-29",null]},"\\u006b":{}} {"l":[{"y":"a"},null,{"z":1}]} {"l":[{"y":1}]} '
    '{"l":[{"y":"a","y":"b"}]} {"k":[]} {"k":Infinity} "\\ud800" '
    '{"a":[[[[{"b":"}]\\""}]]]]}'
    .split(" ")
)


@settings(max_examples=examples(400), deadline=None)
@given(
    pairs=st.lists(st.tuples(st.sampled_from([*KINDS, "z", "\\u007a", REST_COLUMN]), VALUES)),
    unknown=st.sampled_from(Unknown),
    texts=st.booleans(),
)
def test_audit_and_reader_agree(
    pairs: list[tuple[str, str]], unknown: Unknown, texts: bool
) -> None:
    """They share no code, and take the same for records, in every way to treat such keys."""
    line = ("{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}").encode()
    rules = Rules(number=PARSER_RULES, unknown=unknown)
    found = json_judge(columns(unknown, texts=texts), rules)(line)
    assert found.word is not Word.UNSURE
    assert (found.word is Word.GOOD) == taken(line, unknown, texts=texts), line
