"""semel's pages in Airflow: who may see them, what they show, and what it costs."""

import json
import re
import time
from datetime import UTC, datetime

from fix_account import run
from fix_history import add_history
from fix_pages import Pages
from fix_pipelines import Workbench, events
from semel.ledger import Ledger
from semel.plan import plan

PATHS = ("/semel/", "/semel/dags/events", "/semel/dags/events/batches/1", "/semel/semel.css")

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
    assert "hidden" not in pages.get("/semel/", "viewer").text
    assert "hidden" in pages.get("/semel/", "admin").text
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
        assert "<script" not in text and "<img" not in text, path
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
    assert "nothing there" in found["3"] and "complete" in found["1"]
    assert "1 of 1 files unclaimed" in found["2"]
    assert "<code>semel run events --interval 2026-11-02 2026-11-03</code>" in found["2"]
    assert 'href="/dags/events/runs/scheduled__1"' in found["1"]
    assert "1 refused of an unknown day" in text
    cells = re.findall(r'<td class="n"([^>]*)>', text + pages.get("/semel/").text)
    assert len(cells) > 8 and all("title=" in cell for cell in cells)


def test_without_its_folder_the_ledger_is_shown(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """A server that sees neither the declaration nor the source calls no day complete."""
    source = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"}
    spec = bench.spec(source=source)
    bench.write("in/day-2026-11-01.jsonl", events(0, 10))
    run(ledger, spec, "r", INTERVAL)
    path = "/semel/dags/events?from=2026-11-01&to=2026-11-01"
    assert ">✓<" in pages.get(path).text
    (bench.data / "in").rename(bench.data / "elsewhere")
    text = pages.get(path).text
    assert ">✓<" not in text and ">●<" in text and "refused of an unknown day" in text
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
    for path in ("/semel/", "/semel/dags/big", "/semel/dags/big/batches/1000"):
        pages.get(path)
        begun = time.perf_counter()
        answer = pages.get(path)
        took = 1000 * (time.perf_counter() - begun)
        print(f"{path}: {took:.0f} ms, {len(answer.text):,} characters")
        assert answer.status == 200, answer.text
    text = pages.get("/semel/").text
    assert "1 open batch has given no sign of life" in text
    assert json.dumps(text).count("<rect") == 30
