"""losses: what retention takes of a topic, and `semel accept --lost`, beside plans and batches.

A partition gets records at its end, and its topic's retention takes them from its start, at any
moment: what nobody has claimed, what a batch has claimed, what is being read. Requests plan;
batches are read record by record and committed, fall silent, are taken over or abandoned. A person
who was told that records are gone accepts that, and so may another one at the same time. Planners
and accepts ask the cluster, then the ledger, and die at every step.

What it leaves away: the pipeline's lock (model_claims), so looking again and writing are one step
here; all other partitions, refusals of other kinds, intervals; transactions and compaction, by
which an offset may hold no record; how a batch commits (model_batch) and is finalized. A batch that
is read a second time, after a death, is as one that was not begun.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from model_search import Model, bits, setter, shown, swap

TWICE = "a record is counted twice: by two batches, by two losses, or by one of each"
UNTOLD = "a record is in no batch and not lost, and nothing looks at it any more"
UNREAD = "a batch accounts for a record that it has not read"
REFUSED = "a verb ran into a constraint of the database"

SILENT_MAX = 1

IDLE, SHOWN, SURVEYED, STALE = range(4)


class Batch(NamedTuple):
    """`claims` and `read` are sets of records as bits; all below `at` was passed in reading."""

    request: str
    status: str  # planned, committed, abandoned
    claims: int
    read: int = 0
    at: int = 0
    silent: bool = False


class Actor(NamedTuple):
    """What it has seen: of the cluster, then of the ledger, and what it would write by that.

    It is STALE once the ledger is another one than it has seen.
    """

    at: int = IDLE
    low: int = 0
    end: int = 0
    orphans: int = 0
    free: int = 0
    missing: int = 0


class Losses(NamedTuple):
    """`low`: what is before it was deleted. `floor`: what is before it is not looked at again."""

    actors: tuple[Actor, ...]
    batches: tuple[Batch, ...] = ()
    low: int = 0
    records: int = 1
    floor: int = 0
    lost: int = 0
    told: bool = False
    """Plan has said that something is gone, and nobody has accepted it yet."""
    twice: bool = False
    """A loss was written over another one."""
    refused: bool = False


def before(end: int) -> int:
    """The records before an offset."""
    return (1 << end) - 1


class LossesModel(Model):
    """See the module."""

    GUARDS = {
        "gone is refused": "plan passes over what is gone and was never claimed",
        "a deleted start is an error": "a task passes over what is gone of its claim",
        "claims are not lost": "accept takes what a planned batch has claimed too",
        "losses are subtracted": "what was accepted as lost is missing again",
        "looked at again": "plan and accept write what they saw, whatever came between",
        "claims exclude claims": "the database lets two claims overlap",
        "losses exclude losses": "the database lets two losses overlap",
        "floor waits for planned": "the floor passes claims that can still be abandoned",
    }

    plans = accepts = 1
    cells = 2

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The actors."""
        plans = (f"r{n}'s plan" for n in range(1, self.plans + 1))
        return (*plans, *("An accept", "Another accept")[: self.accepts])

    def start(self) -> Losses:
        return Losses((Actor(),) * len(self.names))

    def damages(self, s: Losses) -> Iterator[str]:
        held = [b for b in s.batches if b.status != "abandoned"]
        claimed = 0
        for batch in held:
            claimed |= batch.claims
        pairs = any(one.claims & other.claims for one, other in combinations(held, 2))
        if pairs or claimed & s.lost or s.twice:
            yield TWICE
        if before(min(s.floor, s.records)) & ~(claimed | s.lost):
            yield UNTOLD
        if any(b.status == "committed" and b.read != b.claims for b in held):
            yield UNREAD
        if s.refused:
            yield REFUSED

    def ended(self, s: Losses) -> bool:
        """Each record is in a committed batch, or is a recorded loss."""
        done = s.lost
        for batch in s.batches:
            if batch.status == "planned":
                return False
            done |= batch.read
        return s.records == self.cells and done == before(self.cells)

    def steps(self, s: Losses) -> Iterator[tuple[str, Losses]]:
        if s.records < self.cells:
            yield f"Record {s.records} comes.", s._replace(records=s.records + 1)
        if s.low < s.records:
            yield f"Retention takes record {s.low}.", s._replace(low=s.low + 1)
        for k in range(len(s.actors)):
            for words, after in self._actor(s, k):
                yield words, self._passed(s, after)
        for i in range(len(s.batches)):
            for words, after in self._batch(s, i):
                yield words, self._passed(s, after)

    def _passed(self, s: Losses, after: Losses) -> Losses:
        """Whoever has asked the ledger before it changed knows that by its version."""
        if not self.looked_at_again or _of(s) == _of(after):
            return after
        actors = (Actor(STALE) if a.at == SURVEYED else a for a in after.actors)
        return after._replace(actors=tuple(actors))

    def _actor(self, s: Losses, k: int) -> Iterator[tuple[str, Losses]]:
        name, me, plans = self.names[k], s.actors[k], k < self.plans
        now = setter(s, "actors", k)
        if me.at == IDLE:
            if self._may_begin(s, k):
                words = f"{name} asks the cluster: records {s.low} to {s.records} are there."
                yield words, now(Actor(SHOWN, s.low, s.records))
            return
        if me.at == STALE:
            yield f"{name} finds another ledger under the lock, or dies.", now(Actor())
            return
        yield f"{name} dies.", now(Actor())
        if me.at == SHOWN:
            orphans = self._orphans(s, k) if plans else 0
            free, missing = self._free(s, orphans), self._free(s, 0)
            if not plans and not self.claims_are_not_lost:
                missing = self._free(s, bits(s.batches, lambda b: b.status == "planned"))
            free, missing = free & ~before(me.low) & before(me.end), missing & before(me.low)
            words = f"{name} asks the ledger: {shown(free)} is free, {shown(missing)} is missing."
            yield words, now(Actor(SURVEYED, 0, 0, orphans, free * plans, missing))
        elif plans:
            yield self._plan(s, k, now(Actor()))
        elif not me.missing:
            yield f"{name} finds nothing missing.", now(Actor())
        elif s.lost & me.missing and self.losses_exclude_losses:
            yield f"{name} is refused by the database.", now(Actor())._replace(refused=True)
        else:
            twice = bool(s.lost & me.missing)
            after = now(Actor())._replace(lost=s.lost | me.missing, told=False, twice=twice)
            yield f"{name} records {shown(me.missing)} as lost.", after

    def _may_begin(self, s: Losses, k: int) -> bool:
        if k >= self.plans:
            return s.told
        own = [b for b in s.batches if b.request == self.names[k]]
        return all(b.status != "planned" for b in own)

    def _plan(self, s: Losses, k: int, over: Losses) -> tuple[str, Losses]:
        """One transaction: what is missing is told, or orphans go and a batch is written."""
        name, me = self.names[k], s.actors[k]
        if me.missing and self.gone_is_refused:
            return f"{name} tells that {shown(me.missing)} is gone.", over._replace(told=True)
        if not me.free:
            return f"{name} has nothing to take.", over
        batches = list(s.batches)
        for i in range(len(batches)):
            if me.orphans >> i & 1:
                if batches[i].status != "planned":
                    return f"{name} finds its orphan not planned any more.", over
                batches[i] = batches[i]._replace(status="abandoned", silent=False, read=0, at=0)
        held = [b for b in batches if b.status != "abandoned"]
        if any(b.claims & me.free for b in held) and self.claims_exclude_claims:
            return f"{name} is refused by the database.", over._replace(refused=True)
        batches.append(Batch(name, "planned", me.free))
        words = f"{name} stores batch {len(batches)} with {shown(me.free)}"
        words += " and abandons its orphans." if me.orphans else "."
        after = over._replace(batches=tuple(batches))
        return words, after._replace(floor=self._floor(after))

    def _floor(self, s: Losses) -> int:
        """The first record that is free, or may become free."""
        held = s.lost
        for batch in s.batches:
            passed = ("committed",) if self.floor_waits_for_planned else ("committed", "planned")
            if batch.status in passed:
                held |= batch.claims
        return next(n for n in range(self.cells + 1) if not held >> n & 1)

    def _batch(self, s: Losses, i: int) -> Iterator[tuple[str, Losses]]:
        batch, name = s.batches[i], f"Batch {i + 1}"

        def now(**changes: object) -> Losses:
            return s._replace(batches=swap(s.batches, i, batch._replace(**changes)))

        if batch.status != "planned":
            return
        left = batch.claims & ~before(batch.at)
        if not left:
            yield f"{name} is committed.", now(status="committed", silent=False)
        else:
            n = (left & -left).bit_length() - 1
            if n >= s.low:
                words = f"{name} reads record {n}."
                yield words, now(read=batch.read | 1 << n, at=n + 1)
            elif not self.a_deleted_start_is_an_error:
                yield f"{name} passes over record {n}, which is gone.", now(at=n + 1)
        given_up = sum(b.silent or b.status == "abandoned" for b in s.batches)
        if batch.silent:
            yield f"{name} gives a sign of life.", now(silent=False)
        elif given_up < SILENT_MAX:
            yield f"{name} gives no sign of life for long.", now(silent=True)
        # Whose records are gone can always be abandoned, or nothing would go on.
        if given_up - batch.silent < SILENT_MAX or left & before(s.low):
            yield f"{name} is abandoned.", now(status="abandoned", silent=False, read=0, at=0)

    def _orphans(self, s: Losses, k: int) -> int:
        """Silent batches of other requests."""
        own = self.names[k]
        return bits(
            s.batches, lambda b: b.status == "planned" and b.silent and b.request != own
        )

    def _free(self, s: Losses, but: int) -> int:
        """What no batch has claimed, but for some, and what is not lost."""
        taken = (s.lost if self.losses_are_subtracted else 0) | before(s.floor)
        for i, batch in enumerate(s.batches):
            if batch.status != "abandoned" and not but >> i & 1:
                taken |= batch.claims
        return before(self.cells) & ~taken


def _of(s: Losses) -> tuple:
    """What the ledger holds of the partition; as its version, another one after each change."""
    return s.lost, s.told, tuple((b.request, b.status, b.claims) for b in s.batches)
