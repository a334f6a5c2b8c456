"""How often the verbs wait for the ledger: round trips are counted, and time is not."""

from collections.abc import Callable, Iterator

import pytest

from fixtures.batches.account import quiet, run
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.wire import Wire
from fixtures.spark.local import LocalEngine
from semel import settings
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.runs.run import steps_of

IDLE_MAX = 13
VERBS_MAX = {
    "id": {"plan": 23, "stage": 29, "commit": 18, "finalize": 14},
    "position": {"plan": 23, "stage": 16, "commit": 16, "finalize": 14},
}
"""What they take today. To take more needs a reason, to take less a smaller number here. Stage and
finalize ask which batches the sink must hold already (H2). Finalize asks how far all is finalized,
for its marker (W7), and before it writes that, whether a twin has finalized the batch (HI1). Plan
asks for the partitions that changed in a transaction of its own: what it compares them with was
read while the source was listed.
"""


@pytest.fixture
def counting(ledger_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """A proxy before the ledger, for this process and for tasks."""
    with Wire(ledger_dsn) as made:
        monkeypatch.setenv(settings.LEDGER_VARIABLE, made.dsn)
        yield made


def with_history(bench: Workbench, counting: Wire, **changes: object) -> tuple[Spec, Ledger]:
    """A pipeline with a batch behind it, and a ledger as a new process opens it."""
    spec = bench.spec(**changes)
    bench.write("in/a.jsonl", events(0, 5))
    with Ledger(counting.dsn) as before:
        run(before, spec, "r0")
    ledger = Ledger(counting.dsn)
    with ledger.transaction():
        pass  # Connecting is counted here.
    return spec, ledger


def test_a_plan_that_finds_nothing(bench: Workbench, counting: Wire) -> None:
    """It waits for the ledger a few times, and no more with every version."""
    spec, ledger = with_history(bench, counting)
    with ledger:
        before = counting.sent
        assert plan(ledger, spec, "r1").batch is None
        assert (counting.sent - before).round_trips <= IDLE_MAX


@pytest.mark.parametrize("identity", VERBS_MAX)
def test_a_batch_of_one_record(bench: Workbench, counting: Wire, identity: str) -> None:
    """Each verb waits for the ledger a few times, and no more with every version."""
    changes = {"record_id": None} if identity == "position" else {}
    spec, ledger = with_history(bench, counting, **changes)
    bench.write("in/a.jsonl", events(5, 6), mode="ab")
    taken = {}

    def counted(verb: str, step: Callable[[], object]) -> object:
        before = counting.sent
        done = step()
        taken[verb] = (counting.sent - before).round_trips
        return done

    with ledger:
        batch = counted("plan", lambda: plan(ledger, spec, "r1")).batch
        for verb, step in steps_of(ledger, spec, batch.batch_id, LocalEngine(), quiet).items():
            done = counted(verb, step)
    assert done.counts.survivors == 1
    assert {verb: n for verb, n in taken.items() if n > VERBS_MAX[identity][verb]} == {}


def test_a_transaction(counting: Wire) -> None:
    """BEGIN and its settings, the statement, COMMIT: nothing is sent beside these."""
    with Ledger(counting.dsn) as ledger:
        for expected in (None, 3, 3):
            before = counting.sent
            with ledger.transaction() as connection:
                connection.exec_driver_sql("SELECT 1")
            sent = counting.sent - before
            assert expected in (None, sent.round_trips)


def test_a_connection_that_ended_is_made_anew(
    ledger_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was ended while it was idle, or was unused for long, is not used again."""

    def backend(ledger: Ledger) -> int:
        with ledger.transaction() as connection:
            return connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()

    with Ledger(ledger_dsn) as ledger, Ledger(ledger_dsn) as other:
        first = backend(ledger)
        assert backend(ledger) == first
        with other.transaction() as connection:
            connection.exec_driver_sql(f"SELECT pg_terminate_backend({first}, 5000)")
        second = backend(ledger)
        assert second != first
        monkeypatch.setattr("semel.ledger.UNUSED_CONNECTION_SECONDS", -1)
        assert backend(ledger) != second
