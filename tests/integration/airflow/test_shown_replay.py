"""A replay that a page made, and that waited: its run does what the page showed, or nothing."""

import pytest

from fixtures.airflow.pages import Pages
from fixtures.airflow.tasks import Tasks, task_ends
from fixtures.batches.replays import BY_DAY, three_days
from fixtures.batches.workbench import Workbench, events
from semel.ledger import Ledger
from test_airflow_replay import Run, tasks  # noqa: F401
from test_page_replay import WHERE, asked, token_of


@pytest.mark.parametrize("what", ["nothing", "batches", "code", "spec"])
def test_a_queued_run_does_what_was_shown(
    what: str, pages: Pages, bench: Workbench, ledger: Ledger, tasks: Tasks
) -> None:
    """1. The page shows three batches and makes a run, which waits. 2. A transform, the declaration
    or the batches change. 3. The run plans: by its configuration it knows, and plans nothing.
    """
    # Attacks A7.
    path = bench.transforms / "same.py"
    path.write_text("def same(df):\n    return df\n")
    spec = three_days(bench, ledger)
    if what == "code":
        bench.spec(source=BY_DAY, schedule="@daily", transforms=["same:same"])
    page = asked(pages, "from=2026-01-01&to=2026-01-04")
    assert pages.send(WHERE, {"token": token_of(page)}).status == 303
    [[run_id, _, conf, _, _]] = pages.runs()
    if what == "batches":
        bench.write("in/2026-01-03.jsonl", events(20, 40))
        Run(tasks, "manual__late", (2, 3)).go()
    if what == "code":
        path.write_text("def same(df):\n    return df.select('*')\n")
    if what == "spec":
        bench.spec(source=BY_DAY | {"lookback": "1 day"}, schedule="@daily")
    run = Run(tasks, run_id, (0, 3), **conf)
    before = len(ledger.rows("look", "batches", name=spec.name, count=99))
    if what == "nothing":
        assert len(run.task("Plan")["replays"]) == 3
        return
    with task_ends(match=f"{what} of events changed since the page showed them"):
        run.task("Plan")
    assert len(ledger.rows("look", "batches", name=spec.name, count=99)) == before
