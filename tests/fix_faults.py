"""Processes that run the verbs and die at a fault point.

They are forked from one server process that has imported all that they need, so that each costs
milliseconds; nothing runs in that server, so no thread is lost in the fork.
"""

import multiprocessing
import multiprocessing.forkserver
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fix_account import quiet, run
from fix_engine import LocalEngine
from fix_wait import wait_for
from semel import failpoints, limits, pipeline
from semel.collect import collect
from semel.collect.merge import merge_candidates
from semel.compare import Range, compare
from semel.ledger import Ledger
from semel.model.batch import BatchStatus
from semel.plan import find_batch
from semel.plan.abandon import abandon
from semel.repair.accept import accept_columns, accept_file, accept_refused
from semel.repair.adopt import adopt
from semel.repair.losses import accept_loss
from semel.runs import replay, requarantine

WAIT_SECONDS = 30

PRELOADED = ["fix_faults", "fix_cluster"]
"""What the server has imported: a process of tests has one server, whoever starts it."""


def contested(ledger: Ledger, spec: pipeline.Spec) -> None:
    """r1, in whose middle r2 plans, stages, commits and finalizes: with common ids r1 overlaps."""

    def rival(_: object) -> None:
        run(ledger, spec, "r2")

    run(ledger, spec, "r1", engine=LocalEngine(before_write=rival))


def leased(ledger: Ledger, spec: pipeline.Spec) -> None:
    """The same, with a commit lease from the first loss on, which soon ends."""
    sys.modules["semel.commit"].ATTEMPTS_LOST_BEFORE_LEASE = 0
    limits.LEASE_SECONDS = 1
    contested(ledger, spec)


def r1(ledger: Ledger, spec: pipeline.Spec) -> None:
    """r1 alone."""
    run(ledger, spec, "r1")


def r2(ledger: Ledger, spec: pipeline.Spec) -> None:
    """r2 alone."""
    run(ledger, spec, "r2")


def abandoning(ledger: Ledger, spec: pipeline.Spec) -> None:
    """Give up the planned batch of r1, unless it was given up already."""
    found = find_batch(ledger, spec, "r1")
    if found.status is BatchStatus.PLANNED:
        abandon(ledger, found.batch_id, "given up by the test")


def accepting(ledger: Ledger, spec: pipeline.Spec) -> None:
    """Let e.jsonl, which was edited, go on behind its old records; what is gone is lost, and new
    columns are fine.
    """
    old = (spec.source_root() / "e.jsonl").read_bytes().partition(b'"e000114"')
    start = len(old[0]) + len(old[1]) + old[2].index(b"\n") + 1
    accept_file(ledger, spec, "e.jsonl", same=False, start=start)
    accept_loss(ledger, spec, "g.jsonl")
    accept_columns(ledger, spec)


def replaying(ledger: Ledger, spec: pipeline.Spec) -> None:
    """Compute the output of the first batch again."""
    replay.run(ledger, spec, "again", 1, LocalEngine(), quiet)


def admitting(ledger: Ledger, spec: pipeline.Spec) -> None:
    """Judge the dead letters of the second batch again."""
    requarantine.run(ledger, spec, "admit", 2, LocalEngine(), quiet)


def refusing(ledger: Ledger, spec: pipeline.Spec) -> None:
    """Let the rows of r1 land that the table takes."""
    accept_refused(ledger, spec, find_batch(ledger, spec, "r1").batch_id)


def collecting(ledger: Ledger, spec: pipeline.Spec) -> None:
    """collect, with more than one live run per shard as a reason to merge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(merge_candidates.__kwdefaults__, "live_max", 1)
        collect(ledger, spec, log=quiet)


def adopting(ledger: Ledger, spec: pipeline.Spec) -> None:
    """Take over what the pipeline's batches left."""
    adopt(ledger, spec, log=quiet)


def comparing(ledger: Ledger, spec: pipeline.Spec) -> None:
    """Compare all batches with the batch path."""
    wanted, engine = Range(first=1, last=1_000), nullcontext(LocalEngine())
    compare(ledger, spec, wanted, open_job=lambda: engine, shown=1, log=quiet)


@contextmanager
def dies_at(point: str, nth: int = 1) -> Iterator[None]:
    """The block ends at a point, as if its process had been killed."""

    def dies() -> None:
        raise failpoints.FaultError("died here")

    with failpoints.armed(point, dies, nth), pytest.raises(failpoints.FaultError, match="died here"):
        yield


Script = Callable[..., None]
"""What a process does: it gets a ledger, a spec, and what the test gives besides."""

SCRIPTS = {
    f.__name__: f
    for f in (
        contested, leased, r1, r2, abandoning, accepting, adopting, refusing, collecting, replaying,
        admitting,
        comparing,
    )  # fmt: skip
}


@dataclass
class Child:
    """A process that runs a script. It can be held up at a point."""

    process: multiprocessing.Process
    folder: Path

    def paused(self, point: str) -> Path:
        """Wait until it stands at a point. Returns the file whose removal lets it go on."""
        path = self.folder / point
        wait_for(lambda: path.exists() or not self.process.is_alive(), point, WAIT_SECONDS, 0.01)
        assert path.exists(), f"ended before {point}: {self.ended()}"
        return path

    def reached(self, point: str) -> bool:
        """Wait until it stands at a point, or has ended without passing it."""
        while self.process.is_alive() and not (self.folder / point).exists():
            time.sleep(0.01)
        return (self.folder / point).exists()

    def ended(self) -> tuple[int, str | None]:
        """Wait for its end. Returns exit code and error class."""
        self.process.join(WAIT_SECONDS)
        assert self.process.exitcode is not None, f"{self.process} does not end"
        outcome = self.folder / "outcome"
        return self.process.exitcode, outcome.read_text() if outcome.exists() else None

    @property
    def message(self) -> str:
        """What its error said."""
        return (self.folder / "message").read_text()


@dataclass
class Children:
    """Starts scripts in processes of their own."""

    context: multiprocessing.context.BaseContext
    dsn: str
    spec_path: Path
    folder: Path
    started: list[Child] = field(default_factory=list)

    def start(
        self, script: str | Script, armed: str = "", dsn: str | None = None, *more: object
    ) -> Child:
        """Start a script with `point:kind` armed, on the ledger behind `dsn`; it gets `more`."""
        folder = self.folder / f"child{len(self.started)}"
        folder.mkdir()
        ours = ("SEMEL_", "AIRFLOW_CONN_", "PYTHONPATH")
        environment = {k: v for k, v in os.environ.items() if k.startswith(ours)}
        script = SCRIPTS[script] if isinstance(script, str) else script
        arguments = (script, armed, folder, dsn or self.dsn, self.spec_path, environment, more)
        process = self.context.Process(target=_main, args=arguments, daemon=True)
        process.start()
        self.started.append(Child(process=process, folder=folder))
        return self.started[-1]

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.started:
            if child.process.is_alive():
                child.process.kill()
            child.process.join(WAIT_SECONDS)
            child.process.close()


def _main(
    script: Script, armed: str, folder: Path, dsn: str, spec_path: Path,
    environment: dict[str, str], more: tuple[object, ...],
) -> None:  # fmt: skip
    os.environ.update(environment)
    failpoints.arm_all(armed, folder)
    error = None
    try:
        with Ledger(dsn) as ledger:
            script(ledger, pipeline.load(spec_path), *more)
    except Exception as raised:  # noqa: BLE001 - handed to the test
        error = raised
        (folder / "outcome").write_text(type(error).__name__)
        (folder / "message").write_text(str(error))
    sys.stdout.flush()
    os._exit(0 if error is None else 1)


@pytest.fixture(scope="session")
def forks() -> multiprocessing.context.BaseContext:
    """The server that children are forked from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        multiprocessing.forkserver.ensure_running()
    return context


@pytest.fixture
def children(
    forks: multiprocessing.context.BaseContext, ledger_dsn: str, bench, tmp_path: Path
) -> Iterator[Children]:
    """Children on this test's ledger and its pipeline `events`."""
    path = bench.pipelines / "events.yaml"
    with Children(context=forks, dsn=ledger_dsn, spec_path=path, folder=tmp_path) as made:
        yield made
