"""How a refusal names the columns that differ from earlier output."""

import pytest

from semel.stage import column_changes

BEFORE = [["id", "string"], ["n", "int64"]]


@pytest.mark.parametrize(
    ("now", "text"),
    [
        ([*BEFORE, ["more", "string"]], "it has 'more' (string)"),
        ([["id", "string"]], "it lacks 'n' (int64)"),
        ([["id", "string"], ["n", "double"]], "it has 'n' as double, not int64"),
        ([["n", "double"], ["x", "date"]],
         "it has 'x' (date); it lacks 'id' (string); it has 'n' as double, not int64"),
        (BEFORE[::-1], "its columns have another order ('n', 'id')"),
    ],
)  # fmt: skip
def test_each_difference_is_named(now: list[list[str]], text: str) -> None:
    """A new, a missing and a retyped column, and another order: each with its name and types."""
    assert column_changes(BEFORE, now) == text
