"""What the pages say of a source is so now: bytes that are left, holes, files that are back."""

import json

from fixtures.airflow.pages import Pages
from fixtures.batches.account import run
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from semel.ledger import Ledger
from semel.reports.progress import CellState
from test_days import BY_DAY, asked, interval, land, states


def test_what_is_left_of_a_file_is_told_in_bytes(
    pages: Pages, bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """Of a file that was finalized but for its last line, that line alone is unclaimed."""
    spec = bench.spec(source=BY_DAY)
    file = land(bench, 1)
    run(ledger, spec, "r1", interval(1))
    late = json.dumps(events(900, 901)[0]).encode() + b"\n"
    file.write_bytes(file.read_bytes() + late)
    answer = asked(ledger, spec)
    [seen] = [day.seen for day in answer.days if day.state is CellState.PARTLY]
    assert (seen.unclaimed, seen.left) == (1, len(late))
    page = pages.get("/semel/dags/events?from=2026-11-01&to=2026-11-01").text
    assert f"{len(late)} bytes of 1 file unclaimed" in page
    said = shell.runs("semel days events --from 2026-11-01 --to 2026-11-01")
    assert f"1 unclaimed ({len(late)} bytes)" in said


def test_a_hole_is_no_day_before_the_data_began(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """A day without a file, between days that have some, is told from those before and after all;
    also where the file before it is gone from the source.
    """
    spec = bench.spec(source=BY_DAY)
    for number in (3, 5):
        land(bench, number)
        run(ledger, spec, f"r{number}", interval(number))
    expected = {2: CellState.NOTHING, 3: CellState.FINALIZED, 4: CellState.EMPTY, 5: CellState.FINALIZED}
    found = states(asked(ledger, spec))
    assert {n: found[n] for n in expected} == expected and found[6] is CellState.NOTHING
    page = pages.get("/semel/dags/events?from=2026-11-02&to=2026-11-06").text
    assert page.count('class="chip s-empty"') == 2, "its line, and the legend's"
    (bench.data / "in/day-2026-11-03.jsonl").unlink()
    assert states(asked(ledger, spec))[4] is CellState.EMPTY
    assert states(asked(ledger, spec, look=False))[4] is CellState.NO_BATCH


def test_a_file_that_is_back_is_no_alert(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """What the last plan refused, and no plan would refuse now, needs nobody."""
    spec = bench.spec(source={"on_refused": "warn"})
    file = bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    run(ledger, spec, "r2")
    assert "1 part of its source is refused" in pages.get("/semel/").text
    file.write_bytes(whole)
    assert 'role="alert"' not in pages.get("/semel/").text
    file.write_bytes(whole[:100])
    (bench.pipelines / "events.yaml").rename(bench.pipelines / "away")
    assert "The last plan refused 1 part of its source" in pages.get("/semel/").text
