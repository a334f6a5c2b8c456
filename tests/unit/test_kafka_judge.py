"""What a plan does with a partition of a topic: one table, in the code and in docs/kafka.md."""

from itertools import product
from pathlib import Path

from semel.sources.kafka.matching import Does, Held, judge

_SAYS = {
    Does.BEGIN: "begin:",
    Does.JOIN: "join:",
    Does.GO_ON: "it goes on",
    Does.REFUSE: "refused",
}
_HELD = {
    Held.NOTHING: "nothing",
    Held.OPEN: "its source partition, open or closed",
    Held.CLOSED: "its source partition, open or closed",
    Held.OTHER: "its name, under another topic's id",
}


# Attacks KS2.
def test_the_table_of_the_page_is_the_one_of_the_code() -> None:
    """Each of the sixteen cells is in one row of docs/kafka.md, which says what the code does."""
    text = Path(__file__).parents[2].joinpath("docs", "kafka.md").read_text(encoding="utf-8")
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    rows = [row for row in found if row and row[0] in _HELD.values()]
    assert len(rows) == 5
    for held, known, shrunk in product(Held, (False, True), (False, True)):
        cells = _HELD[held], "yes" if known else "no", "yes" if shrunk else "no"
        (row,) = [
            row
            for row in rows
            if all(there in ("", cell) for there, cell in zip(row, cells, strict=False))
        ]
        assert row[3].startswith(_SAYS[judge(held, known, shrunk)])
