"""The list of pipelines: what failed stands first, with its reason; and what the page costs."""

import html
import re
import time
from datetime import UTC, datetime

import pytest

from fixtures.airflow.pages import Pages
from fixtures.batches.account import add_attempt, run, sql
from fixtures.batches.history import add_history
from fixtures.batches.workbench import Workbench, events
from fixtures.wait import wait_for
from semel.ledger import Ledger
from semel.plan import plan

RUN = "manual__1"
KEY = f"airflow:events:{RUN}"


def listed(pages: Pages, asked: str = "", who: str = "admin") -> dict[str, str]:
    """The text of each pipeline's line, in their order, once their files are checked."""

    def lines() -> str | None:
        page = pages.get(f"/semel/{asked}", who).text
        return None if "is still checking the pipelines' files" in page else page

    page = wait_for(lines, "the check of the pipelines' files", 60)
    rows = re.findall(r"<tr>\n<th scope=\"row\">(.*?)</tr>", page, re.S)
    texts = [" ".join(html.unescape(re.sub(r"<[^>]*>", " ", row)).split()) for row in rows]
    return {text.split()[0]: text for text in texts}


def failed_batch(bench: Workbench, ledger: Ledger) -> None:
    """A planned batch whose attempt is lost."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    add_attempt(ledger, plan(ledger, spec, KEY).batch.batch_id, "lost")


@pytest.mark.parametrize(
    ("state", "tries", "says"),
    [
        ("up_for_retry", 1, r"batch 1 : stage failed; Airflow tries again at 10:0[01] UTC"),
        ("up_for_retry", 3, r"batch 1 : stage failed; Airflow tries again at 10:0[01] UTC"),
        ("up_for_retry", 5, r"batch 1 : stage failed; Airflow tries again at 10:0[2-5] UTC"),
        ("failed", 4, r"batch 1 : stage failed: read its log, then clear the run manual__1"),
        ("running", 2, r"batch 1 : its last attempt failed: manual__1"),
    ],
)
def test_a_batch_that_failed_says_when_it_is_tried_again(
    pages: Pages, bench: Workbench, ledger: Ledger, state: str, tries: int, says: str
) -> None:
    """Its attempts are lost: it has failed, and is not planned for an hour; if Airflow tries it
    again, the page says when.
    """
    failed_batch(bench, ledger)
    pages.task("events", RUN, "stage", state, tries, "2026-11-01T10:00:00+00:00")
    text = listed(pages)["events"]
    assert re.search(rf"! failed {says}", text), text
    assert "planned" not in text


def test_a_committed_batch_whose_finalize_failed(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """The ledger knows no failure of it; Airflow does."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    plan(ledger, spec, KEY)
    assert "▶ in work batch 1 is planned, for" in listed(pages)["events"]
    pages.task("events", RUN, "commit", "failed", 4, "2026-11-01T10:00:00+00:00")
    assert (
        "! failed batch 1 : commit failed: read its log, then clear the run"
        in listed(pages)["events"]
    )


@pytest.mark.parametrize(
    ("task", "state", "tries", "says"),
    [
        ("plan", "up_for_retry", 1, r"plan failed; Airflow tries again at 10:0\d UTC"),
        ("receive", "failed", 4, "receive failed: read its log, then clear the run"),
        ("plan", "failed", 1, "plan failed: read its log, then clear the run"),
    ],
)
def test_a_run_that_failed_before_it_had_a_batch(
    pages: Pages, bench: Workbench, task: str, state: str, tries: int, says: str
) -> None:
    """Only Airflow knows it: the list has it as failed, until a later plan has ended well."""
    bench.spec()
    end = "2026-11-01T10:00:00+00:00"
    pages.task("events", RUN, task, state, tries, end)
    text = listed(pages)["events"]
    assert re.search(rf"! failed run manual__1 : {says}", text), text
    assert f'href="/dags/events/runs/{RUN}"' in pages.get("/semel/").text
    pages.task("events", "earlier", "plan", "success", 1, "2026-11-01T09:00:00+00:00")
    assert "! failed" in listed(pages)["events"]
    pages.task("events", "later", "plan", "success", 1, "2026-11-01T11:00:00+00:00")
    is_tried_again = state == "up_for_retry"
    assert ("! failed" in listed(pages)["events"]) == is_tried_again


def test_a_failed_run_of_an_interval_stays_until_that_is_read(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """Later intervals do not make up for it; a run of the same one does, also from the command line.
    If the run was cleared and failed again, only a plan that ends well does.
    """
    source = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"}
    spec = bench.spec(source=source, schedule="@daily")
    days = [datetime(2026, 11, day, tzinfo=UTC) for day in (1, 2, 3)]
    first, second = (days[0], days[1]), (days[1], days[2])
    end, later, again, last = (f"2026-11-03T1{hour}:00:00+00:00" for hour in range(4))
    pages.task("events", "one", "plan", "failed", 1, end, interval=first)
    pages.task("events", "two", "plan", "success", 1, later, interval=second)
    assert "! failed run one : plan failed" in listed(pages)["events"]
    bench.write("in/day-2026-11-01.jsonl", events(0, 10))
    run(ledger, spec, "cli", first)
    assert "failed" not in listed(pages)["events"]
    pages.task("events", "three", "plan", "failed", 1, again, interval=first, cleared=1)
    assert "! failed run three : plan failed" in listed(pages)["events"]
    pages.task("events", "four", "plan", "success", 1, last, interval=first)
    assert "failed" not in listed(pages)["events"]


def test_a_failed_plan_of_a_batch_is_listed_once(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """A run that has an open batch is listed with its batch."""
    bench.write("in/a.jsonl", events(0, 10))
    plan(ledger, bench.spec(), KEY)
    pages.task("events", RUN, "plan", "failed", 4, "2026-11-01T10:00:00+00:00")
    text = listed(pages)["events"]
    assert (
        "! failed batch 1 : plan failed: read its log, then clear the run" in text
        and "run manual__1 :" not in text
    )


def test_a_broken_file_says_what_validate_says(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """On the list, and on each page that shows an older declaration; also of a pipeline that never
    had a DAG, for those who may see Airflow's import errors. A pipeline without a batch is no
    unknown name.
    """
    bench.write("in/a.jsonl", events(0, 10))
    run(ledger, bench.spec("big"), "r1")
    bench.spec("fresh")
    for name in ("big", "fresh"):
        path = bench.pipelines / f"{name}.yaml"
        path.write_text(path.read_text().replace("format: jsonl", "format: jsonx"))
    lines = listed(pages)
    for name in ("big", "fresh"):
        assert f"{name} ✕ broken {bench.pipelines}/{name}.yaml:" in lines[name]
        assert "source.format" in lines[name]
    for path in ("", "/refused", "/declaration"):
        page = html.unescape(pages.get(f"/semel/dags/big{path}").text)
        assert "big.yaml:" in page and "source.format" in page, path
        assert "does not see" not in page, page
    assert "fresh" not in listed(pages, who="viewer")


def test_the_worst_is_first_and_can_be_searched_for(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """Broken, failed, to be tried again, then the others by name; a form finds by name and state."""
    run(ledger, bench.spec("big"), "r1")
    hidden = bench.spec("hidden")
    path = bench.spec("foreign", sink={"path": "out/foreign"})
    bench.write("in/a.jsonl", events(0, 10))
    add_attempt(ledger, plan(ledger, hidden, "airflow:hidden:r").batch.batch_id, "lost")
    failed_batch(bench, ledger)
    pages.task("events", RUN, "stage", "up_for_retry", 1, "2026-11-01T10:00:00+00:00")
    (bench.pipelines / f"{path.name}.yaml").write_text("name: foreign\nsource: {}\n")
    assert [*listed(pages)] == ["foreign", "hidden", "events", "big"]
    assert [*listed(pages, "?q=FAILED")] == ["hidden", "events"]
    assert [*listed(pages, "?q=BIG")] == ["big"]
    page = pages.get("/semel/?q=<script>").text
    assert "None of 4 pipelines has" in page and "<script>" not in page


def test_days_complete_of_days_due(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """Of the last intervals that are over, since the first that a run has read."""
    source = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"}
    spec = bench.spec(source=source, schedule="@daily")
    days = sql(ledger, "SELECT date_trunc('day', now(), 'UTC') - n * interval '1 day' AS at "
                       "FROM generate_series(5, 0, -1) AS n")  # fmt: skip
    starts = [row["at"] for row in days]
    for at in (0, 1, 3):
        bench.write(f"in/day-{starts[at]:%Y-%m-%d}.jsonl", events(10 * at, 10 * at + 10))
        run(ledger, spec, f"r{at}", (starts[at], starts[at + 1]))
    assert "events @daily, paused ● done 3 of 5 3 ," in listed(pages)["events"]


@pytest.mark.rest
def test_two_hundred_pipelines_are_listed_in_a_second(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """With 10,000 batches: while the files are checked, too, and once they are."""
    pages.get("/semel/")  # The server's first page, with the login, is not measured.
    specs = [
        bench.spec(f"p{n}", source={"path": f"in{n}/*.jsonl"}, schedule=f"{n % 60} * * * *")
        for n in range(200)
    ]
    path = bench.write("in0/a.jsonl", events(0, 10))
    done = run(ledger, specs[0], "r")
    path.unlink()
    plan(ledger, specs[0], "idle")
    add_history(ledger, done.plan.batch, 10_000)
    pages.known([spec.name for spec in specs])
    began = time.monotonic()
    first = pages.get("/semel/").text
    took = [time.monotonic() - began]
    assert "p199" in first
    lines = listed(pages)
    assert len(lines) == 200 and "@" not in lines["p7"] and "7 * * * *" in lines["p7"]
    for _ in range(3):
        began = time.monotonic()
        pages.get("/semel/")
        took.append(time.monotonic() - began)
    assert min(took) < 1 and took[0] < 3, took
