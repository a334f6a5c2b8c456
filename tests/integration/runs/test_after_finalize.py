"""`source.after_finalize: move`: files that cannot grow go, once all of them is finalized."""

import gzip
from pathlib import Path

import pytest

from fixtures.batches.account import committed, ids, lines, quiet, run, settled
from fixtures.batches.replays import replayed
from fixtures.batches.workbench import Workbench
from fixtures.contract.sources import Parquet
from fixtures.postgres.server import lose
from semel import failpoints, pipeline
from semel.collect import Collected, collect
from semel.errors import SpecError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.adopt import adopt

MOVE = {"after_finalize": {"move": "done"}}


class Place:
    """A folder of one kind of files that cannot grow."""

    def __init__(self, bench: Workbench, kind: str) -> None:
        self.bench, self.kind = bench, kind
        self.folder = bench.data / "in"

    def spec(self, **source: object) -> Spec:
        form = self.kind.removesuffix(".gz")
        source = {"path": f"in/*.{self.kind}", "format": form, **MOVE, **source}
        return self.bench.spec(record_id=None, source=source)

    def write(self, name: str, start: int, stop: int) -> Path:
        path = self.folder / f"{name}.{self.kind}"
        if self.kind == "parquet":
            Parquet(self.bench).write(path, start, stop)
        else:
            path.write_bytes(gzip.compress(lines(start, stop)))
        return path

    def names(self) -> list[str]:
        return sorted(str(p.relative_to(self.folder)) for p in self.folder.rglob("*.*"))


@pytest.fixture(params=["parquet", "jsonl.gz"])
def place(request: pytest.FixtureRequest, bench: Workbench) -> Place:
    return Place(bench, request.param)


def collected(ledger: Ledger, spec: Spec) -> Collected:
    return collect(ledger, spec, quiet)


# Attacks G9.
def test_what_is_finalized_goes(place: Place, ledger: Ledger) -> None:
    """Not before: neither while it is planned nor committed. It is proven and replayed from there, a
    lost ledger knows it, and nothing is read twice or missed.
    """
    spec = place.spec()
    place.write("a", 0, 10)
    plan(ledger, spec, "r1")
    assert collected(ledger, spec).files_moved == 0
    batch = committed(ledger, spec, "r1")
    assert collected(ledger, spec).files_moved == 0
    finalize(ledger, spec, batch)
    place.write("b", 10, 20)
    assert collected(ledger, spec).files_moved == 1
    assert place.names() == [f"b.{place.kind}", f"done/a.{place.kind}"]
    assert collected(ledger, spec).files_moved == 0
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 20)
    replayed(ledger, spec, batch, "again")
    assert settled(spec).ids == ids(0, 20)
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    assert run(ledger, spec, "r3").plan.batch is None
    assert collected(ledger, spec).files_moved == 1
    assert run(ledger, spec, "r4").plan.refusals == () and settled(spec).ids == ids(0, 20)


# Attacks G9.
def test_what_is_not_as_it_was_read_stays(place: Place, ledger: Ledger) -> None:
    """Other content under its name, which no plan has seen; and one of which not all is finalized."""
    spec = place.spec()
    place.write("a", 0, 10)
    run(ledger, spec, "r1")
    place.write("a", 10, 20)
    place.write("b", 20, 30)
    assert collected(ledger, spec).files_moved == 0
    assert place.names() == [f"a.{place.kind}", f"b.{place.kind}"]


# Attacks G9.
def test_another_file_is_never_replaced(place: Place, ledger: Ledger) -> None:
    """It stays, is told as not done, and goes when the other one was moved, as the message says."""
    spec = place.spec()
    path = place.write("a", 0, 10)
    (place.folder / "done").mkdir()
    other = place.folder / "done" / path.name
    other.write_bytes(b"other")
    run(ledger, spec, "r1")
    (why,) = collected(ledger, spec).damaged
    assert "is another file; move that file aside" in why
    assert other.read_bytes() == b"other" and path.exists()
    other.unlink()
    done = collected(ledger, spec)
    assert (done.files_moved, done.damaged) == (1, ())


# Attacks G9.
def test_who_dies_in_the_middle_leaves_it_to_the_next(place: Place, ledger: Ledger) -> None:
    """Under both names for a while: it is read once, and has one name in the end."""
    spec = place.spec()
    place.write("a", 0, 10)
    run(ledger, spec, "r1")

    def dies() -> None:
        raise failpoints.FaultError("died here")

    with failpoints.armed("away.after_link", dies, 1), pytest.raises(failpoints.FaultError):
        collected(ledger, spec)
    assert len(place.names()) == 2
    assert run(ledger, spec, "r2").plan.batch is None
    assert collected(ledger, spec).files_moved == 1
    assert place.names() == [f"done/a.{place.kind}"]
    assert run(ledger, spec, "r3").plan.refusals == () and settled(spec).ids == ids(0, 10)


# Attacks P27.
@pytest.mark.parametrize("planned", [False, True])
def test_a_name_that_comes_again(place: Place, ledger: Ledger, planned: bool) -> None:
    """It is another file, whether or not a plan ran meanwhile. Each is replayed from where collect
    put it. What was moved is not read again when it comes back.
    """
    spec = place.spec()
    place.write("a", 0, 10)
    first = run(ledger, spec, "r1").plan.batch.batch_id
    assert collected(ledger, spec).files_moved == 1
    if planned:
        run(ledger, spec, "r2")
    place.write("a", 10, 20)
    second = run(ledger, spec, "r3")
    assert second.plan.refusals == () and settled(spec).ids == ids(0, 20)
    replayed(ledger, spec, first, "again")
    assert settled(spec).ids == ids(0, 20)
    (why,) = collected(ledger, spec).damaged
    assert "is another file; move that file aside" in why
    (place.folder / "done" / "old").mkdir()
    moved = place.folder / "done" / f"a.{place.kind}"
    moved.rename(moved.parent / "old" / moved.name)
    assert collected(ledger, spec).files_moved == 1
    replayed(ledger, spec, second.plan.batch.batch_id, "again2")
    replayed(ledger, spec, first, "again3")
    assert settled(spec).ids == ids(0, 20)
    place.write("a", 0, 10)
    assert run(ledger, spec, "r4").plan.batch is None


REFUSED = {
    "it may grow": ("in/*.jsonl", "jsonl", "done", "is for files that cannot grow"),
    "out": ("in/*.parquet", "parquet", "../done", "has '..'"),
    "absolute": ("in/*.parquet", "parquet", "/done", "is not a folder below the source's"),
    "itself": ("in/*.parquet", "parquet", ".", "is not a folder below the source's"),
    "read again": ("in/**/*.parquet", "parquet", "done", "would read it again"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_told(bench: Workbench, case: str) -> None:
    """With file, line and key."""
    path, form, folder, why = REFUSED[case]
    source = {"path": path, "format": form, "after_finalize": {"move": folder}}
    with pytest.raises(SpecError, match=rf"events.yaml:\d+: source.after_finalize.move: .*{why}"):
        bench.spec(source=source)


@pytest.mark.parametrize("other", ["in/*.parquet", "in/a/*.parquet"])
def test_files_of_two_pipelines_are_not_moved(bench: Workbench, other: str) -> None:
    """One would take away what the other one has not read yet."""
    source = {"path": "in/*.parquet", "format": "parquet"}
    bench.spec(source=source | MOVE)
    bench.spec("other", source=source | {"path": other})
    with pytest.raises(SpecError, match="other.yaml: source.after_finalize: it moves files of .*/in"):
        pipeline.load_all()
