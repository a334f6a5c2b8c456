"""From at least once to exactly once, beside batches on their way and others who do the same."""

import pytest

from fixtures.batches.account import quiet, run, settled, sql
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.archive.marker import markers_in
from semel.commit import commit
from semel.errors import RetryableError, TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.exact import exact
from semel.stage import stage


def loose(bench: Workbench) -> Spec:
    return bench.spec(guarantee="at_least_once")


def first(bench: Workbench, ledger: Ledger) -> Spec:
    """A batch with the ids 0 to 20, at least once. Returns what is declared behind it."""
    spec = loose(bench)
    bench.write("in/a.jsonl", events(0, 20))
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", events(10, 30))
    return spec


def staged(ledger: Ledger, spec: Spec, request: str) -> int:
    batch_id = plan(ledger, spec, request).batch.batch_id
    stage(ledger, spec, batch_id, LocalEngine(), quiet)
    return batch_id


def committing(ledger: Ledger, spec: Spec, batch_id: int) -> None:
    def restage() -> None:
        stage(ledger, spec, batch_id, LocalEngine(), quiet)

    commit(ledger, spec, batch_id, restage, quiet)


def in_output(spec: Spec) -> list[str]:
    return settled(spec).ids


ONCE = [event["id"] for event in events(0, 30)]


# Attacks D12, C14.
@pytest.mark.parametrize("how", ["new declaration", "old declaration", "begun behind it"])
def test_a_batch_on_its_way_at_the_switch(bench: Workbench, ledger: Ledger, how: str) -> None:
    """What was planned at least once does not commit behind it, by whichever declaration a process
    has, and is planned again by its own request.
    """
    old = first(bench, ledger)
    batch_id = plan(ledger, old, "r2").batch.batch_id
    if how != "begun behind it":
        stage(ledger, old, batch_id, LocalEngine(), quiet)
    spec = bench.spec()
    assert exact(ledger, spec, log=quiet).exact_from == 2
    if how == "begun behind it":
        stage(ledger, old, batch_id, LocalEngine(), quiet)
    with pytest.raises(TerminalError, match="another (version|guarantee)") as told:
        committing(ledger, spec if how == "new declaration" else old, batch_id)
    assert told.value.next == "anew"
    sql(ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '1 hour' RETURNING 1")
    run(ledger, spec, "r2")
    assert in_output(spec) == ONCE


# Attacks C2, C8.
def test_a_commit_by_another_declaration_compares(bench: Workbench, ledger: Ledger) -> None:
    """A process whose file says at least once commits a batch that is exactly once as that."""
    first(bench, ledger)
    spec = bench.spec()
    exact(ledger, spec, log=quiet)
    one = staged(ledger, spec, "r2")
    committing(ledger, loose(bench), one)
    spec = bench.spec()
    run(ledger, spec, "r2")
    bench.write("in/c.jsonl", events(20, 30))
    run(ledger, spec, "r3")
    assert in_output(spec) == ONCE


# Attacks D11.
def test_a_batch_commits_while_ids_are_read(bench: Workbench, ledger: Ledger) -> None:
    """Its ids were not read, so nothing is changed; done again, they are."""
    old = first(bench, ledger)
    batch_id = staged(ledger, old, "r2")

    def rival() -> None:
        committing(ledger, old, batch_id)
        run(ledger, old, "r2")

    with failpoints.armed("exact.before_lock", rival):
        with pytest.raises(RetryableError, match="events: batch 2 has committed, .*Run this again"):
            exact(ledger, bench.spec(), log=quiet)
    assert sql(ledger, "SELECT id_run_id FROM semel.id_run") == []
    spec = bench.spec()
    done = exact(ledger, spec, log=quiet)
    assert (done.exact_from, done.ids) == (3, 30)
    bench.write("in/c.jsonl", events(0, 30))
    run(ledger, spec, "r3")
    assert in_output(spec) == sorted([*ONCE, *ONCE[10:20]])


# Attacks D11.
def test_a_batch_ends_before_its_marker_is_read(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the pipeline's row does not count yet, and whose marker is there, is read too."""
    old = first(bench, ledger)
    batch_id = staged(ledger, old, "r2")

    def late(*places: object) -> list:
        committing(ledger, old, batch_id)
        run(ledger, old, "r2")
        bench.spec()
        return markers_in(*places)

    monkeypatch.setattr("semel.repair.exact.markers_in", late)
    spec = bench.spec()
    assert exact(ledger, spec, log=quiet).exact_from == 3
    bench.write("in/c.jsonl", events(20, 30))
    run(ledger, spec, "r3")
    assert in_output(spec) == sorted([*ONCE, *ONCE[10:20]])


# Attacks D11.
def test_two_at_once(bench: Workbench, ledger: Ledger) -> None:
    """One of them teaches and sets it, the other finds it so, also when a batch came between."""
    first(bench, ledger)
    spec = bench.spec()
    twins = []

    def twin() -> None:
        twins.append(exact(ledger, spec, log=quiet))
        run(ledger, spec, "r2")

    with failpoints.armed("exact.before_lock", twin):
        done = exact(ledger, spec, log=quiet)
    assert [(one.found, one.exact_from) for one in (*twins, done)] == [(False, 2), (True, 2)]
    assert sum(r["ids"] for r in sql(ledger, "SELECT ids FROM semel.id_run")) == 30
    assert in_output(spec) == ONCE


# Attacks D12.
def test_an_attempt_that_pinned_before_it(bench: Workbench, ledger: Ledger) -> None:
    """A batch planned exactly once before anything had committed, and begun behind the commit of
    one that was not: its list lacks what the catalog is taught then.
    """
    spec = bench.spec()
    bench.write("in/b.jsonl", events(10, 30))
    early = plan(ledger, spec, "r2").batch.batch_id
    bench.write("in/a.jsonl", events(0, 20))
    run(ledger, loose(bench), "r1")
    spec = bench.spec()
    stage(ledger, spec, early, LocalEngine(), quiet)
    exact(ledger, spec, log=quiet)
    committing(ledger, spec, early)
    run(ledger, spec, "r2")
    assert in_output(spec) == ONCE
