"""A ledger that knows nothing, beside a sink that holds what another ledger's batches left."""

import shutil
from pathlib import Path

import pytest

from fixtures.batches.account import first_batch, ids, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import lose
from semel.archive import layout
from semel.archive.traces import Traces, find_traces
from semel.errors import RetryableError, TerminalError
from semel.ledger import Ledger
from semel.plan import plan
from semel.reports.gaps import gaps
from semel.sources.files.source import FilesSource


# Attacks D1.
@pytest.mark.parametrize("left", ["markers", "output", "decisions", "staging"])
def test_a_fresh_ledger_writes_nothing_beside_an_older_ones_output(
    bench: Workbench, ledger: Ledger, left: str
) -> None:
    """Whatever the other ledger left: markers, output without them, or staged files alone."""
    spec = first_batch(bench, ledger, [*events(0, 100), *events(0, 5)])
    sink, own = spec.sink_path(), layout.archive_folder(spec)
    output = sorted(sink.glob("*.parquet"))
    if left == "staging":
        layout.attempt(own, 7, 1).mkdir(parents=True)
    for kind in {"markers", "decisions"} - {left}:
        shutil.rmtree(own / kind)
    if left != "output":
        for path in output:
            path.unlink()
    lose(ledger)
    with pytest.raises(TerminalError, match=r"out/events: this sink has .*Adopt the batches") as refused:
        run(ledger, spec, "r1")
    assert refused.value.next == "semel adopt events"
    with ledger.engine.connect() as connection:
        assert not connection.exec_driver_sql("SELECT FROM semel.pipeline").all()


# Attacks D1.
def test_foreign_files_are_no_traces(bench: Workbench, ledger: Ledger) -> None:
    """A user's own files, and folders that an abandoned first batch left, stand in nobody's way."""
    spec = bench.spec()
    sink = spec.sink_path()
    sink.mkdir(parents=True)
    for folder in ("staging", "markers", "decisions"):
        (layout.archive_folder(spec) / folder).mkdir(parents=True)
    for name in ("README", ".gitkeep", "_SUCCESS", "part-00000.parquet", "events-b1-1.parquet"):
        (sink / name).write_text("mine")
    (sink / "visits-b00000001-00000.parquet").write_text("another pipeline's, by its name")
    (layout.archive_folder(spec) / ".link-0a1b2c3d").write_text("")
    bench.write("in/a.jsonl", events(0, 5))
    run(ledger, spec, "r1")
    for path in sink.iterdir():
        if path.is_file() and path.name != "events-b00000001-00000.parquet":
            path.unlink()
    (layout.archive_folder(spec) / ".link-0a1b2c3d").unlink()
    assert settled(spec).ids == ids(0, 5)


# Attacks D1.
def test_a_sink_does_not_move_into_another_ledgers_output(
    bench: Workbench, ledger: Ledger
) -> None:
    """Batches there that this pipeline does not have: their numbers would collide with its own."""
    bench.write("in/a.jsonl", events(0, 5))
    old = bench.spec("visits")
    run(ledger, old, "r1")
    lose(ledger)
    spec = bench.spec()
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", events(5, 9))
    moved = bench.spec(sink={"path": "out/visits"})
    with pytest.raises(TerminalError, match="_semel/visits: this archive has markers .*batch 1 of 'visits'"):
        plan(ledger, moved, "r2")
    back = bench.spec()
    run(ledger, back, "r2")
    assert settled(back).ids == ids(0, 9)


def made(sink: Path, *names: str) -> None:
    for name in names:
        (sink / name).parent.mkdir(parents=True, exist_ok=True)
        (sink / name).write_text("")


def test_traces_hold_every_number(bench: Workbench) -> None:
    """Names of markers, of crashed ones too, of kept files, of output and of staging."""
    spec = bench.spec(sink={"file_name": "{batch:08d}x{part}-{pipeline}-{fence}"})
    sink, kept = spec.sink_path(), layout.archive_folder(spec)
    assert find_traces(sink, kept, [spec]) == Traces()
    made(
        kept,
        "markers/b00000003.json",
        "markers/.b00000009.json.77.0a1b2c3d",
        "decisions/b00000011-00002.parquet",
        "dead_letters/b123456789-00002.parquet",
        "staging/b00000012/f0002/data/s0",
        "staging/b00000013/f0001/spill/s0",
        "staging/not ours/s0",
    )
    made(
        sink,
        "day=1/00000014x3-events-1.parquet",
        "00000015x3-events-1.jsonl",
        "00000016x03-events-1.jsonl",
        "00000017x3-events-1.txt",
        "00000018x3-other-1.jsonl",
        "99999999999999999999999x3-events-1.jsonl",
    )
    found = find_traces(sink, kept, [spec])
    assert found.markers == {
        "markers/.b00000009.json.77.0a1b2c3d": 9, "markers/b00000003.json": 3,
    }  # fmt: skip
    assert found.batch_files == {
        "dead_letters/b123456789-00002.parquet": 123456789,
        "decisions/b00000011-00002.parquet": 11,
    }
    assert found.output == {
        "00000015x3-events-1.jsonl": 15, "day=1/00000014x3-events-1.parquet": 14,
    }  # fmt: skip
    assert found.staging == {"b00000012/f0002": 12, "b00000013/f0001": 13}
    assert found.batch_max == 123456789


def test_a_source_that_moves_before_the_first_plan_is_looked_at_again(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gaps of a pipeline that never planned, too, answer once the source holds still; and say so
    where it never does.
    """
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    match, moved = FilesSource.match, []

    def moves(*given: object) -> object:
        if len(moved) < most:
            moved.append(given)
            raise FileNotFoundError("in/a.jsonl")
        return match(*given)

    monkeypatch.setattr(FilesSource, "match", moves)
    most = 2
    assert len(gaps(ledger, spec).gaps) == 1
    most = 1_000
    with pytest.raises(RetryableError, match=f"source of {spec.name} changed 20 times"):
        gaps(ledger, spec)
