"""Whatever `semel new` drafts from: the declaration is right, and no value is lost by its types."""

import csv
import io
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.errors import SemelError
from semel.infer import sample
from semel.infer.draft import PipelineDraft, Trial, draft, find_files, widen_to_fit
from semel.infer.parse import blocks
from semel.infer.text import yaml_of
from semel.infer.write import write
from semel.pipeline.spec import Spec
from tiers import examples

SOME = settings(max_examples=examples(80), derandomize=True, database=None, deadline=None)


@contextmanager
def drafted(content: bytes, name: str) -> Iterator[tuple[PipelineDraft, Trial, Spec]]:
    """The draft from a file of this content, its trial, and the spec of the written file."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        data, pipelines = Path(folder, "data"), Path(folder, "pipelines")
        (data / "in").mkdir(parents=True)
        pipelines.mkdir()
        patch.setenv("SEMEL_DATA_ROOTS", str(data))
        patch.setenv("SEMEL_PIPELINES_DIR", str(pipelines))
        path = data / "in" / name
        path.write_bytes(content)
        read = sample.read_samples([path])
        made, tried = widen_to_fit(draft("any", read), read)
        assert find_files(made, read).files == 1
        yield made, tried, write(pipelines / "any.yaml", yaml_of(made, tried, read))


WORDS = st.sampled_from(
    ["", "1", "-7", "007", "2.5", "12.50", "1e5", "NaN", "N/A", "true", "FALSE", "0", " 3 ", "+4",
     "2024-02-29", "2024-02-30", "2024-01-01T10:00:00.123456789Z", "2024-01-01 10:00", "a",
     "9223372036854775808", "0.12345678901234567890", "x,y;z", "\u00e4", "12345678901234567"]
)  # fmt: skip
FIELDS = WORDS | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
NAMES = st.sampled_from(
    ["id", "order_id", "amount", "created_at", "n", "yes", "null", "a: b", "- x", "#", "'"]
)
ODD_NAMES = NAMES | st.sampled_from(["_semel_x", "ID", '"', "\\", "a`", " ", "k" * 2000]) | st.text(
    st.characters(codec="utf-8"), min_size=1, max_size=6
)


def csv_of(names: list[str], rows: list[list[str]], delimiter: str, end: str) -> bytes:
    made = io.StringIO(newline="")
    csv.writer(made, delimiter=delimiter, lineterminator=end).writerows([names, *rows])
    return made.getvalue().encode()


@st.composite
def columns(draw: st.DrawFn, values: st.SearchStrategy, names: st.SearchStrategy) -> dict:
    """Columns of one length; some hold one value that is unlike the others."""
    count = draw(st.integers(1, 60))
    found = {}
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        pool = draw(st.lists(values, min_size=1, max_size=2))
        cells = [pool[row % len(pool)] for row in range(count)]
        if draw(st.booleans()):
            cells[draw(st.integers(0, count - 1))] = draw(values)
        found[name] = cells
    return found


@st.composite
def csv_files(draw: st.DrawFn) -> bytes:
    found = draw(columns(FIELDS, draw(st.sampled_from([NAMES, NAMES, ODD_NAMES]))))
    delimiter, end = draw(st.sampled_from(",;\t|")), draw(st.sampled_from(["\n", "\r\n"]))
    rows = list(map(list, zip(*found.values(), strict=True)))
    return csv_of(list(found), rows, delimiter, end)


def refused_or_right(content: bytes, name: str) -> None:
    """A file is refused in words, or its draft is a right declaration that holds what it says."""
    try:
        with drafted(content, name) as (made, tried, spec):
            assert spec.digest() == Spec.model_validate(made.document()).digest()
            assert tried.quarantined <= 0.05 * tried.records
            fits = sum(guess.exceptions for guess in made.guesses.values())
            assert tried.reasons.get("type_mismatch", 0) <= fits
    except SemelError as error:
        assert str(error).isprintable()


@SOME
@given(content=csv_files())
def test_any_csv(content: bytes) -> None:
    """It is refused in words, or drafted: `validate` takes the file, its digest is the draft's, and
    the trial quarantines no more than a batch may hold."""
    refused_or_right(content, "a.csv")


SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | FIELDS
)
VALUES = SCALARS | st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_NAMES, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def json_files(draw: st.DrawFn) -> bytes:
    found = draw(columns(VALUES, draw(st.sampled_from([NAMES, ODD_NAMES]))))
    rows = [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]
    for row in rows[:: draw(st.integers(1, 60))]:
        row.pop(draw(st.sampled_from(sorted(found))), None)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@SOME
@given(content=json_files())
def test_any_json_lines(content: bytes) -> None:
    """As with CSV: refused in words, or a right declaration whose trial holds what it says."""
    refused_or_right(content, "a.jsonl")


def meant(text: str, value: object) -> bool:
    """Whether a value is what a field's text says, to its last digit."""
    match value:
        case None:
            return text == ""
        case bool():
            return text.lower() == str(value).lower()
        case int():
            return text.strip() in (str(value), f"-{value}" if not value else "")
        case Decimal():
            return Decimal(text) == value
        case float():
            # No double holds more digits than 17, and each whole number of 15.
            mantissa = text.strip().lower().partition("e")[0].lstrip("-")
            digits = mantissa.replace(".", "").lstrip("0")
            plain = not mantissa.startswith("+") and not re.match("0[0-9]", mantissa)
            most = 15 if mantissa.isdigit() else 17
            return float(text) == value and plain and len(digits) <= most
        case datetime():
            return text.startswith(value.strftime("%Y-%m-%d"))
        case date():
            return text == value.isoformat()
    return text == value


@SOME
@given(rows=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30))
def test_no_value_is_changed(rows: list[tuple[str, str]]) -> None:
    """What is read with the drafted types says what the fields said, or is a dead letter."""
    content = csv_of(["key", "v", "w"], [[f"k{i}", *row] for i, row in enumerate(rows)], ",", "\n")
    with drafted(content, "a.csv") as (made, tried, spec):
        found = [
            row
            for block in blocks(content, spec.arrow_schema(), made.dialect.csv, ["key", "v", "w"])
            for row in block.table.to_pylist()
        ]
    assert len(found) == tried.records - tried.quarantined
    for row in found:
        for text, value in zip(rows[int(row["key"][1:])], (row["v"], row["w"]), strict=True):
            assert meant(text, value), (text, value)
