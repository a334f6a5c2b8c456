"""What a run does: {how it was started} x {what is there} x {what happens to it}, as few rules.

A cell's sentence is put together from the three tables of docs/operations.md, which are these.
tests/unit/test_matrix_page.py compares the two; tests/integration/test_matrix.py does what each
cell says with the real verbs, and tests/acceptance/test_b_matrix.py some of them through Airflow.
"""

from enum import StrEnum
from itertools import product


class Plan(StrEnum):
    """What plan answers."""

    TAKES = "takes"
    AGAIN = "again"
    NOTHING = "nothing"
    FAILS = "fails"


HOW = {
    "scheduled": "a run of its own for the interval that has just ended",
    "manual": "a new run; its interval is the last whole one before the logical date",
    "manual with interval": "a new run with the interval that was given",
    "backfill up": "a run for each interval of the range that has none yet, the oldest first",
    "backfill down": "the same, the newest first",
    "backfill reprocess": "as above; an interval that has a run gets no new one: that run is "
    "cleared, and is the same run as before",
    "REST without logical date": "a new run without an interval: plan fails and says so, and "
    "nothing else in this section applies; with an interval in its configuration it is as `manual "
    "with interval`",
}

STATE = {
    "first time": "plan takes all of it",
    "partly done": "plan takes the rest, as one more batch of the interval",
    "done": "a run that made its batch itself ends with four green tasks and the same summary "
    "again; any other run takes nothing: plan names the batch and the run that have it, and is "
    "green, and the other tasks are skipped",
    "in work elsewhere": "plan takes nothing and names the run at work; plan is green, the other "
    "tasks are skipped",
    "refused file": "plan fails without a retry and names the files; nothing is planned",
    "beyond the horizon": "plan takes what is unclaimed; ids that were forgotten count as new",
}

PLANNED = {
    "succeeds": "the batch is finalized, and its asset has one event",
    "cleared": "the run finds its batch finalized and prints the same summary; no second batch, no "
    "second event",
    "marked failed": "Spark's work is cancelled, the batch stays planned, readers see nothing of "
    "it; clear the run, and the same batch is staged again and finalized",
    "killed": "Airflow retries the task, which goes on where the ledger says; one batch, finalized "
    "once",
    "paused": "the task at work ends, the next ones wait; unpause the DAG, and the run goes on",
    "cancelled": "the batch stays planned; once it has shown no sign of life for "
    "`limits.orphan_after`, the next run of the interval takes its records over",
}
"""What becomes of a run whose plan took something."""

IDLE = (
    "whatever happens to such a run, there is nothing to undo: ledger and output stay as they are"
)
"""And of one whose plan took nothing, or failed."""


def plan_of(how: str, state: str) -> Plan:
    """What plan answers in a cell."""
    if how == "REST without logical date" or state == "refused file":
        return Plan.FAILS
    if state == "done":
        return Plan.AGAIN if how == "backfill reprocess" else Plan.NOTHING
    return Plan.NOTHING if state == "in work elsewhere" else Plan.TAKES


def sentence(how: str, state: str, event: str) -> str:
    """What a cell comes to."""
    then = PLANNED[event] if plan_of(how, state) is Plan.TAKES else IDLE
    if how == "REST without logical date":
        return f"{HOW[how]}; {then}"
    return f"{HOW[how]}; {STATE[state]}; {then}"


CELLS = list(product(HOW, STATE, PLANNED))
