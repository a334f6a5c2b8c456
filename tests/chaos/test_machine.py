"""A state machine: any verb at any time, broken anywhere, and the output is right at each step.

Real verbs, real Postgres, real files; the engine is LocalEngine. What it does not cover: Spark
(no shuffle, no retries, no speculation, no transforms), true concurrency (who is held up stands
below who goes on, in one process; test_interleavings and test_twins have threads), what a machine
forgets that loses power, and a killed process's own temporary files (in `make soak` a process is
really killed).
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fixtures.batches.account import ids, run, settled
from fixtures.batches.workbench import Workbench, events
from machine import Arena, World, tune
from machine_clock import Clock, Mortal, clocked
from machine_files import BAD, HEADERS, Header
from machine_seed import explore
from semel import failpoints
from semel.ledger import Ledger
from tiers import SEED, examples

EXAMPLES, STEPS = examples(14), 50  # of each of the SHARES, so that two cores have something to do
STEPS_MIN = examples(700)  # of each share
SHARES = 2
EXAMPLES_A_ROUND = 5  # of what follows, and of a soak: a round is a minute at most

POINTS = {
    verb: [p for p in failpoints.points() if p.startswith(prefixes)]
    for verb, prefixes in {
        "run": ("plan.", "stage.", "commit.", "finalize.", "storage.", "cache."),
        "collect": ("collect.", "pack.", "storage.before_rm", "storage.after_rm", "cache.", "finalize."),
        "abandon": ("abandon.",),
        "plan": ("plan.",),
        "stage": ("stage.", "storage."),
        "commit": ("commit.", "stage."),
        "finalize": ("finalize.", "storage."),
        "replay": ("replay.", "stage.", "commit.", "finalize.", "storage."),
    }.items()
}
IN_TRANSACTION = {
    "plan.before_register", "plan.before_write", "stage.before_begin", "stage.before_store",
    "stage.before_seal", "commit.before_win", "finalize.before_finalized",
    "collect.before_floor", "collect.before_retire", "collect.before_merged",
    "collect.before_delete", "collect.before_dropped", "abandon.before_release",
    "cache.before_rename", "cache.after_rename", "replay.before_write", "pack.before_end",
}  # fmt: skip
"""Points at which locks are held: who stands still there keeps all others from going on."""

Place = tuple[str, str, int]
"""A verb, a point that it passes, and which pass."""


def places(*verbs: str, held: bool = False) -> st.SearchStrategy[Place]:
    """Where to break a verb; `held`: where others can go on while it stands still."""
    found = [(v, p) for v in verbs for p in POINTS[v] if not (held and p in IN_TRANSACTION)]
    files = [(v, p, n) for v, p in found if p.startswith("storage.") for n in (1, 3)]
    own = [(v, p, 1) for v, p in found if not p.startswith("storage.")]
    return st.sampled_from(own) | st.sampled_from(own) | st.sampled_from(files or own)


PIPELINES = st.sampled_from(("live", "live", "hours"))
PICK = st.integers(0, 4)
WHICH = st.integers(0, 7)
AGAIN = st.lists(st.integers(0, 12), max_size=3)
MINUTES = (10, 31, 70, 250, 500)  # nothing, orphans, a span, a horizon, the other's horizon
VERBS = ("plan", "stage", "commit", "finalize")
ACTS = st.sampled_from((
    ("rival",), ("rival", "collect"), ("orphan",), ("orphan", "collect"), ("abandon",),
    ("abandon", "collect"), ("collect",), ("run",), ("plan",), ("commit",), ("rival", "rival"),
    ("replay",), ("replay", "collect"), ("orphan", "replay"), ("orphan", "orphan", "replay"),
))  # fmt: skip
"""What others do while somebody stands still."""
BEFORE = {
    "collect": ("run",),
    "abandon": ("plan",),
    "stage": ("plan",),
    "commit": ("plan", "stage"),
    "finalize": ("plan", "stage", "commit"),
    "replay": ("run",),
}
"""What gives a verb something to do."""


class Machine(RuleBasedStateMachine):
    """See the module. Rules do something each time, so that few steps are wasted."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self.arena = arena

    @initialize(headers=st.lists(st.sampled_from(HEADERS), min_size=1, max_size=6))
    def declare(self, headers: list[Header]) -> None:
        """The pipelines, and the names that each file has for their columns."""
        self.world = World(self.arena, headers)

    @rule(which=WHICH, new=st.integers(1, 4), again=AGAIN, torn=st.booleans())
    def append(self, which: int, new: int, again: list[int], torn: bool) -> None:
        """A producer goes on; the last line may be torn, and is finished the next time."""
        files = self.world.files
        lines = files.records(self.world.clock.now(), new, again)
        files.append(files.pick(which), lines, torn=torn)

    @rule(which=WHICH, again=st.lists(st.integers(0, 40), min_size=2, max_size=6))
    def redeliver(self, which: int, again: list[int]) -> None:
        """A producer sends the same records again, to this or another file."""
        files = self.world.files
        files.append(files.pick(which), files.records(self.world.clock.now(), 0, again))

    @rule(which=WHICH, bad=st.lists(st.sampled_from(BAD), min_size=1, max_size=2))
    def write_bad_lines(self, which: int, bad: list[bytes]) -> None:
        files = self.world.files
        files.append(files.pick(which), [*bad, *files.records(self.world.clock.now(), 1)])

    @precondition(lambda self: self.world.files.all)
    @rule(which=st.integers(0, 2), how=st.sampled_from(("rename", "rename", "cut", "replace")))
    def rotate_or_replace(self, which: int, how: str) -> None:
        """logrotate, its copytruncate, or another file under the same name."""
        world, files = self.world, self.world.files
        file = files.pick(which)
        if not file.end or len(files.all) > 9:
            return
        world.moved = True
        if how == "rename":
            files.rotate(file)
        elif how == "cut":
            files.copy_and_cut(file)
        else:
            files.replace(file, files.records(world.clock.now(), 2, [0, 3]))
        self.arena.note(f"files: {how}")

    @rule(name=PIPELINES, pick=PICK)
    def accept(self, name: str, pick: int) -> None:
        self.world.accept(name, pick)

    @rule(name=PIPELINES, pick=PICK)
    def run(self, name: str, pick: int) -> None:
        """A run of a request: a new one, or one that stopped somewhere (cleared, retried)."""
        self.world.calm(lambda: self.world.act(name, "run", pick))

    @rule(name=PIPELINES, pick=PICK)
    def replay(self, name: str, pick: int) -> None:
        """The output of a batch is computed again, by one of two requests."""
        act = self.world.act
        self.world.calm(lambda: act(name, "replay", pick), any_state=True, beside=True)

    @rule(pick=PICK, hours=st.integers(1, 3))
    def backfill(self, pick: int, hours: int) -> None:
        self.world.calm(lambda: self.world.act("hours", "run", pick, hours))

    @rule(name=PIPELINES, pick=PICK, verbs=st.integers(1, 3))
    def leave_halfway(self, name: str, pick: int, verbs: int) -> None:
        """A run that stops between two verbs."""
        world = self.world
        world.calm(lambda: world.act(name, "plan", pick))
        for verb in VERBS[1:verbs]:
            world.calm(lambda verb=verb: world.act(name, verb, 0), any_state=True)

    @rule(name=PIPELINES, pick=PICK, first=st.integers(1, 3))
    def clear(self, name: str, pick: int, first: int) -> None:
        """The tasks of a run again, from any verb on; finalize again among them."""
        world = self.world
        batch_id = world.batch(name, pick)
        for verb in VERBS[first:]:
            world.calm(lambda verb=verb: world.on(name, verb, batch_id), any_state=True)

    @rule(name=PIPELINES, pick=PICK)
    def abandon(self, name: str, pick: int) -> None:
        self.world.calm(lambda: self.world.act(name, "abandon", pick), any_state=True)

    @rule(name=PIPELINES, pick=PICK)
    def delete_run(self, name: str, pick: int) -> None:
        """Nobody comes back to this request; what it left is an orphan."""
        requests = self.world.requests[name]
        if requests:
            requests.pop(-1 - pick % len(requests))
            self.arena.note("runs deleted")

    @rule(name=PIPELINES)
    def collect(self, name: str) -> None:
        self.world.calm(lambda: self.world.act(name, "collect", 0))

    @rule(minutes=st.sampled_from(MINUTES))
    def advance(self, minutes: int) -> None:
        self.world.clock.advance(timedelta(minutes=minutes))

    @rule(name=PIPELINES, at=places("run", "run", "replay", "collect", "abandon"), pick=PICK)
    def crash(self, name: str, at: Place, pick: int) -> None:
        """An error that nobody foresaw, at a point: the process cleans up behind it."""

        def fail() -> None:
            raise failpoints.FaultError(at[1])

        self._broken(name, at, pick, fail)

    @rule(name=PIPELINES, at=places("run", "run", "replay", "collect", "abandon"), pick=PICK)
    def kill(self, name: str, at: Place, pick: int) -> None:
        """The end of the process at a point."""
        self._broken(name, at, pick, self.world.die)

    @rule(name=PIPELINES, at=places("stage", held=True), pick=PICK, acts=ACTS)
    def zombie(self, name: str, at: Place, pick: int, acts: tuple[str, ...]) -> None:
        """An attempt stands still while its batch goes on, or is given up; then it goes on too."""
        self._broken(name, at, pick, lambda: self.world.meanwhile(name, acts, pick))

    @rule(
        name=PIPELINES,
        at=places("run", "plan", "commit", "finalize", "collect", "replay", held=True),
        pick=PICK,
        acts=ACTS,
    )
    def hold(self, name: str, at: Place, pick: int, acts: tuple[str, ...]) -> None:
        """Any verb stands still at a point while others go on: a twin, a rival, collect."""
        self._broken(name, at, pick, lambda: self.world.meanwhile(name, acts, pick))

    def _broken(self, name: str, at: Place, pick: int, action: Callable[[], None]) -> None:
        verb, point, nth = at
        world = self.world
        world.feed(pick)
        for step in BEFORE.get(verb, ()):
            world.calm(lambda step=step: world.act(name, step, pick), any_state=True)
        # The batch that was just made, or the same request.
        target = pick if verb in ("run", "plan", "replay") else 0
        world.disturbed(point, nth, lambda: world.act(name, verb, target), action)

    @invariant()
    def what_readers_see_is_right(self) -> None:
        self.arena.steps += 1
        self.world.look()

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:
            self.world.finish()


class SoakMachine(Machine):
    """The same, and processes that are really killed."""

    @rule(name=PIPELINES, at=places("run", "run", "collect"), pick=PICK)
    def kill_a_process(self, name: str, at: Place, pick: int) -> None:
        self.world.feed(pick)
        self.world.kill_a_process(name, at, pick)


@pytest.fixture(scope="session")
def machine_dsn(postgres: str, template: str) -> Iterator[str]:
    with clocked(postgres, template) as dsn:
        yield dsn


@pytest.fixture
def arena(machine_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    clock = Clock(machine_dsn)
    tune(monkeypatch, clock)
    monkeypatch.setenv("SEMEL_LEDGER_DSN", machine_dsn)
    with Mortal(machine_dsn) as ledger:
        yield Arena(folder=tmp_path, ledger=ledger, clock=clock, patch=monkeypatch)
    clock.close()


def play(arena: Arena, number: int, machine: type[Machine], examples: int) -> None:
    """Some examples of a machine; `number` is their seed."""
    test = "-m soak -k for_long" if machine is SoakMachine else "-k 'any_time and 0'"
    again = f"SEMEL_SEED={number} python -m pytest tests/chaos/test_machine.py {test}"
    explore(lambda: machine(arena), number, examples, STEPS, again)


@pytest.mark.draws
@pytest.mark.parametrize("share", range(SHARES))
def test_any_verb_at_any_time(arena: Arena, share: int) -> None:
    """Readers never see a record twice, wrong or gone; at the end each is there or accounted for.

    Whatever happens, in whatever order, after each step.
    """
    number, examples = SEED + share, EXAMPLES
    while arena.steps < STEPS_MIN:  # Examples that end early are made up for.
        play(arena, number, Machine, examples)
        number, examples = number + SHARES, EXAMPLES_A_ROUND
    print(f"{arena.steps} steps:", dict(sorted(arena.seen.items())))
    assert arena.seen["points passed"]


# Attacks P17.
def test_a_copy_is_known_also_when_its_original_has_grown_again(
    bench: Workbench, ledger: Ledger
) -> None:
    """copytruncate: what was read is not read again from the copy, however fast the producer is."""
    original = bench.write("in/a.jsonl", events(0, 5))
    spec = bench.spec(record_id=None, dedup=None)
    run(ledger, spec, "r1")
    copy = original.with_name("a.1.jsonl")
    copy.write_bytes(original.read_bytes())
    original.write_bytes(b"")
    bench.write("in/a.jsonl", events(100, 110))
    assert run(ledger, spec, "r2").plan.refusals == ()
    assert settled(spec).ids == ids(0, 5) + ids(100, 110)


@pytest.mark.soak
@pytest.mark.timeout(0)  # By SEMEL_SOAK_SECONDS.
def test_any_verb_at_any_time_for_long(
    arena: Arena, forks: BaseContext, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same for SEMEL_SOAK_SECONDS, with a new seed each round, and with processes killed."""
    arena.forks = forks
    end = time.monotonic() + float(os.environ.get("SEMEL_SOAK_SECONDS", "600"))
    number = SEED
    while time.monotonic() < end:
        with capsys.disabled():
            print(f"\nseed {number}, {arena.steps} steps so far", end="", flush=True)
        play(arena, number, SoakMachine, EXAMPLES_A_ROUND)
        number += 1
    with capsys.disabled():
        print(f"\n{arena.steps} steps:", dict(sorted(arena.seen.items())))
    assert arena.steps
