"""Sink and archive: where the second lies, and how both move together."""

import pytest

from fixtures.batches.account import first_batch, ids, quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel.errors import SpecError, StateError, TerminalError
from semel.ledger import Ledger
from semel.plan import plan
from semel.reader import dataset
from semel.stage import stage


# Attacks P15.
def test_a_sink_moves_only_between_batches(bench: Workbench, ledger: Ledger) -> None:
    """While a batch is on its way the move is refused; then all goes on in the new folder.

    The catalog moves along: no record of the old folder is written to the new one again.
    """
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    batch = plan(ledger, spec, "r1").batch.batch_id
    moved = bench.spec(sink={"path": "out/moved"})
    with pytest.raises(StateError, match="cannot move from .*out/events to .*out/moved"):
        plan(ledger, moved, "r2")
    with pytest.raises(StateError, match="cannot move"):
        run(ledger, moved, "r1")
    stage(ledger, spec, batch, LocalEngine(), log=quiet)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 5)
    bench.write("in/a.jsonl", events(3, 8), mode="ab")
    out = bench.data / "out"
    (out / "events").rename(out / "moved")
    (out / "_semel" / "events").rename(out / "_semel" / "moved")
    run(ledger, moved, "r2")
    assert settled(moved).ids == ids(0, 8)


# Attacks D9.
def test_a_sink_does_not_move_without_its_archive(bench: Workbench, ledger: Ledger) -> None:
    """Its batches would be nowhere for readers and audit; with the archive there it goes on."""
    spec = first_batch(bench, ledger, events(0, 5))
    bench.write("in/a.jsonl", events(5, 8), mode="ab")
    out = bench.data / "out"
    for change in ({"path": "out/moved"}, {"archive": "out/elsewhere"}):
        with pytest.raises(
            TerminalError, match="lacks the marker of batch 1.*Move both .*put the decl"
        ):
            run(ledger, bench.spec(sink=change), "r2")
    run(ledger, spec, "r2")
    (out / "_semel" / "events").rename(out / "elsewhere")
    apart = bench.spec(sink={"archive": "out/elsewhere"})
    bench.write("in/a.jsonl", events(8, 9), mode="ab")
    run(ledger, apart, "r3")
    assert settled(apart).ids == ids(0, 9)
    assert dataset(apart.sink_path(), out / "elsewhere").count_rows() == 9


def test_an_archive_of_an_earlier_version_stays_and_can_move_out(
    bench: Workbench, ledger: Ledger
) -> None:
    """`_semel/` inside of the sink is gone on with, until a person moves it beside."""
    spec = bench.spec()
    out = bench.data / "out"
    (out / "events" / "_semel").mkdir(parents=True)
    bench.write("in/a.jsonl", events(0, 5))
    run(ledger, spec, "r1")
    assert (out / "events" / "_semel" / "markers" / "b00000001.json").exists()
    assert not (out / "_semel").exists()
    (out / "_semel").mkdir()
    (out / "events" / "_semel").rename(out / "_semel" / "events")
    bench.write("in/a.jsonl", events(5, 8), mode="ab")
    apart = bench.spec(sink={"archive": "out/_semel/events"})
    run(ledger, apart, "r2")
    assert settled(apart).ids == ids(0, 8)
    assert {path.suffix for path in (out / "events").iterdir()} == {".parquet"}


# Attacks P12.
def test_two_pipelines_do_not_share_an_archive(bench: Workbench, ledger: Ledger) -> None:
    """Batches of both would have markers of one name."""
    bench.write("in/a.jsonl", events(0, 5))
    run(ledger, bench.spec(), "r1")
    other = bench.spec("visits", sink={"path": "out/visits", "archive": "out/_semel/events"})
    with pytest.raises(
        TerminalError,
        match="belongs to pipeline 'events'.*Declare another sink.archive .* for 'visits'",
    ):
        plan(ledger, other, "r1")


@pytest.mark.parametrize(
    ("sink", "why"),
    [
        ({"archive": "in/kept"}, "sink.archive: .*source's folder"),
        ({"archive": "out/events/kept"}, "sink.archive: .*in the sink"),
        ({"archive": "out"}, "sink.archive: .*contains the sink"),
        ({"archive": "../out"}, "sink.archive: .*has '..'"),
        ({"archive": "/elsewhere"}, "sink.archive: .*outside the allowed folders"),
        ({"path": "out/_semel/events"}, "sink.path: .*_semel"),
    ],
)
def test_where_an_archive_may_lie(bench: Workbench, sink: dict, why: str) -> None:
    """Neither in the source, nor in the sink (but for `_semel`), nor around one of them."""
    with pytest.raises(SpecError, match=why):
        bench.spec(sink=sink)
    assert bench.spec(sink={"archive": "out/events/_semel"})
