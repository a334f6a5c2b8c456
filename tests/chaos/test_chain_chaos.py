"""Three pipelines in a row, whose runs and replays die anywhere: the end is that of a rebuild."""

import random
from collections.abc import Callable

import pytest

from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.chains import Keeping, again, declared, link
from fixtures.batches.replays import falls_silent, replayed
from fixtures.batches.workbench import Workbench
from fixtures.contract.sources import Upstream
from semel import failpoints
from semel.commit import commit
from semel.failpoints import FaultError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.plan import plan
from semel.runs import downstream, replay
from semel.stage import stage
from tiers import SEED

VERBS = ("plan", "replay", "stage", "commit", "finalize", "sink", "storage")
POINTS = [point for point in failpoints.points() if point.partition(".")[0] in VERBS]


class Chain:
    """up -> a -> b, in one ledger."""

    def __init__(self, bench: Workbench, ledger: Ledger, seed: int) -> None:
        print(f"seed {seed}")
        self.up, self.ledger, self.random = Upstream(bench, ledger), ledger, random.Random(seed)
        declared(self.up)
        self.specs = [self.up.declared, link(self.up, "a", "up"), link(self.up, "b", "a")]
        self.roots: list[int] = []
        self.deaths = 0

    def dying(self, act: Callable[[], object]) -> None:
        """Do it again and again, as a scheduler would; the first times it dies somewhere."""
        for _ in range(2):
            point, nth = self.random.choice(POINTS), self.random.choice([1, 1, 2])

            def dies(point: str = point) -> None:
                raise FaultError(point)

            with failpoints.armed(point, dies, nth) as fault:
                try:
                    act()
                except FaultError as error:
                    print(f"died at {error}")
            self.deaths += fault.hit
            falls_silent(self.ledger)
        act()

    def goes_on(self, number: int) -> None:
        """More of the source, and a run of each pipeline."""
        self.up.files.append(10 * number, 10 * number + 10)
        for spec in self.specs:
            self.dying(lambda spec=spec: run(self.ledger, spec, f"r{number}", engine=Keeping(None)))
        self.roots = replay.roots(self.ledger, self.specs[0], batches=(1, 10**6))

    def begins_staged(self) -> None:
        """The upstream is replayed while its first batch is staged below; another run plans; then
        the staged batch commits, and what it has read follows.
        """
        a = self.specs[1]
        self.up.files.append(90, 100)
        root = run(self.ledger, self.specs[0], "s0", engine=Keeping(None)).plan.batch.batch_id
        number = plan(self.ledger, a, "s0").batch.batch_id

        def staged() -> None:
            stage(self.ledger, a, number, Keeping(None), log=quiet)

        staged()
        again(self.up, self.random.choice([90, 93, 100]), root, "s")
        run(self.ledger, a, "s1", engine=Keeping(None))
        self.dying(lambda: commit(self.ledger, a, number, staged, log=quiet))
        self.dying(lambda: finalize(self.ledger, a, number))
        self.dying(lambda: self.follows(root))

    def follows(self, root: int) -> None:
        links = downstream.find_followers(self.ledger, self.specs[0], {root: False})
        downstream.refuse(self.specs[0], links, alone="")
        list(downstream.run(self.ledger, links, Keeping(None), quiet, request=None, command=""))

    def is_replayed(self, key: str) -> None:
        """One batch of the upstream, and what follows it, by the same request each time."""
        root, below = self.random.choice(self.roots), self.random.choice([None, 0, 4, 14, 25, 33])

        def act() -> None:
            again(self.up, below, root, key)
            self.follows(root)

        self.dying(act)

    def ends_like_a_rebuild(self) -> None:
        found = [settled(spec).ids for spec in self.specs[1:]]
        for name, of in (("rebuilt_a", "up"), ("rebuilt_b", "rebuilt_a")):
            spec = link(self.up, name, of)
            run(self.ledger, spec, "r1")
            found.append(settled(spec).ids)
        there = settled(self.specs[0]).ids
        assert all(rows == there for rows in found), (there, found)


# Attacks CH2, CH3.
@pytest.mark.parametrize(
    "turn", [0, *(pytest.param(turn, marks=pytest.mark.proof) for turn in range(1, 25))]
)
def test_the_end_is_that_of_a_rebuild(bench: Workbench, ledger: Ledger, turn: int) -> None:
    """Runs and replays that travel die at random points, in random order. Half of the histories
    begin with a staged batch. It takes some 10 s: no cheaper test has a replay of three pipelines
    whose parts are in all states.
    """
    chain = Chain(bench, ledger, SEED + turn)
    if turn % 2 == 0:
        chain.begins_staged()
    chain.goes_on(0)
    for number in range(1, 4):
        chain.goes_on(number)
        chain.is_replayed(f"k{number}")
    assert chain.deaths, "nothing died"
    chain.ends_like_a_rebuild()


# Attacks CH2, R1.
@pytest.mark.parametrize("point", ["finalize.after_publish", "storage.before_swap"])
def test_half_of_a_replay_is_not_read(bench: Workbench, ledger: Ledger, point: str) -> None:
    """Its files lie in the folder of the output, where a listing shows them; no marker does."""
    chain = Chain(bench, ledger, SEED)
    up, a = chain.up, chain.specs[1]
    up.files.append(0, 10)
    for spec in chain.specs[:2]:
        run(ledger, spec, "r1", engine=Keeping(None))

    def dies() -> None:
        raise FaultError(point)

    with failpoints.armed(point, dies, 1) as fault, pytest.raises(FaultError):
        again(up, 5)
    assert fault.hit and replay.replaced_parts(ledger, a, 2) == []
    replayed(ledger, a, 2, "down")
    assert settled(a).ids == ids(0, 10) and run(ledger, a, "r2").plan.refusals == ()
    again(up, 5)
    replayed(ledger, a, 2, "down")
    assert settled(a).ids == ids(0, 5)


# Attacks CH2, RP4, RP5.
@pytest.mark.proof
def test_a_replay_dies_at_each_point(bench: Workbench, ledger: Ledger) -> None:
    """One that judges anew, at each point that it passes: the same request makes it whole. It takes
    some 20 s: the random deaths do not meet each point.
    """
    chain = Chain(bench, ledger, SEED)
    up, a = chain.up, chain.specs[1]
    for first in (0, 10):
        up.files.append(first, first + 10)
        run(ledger, chain.specs[0], f"r{first}", engine=Keeping(None))
    run(ledger, a, "r1")
    passed = []
    for at, point in enumerate(POINTS):

        def dies(point: str = point) -> None:
            raise FaultError(point)

        below = at % 9 + 1
        again(up, below, 1, f"k{at}")
        with failpoints.armed(point, dies, 1) as fault:
            try:
                replayed(ledger, a, 3, f"k{at}")
            except FaultError:
                passed.append(point)
        assert fault.hit == (point in passed), point
        falls_silent(ledger)
        replayed(ledger, a, 3, f"k{at}")
        assert settled(a, audited=False).ids == ids(0, below) + ids(10, 20), point
        assert run(ledger, a, "next").plan.refusals == ()
    settled(a)
    assert {"replay.after_write", "stage.after_seal", "commit.before_win"} < set(passed)
    assert {"storage.before_swap", "storage.after_swap"} < set(passed)
