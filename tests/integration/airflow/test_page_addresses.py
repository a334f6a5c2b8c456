"""Each address of the pages, without its values, with wrong ones, and with hostile ones: the answer
is a page that says what is wrong, and never raw text or the place in the code.
"""

import html
import re
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest

from fixtures.airflow.pages import Answer, Pages
from fixtures.batches.account import first_batch
from fixtures.batches.workbench import Workbench, events
from semel.ledger import Ledger

HOSTILE = (
    "<script>alert(1)</script>", "../../../etc/passwd", "x" * 10_000, "a\0b", "9" * 30, "-1", "1.5",
    "1e400", "%", "0001-01-01", "9999-12-31", "9999-12-31T23:59:59Z", "2026-11-01T00:00:00+23:59",
)  # fmt: skip
GOOD = {"dag_id": "events", "batch_id": "1", "run_id": "r1", "number": "1"}
STATUSES = (200, 303, 400, 403, 404, 405, 409, 422, 503)


def check(answer: Answer, path: str) -> None:
    """It is a page, or the file that was asked for."""
    where = path[:200]
    assert answer.status in STATUSES, (where, answer.status, answer.text)
    if answer.status == 303:
        return
    if re.search(r"\.(css|js|svg|jsonl)($|\?)", path) and answer.status == 200:
        return
    assert answer.headers["content-type"] == "text/html; charset=utf-8", where
    assert answer.headers["content-security-policy"].startswith("default-src 'none'"), where
    assert "<main>" in answer.text and answer.text.count("<script") == 1, where
    for raw in ("Traceback", 'detail":', "pydantic", "sqlalchemy", "psycopg"):
        assert raw not in answer.text, (where, answer.text)


def paths(path: str, names: list[str]) -> Iterator[str]:
    """A route's addresses: with one of its values hostile, with all of them, and with none."""
    parts = re.findall(r"\{(\w+)(?:\:path)?\}", path)
    plain = re.sub(r"\{(\w+)(?:\:path)?\}", r"{\1}", path)
    good = "/semel" + plain.format(**GOOD)
    yield good
    for value in HOSTILE:
        for part in parts:
            yield "/semel" + plain.format(**GOOD | {part: quote(value, safe="")})
        for name in names:
            yield f"{good}?{urlencode({name: value})}"
        if len(names) > 1:
            yield f"{good}?{urlencode(dict.fromkeys(names, value))}"


@pytest.fixture
def shop(pages: Pages, bench: Workbench, ledger: Ledger) -> Pages:
    """The pages of a pipeline with a batch and dead letters."""
    first_batch(bench, ledger, [*events(0, 100), b"{"])
    return pages


def test_no_address_shows_more_than_a_page(shop: Pages) -> None:
    """Each route that shows something, by the table of the application itself."""
    shown = [(path, names) for path, methods, names in shop.routes() if "GET" in methods]
    assert len(shown) > 15
    for path, names in shown:
        for address in paths(path, names):
            check(shop.get(address), address)


def test_no_form_shows_more_than_a_page(shop: Pages) -> None:
    """Each route that does something: without a form, and with a hostile one."""
    forms = [path for path, methods, _ in shop.routes() if "POST" in methods]
    assert len(forms) > 3
    for path in forms:
        for address in paths(path, []):
            for form in ({}, {"token": HOSTILE[0]}, {"token": "x" * 10_000}, {"token": "a\0"}):
                answer = shop.send(address, form)
                check(answer, address)
                assert answer.status != 200, address
        for method in ("PUT", "DELETE", "PATCH"):
            check(shop.get("/semel" + path.format(**GOOD), method=method), path)


def test_an_address_that_lacks_something_names_it(shop: Pages) -> None:
    """What is missing or wrong, by its name in the address, and where the list is that leads there.
    """
    asked = {
        "accept": ("file, how", "refused"),
        "accept?file=a&how=new&from=1.5": ("from", "refused"),
        "accept?file=a&how=other": ("how", "refused"),
        "backfill": ("from, to", ""),
        "backfill?from=x&to=2026-11-01": ("from", ""),
        "replay?to=2026-11-01": ("from", ""),
        "batches/one": ("batch_id", ""),
    }
    for path, (named, leads) in asked.items():
        answer = shop.get(f"/semel/dags/events/{path}")
        text = html.unescape(answer.text)
        assert answer.status == 422, path
        assert re.search(rf"(lacks|has invalid values): {named}\b", text), (path, text)
        where = "/semel/dags/events" + (leads and f"/{leads}")
        assert f'<a href="{where}">' in text.partition("<main>")[2], path
