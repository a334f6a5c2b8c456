"""The tables of docs/operations.md on what a run does are those that the tests go by."""

from collections.abc import Mapping

from fixtures.airflow.dags import ROOT
from fixtures.contract.matrix import HOW, IDLE, PLANNED, STATE


def section() -> str:
    """The section of the document, each paragraph in one line."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    return text.split("\n## What a run does\n")[1].split("\n## ")[0]


def table(rows: Mapping[str, str]) -> str:
    """Rows as the document has them."""
    return "\n".join(f"| {name} | {text} |" for name, text in rows.items())


def test_the_document_has_each_cell() -> None:
    """Three tables, row by row: a cell's sentence is a row of each."""
    told = section()
    for rows in (HOW, STATE, PLANNED):
        assert table(rows) in told, table(rows)
    assert IDLE in told.replace("\n", " ")
