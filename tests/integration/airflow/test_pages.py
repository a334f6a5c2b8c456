"""semel's pages in Airflow: who may see them, what they show, and what it costs; finding an id, the
catalog, and how long a batch has been open.
"""

import html
import json
import re
from datetime import UTC, datetime
from types import SimpleNamespace
from urllib.parse import quote, urlencode

from fixtures.airflow.pages import Pages
from fixtures.batches.account import committed, first_batch, run
from fixtures.batches.history import add_history
from fixtures.batches.workbench import Workbench, events
from fixtures.files.rotation import position
from fixtures.queue.segments import Spool, messages, sealed
from semel.airflow import links
from semel.catalog.payload import FilterCache
from semel.catalog.runs import snapshot
from semel.collect.merge import merge
from semel.ledger import Ledger
from semel.plan import plan

PATHS = (
    "/semel/", "/semel/dags/events", "/semel/dags/events/batches/1", "/semel/semel.css",
    "/semel/semel.js", "/semel/semel.svg",
)  # fmt: skip

INTERVAL = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)

HOSTILE = "in/<script>alert(1)</script>&\"'.jsonl".replace("/script", "\u2215script")


def test_nobody_sees_anything_without_a_login(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """Each route asks Airflow; a viewer sees, without the DAGs that are not for them; nothing takes
    anything but GET.
    """
    for name in ("events", "hidden"):
        spec = bench.spec(name)
        assert pages.get(f"/semel/dags/{name}").status == 200  # It has planned nothing yet.
        bench.write("in/a.jsonl", events(0, 10))
        run(ledger, spec, "airflow:events:manual__1")
    for path in PATHS:
        assert pages.get(path, None).status == 401, path
        assert pages.get(path, "forged").status == 403, path
        for who in ("viewer", "admin"):
            answer = pages.get(path, who)
            assert answer.status == 200, (path, who, answer.text)
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
            assert answer.headers["cache-control"] == "no-store"
        for method in ("POST", "PUT", "DELETE"):
            assert pages.get(path, "admin", method).status == 405, path
    for path in ("/semel/dags/hidden", "/semel/dags/hidden/batches/2"):
        assert pages.get(path, "viewer").status == 403
        assert pages.get(f"{path}?dag_id=events", "viewer").status == 403
        assert pages.get(path, "admin").status == 200
    assert "/dags/hidden" not in pages.get("/semel/", "viewer").text
    assert "/dags/hidden" in pages.get("/semel/", "admin").text
    # The batch of a pipeline that is hidden, by way of another one.
    assert pages.get("/semel/dags/events/batches/2", "viewer").status == 404
    for path in ("/semel/dags/foreign", "/semel/dags/~", "/semel/dags/events/batches/99"):
        assert pages.get(path).status == 404
    for path in ("/semel/openapi.json", "/semel/docs"):
        assert pages.get(path).status == 404


def test_what_is_hostile_is_text(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """Names of files, runs and reasons stand on a page as they are, and are never its markup."""
    spec = bench.spec()
    bench.write(HOSTILE, events(0, 10))
    key = "airflow:events:<img src=x onerror=alert(1)>/../../x?y#z"
    run(ledger, spec, key)
    for path in ("/semel/", "/semel/dags/events", "/semel/dags/events/batches/1"):
        text = pages.get(path).text
        scripts = re.findall(r"<script[^>]*>[^<]*</script>", text)
        assert scripts == ['<script src="/semel/semel.js"></script>'], path
        assert text.count("<script") == 1 and "<img" not in text, path
        # Airflow shows it in a frame that lets no link out: one with a target does nothing there.
        assert " target=" not in text, path
    assert "&lt;script&gt;alert(1)" in text and "&lt;img src=x onerror=alert(1)&gt;" in text
    [link] = re.findall(r'href="([^"]*/runs/[^"]*)"', text)
    assert link == (
        "/dags/events/runs/%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E%2F..%2F..%2Fx%3Fy%23z"
    )
    for value in ("'\"><script>", "2026-99-99", "1", "2026-11-01%00"):
        answer = pages.get(f"/semel/dags/events?from={value}")
        assert answer.status in (400, 422) and "<script>" not in answer.text


def test_days_and_what_to_do(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """The same states, counts and commands as `semel days`; numbers say what they count."""
    source = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl", "on_refused": "warn"}
    spec = bench.spec(source=source, schedule="@daily")
    for day in (1, 2):
        bench.write(f"in/day-2026-11-0{day}.jsonl", events(100 * day, 100 * day + 10))
    run(ledger, spec, "airflow:events:scheduled__1", INTERVAL)
    bench.write("in/nonsense.jsonl", [])
    text = pages.get("/semel/dags/events?from=2026-11-01&to=2026-11-03").text
    rows = re.findall(r'<tr id="d(\d+)">(.*?)</tr>', text, re.S)
    assert [day for day, _ in rows] == ["20261103", "20261102", "20261101"]
    found = {day[-1]: body for day, body in rows}
    assert "nothing there" in found["3"] and "finalized" in found["1"]
    assert "bytes of 1 file unclaimed" in found["2"]
    assert "<code>semel run events --interval 2026-11-02 2026-11-03</code>" in found["2"]
    assert 'href="/dags/events/runs/scheduled__1"' in found["1"]
    assert "1 refused, of an unknown day" in text
    cells = re.findall(r'<td class="n"([^>]*)>', text + pages.get("/semel/").text)
    assert len(cells) > 8 and all("title=" in cell for cell in cells)


def test_a_manual_run_in_the_place_of_a_scheduled_one(pages: Pages, bench: Workbench) -> None:
    """Airflow creates no scheduled run where a manual one of another interval has its logical date:
    the page marks the interval, and offers no backfill, which would clear that run.
    """
    source = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"}
    bench.spec(source=source, schedule="@daily")
    for day in (1, 2, 3):
        bench.write(f"in/day-2026-11-0{day}.jsonl", events(100 * day, 100 * day + 10))
    days = [datetime(2026, 11, day, tzinfo=UTC) for day in range(1, 5)]
    pages.trigger("events", days[1], days[0], days[1])
    pages.trigger("events", days[2], days[2], days[3])
    text = pages.get("/semel/dags/events?from=2026-11-01&to=2026-11-03").text
    found = {day[-1]: body for day, body in re.findall(r'<tr id="d(\d+)">(.*?)</tr>', text, re.S)}
    assert ["will not create a run of this" in found[day] for day in "123"] == [False, True, False]
    assert [">backfill</a>" in found[day] for day in "123"] == [True, False, True]
    assert 'href="/dags/events/runs/manual__2026-11-02"' in found["2"]
    assert "<code>semel run events --interval 2026-11-02 2026-11-03</code>" in found["2"]


def test_one_backfill_of_all_missing_days(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """Days has one link from the first to the last missing day. A manual run in the place of a
    scheduled one removes the link, since the backfill would clear that run.
    """
    source = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"}
    spec = bench.spec(source=source, schedule="@daily")
    days = [datetime(2026, 11, day, tzinfo=UTC) for day in range(1, 7)]
    for day in range(1, 6):
        bench.write(f"in/day-2026-11-0{day}.jsonl", events(100 * day, 100 * day + 10))
    for n in (0, 2, 4):
        run(ledger, spec, f"airflow:events:scheduled__{n}", (days[n], days[n + 1]))

    def link(shown: str, who: str = "admin") -> str | None:
        page = pages.get(f"/semel/dags/events?{shown}", who).text
        match = re.search(r'href="([^"]*)"[^>]*>backfill missing intervals</a>', page)
        return match and html.unescape(match[1])

    asked = link("from=2026-11-01&to=2026-11-06")
    wanted = urlencode({"from": "2026-11-02T00:00:00+00:00", "to": "2026-11-05T00:00:00+00:00"})
    assert asked == f"/semel/dags/events/backfill?{wanted}"
    page = text_of(pages.get(asked).text)
    assert "3 runs, with the logical dates 2026-11-02 00:00:00 to 2026-11-04 00:00:00" in page
    command = (
        "airflow backfill create --dag-id events --from-date 2026-11-02T00:00:00+00:00 "
        "--to-date 2026-11-04T23:59:59+00:00 --reprocess-behavior completed --dag-run-conf '{}'"
    )
    assert command in page
    assert link("from=2026-11-01&to=2026-11-03") is None, "one day has its own link"
    assert link("from=2026-11-01&to=2026-11-06", "viewer") is None
    pages.trigger("events", days[2], days[0], days[1])
    assert link("from=2026-11-01&to=2026-11-06") is None


def test_without_its_folder_the_ledger_is_shown(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """A server that sees neither the declaration nor the source calls no day finalized."""
    source = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"}
    spec = bench.spec(source=source)
    bench.write("in/day-2026-11-01.jsonl", events(0, 10))
    run(ledger, spec, "r", INTERVAL)
    path = "/semel/dags/events?from=2026-11-01&to=2026-11-01"
    assert ">✓<" in pages.get(path).text
    (bench.data / "in").rename(bench.data / "elsewhere")
    text = pages.get(path).text
    assert ">✓<" not in text and ">●<" in text and "refused, of an unknown day" in text
    (bench.pipelines / "events.yaml").unlink()
    text = pages.get(path).text
    assert "does not see the file that declares" in text and ">●<" in text


def test_pages_of_ten_thousand_batches(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """The pages read what they show. Refused files and silent batches stand on top."""
    spec = bench.spec("big")
    path = bench.write("in/a.jsonl", events(0, 10))
    done = run(ledger, spec, "r")
    path.unlink()
    plan(ledger, spec, "idle")
    add_history(ledger, done.plan.batch, 10_000)
    bench.write("in/b.jsonl", events(20, 30))
    plan(ledger, spec, "r2")
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE semel.batch SET seen_at = now() - interval '2 hours' WHERE status = 'planned'"
        )
    for path in ("/semel/dags/big", "/semel/dags/big/batches/1000"):
        answer = pages.get(path)
        assert answer.status == 200, answer.text
    text = pages.get("/semel/").text
    assert "1 open batch has given no sign of life" in text
    assert json.dumps(text).count("<rect") == 30


FIND = "/semel/dags/events/find"


def text_of(page: str) -> str:
    """What a page shows, without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def test_an_id_is_found_with_its_batch_and_its_repeats(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """The same places as `semel find`; an id that is nowhere is said to be nowhere."""
    first_batch(bench, ledger, [*events(0, 10), *events(3, 4)])
    page = pages.get(f"{FIND}?id=e000003")
    text = text_of(page.text)
    assert "The id is in 2 places of 1 finalized batch" in text
    assert "output 1 " in text and "duplicate_in_batch 1 " in text and "a.jsonl" in text
    assert 'href="/semel/dags/events/batches/1"' in page.text
    assert "The id is in none of 1 finalized batch." in text_of(pages.get(f"{FIND}?id=e99").text)
    assert 'name="id"' in pages.get(FIND).text


HOSTILE_IDS = (
    "<script>alert(1)</script>", "'\"><img src=x>", "x" * 10_000, "\x00\n\t", "[1, 2]",
    '{"id": 3}', "{", "[" * 10_000, "../../etc/passwd", "e1' OR 1=1 --", "\U0001f600",
)  # fmt: skip


def test_a_hostile_id_is_text(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """Whatever is typed is looked for, or refused in words; nothing of it becomes markup."""
    first_batch(bench, ledger, events(0, 10))
    for given in HOSTILE_IDS:
        typed = quote(given, safe="")
        for path in (f"{FIND}?id={typed}", f"{FIND}?id=1&id={typed}"):
            page = pages.get(path)
            assert page.status == 200, (given[:20], page.text[:300])
            assert page.text.count("<script") == 1 and "<img" not in page.text
            assert "The id is in none of" in text_of(page.text) or 'role="alert"' in page.text
    long = pages.get(FIND + "?" + urlencode({"id": "x" * 20_000}))
    assert long.status == 200 and "16,384 characters at most" in long.text
    assert pages.get(FIND + "?" + urlencode({"id": ["x"] * 100}, doseq=True)).status == 422


def test_records_by_position_have_no_id(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """The pages of a pipeline without a record_id say that there is nothing to look for."""
    position(bench, "in/*.jsonl")
    assert "has no record_id" in text_of(pages.get(FIND).text)
    assert "so the catalog has no ids" in text_of(pages.get("/semel/dags/events/catalog").text)
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


def test_how_long_a_batch_has_been_open(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """The oldest batch that is not finalized says how far it is, and since when."""
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
    assert "▶ in work batch 1 is committed, for 3 h" in rows["big"]
    assert "▶ in work batch 3 is planned, for 3 h" in rows["events"]


def test_a_batch_shows_what_it_set_aside_and_added(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """The same samples as `semel letters`, for who may read the logs; times; id runs."""
    first_batch(bench, ledger, [*events(0, 10), b'{"id": "<img src=x>", "n": "N/A"}'])
    page = pages.get("/semel/dags/events/batches/1").text
    text = text_of(page)
    assert "1 record was set aside" in text and 'n: expected a whole number, found "N/A"' in text
    assert " 11 " in text and "<img" not in page
    assert "10 in 4 id runs" in text and "waiting" in text and "finalize" in text
    assert all("title=" in cell for cell in re.findall(r'<td class="n[" ][^>]*>', page))
    (bench.data / "out/_semel/events/markers/b00000001.json").rename(bench.data / "away")
    assert "is not a finalized batch of events" in pages.get("/semel/dags/events/batches/1").text


def test_a_record_of_a_queue_is_at_a_message(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """What is set aside is told with its place in the unit of its source, not in bytes."""
    spool = Spool(bench)
    sealed(spool.spool, [messages([b'{"id": "a", "n": "N/A"}'])])
    run(ledger, spool.spec(), "airflow:events:manual__1")
    page = pages.get("/semel/dags/events/batches/1").text
    table = page.partition('id="letters"')[2].partition("</table>")[0]
    assert [word for word in ("byte", "message") if f">{word}</th>" in table] == ["message"]


def test_a_run_leads_to_its_batch(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """The links of a task and the tab of a run find the newest batch of the run; a run that planned
    none says so; nobody comes so to a batch of a DAG that is hidden.
    """
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    run_id = "manual__2026-11-01T00:00:00+00:00/x"
    run(ledger, spec, f"airflow:events:{run_id}")
    key = SimpleNamespace(dag_id="events", run_id=run_id)
    found = {link.name: link.get_link(None, ti_key=key) for link in links.RUN_LINKS}
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
