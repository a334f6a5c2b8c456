"""Ids: what an attempt consults, what a commit compares, and what collect merges and forgets.

Two batches share ids with each other and with what was committed before. Their attempts read the
id runs that they pinned one by one; drivers compare, lock and win. A driver may die at every step
and begin again, also while its earlier attempt goes on as a zombie.

There are four scopes of what collect does at once. "merge": it merges runs and deletes payloads.
"forgotten": in dedup.scope `bucket` the horizon of what was committed ends, the buckets of runs are
forgotten, runs are retired by age and payloads deleted. "drop": the same at once, and the segment's
span ends and it is dropped. "new" is "drop" where the run from before lies in an earlier segment.

What it leaves away: Bloom filters and shards (a run is the set of its ids), the files of an attempt
and its abandonment (model_batch), the lease. Ids 0 and 1 are of one bucket, id 2 of another: once a
bucket is forgotten, its records are late in every new attempt.
"""

from collections.abc import Iterator
from typing import NamedTuple

from model_search import Model, bits, setter, shown, swap

TWICE = "an id is in the output twice"
LOST = "a record is in no output, and nothing accounts for it"
GONE = "ids that an open attempt needs are gone"
ALARM = "an attempt is refused though nothing is damaged"
LATE = "a record is late whose bucket nobody ever read"

BATCHES = ("A", "B")
WANTED = (0b011, 0b101)  # A holds ids 0 and 1, B ids 0 and 2.
BEFORE = 0b010  # Committed before as place 1: id 1.
BUCKETS = (0b011, 0b100)  # The ids of each bucket.

IDLE, PINNED, LISTED, COMPARED, LOCKED, CHECKED = range(6)


class Run(NamedTuple):
    """`seq` is 0 until it is published. `asked`: the attempts that began before it was retired."""

    ids: int
    seq: int = 0
    retired: bool = False
    asked: int = 0
    there: bool = True


class Attempt(NamedTuple):
    """`pinned`: runs that it has yet to ask. `rows`: what it keeps; `ids`: what it registers."""

    batch: int
    status: str  # running, staged, won, lost
    seq: int
    forgotten: int
    pinned: int
    rows: int
    ids: int
    segment: int = 0  # 0 the one that may be dropped, 1 the one after it.
    copies: int = 0  # Without a pinned list: how many tasks have read.


def _is_open(attempt: Attempt) -> bool:
    return attempt.status in ("running", "staged")


class Driver(NamedTuple):
    """`seq` and `runs`: what it read: the place compared so far, and runs as bits."""

    at: int = IDLE
    attempt: int = -1
    seq: int = 0
    runs: int = 0
    forgotten: int = 0
    segment: int = 0


class Catalog(NamedTuple):
    """Runs: those of the attempts by their number, then the one from before, then merged ones."""

    runs: tuple[Run | None, ...]
    attempts: tuple[Attempt, ...] = ()
    drivers: tuple[Driver, ...] = (Driver(),) * len(BATCHES)
    seq: int = 1
    lock: int = -1
    merging: int = 0  # Runs that a merge has read, as bits.
    half_merged: int = 0  # Parts whose merged run is to follow in a transaction of its own.
    old: bool = False  # The horizon of what was committed is over.
    forgotten: int = 0  # Buckets, as bits.
    closed: int = -1  # The segment's span is over: the attempts that began before, as bits.
    dropped: bool = False
    gone: bool = False
    alarm: bool = False


class CatalogModel(Model):
    """See the module."""

    GUARDS = {
        "pipeline lock": "nobody takes the pipeline's lock",
        "pinned list": "each task asks the runs that are live when it starts",
        "same ids": "a second task may register other ids than the first",
        "compare": "commit does not compare with newer runs",
        "sequence check": "commit does not look whether others committed since it compared",
        "merged seq_max": "a merged run counts as old as its oldest part",
        "merge is one transaction": "a merge retires its parts before its run is there",
        "payload is kept": "collect deletes what is retired, whoever pinned it",
        "missing is an error": "a run that is missing counts as `no ids`",
        "forgotten before retirement": "runs are retired before their buckets are forgotten",
        "forgotten at commit": "commit does not look at what is forgotten",
        "what nobody read is open": "all buckets of some age are forgotten",
        "forgotten since it began": "commit counts what was forgotten before, too",
        "drop asks for attempts": "a segment is dropped though an open attempt may ask it",
        "attempt before segment": "an attempt's segment is chosen before the attempt is inserted",
    }

    scope = "merge"
    attempts_max = 3
    """After so many there are no new ones."""

    def start(self) -> Catalog:
        return Catalog(runs=(None,) * self.attempts_max + (Run(BEFORE, seq=1),))

    def damages(self, s: Catalog) -> Iterator[str]:
        owned, twice = BEFORE, 0
        won = [a for a in s.attempts if a.status == "won"]
        for attempt in won:
            twice |= owned & attempt.rows
            owned |= attempt.rows
        if twice:
            yield TWICE
        if any(WANTED[a.batch] & ~late(a.forgotten) & ~owned for a in won):
            yield LOST
        if any(WANTED[a.batch] & late(a.forgotten & ~buckets_of(owned)) for a in won):
            yield LATE
        if s.gone:
            yield GONE
        if s.alarm:
            yield ALARM

    def ended(self, s: Catalog) -> bool:
        spent = len(s.attempts) == self.attempts_max
        for batch in range(len(BATCHES)):
            states = {a.status for a in s.attempts if a.batch == batch}
            if "won" not in states and not (spent and states <= {"lost"}):
                return False
        return True

    def steps(self, s: Catalog) -> Iterator[tuple[str, Catalog]]:
        for k in range(len(BATCHES)):
            yield from self._driver(s, k)
        for i, attempt in enumerate(s.attempts):
            if attempt.status == "running":
                yield from self._attempt(s, i, attempt)
        yield from self._merge(s) if self.scope == "merge" else self._forget(s)
        yield from self._drop(s) if self.scope in ("drop", "new") else self._delete(s)

    # What stage does.

    def _attempt(self, s: Catalog, i: int, a: Attempt) -> Iterator[tuple[str, Catalog]]:
        name = f"Attempt {i + 1} ({BATCHES[a.batch]})"
        now = setter(s, "attempts", i)
        if self.pinned_list and a.pinned:
            r = (a.pinned & -a.pinned).bit_length() - 1
            run, rest = s.runs[r], a.pinned & (a.pinned - 1)
            if run.there:
                left = a.rows & ~run.ids
                words = f"{name} asks run {self._name(r)} and keeps {shown(left)}."
                yield words, now(a._replace(pinned=rest, rows=left, ids=left))
            elif self.missing_is_an_error:
                words = f"{name} finds no payload of run {self._name(r)}: an error."
                yield words, now(a._replace(status="lost"), gone=True)
            else:
                words = f"{name} finds no payload of run {self._name(r)}: `no ids`."
                yield words, now(a._replace(pinned=rest))
            return
        if not self.pinned_list and a.copies < 2:
            yield from self._copies(s, name, a, now)
            return
        if a.ids and s.dropped and a.segment == 0:
            words = f"{name} finds no table for its ids: an error."
            yield words, now(a._replace(status="lost"), gone=True)
            return
        stored = swap(s.runs, i, Run(a.ids)) if a.ids else s.runs
        yield f"{name} stores {shown(a.ids)} and is staged.", now(
            a._replace(status="staged"), runs=stored
        )

    def _copies(self, s: Catalog, name: str, a: Attempt, now: object) -> Iterator:
        """Without a pinned list a task and its speculative copy may see different runs."""
        left = WANTED[a.batch] & ~late(a.forgotten) & ~self._held(s)
        if a.copies == 0:
            words = f"{name}: a task reads which runs are live, and keeps {shown(left)}."
            yield words, now(a._replace(copies=1, rows=left, ids=left))
        elif left != a.rows and self.same_ids:
            words = f"{name}: a copy of the task stored other ids: an error."
            yield words, now(a._replace(status="lost"), alarm=True)
        else:
            words = f"{name}: a copy of it reads the same, and stores {shown(left)} first."
            yield words, now(a._replace(copies=2, ids=left))

    def _held(self, s: Catalog) -> int:
        held = 0
        for run in s.runs:
            if run and run.seq and not run.retired:
                held |= run.ids
        return held

    # What a driver does: begin attempts, and commit what is staged.

    def _driver(self, s: Catalog, k: int) -> Iterator[tuple[str, Catalog]]:
        me, name = s.drivers[k], f"{BATCHES[k]}'s driver"
        mine = [i for i, a in enumerate(s.attempts) if a.batch == k]
        now = setter(s, "drivers", k)
        lock = -1 if s.lock == k else s.lock
        may = s.lock < 0 or not self.pipeline_lock
        if me.at == IDLE:
            if any(s.attempts[i].status == "won" for i in mine):
                return
            staged = [i for i in mine if s.attempts[i].status == "staged"]
            if staged:
                i = staged[-1]
                yield self._list(s, k, Driver(LISTED, i, s.attempts[i].seq), now, {})
            elif len(s.attempts) < self.attempts_max and may:
                live = self._live(s, 0)
                pins = Driver(PINNED, -1, s.seq, live, s.forgotten, int(s.closed >= 0))
                words = f"{name} reads that the runs {self._names(live)} are live."
                yield words, now(pins, lock=k if self.pipeline_lock else -1)
            return
        yield f"{name} dies.", now(Driver(), lock=lock)
        if me.at == PINNED:
            if len(s.attempts) < self.attempts_max:
                yield self._begin(s, k, now, lock)
        elif me.at == LISTED:
            yield from self._compare(s, k, me, now)
        elif me.at == COMPARED:
            if may:
                words = f"{name} takes the lock."
                yield words, now(me._replace(at=LOCKED), lock=k if self.pipeline_lock else -1)
        elif me.at == LOCKED:
            yield self._check(s, k, me, now, lock)
        elif me.at == CHECKED:
            yield self._win(s, k, me, now, lock)

    def _begin(self, s: Catalog, k: int, now: object, lock: int) -> tuple[str, Catalog]:
        me = s.drivers[k]
        rows = WANTED[k] & ~late(me.forgotten)
        segment = int(s.closed >= 0) if self.attempt_before_segment else me.segment
        made = Attempt(k, "running", me.seq, me.forgotten, me.runs, rows, rows, segment)
        words = f"{BATCHES[k]}'s driver inserts attempt {len(s.attempts) + 1} with that list."
        return words, now(Driver(), lock=lock, attempts=(*s.attempts, made))

    def _list(
        self, s: Catalog, k: int, me: Driver, now: object, changes: dict
    ) -> tuple[str, Catalog]:
        newer = self._live(s, me.seq) if self.compare else 0
        words = f"{BATCHES[k]}'s driver will compare attempt {me.attempt + 1} with the runs "
        words += f"{self._names(newer)}, newer than commit {me.seq}; the last commit is {s.seq}."
        return words, now(Driver(LISTED, me.attempt, s.seq, newer), **changes)

    def _compare(self, s: Catalog, k: int, me: Driver, now: object) -> Iterator:
        name, attempt = f"{BATCHES[k]}'s driver", s.attempts[me.attempt]
        if attempt.status != "staged":
            yield f"{name} finds its attempt ended.", now(Driver())
            return
        newer = [run for r, run in enumerate(s.runs) if me.runs >> r & 1]
        if any(not run.there for run in newer):
            yield f"{name} finds a newer run without payload.", now(Driver(), gone=True)
        elif any(run.ids & attempt.ids for run in newer):
            attempts = swap(s.attempts, me.attempt, attempt._replace(status="lost"))
            words = f"{name} finds a common id: attempt {me.attempt + 1} is lost."
            yield words, now(Driver(), attempts=attempts)
        else:
            yield f"{name} finds no common id.", now(Driver(COMPARED, me.attempt, me.seq))

    def _check(self, s: Catalog, k: int, me: Driver, now: object, lock: int) -> tuple[str, Catalog]:
        name, attempt = f"{BATCHES[k]}'s driver", s.attempts[me.attempt]
        won = any(a.status == "won" and a.batch == k for a in s.attempts)
        if attempt.status != "staged" or won:
            return f"{name} finds its attempt ended.", now(Driver(), lock=lock)
        if s.seq != me.seq and self.sequence_check:
            return self._list(s, k, me, now, {"lock": lock})
        all_late = not self.forgotten_since_it_began
        since = s.forgotten if all_late else s.forgotten & ~attempt.forgotten
        if buckets_of(WANTED[k]) & since and self.forgotten_at_commit:
            attempts = swap(s.attempts, me.attempt, attempt._replace(status="lost"))
            words = f"{name} finds a bucket forgotten: attempt {me.attempt + 1} is lost."
            alarm = s.alarm or s.forgotten == attempt.forgotten  # So will be all that follow it.
            return words, now(Driver(), lock=lock, attempts=attempts, alarm=alarm)
        return f"{name} finds nothing against it.", now(me._replace(at=CHECKED))

    def _win(self, s: Catalog, k: int, me: Driver, now: object, lock: int) -> tuple[str, Catalog]:
        name = f"{BATCHES[k]}'s driver"
        # The sequence is moved from the compared place only.
        if s.seq != me.seq and self.sequence_check:
            return f"{name} cannot take its place.", now(Driver(), lock=lock)
        attempts = tuple(
            a._replace(status="won" if i == me.attempt else "lost") if a.batch == k else a
            for i, a in enumerate(s.attempts)
        )
        runs = s.runs
        if run := runs[me.attempt]:
            runs = swap(runs, me.attempt, run._replace(seq=s.seq + 1))
        words = f"Attempt {me.attempt + 1} ({BATCHES[k]}) wins as commit {s.seq + 1}."
        return words, now(Driver(), lock=lock, attempts=attempts, runs=runs, seq=s.seq + 1)

    # What collect does.

    def _merge(self, s: Catalog) -> Iterator[tuple[str, Catalog]]:
        before = self.attempts_max
        if s.half_merged:
            yield "Collect makes the merged run visible.", self._merged(s, s.half_merged)
        elif s.merging:
            yield "Collect dies in its merge.", s._replace(merging=0)
            if s.lock < 0 or not self.pipeline_lock:
                if self._live(s, 0) & s.merging != s.merging:
                    yield "Collect finds a part retired.", s._replace(merging=0)
                    return
                runs = self._retired(s, s.merging)
                parts = self._names(s.merging)
                if self.merge_is_one_transaction:
                    words = f"Collect replaces the runs {parts} by one that holds their ids."
                    yield words, self._merged(s._replace(runs=runs, merging=0), s.merging)
                else:
                    words = f"Collect retires the runs {parts}, which it merges."
                    yield words, s._replace(runs=runs, merging=0, half_merged=s.merging)
        elif len(s.runs) == before + 1:
            live = [r for r in range(len(s.runs)) if self._live(s, 0) >> r & 1]
            if len(live) > 1:
                parts = sum(1 << r for r in live)
                words = f"Collect reads the runs {self._names(parts)}, to merge them."
                yield words, s._replace(merging=parts)

    def _merged(self, s: Catalog, parts: int) -> Catalog:
        ids, places = 0, []
        for r, run in enumerate(s.runs):
            if parts >> r & 1:
                ids |= run.ids
                places.append(run.seq)
        seq = max(places) if self.merged_seq_max else min(places)
        return s._replace(runs=(*s.runs, Run(ids, seq=seq)), half_merged=0)

    def _retired(self, s: Catalog, which: int) -> tuple[Run | None, ...]:
        asked = bits(s.attempts, _is_open)
        return tuple(
            run._replace(retired=True, asked=asked) if which >> r & 1 else run
            for r, run in enumerate(s.runs)
        )

    def _delete(self, s: Catalog) -> Iterator[tuple[str, Catalog]]:
        for r, run in enumerate(s.runs):
            if run and run.retired and run.there:
                if not (self.payload_is_kept and self._open(s, run.asked)):
                    words = f"Collect deletes the payload of run {self._name(r)}."
                    yield words, s._replace(runs=swap(s.runs, r, run._replace(there=False)))

    def _forget(self, s: Catalog) -> Iterator[tuple[str, Catalog]]:
        if not s.old:
            yield "The horizon of what was committed ends.", s._replace(old=True)
            return
        live = self._live(s, 0)
        if s.lock >= 0 and self.pipeline_lock:
            return
        forgotten = s.forgotten | buckets_of(self._ids(s, live))
        if not self.what_nobody_read_is_open:
            forgotten = (1 << len(BUCKETS)) - 1
        if self.scope != "forgotten":
            words = f"Collect forgets and then retires the old runs {self._names(live)}."
            yield words, s._replace(forgotten=forgotten, runs=self._retired(s, live))
            return
        if forgotten != s.forgotten:
            words = f"Collect forgets the buckets of the old runs {self._names(live)}."
            yield words, s._replace(forgotten=forgotten)
        old = live
        if self.forgotten_before_retirement:
            all_late = (r for r in range(len(s.runs)) if live >> r & 1 and self._is_late(s, r))
            old = sum(1 << r for r in all_late)
        if old:
            words = f"Collect retires the old runs {self._names(old)}."
            yield words, s._replace(runs=self._retired(s, old))

    def _ids(self, s: Catalog, runs: int) -> int:
        held = 0
        for r, run in enumerate(s.runs):
            held |= run.ids if runs >> r & 1 else 0
        return held

    def _is_late(self, s: Catalog, r: int) -> bool:
        """Whether all that a run holds is of forgotten buckets."""
        return not buckets_of(s.runs[r].ids) & ~s.forgotten

    def _drop(self, s: Catalog) -> Iterator[tuple[str, Catalog]]:
        if s.closed < 0:
            words = "The segment's span ends."
            yield words, s._replace(closed=(1 << len(s.attempts)) - 1)
        elif not s.dropped and self._droppable(s):
            runs = tuple(
                run._replace(there=False) if run and self._in_segment(s, r) else run
                for r, run in enumerate(s.runs)
            )
            yield "Collect drops the segment.", s._replace(runs=runs, dropped=True)

    def _in_segment(self, s: Catalog, r: int) -> bool:
        if r == self.attempts_max:
            return self.scope == "drop"
        return s.attempts[r].segment == 0

    def _droppable(self, s: Catalog) -> bool:
        """No run in it is live or may come to be, and nobody is open who began early enough."""
        early = s.closed
        for r, run in enumerate(s.runs):
            if run and self._in_segment(s, r) and not run.retired:
                if r == self.attempts_max or s.attempts[r].status != "lost":
                    return False
            elif run and self._in_segment(s, r):
                early |= run.asked
        return not self.drop_asks_for_attempts or not self._open(s, early)

    def _open(self, s: Catalog, which: int) -> bool:
        return bool(which & bits(s.attempts, _is_open))

    # Words.

    def _live(self, s: Catalog, newer_than: int) -> int:
        """Runs that are visible and hold a commit after a place, as bits."""
        return bits(s.runs, lambda run: run and run.seq > newer_than and not run.retired)

    def _name(self, r: int) -> str:
        if r < self.attempts_max:
            return str(r + 1)
        return "0" if r == self.attempts_max else "M"

    def _names(self, bits: int) -> str:
        names = (self._name(r) for r in range(self.attempts_max + 2) if bits >> r & 1)
        return "{" + ", ".join(sorted(names)) + "}"


def buckets_of(ids: int) -> int:
    """The buckets of some ids, as bits."""
    return sum(1 << b for b, own in enumerate(BUCKETS) if ids & own)


def late(forgotten: int) -> int:
    """The ids of some buckets."""
    return sum(own for b, own in enumerate(BUCKETS) if forgotten >> b & 1)
