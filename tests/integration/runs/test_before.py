"""The log of an attempt begins with what became of the one before it."""

import os
import re
import signal

from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.errors import SemelError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.stage import stage


def dies(dsn: str, spec: Spec, batch: int, point: str) -> int:
    """Stage in a process that is killed at a point. Returns its number."""
    child = os.fork()
    if child == 0:
        with failpoints.armed(point, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            stage(Ledger(dsn), spec, batch, LocalEngine(), quiet)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    return child


def test_a_killed_attempt_is_named_by_the_next_one(bench: Workbench, ledger: Ledger) -> None:
    """Its id, its process and its last sign of life, for nobody could say more; once it is staged,
    nothing is said of it.
    """
    spec, said = bench.spec(), []
    bench.write("in/a.jsonl", events(0, 10))
    batch = plan(ledger, spec, "r1").batch.batch_id
    child = dies(ledger.dsn, spec, batch, "stage.after_folders")
    stage(ledger, spec, batch, LocalEngine(), said.append)
    assert re.match(
        rf"batch {batch}: attempt 1 before this one \(id \d+, process \S+:{child}\) is running and "
        r"did not end: it began at 20\S+ \S+ UTC, and its last sign of life was at",
        said[0],
    ), said
    assert f"batch {batch}, attempt 2: reads" in said[1]
    again = []
    stage(ledger, spec, batch, LocalEngine(), again.append)
    assert again == []


def test_a_lost_attempt_is_named_with_its_reason(bench: Workbench, ledger: Ledger) -> None:
    """As of a Spark driver or executor that was killed: the error that ended it is in the ledger."""
    spec, said = bench.spec(), []
    bench.write("in/a.jsonl", events(0, 10))
    batch = plan(ledger, spec, "r1").batch.batch_id

    def lose() -> None:
        raise SemelError("executor 3 is lost")

    with failpoints.armed("stage.after_job", lose):
        try:
            stage(ledger, spec, batch, LocalEngine(), quiet)
        except SemelError:
            pass
    stage(ledger, spec, batch, LocalEngine(), said.append)
    assert said[0].endswith(" is lost: SemelError: executor 3 is lost"), said
