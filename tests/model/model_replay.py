"""Replay in the ledger: generations of one batch, planned, committed and given up by two drivers.

The root is generation 1, and finalized. Two drivers replay it again and again: each plans the next
generation, stages it and commits it; each may stand still for ever, die, or go on late. Who plans
finds another's replay silent, whatever its driver still does, and gives it up. A COMMIT may be on
its way while its caller was told nothing, and may land later or never. Whoever finds a generation
committed finalizes it.

What it leaves away: attempts of a replay (model_batch), files and markers (model_replaced), and
what a plan proves before it takes the lock.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from model_search import Model, setter, swap

AT_WORK = "two replays of one generation are at work"
FORK = "two generations of a batch are live"
BY_NONE = "a generation was retired by a replay that did not commit"
UNFINISHED = "a generation was retired before it was finalized"
REFUSED = "a verb ran into a constraint of the database"

DRIVERS = ("Driver A", "Driver B")
IDLE, PLANNING, PLANNED, LOCKED, RETIRED, UNTOLD = range(6)
FLIGHT = len(DRIVERS)


class Output(NamedTuple):
    """A batch that is one generation. `by`: the batch whose commit retired it, or -1."""

    generation: int
    status: str  # planned, staged, committed, finalized, abandoned
    by: int = -1


class Driver(NamedTuple):
    """`batch`: the one that it works at. Of a plan: the one that it gives up, or -1."""

    at: int = IDLE
    batch: int = -1
    generation: int = 0


class Root(NamedTuple):
    """`lock`: who holds the pipeline's lock: a driver, the COMMIT on its way, or -1."""

    outputs: tuple[Output, ...] = (Output(1, "finalized"),)
    drivers: tuple[Driver, ...] = (Driver(),) * len(DRIVERS)
    flight: int = -1
    lock: int = -1
    refused: bool = False


class ReplayModel(Model):
    """See the module."""

    GUARDS = {
        "pipeline lock": "no transaction takes the pipeline's lock",
        "states are expected": "commit does not look at the state of the replay",
        "one of a generation": "the database takes two replays of one generation",
        "the one before is finalized": "plan and commit do not look at the generation before",
        "retired by the winner": "the generation before is retired ahead of the replay's commit",
    }

    replays_max = 3
    """After so many there are no new ones."""

    def start(self) -> Root:
        return Root()

    def damages(self, s: Root) -> Iterator[str]:
        there = [o.generation for o in s.outputs if o.status != "abandoned"]
        if len(there) > len(set(there)):
            yield AT_WORK
        done = ("committed", "finalized")
        if sum(o.status in done and o.by < 0 for o in s.outputs) > 1:
            yield FORK
        if any(o.by >= 0 and s.outputs[o.by].status not in done for o in s.outputs):
            yield BY_NONE
        if any(o.by >= 0 and o.status != "finalized" for o in s.outputs):
            yield UNFINISHED
        if s.refused:
            yield REFUSED

    def ended(self, s: Root) -> bool:
        quiet = s.lock < 0 and s.flight < 0
        return quiet and not any(o.status == "committed" for o in s.outputs)

    def steps(self, s: Root) -> Iterator[tuple[str, Root]]:
        for k in range(len(DRIVERS)):
            yield from self._driver(s, k)
        if s.flight >= 0:
            yield from self._flight(s)
        for i, output in enumerate(s.outputs):
            if output.status == "committed":
                words = f"Batch {i + 1} (generation {output.generation}) is finalized."
                yield words, _became(s, i, "finalized")

    def _driver(self, s: Root, k: int) -> Iterator[tuple[str, Root]]:
        me, name = s.drivers[k], DRIVERS[k]
        now = setter(s, "drivers", k)
        may = s.lock < 0 or not self.pipeline_lock
        held = k if self.pipeline_lock else -1
        free = -1 if s.lock == k else s.lock
        if me.at == IDLE:
            if len(s.outputs) <= self.replays_max and may:
                yield from self._plan(s, name, held, now)
            for i, output in enumerate(s.outputs):
                if output.status in ("planned", "staged"):
                    yield f"{name} goes on with batch {i + 1}.", now(Driver(PLANNED, i))
            return
        yield f"{name} dies.", now(Driver(), lock=free)
        if me.at == PLANNING:
            yield self._insert(s, name, me, free, now)
            return
        mine = s.outputs[me.batch]
        if me.at == PLANNED and mine.status == "planned":
            yield f"{name} stages batch {me.batch + 1}.", now(me, _became(s, me.batch, "staged"))
        elif me.at == PLANNED and may:
            words = f"{name} takes the lock, to commit batch {me.batch + 1}."
            yield words, now(me._replace(at=LOCKED), lock=held)
        elif me.at == LOCKED:
            yield self._decide(s, name, me, free, now)
        elif me.at == RETIRED:
            yield self._send(s, k, me, now)
        elif me.at == UNTOLD:
            yield f"{name} got no reply, and asks again.", now(me._replace(at=PLANNED))

    def _plan(self, s: Root, name: str, held: int, now: Callable) -> Iterator[tuple[str, Root]]:
        """A replay that is silent is given up; its own generation is planned again."""
        open_ = [i for i, o in enumerate(s.outputs) if o.status in ("planned", "staged")]
        live = [o for o in s.outputs if o.status in ("committed", "finalized")]
        if self.the_one_before_is_finalized and any(o.status == "committed" for o in live):
            return
        generation = 1 + max(o.generation for o in live)
        driver = Driver(PLANNING, open_[-1] if open_ else -1, generation)
        words = f"{name} finds generation {generation - 1} live"
        words += f" and batch {open_[-1] + 1} silent." if open_ else "."
        yield words, now(driver, lock=held)

    def _insert(
        self, s: Root, name: str, me: Driver, free: int, now: Callable
    ) -> tuple[str, Root]:
        after, words = s, f"{name} commits batch {len(s.outputs) + 1}, generation {me.generation}"
        if me.batch >= 0:
            if s.outputs[me.batch].status not in ("planned", "staged"):
                return f"{name} finds batch {me.batch + 1} ended.", now(Driver(), lock=free)
            after = _became(s, me.batch, "abandoned")
            words += f", and abandons batch {me.batch + 1}"
        if self.one_of_a_generation and _there(after, me.generation):
            words = f"{name} is refused generation {me.generation} by the database."
            return words, now(Driver(), lock=free, refused=True)
        outputs = (*after.outputs, Output(me.generation, "planned"))
        driver = Driver(PLANNED, len(s.outputs))
        return f"{words}.", now(driver, after, lock=free, outputs=outputs)

    def _decide(
        self, s: Root, name: str, me: Driver, free: int, now: Callable
    ) -> tuple[str, Root]:
        k, mine = DRIVERS.index(name), s.outputs[me.batch]
        right = mine.status == "staged"
        if not right and self.states_are_expected or mine.status in ("committed", "finalized"):
            words = f"{name} finds batch {me.batch + 1} {mine.status}, and lets go."
            return words, now(Driver(), lock=free)
        before = s.outputs[_before(s, mine)]
        if self.the_one_before_is_finalized and (before.status != "finalized" or before.by >= 0):
            words = f"{name} finds generation {before.generation} not live, and lets go."
            return words, now(Driver(), lock=free)
        if not self.retired_by_the_winner:
            words = f"{name} retires generation {before.generation} in a transaction of its own."
            return words, now(me._replace(at=RETIRED), _retired(s, me.batch))
        return self._send(s, k, me, now)

    def _send(self, s: Root, k: int, me: Driver, now: Callable) -> tuple[str, Root]:
        words = f"{DRIVERS[k]} sends the COMMIT that lets batch {me.batch + 1} win."
        lock = FLIGHT if s.lock == k else s.lock
        return words, now(me._replace(at=UNTOLD), flight=me.batch, lock=lock)

    def _flight(self, s: Root) -> Iterator[tuple[str, Root]]:
        i, lock = s.flight, -1 if s.lock == FLIGHT else s.lock
        over = s._replace(flight=-1, lock=lock)
        yield "The COMMIT never arrives.", over
        mine = s.outputs[i]
        again = mine.status == "abandoned" and _there(s, mine.generation)
        if again and self.one_of_a_generation:
            words = f"The database refuses a second batch of generation {mine.generation}."
            yield words, over._replace(refused=True)
            return
        words = f"The COMMIT lands: batch {i + 1} has won, generation {mine.generation - 1} ends."
        yield words, _became(_retired(over, i), i, "committed")


def _there(s: Root, generation: int) -> bool:
    return any(o.generation == generation and o.status != "abandoned" for o in s.outputs)


def _before(s: Root, output: Output) -> int:
    """The generation before one."""
    wanted = output.generation - 1
    found = [
        i for i, o in enumerate(s.outputs) if o.generation == wanted and o.status != "abandoned"
    ]
    return found[-1]


def _became(s: Root, i: int, status: str) -> Root:
    return s._replace(outputs=swap(s.outputs, i, s.outputs[i]._replace(status=status)))


def _retired(s: Root, by: int) -> Root:
    """The generation before a replay's is retired, if nobody did."""
    i = _before(s, s.outputs[by])
    if s.outputs[i].by >= 0:
        return s
    return s._replace(outputs=swap(s.outputs, i, s.outputs[i]._replace(by=by)))
