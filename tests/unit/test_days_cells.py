"""How the time of a pipeline is cut into cells, and what the state of one is."""

from datetime import UTC, datetime
from itertools import product

import pytest

from semel.errors import LimitError
from semel.model.batch import dag_run_of
from semel.reports.intervals import DAYS_MAX, cells_of
from semel.reports.progress import CellFacts, CellState, judge

C, P, U, W = CellState.FINALIZED, CellState.PARTLY, CellState.UNCLAIMED, CellState.WAITING
D, N, B = CellState.BATCHES_FINALIZED, CellState.NOTHING, CellState.NO_BATCH

TABLE = {
    # unclaimed, waiting, done: (looked, not looked)
    (False, False, False): (N, B),
    (False, False, True): (C, D),
    (False, True, False): (W, W),
    (False, True, True): (W, W),
    (True, False, False): (U, U),
    (True, False, True): (P, P),
    (True, True, False): (U, U),
    (True, True, True): (P, P),
}


@pytest.mark.parametrize("bits", list(product([False, True], repeat=8)))
def test_the_state_of_every_cell(bits: tuple[bool, ...]) -> None:
    """Each of the 256 sets of facts has its state: a refused file counts before a failed batch, that
    before an open one, and that before what is decided by the table.
    """
    refused, failed, is_open, looked, between, *rest = bits
    unclaimed, waiting, done = rest
    found = judge(
        CellFacts(
            surveyed=looked, refused=refused, failed=failed, open=is_open, unclaimed=unclaimed,
            waiting=waiting, finalized=done, between=between,
        )  # fmt: skip
    )
    if refused:
        assert found is CellState.REFUSED
    elif failed:
        assert found is CellState.FAILED
    elif is_open:
        assert found is CellState.IN_WORK
    elif looked and between and not any(rest):
        assert found is CellState.EMPTY
    else:
        assert found is TABLE[tuple(rest)][0 if looked else 1]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "since", "until", "edges"),
    [
        (None, "2026-11-01 05:00", "2026-11-03", ["2026-11-01", "2026-11-02", "2026-11-03"]),
        ("@daily", "2026-11-01", "2026-11-02 00:01", ["2026-11-01", "2026-11-02", "2026-11-03"]),
        ("0 * * * *", "2026-11-01", "2026-11-01 01:30",
         ["2026-11-01", "2026-11-01 01:00", "2026-11-01 02:00"]),
        ("30 6 * * 1", "2026-11-04", "2026-11-05", ["2026-11-02 06:30", "2026-11-09 06:30"]),
        ("0 9 * * 1-5", "2026-11-07", "2026-11-08", ["2026-11-06 09:00", "2026-11-09 09:00"]),
        ("@quarterly", "2026-11-04", "2026-11-05", ["2026-10-01", "2027-01-01"]),
    ],
)  # fmt: skip
def test_cells_are_the_intervals_of_the_schedule(
    schedule: str | None, since: str, until: str, edges: list[str]
) -> None:
    """They cover the asked time without a hole, and begin where the schedule's intervals do."""
    assert cells_of(schedule, at(since), at(until)) == [at(edge) for edge in edges]


def test_cells_without_end_are_refused() -> None:
    """A month of minutes says what to ask for in its place."""
    with pytest.raises(LimitError, match=f"more than {DAYS_MAX:,} intervals.*--from"):
        cells_of("* * * * *", at("2026-11-01"), at("2026-12-01"))


def test_the_run_of_a_request() -> None:
    """A run's id may hold colons; a request of the command line has no run."""
    assert dag_run_of("airflow:clicks:manual__2026-11-01T00:00:00+00:00") == (
        "clicks", "manual__2026-11-01T00:00:00+00:00",
    )  # fmt: skip
    assert dag_run_of("cli:2026-11-01T00:00:00+00:00:2026-11-02T00:00:00+00:00") is None
    assert dag_run_of("airflow:clicks") is None
