"""What pages show of a source is no older than what they show of the ledger."""

import time
from itertools import count

import pytest

from fixtures.batches.account import run
from fixtures.batches.workbench import Workbench, events
from fixtures.wait import wait_for
from semel.airflow.page import common
from semel.airflow.page.queries import QueryCache
from semel.ledger import Ledger


def test_a_long_look_is_not_shown_beside_a_newer_ledger(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is kept for it took long serves the next pages, until a plan has changed what is
    read: a day that has just been read would look as if it were not."""
    spec, numbers = bench.spec(), count(1)

    def slow(*_: object) -> int:
        time.sleep(0.3)
        return next(numbers)

    monkeypatch.setattr(common, "ledger", lambda: ledger)
    monkeypatch.setattr(common, "_looks", QueryCache(0.05))
    monkeypatch.setattr(common.Sight, "of", slow)

    def seen() -> int | None:
        return common.source_sight(spec)[0]

    assert seen() is None  # Nothing has been planned yet, and the look goes on.
    wait_for(lambda: seen() == 1, "the look", 10, 0.05)
    assert seen() == 1
    bench.write("in/a.jsonl", events(0, 5))
    run(ledger, spec, "r1")
    assert seen() is None
    wait_for(lambda: seen() == 2, "another look", 10, 0.05)
    assert seen() == 2
