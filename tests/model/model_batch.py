"""One batch from its plan to its end: attempts, twins, zombies, lost replies, abandonment.

Two drivers call stage, commit and finalize on one batch again and again, each dying at any step;
their attempts go on without them. Its source is edited once, at any time. Somebody abandons it, and
another request then plans the same records. Collect removes what it may. A COMMIT may be on its way
while its caller was told nothing, and may land later or never.

A transaction is taken apart where another may come between: locks, what is read under them, and the
moment when it commits. What a statement saw before its COMMIT is what the transaction changes.

What it leaves away: ids, so a comparison never finds anything (model_catalog), which bytes are
planned (model_claims), the names of files (model_finalize), and the commit lease, which only makes
commits wait.
"""

from collections.abc import Iterator
from typing import NamedTuple

from model_search import Model, bits, setter, swap

WON_TWICE = "two attempts of one batch have won"
TAKEN_TWICE = "the same records are in two batches"
NO_FILES = "a committed batch is without its files"
OPEN = "an attempt is open though its batch has ended"
OTHER_BYTES = "two attempts of one batch hold other records"
ZOMBIE_IDS = "an attempt that was given up stores ids"
REFUSED = "a verb ran into a constraint of the database"

DRIVERS = ("Driver A", "Driver B")
IDLE, BEGINNING, COMPARED, LOCKED, SENT = "idle", "beginning", "compared", "locked", "sent"
UNTOLD = "untold"


class Attempt(NamedTuple):
    """`wrote`: 0 no files yet, 1 its files are whole, 2 its folder was removed."""

    status: str = "running"  # running, staged, won, lost
    wrote: int = 0
    ids: int = 0
    version: int = 0
    sealing: bool = False


def _is_open(attempt: Attempt) -> bool:
    return attempt.status in ("running", "staged")


class Driver(NamedTuple):
    """`seen`: what a statement of its transaction saw: attempts as bits, or how many there were."""

    at: str = IDLE
    attempt: int = -1
    seen: int = 0


class Flight(NamedTuple):
    """A COMMIT that was sent and is not answered: it holds its locks until it lands or dies."""

    attempt: int
    losers: int


class Life(NamedTuple):
    """`lock`, `row`: who holds the pipeline's lock and the batch's: a driver's number, 2 abandon, 3
    the COMMIT on its way, -1 nobody."""

    status: str = "planned"  # planned, committed, finalized, abandoned
    other: int = 0  # Of the other request that takes the records: 1 planned, 2 committed.
    attempts: tuple[Attempt, ...] = ()
    drivers: tuple[Driver, ...] = (Driver(), Driver())
    flight: Flight | None = None
    abandoning: int = -1  # -1 idle, else the attempts that it saw open, as bits, plus 1.
    lock: int = -1
    row: int = -1
    edited: int = 0
    refused: bool = False


class BatchModel(Model):
    """See the module."""

    GUARDS = {
        "pipeline lock": "no transaction takes the pipeline's lock",
        "abandon takes the lock": "abandon does not take the pipeline's lock",
        "states are expected": "commit does not look at the states of batch and attempt",
        "one winner in the database": "the database lets two attempts of one batch win",
        "siblings are lost at once": "the winner's siblings are not lost in its transaction",
        "ids only while running": "ids are stored whatever became of the attempt",
        "input digest": "attempts that read other bytes are staged",
        "digest under the lock": "the digests are compared without the batch's lock",
        "unknown stays unknown": "a lost reply counts as a failure: the staged files are removed",
        "folders of the lost": "collect removes folders of attempts that are not lost",
    }

    attempts_max = 2
    """After so many there are no new ones."""

    def start(self) -> Life:
        return Life()

    def damages(self, s: Life) -> Iterator[str]:
        winners = [a for a in s.attempts if a.status == "won"]
        done = s.status in ("committed", "finalized")
        if len(winners) > 1:
            yield WON_TWICE
        if s.other and (done or s.status == "planned"):
            yield TAKEN_TWICE
        if s.status == "committed" and any(a.wrote != 1 for a in winners):
            yield NO_FILES
        if s.status != "planned" and any(map(_is_open, s.attempts)):
            yield OPEN
        if len({a.version for a in s.attempts if a.status in ("staged", "won")}) > 1:
            yield OTHER_BYTES
        if any(a.ids > 1 for a in s.attempts):
            yield ZOMBIE_IDS
        if s.refused:
            yield REFUSED

    def ended(self, s: Life) -> bool:
        spent = len(s.attempts) == self.attempts_max and not any(map(_is_open, s.attempts))
        quiet = s.lock < 0 and s.row < 0
        if s.status == "planned":
            return quiet and spent
        return s.status == "finalized" or (s.status == "abandoned" and s.other == 2)

    def steps(self, s: Life) -> Iterator[tuple[str, Life]]:
        if not s.edited:
            yield "Somebody edits the source.", s._replace(edited=1)
        for k in range(len(DRIVERS)):
            yield from self._driver(s, k)
        for i, attempt in enumerate(s.attempts):
            yield from self._attempt(s, i, attempt)
        if s.flight:
            yield from self._flight(s, s.flight)
        yield from self._abandon(s)
        if s.status == "abandoned" and s.other == 0:
            yield "Another request plans the records.", s._replace(other=1)
        if s.other == 1:
            yield "The other request's batch is committed.", s._replace(other=2)
        if s.status == "committed":
            yield "The batch is finalized.", s._replace(status="finalized")

    def _attempt(self, s: Life, i: int, a: Attempt) -> Iterator[tuple[str, Life]]:
        name = f"attempt {i + 1}"
        now = setter(s, "attempts", i)
        if a.wrote == 0 and a.status in ("running", "lost"):
            words = f"A task of {name} writes its files."
            yield words, now(a._replace(wrote=1, version=s.edited))
        if a.ids == 0 and a.wrote == 1 and a.status == "running":
            yield f"A task of {name} stores ids.", now(a._replace(ids=1))
        if a.ids == 0 and a.status == "lost" and not self.ids_only_while_running:
            yield f"A late task of {name} stores ids.", now(a._replace(ids=2))
        if a.sealing:
            if a.status == "running":
                words = f"{name.capitalize()} is staged."
                yield words, now(a._replace(status="staged", sealing=False))
            else:
                yield f"{name.capitalize()} is told it is lost.", now(a._replace(sealing=False))
            yield f"The driver of {name} dies.", now(a._replace(sealing=False))
        elif a.status == "running":
            if a.ids == 1 and self._row_free(s):
                yield self._seal(s, i, a)
            yield f"The driver of {name} gives it up.", now(a._replace(status="lost"))
        over = a.status == "lost" or s.status == "finalized" or not self.folders_of_the_lost
        if a.wrote < 2 and over:
            yield f"Collect removes the folder of {name}.", now(a._replace(wrote=2))

    def _row_free(self, s: Life) -> bool:
        """Whether the batch's row can be locked: who seals an attempt holds it too."""
        return s.row < 0 and not (self.digest_under_the_lock and any(a.sealing for a in s.attempts))

    def _seal(self, s: Life, i: int, a: Attempt) -> tuple[str, Life]:
        sealed = [x for x in s.attempts if x.status in ("staged", "won")]
        name = f"attempt {i + 1}"
        if self.input_digest and any(x.version != a.version for x in sealed):
            lost = a._replace(status="lost")
            words = f"{name.capitalize()} read other bytes than one before it, and is lost."
            return words, s._replace(attempts=swap(s.attempts, i, lost))
        sealing = a._replace(sealing=True)
        words = f"The driver of {name} is about to stage it."
        return words, s._replace(attempts=swap(s.attempts, i, sealing))

    def _driver(self, s: Life, k: int) -> Iterator[tuple[str, Life]]:
        me, name = s.drivers[k], DRIVERS[k]
        now = setter(s, "drivers", k)
        if me.at == IDLE:
            staged = [i for i, a in enumerate(s.attempts) if a.status == "staged"]
            if s.status == "planned" and staged:
                words = f"{name} compares attempt {staged[-1] + 1}."
                yield words, now(Driver(COMPARED, staged[-1]))
            elif s.status == "planned" and len(s.attempts) < self.attempts_max:
                if s.lock < 0 or not self.pipeline_lock:
                    seen = len(s.attempts)
                    words = f"{name} sees a planned batch and inserts attempt {seen + 1}"
                    held = k if self.pipeline_lock else -1
                    yield f"{words}, uncommitted.", now(Driver(BEGINNING, -1, seen), lock=held)
            return
        lock, row = (-1 if held == k else held for held in (s.lock, s.row))
        if me.at == BEGINNING:
            if me.seen == len(s.attempts):
                made = (*s.attempts, Attempt())
                yield f"{name} commits attempt {len(made)}.", now(
                    Driver(), lock=lock, attempts=made
                )
            else:
                words = f"{name} is refused its fence by the database."
                yield words, now(Driver(), lock=lock, refused=True)
        if me.at == UNTOLD:
            yield from self._untold(s, k)
        else:
            yield f"{name} dies.", now(Driver(), lock=lock, row=row)
        if me.at == COMPARED and self._row_free(s) and (s.lock < 0 or not self.pipeline_lock):
            held = k if self.pipeline_lock else -1
            yield f"{name} takes the locks.", now(me._replace(at=LOCKED), lock=held, row=k)
        if me.at == LOCKED:
            right = s.status == "planned" and s.attempts[me.attempt].status == "staged"
            if not right and self.states_are_expected:
                words = f"{name} finds batch or attempt ended, and lets go."
                yield words, now(Driver(), lock=lock, row=row)
            else:
                yield self._send(s, k, me, now)

    def _send(self, s: Life, k: int, me: Driver, now: object) -> tuple[str, Life]:
        losers = 0
        if self.siblings_are_lost_at_once:
            losers = bits(s.attempts, _is_open) & ~(1 << me.attempt)
        lock, row = (3 if held == k else held for held in (s.lock, s.row))
        words = f"{DRIVERS[k]} sends the COMMIT that lets attempt {me.attempt + 1} win."
        flight = Flight(me.attempt, losers)
        return words, now(Driver(UNTOLD, me.attempt), flight=flight, lock=lock, row=row)

    def _untold(self, s: Life, k: int) -> Iterator[tuple[str, Life]]:
        """The caller has no answer: it asks again, which is all that it may do."""
        me, name = s.drivers[k], DRIVERS[k]
        drivers = swap(s.drivers, k, Driver())
        yield f"{name} got no reply, and asks again.", s._replace(drivers=drivers)
        attempt = s.attempts[me.attempt]
        if not self.unknown_stays_unknown and attempt.status == "staged" and attempt.wrote == 1:
            attempts = swap(s.attempts, me.attempt, attempt._replace(wrote=2))
            words = f"{name} got no reply, reads `staged`, and removes the staged files."
            yield words, s._replace(drivers=drivers, attempts=attempts)

    def _flight(self, s: Life, flight: Flight) -> Iterator[tuple[str, Life]]:
        lock, row = (-1 if held == 3 else held for held in (s.lock, s.row))
        over = s._replace(flight=None, lock=lock, row=row)
        yield "The COMMIT never arrives.", over
        won = any(a.status == "won" for a in s.attempts)
        if won and self.one_winner_in_the_database:
            yield "The database refuses a second winner.", over._replace(refused=True)
            return
        attempts = list(s.attempts)
        attempts[flight.attempt] = attempts[flight.attempt]._replace(status="won")
        for i, a in enumerate(attempts):
            if flight.losers >> i & 1:
                attempts[i] = a._replace(status="lost")
        words = f"The COMMIT lands: attempt {flight.attempt + 1} has won."
        yield words, over._replace(attempts=tuple(attempts), status="committed")

    def _abandon(self, s: Life) -> Iterator[tuple[str, Life]]:
        lock, row = (-1 if held == 2 else held for held in (s.lock, s.row))
        if s.abandoning < 0:
            locks = self.pipeline_lock and self.abandon_takes_the_lock
            may = self._row_free(s) and (s.lock < 0 or not locks)
            if s.status == "planned" and may:
                seen, held = bits(s.attempts, _is_open), 2 if locks else s.lock
                words = "Somebody abandons the batch and the attempts that are open, uncommitted."
                yield words, s._replace(abandoning=seen + 1, lock=held, row=2)
            return
        yield "Who abandons dies.", s._replace(abandoning=-1, lock=lock, row=row)
        attempts = tuple(
            a._replace(status="lost") if (s.abandoning - 1) >> i & 1 else a
            for i, a in enumerate(s.attempts)
        )
        words = "The abandonment commits, and the records are free."
        yield words, s._replace(
            abandoning=-1, lock=lock, row=row, attempts=attempts, status="abandoned"
        )
