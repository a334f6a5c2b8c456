"""The page of windows: what is complete, what was counted, for whom, and its plot."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from fixtures.airflow.pages import Pages
from fixtures.batches.account import run
from fixtures.batches.workbench import Workbench
from fixtures.postgres.warehouse import Warehouse
from fixtures.wait import wait_for
from semel.airflow.page.plot import HEIGHT, LINES_MAX, plot, plot_days
from semel.ledger import Ledger
from semel.model.batch import Counts
from semel.model.complete import WindowState
from semel.pipeline.spec import Spec
from semel.reports import completeness, window_rows
from semel.reports.window_rows import CountedWindow

PATH = "/semel/dags/events/windows"
BEGIN = datetime(2026, 11, 1, 22, tzinfo=UTC)


def counting(bench: Workbench, **changes: Any) -> Spec:
    """Events per user and in all, by day in New York."""
    given = {
        "source": {"schema": {"id": "string", "user": "string", "n": "bigint", "at": "timestamp"}},
        "record_time": "at",
        "window": {"size": "1 day", "zone": "America/New_York"},
        "aggregate": {"by": [["user"], []], "columns": {"n": "count()", "spent": "sum(n)"}},
    }
    return bench.spec(**given | changes)


def visits(*days: int, user: str = "ann", n: int = 5) -> list[dict]:
    return [
        {"id": f"{user}{day}", "user": user, "n": n + day,
         "at": (BEGIN + timedelta(days=day)).isoformat()}
        for day in days
    ]  # fmt: skip


def shown(pages: Pages, asked: str) -> str:
    """The page, once what was counted is read."""
    def there() -> str | None:
        text = pages.get(f"{PATH}?{asked}").text
        return None if "Load this page again" in text else text

    return wait_for(there, "the rows of windows", 60)


@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_windows_are_counted_and_drawn(
    pages: Pages,
    bench: Workbench,
    ledger: Ledger,
    warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """Each window's rows in all and by key, complete or not; who may not read records sees which
    windows are complete, and no value.
    """
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    pages.connect("warehouse", warehouse.dsn)
    table = {"type": "postgres", "connection": "warehouse", "table": "seen", "create": True}
    spec = counting(bench, **({"sink": table} if kind == "postgres" else {}))
    bench.write("in/a.jsonl", visits(0, 1, 3) + visits(0, user="<b>bo", n=-40))
    run(ledger, spec, "airflow:events:manual__1")

    level = {"in all": 1, "by user": 0}
    page = shown(pages, f"level={level['in all']}&column=spent")
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(?:<span.*?</span> )?([^<]*)<", row) for row in rows[1:]]
    by_day = {row[0]: (row[1].strip(), *row[2:]) for row in cells}
    assert by_day["2026-11-04"] == ("not yet", "1", "8")
    assert by_day["2026-11-03"] == ("complete", "no record")
    assert by_day["2026-11-02"] == ("complete", "1", "6")
    assert by_day["2026-11-01"] == ("complete", "2", "-35")
    assert [*by_day][-1] == "2026-11-01", "no window before the first record is complete"
    assert "open until records reach 2026-11-05 00:00 America/New_York" in page
    assert "Event time:" in page and "2026-11-04 17:00 America/New_York" in page
    assert "Times are in America/New_York." in page and "All times are UTC" not in page
    bars = re.findall(r'<rect class="bar k0( open)?"', page)
    assert bars == ["", "", " open"]
    assert "<title>2026-11-01: -35</title>" in page

    page = shown(pages, f"level={level['by user']}")
    assert page.count('<g class="k k') == 2 and "<b>bo" not in page and "&lt;b&gt;bo" in page
    assert page.count('<td class="path">&lt;b&gt;bo</td>') == 1
    assert 'href="/semel/dags/events/windows"' in pages.get("/semel/dags/events").text
    hidden = pages.get(PATH, "nologs").text
    assert "not yet" in hidden and "task logs" in hidden
    assert "ann" not in hidden and "bo</td>" not in hidden and "<svg" not in hidden
    table = shown(pages, "from=2026-11-03&to=2026-11-03").split("<tbody>")[1]
    assert "2026-11-03" in table and "2026-11-02</th>" in table and "2026-11-01<" not in table


def test_windows_without_counts(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """A hole is shown with the command that reads it; a pipeline whose windows nothing tells is
    told so, with what to declare.
    """
    source = {"select": "interval", "interval_from": "%Y-%m-%d.jsonl", "path": "in/*.jsonl"}
    spec = bench.spec(source=source, schedule="@daily")
    days = [datetime(2026, 11, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    for at in (0, 2):
        bench.write(f"in/{days[at]:%Y-%m-%d}.jsonl", visits(at))
        run(ledger, spec, f"r{at}", (days[at], days[at + 1]))
    page = pages.get(PATH).text
    assert page.count("complete</span>") >= 2 and "hole</span>" in page
    assert "not fully finalized" not in page and "window (UTC)" in page
    assert "semel run events --interval 2026-11-04 2026-11-05" in page
    today = datetime.now(UTC).date()
    newest = pages.get(f"{PATH}?from={today}&to={today}").text
    assert f"open until runs reach {today + timedelta(days=1)} 00:00 UTC" in newest
    late = bench.data / f"in/{days[0]:%Y-%m-%d}.jsonl"
    late.write_bytes(late.read_bytes() * 2)
    page = pages.get(PATH).text
    [row] = [row for row in re.findall(r"<tr>(.*?)</tr>", page, re.S) if ">2026-11-01 00" in row]
    assert "complete</span>" in row and "1 of its files is not fully finalized" in row
    assert page.count("is not fully finalized") == 1
    assert "If a record still arrives, semel counts it" in page
    command = "semel run events --interval 2026-11-02 2026-11-03"
    assert command in page
    run(ledger, bench.spec("hidden"), "r1")
    answer = pages.get("/semel/dags/hidden/windows")
    assert answer.status == 400 and "by arrival and has no window" in answer.text


def test_too_many_rows_are_told(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest windows are whole, and that older ones are left out is said."""
    spec = counting(bench)
    users = [record for user in ("ann", "bo") for record in visits(*range(4), user=user)]
    bench.write("in/a.jsonl", users)
    run(ledger, spec, "r1")
    now = BEGIN + timedelta(days=9)
    asked = completeness.windows(ledger, spec, now=now)
    whole = window_rows.read_windows(ledger, spec, asked, level=0, now=now)
    assert not whole.cut and [len(w.rows) for w in whole.windows[:4]] == [2] * 4
    monkeypatch.setattr(window_rows, "COUNTED_MAX", 5)
    found = window_rows.read_windows(ledger, spec, asked, level=0, now=now)
    assert found.cut and found.windows == whole.windows[:2]


def window(day: int, *rows: tuple, state: WindowState = WindowState.COMPLETE) -> CountedWindow:
    start = BEGIN + timedelta(days=day)
    return CountedWindow(start=start, end=start + timedelta(days=1), state=state, rows=rows)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0, 7], ["0", "1", "2", "3", "4", "5", "6", "7"]),
        ([-3, 12_000], ["-2,000", "0", "2,000", "4,000", "6,000", "8,000", "10,000", "12,000"]),
        ([0, 0], ["0", "1"]),
        ([Decimal("0.1"), Decimal("0.35")], ["0", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3",
                                             "0.35"]),
        ([10**40, 1], ["0", "2e+39", "4e+39", "6e+39", "8e+39", "1e+40"]),
    ],
)  # fmt: skip
def test_a_plot_holds_its_values(values: list, ticks: list[str]) -> None:
    """Its axis has round numbers around all values and zero, and each bar ends at its value."""
    windows = [window(n, ((), (value,))) for n, value in enumerate(values)]
    drawn = plot(windows, 0, keyed=False, show=lambda at: f"{at:%d}")
    assert [label for _, label in drawn.ticks] == ticks
    low, high = drawn.ticks[0][0], drawn.ticks[-1][0]
    for value, bar in zip(values, drawn.bars, strict=True):
        assert high - 0.1 <= bar.y and bar.y + bar.height <= low + 0.1
        assert drawn.zero == pytest.approx(bar.y if value < 0 else bar.y + bar.height, abs=0.2)
        assert 0 < bar.x and bar.x + bar.width <= 100 and 0 <= bar.y <= HEIGHT


def test_a_plot_of_many_keys() -> None:
    """Those with the largest sums have a line; how many have none is said. Text is not drawn."""
    windows = [
        window(n, *(((f"k{k:02}",), (k, "text")) for k in range(20)), state=state)
        for n, state in enumerate((WindowState.COMPLETE, WindowState.NOT_YET))
    ]
    drawn = plot(windows, 0, keyed=True, show=lambda at: f"{at:%d}")
    assert [line.label for line in drawn.lines] == [f"k{19 - n}" for n in range(LINES_MAX)]
    assert drawn.left_out == 12
    assert [mark.final for mark in drawn.lines[0].marks] == [True, False]
    assert plot(windows, 1, keyed=True, show=str) is None


def test_a_line_bridges_no_window_without_a_row() -> None:
    """A line joins adjacent windows only: a window in which a key has no row stays empty."""
    days = (0, 1, 3, 4, 6)
    windows = [window(n, *([(("ann",), (n,))] if n in days else [])) for n in range(7)]
    drawn = plot(windows, 0, keyed=True, show=lambda at: f"{at:%d}")
    [line] = drawn.lines
    places = {mark.x: day for mark, day in zip(line.marks, days, strict=True)}
    joined = [(places[x1], places[x2]) for x1, _, x2, _ in line.parts]
    assert joined == [(0, 1), (3, 4)]


@pytest.mark.parametrize("count", [1, 2, 24, 168, 366, 5_000])
@pytest.mark.parametrize("pixels", [260, 600, 1200])
def test_labels_of_hours_do_not_overlap(count: int, pixels: int) -> None:
    """At each width of the plot, visible labels are a label's width apart, and one has the date."""
    hours = [BEGIN + timedelta(hours=n) for n in range(count)]
    rows = ((("ann",), (1,)),)
    windows = [
        CountedWindow(start=at, end=at + timedelta(hours=1), state=WindowState.COMPLETE, rows=rows)
        for at in hours
    ]
    drawn = plot(windows, 0, keyed=True, show=lambda at: f"{at:%Y-%m-%d %H:%M}")
    lowest = 0 if pixels > 1_100 else 1 if pixels > 560 else 2
    visible = [label for label in drawn.labels if label.rank >= lowest]
    places = [label.x * pixels / 100 for label in visible]
    assert all(b - a >= 76 for a, b in pairwise(places))
    assert visible[0].below == "2026-11-01" and visible[0].text == "22:00"
    assert len(visible) >= min(count, 2)


def test_a_plot_of_days() -> None:
    """The bar of a day has its new rows, repeats and dead letters, from the bottom up."""
    counts = [
        Counts(),
        Counts(survivors=6, duplicates_batch=1, duplicates_catalog=2, quarantined=1),
        Counts(late=4),
    ]
    days = [(BEGIN + timedelta(days=n), each) for n, each in enumerate(counts)]
    drawn = plot_days(days, show=lambda at: f"{at:%d}")
    assert [(bar.colour, bar.title) for bar in drawn.bars] == [
        (0, "02: 6 new, 3 repeats, 1 set aside"), (1, "02: 6 new, 3 repeats, 1 set aside"),
        (3, "02: 6 new, 3 repeats, 1 set aside"), (3, "03: 0 new, 0 repeats, 4 set aside"),
    ]  # fmt: skip
    new, repeats, aside, _ = drawn.bars
    assert new.y + new.height == pytest.approx(drawn.zero)
    assert repeats.y + repeats.height == pytest.approx(new.y)
    assert aside.y + aside.height == pytest.approx(repeats.y)
    assert plot_days(days[:1], show=str) is None
