"""semel's pages in Airflow: finding an id, the catalog, and how far each verb is behind."""

import html
import re
from datetime import UTC, datetime
from types import SimpleNamespace
from urllib.parse import quote, urlencode

from fix_account import committed, run
from fix_pages import Pages
from fix_pipelines import Workbench, events
from fix_rotation import position
from semel.airflow import links
from semel.catalog.merge import merge
from semel.catalog.payload import FilterCache
from semel.catalog.runs import snapshot
from semel.ledger import Ledger
from semel.plan import plan

FIND = "/semel/dags/events/find"
INTERVAL = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)


def text_of(page: str) -> str:
    """What a page shows, without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_an_id_is_found_with_its_batch_and_its_repeats(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """The same places as `semel find`; an id that is nowhere is said to be nowhere."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 10), *events(3, 4)])
    run(ledger, spec, "r1")
    page = pages.get(f"{FIND}?id=e000003")
    text = text_of(page.text)
    assert "In 2 places of 1 finalized batch" in text
    assert "output 1 " in text and "duplicate_in_batch 1 " in text and "a.jsonl" in text
    assert 'href="/semel/dags/events/batches/1"' in page.text
    assert "Not in any of 1 finalized batch." in text_of(pages.get(f"{FIND}?id=e99").text)
    assert 'name="id"' in pages.get(FIND).text


HOSTILE = (
    "<script>alert(1)</script>", "'\"><img src=x>", "x" * 10_000, "\x00\n\t", "[1, 2]",
    '{"id": 3}', "{", "[" * 10_000, "../../etc/passwd", "e1' OR 1=1 --", "\U0001f600",
)  # fmt: skip


def test_a_hostile_id_is_text(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """Whatever is typed is looked for, or refused in words; nothing of it becomes markup."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    for given in HOSTILE:
        typed = quote(given, safe="")
        for path in (f"{FIND}?id={typed}", f"{FIND}?id=1&id={typed}"):
            page = pages.get(path)
            assert page.status == 200, (given[:20], page.text[:300])
            assert "<script" not in page.text and "<img" not in page.text
            assert "Not in any of" in text_of(page.text) or 'role="alert"' in page.text
    long = pages.get(FIND + "?" + urlencode({"id": "x" * 20_000}))
    assert long.status == 200 and "16,384 characters at most" in long.text
    assert pages.get(FIND + "?" + urlencode({"id": ["x"] * 100}, doseq=True)).status == 422


def test_records_by_position_have_no_id(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """The pages of a pipeline without a record_id say that there is nothing to look for."""
    position(bench, "in/*.jsonl")
    assert "has no record_id" in text_of(pages.get(FIND).text)
    assert "there is no id to remember" in text_of(pages.get("/semel/dags/events/catalog").text)
    del ledger


def test_the_catalog_is_counted(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """Ids, runs, filters, segments and when they may go; the ratio of repeats by day; how often a
    filter was asked for an id that its run does not have, also of runs that were merged.
    """
    spec = bench.spec(dedup={"horizon": "30 days"})
    for first in (0, 5):
        bench.write(f"in/{first}.jsonl", events(first, first + 10))
        run(ledger, spec, f"r{first}")
        if not first:
            asked = text_of(pages.get("/semel/dags/events/catalog").text)
            assert "false positives not measured yet" in asked
    with ledger.transaction() as connection:
        runs = snapshot(connection, 1).runs
    for shard in {run.shard for run in runs}:
        parts = tuple(run for run in runs if run.shard == shard)
        if len(parts) > 1:
            merge(ledger, FilterCache(bench.folder / "cache"), parts)
    page = pages.get("/semel/dags/events/catalog").text
    text = text_of(page)
    assert "ids 15 " in text
    assert re.search(r"false positives \d+\.\d{3} % of 5 look-ups", text), text
    assert re.search(r"next drop in (29|3\d) d,", text), text
    [row] = re.findall(r"<tr>\s*<th scope=\"row\" class=\"nowrap\">.*?</tr>", page, re.S)
    assert text_of(row).endswith("2 20 15 5 25.0 %")
    assert all("title=" in cell for cell in re.findall(r'<td class="n"[^>]*>', page))


def test_how_far_each_verb_is_behind(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """A batch that is planned is behind in all verbs, one that is committed in finalize alone; the
    watermark stops before the oldest interval that is not done.
    """
    source = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"}
    spec = bench.spec("big")
    bench.write("in/a.jsonl", events(0, 10))
    committed(ledger, spec, "r1")
    by_day = bench.spec(source=source | {"path": "days/*.jsonl"}, schedule="@daily")
    for day in (1, 2):
        bench.write(f"days/day-2026-11-0{day}.jsonl", events(100 * day, 100 * day + 10))
    run(ledger, by_day, "r2", INTERVAL)
    second = INTERVAL[1], datetime(2026, 11, 3, tzinfo=UTC)
    plan(ledger, by_day, "r3", second)
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE semel.batch SET planned_at = clock_timestamp() - interval '3 hours'"
        )
    page = pages.get("/semel/").text
    found = [text_of(row) for row in re.findall(r"<tr>.*?</tr>", page, re.S)]
    rows = {text.split()[0]: text for text in found}
    assert "committed – · – · 3 h " in rows["big"]
    assert "planned 3 h · 3 h · 3 h 2026-11-02 00:00 " in rows["events"]


def test_a_batch_shows_what_it_set_aside_and_added(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """The same samples as `semel letters`, for who may read the logs; times; id runs."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 10), b'{"id": "<img src=x>", "n": "N/A"}'])
    run(ledger, spec, "r1")
    page = pages.get("/semel/dags/events/batches/1").text
    text = text_of(page)
    assert "1 record was set aside" in text and 'n: expected a whole number, found "N/A"' in text
    assert " 11 " in text and "<img" not in page
    assert "10 in 4 id runs" in text and "waiting" in text and "finalize" in text
    assert all("title=" in cell for cell in re.findall(r'<td class="n[" ][^>]*>', page))
    (bench.data / "out/_semel/events/markers/b00000001.json").rename(bench.data / "away")
    assert "is no finalized batch of events" in pages.get("/semel/dags/events/batches/1").text


def test_a_run_leads_to_its_batch(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """The links of a task and the tab of a run find the newest batch of the run; a run that planned
    none says so; nobody comes so to a batch of a DAG that is hidden.
    """
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    run_id = "manual__2026-11-01T00:00:00+00:00/x"
    run(ledger, spec, f"airflow:events:{run_id}")
    key = SimpleNamespace(dag_id="events", run_id=run_id)
    found = {link.name: link.get_link(None, ti_key=key) for link in links.OF_A_RUN}
    parts = {"Batch": "", "Output": "#output", "Dead letters": "#letters"}
    assert list(found) == [*parts, "Operations"] and found["Operations"] == "/semel/"
    for name, part in parts.items():
        answer = pages.get(found[name])
        assert answer.status == 303, answer.text
        assert answer.headers["location"] == f"/semel/dags/events/batches/1{part}"
    assert "this run has no batch" in pages.get("/semel/dags/events/runs/manual__2").text
    assert pages.get(found["Batch"] + "?part=//evil.example").status == 422
    assert pages.get("/semel/dags/hidden/runs/x", "viewer").status == 403
    assert pages.get(found["Batch"], None).status == 401
