"""semel's pages: `to` is the last day that is meant, on each of them."""

import re

from fixtures.airflow.pages import Pages
from fixtures.batches.replays import three_days
from fixtures.batches.workbench import Workbench
from semel.ledger import Ledger
from test_page_replay import WHERE, asked, text_of


def test_the_replays_form_ends_with_the_day_that_it_names(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """From Days to the replay page and through its form: the same days, and the same batches."""
    three_days(bench, ledger)
    page = asked(pages, "from=2026-01-01&to=2026-01-03")
    form = dict(re.findall(r'<input type="date" name="(\w+)" value="([^"]+)"', page))
    assert form == {"from": "2026-01-01", "last": "2026-01-02"}
    assert "to <input" in page and "without" not in text_of(page)
    shown = [text_of(row) for row in re.findall(r"<tr>.*?</tr>", page, re.S)]
    again = asked(pages, "&".join(f"{name}={value}" for name, value in form.items()))
    assert [text_of(row) for row in re.findall(r"<tr>.*?</tr>", again, re.S)] == shown
    assert len(shown) == 3, "a header and two batches"
    assert pages.get(f"{WHERE}?from=2026-01-01").status == 422
