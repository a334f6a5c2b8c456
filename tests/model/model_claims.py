"""plan: which batch gets which bytes. Planners, a twin of one, orphans, abandonment, a file that
grows.

Two requests, r1 and r2, plan over one file of two records; r1 has a twin that runs at the same
time. The second record is appended at any moment. Batches are staged, committed and finalized, fall
silent and come back to life, are abandoned and are taken over. A planner may die at every step.

What it leaves away: what is in the file and how ranges are cut (a plan takes all that is free),
refused files, intervals, sinks; how a batch is staged, committed and abandoned inside (model_batch)
and its ids (model_catalog). `known` is not read again: the file never changes its identity here.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from model_search import Model, setter, shown, swap

CLAIMED_TWICE = "a byte is claimed by two batches"
TWO_BATCHES = "one request has two batches on their way"
UNREAD = "a batch accounts for a record that its output does not hold"
REFUSED = "a verb ran into a constraint of the database"

PLANNERS = (("r1's plan", "r1"), ("r1's twin", "r1"), ("r2's plan", "r2"))
SILENT_MAX = 1
CELLS = 2

IDLE, ASKED, CUT, LOCKED, AGREED = range(5)


class Batch(NamedTuple):
    """`claims` and `staged` are sets of records as bits: claimed, and held by a staged attempt."""

    request: str
    ordinal: int
    status: str  # planned, committed, finalized, abandoned
    claims: int
    staged: int = 0
    silent: bool = False


class Planner(NamedTuple):
    at: int = IDLE
    latest: int = -1
    orphans: int = 0
    free: int = 0


class Claims(NamedTuple):
    planners: tuple[Planner, ...]
    batches: tuple[Batch, ...] = ()
    lock: int = -1
    records: int = 1
    refused: bool = False


class ClaimsModel(Model):
    """See the module."""

    GUARDS = {
        "pipeline lock": "plan writes without the pipeline's lock",
        "re-read under the lock": "plan trusts what it read before it had the lock",
        "exclusion constraint": "the database lets two claims overlap",
        "request key": "the database lets one request have two batches of one number",
        "plan is written down": "a retried batch claims what is free by then",
    }

    def start(self) -> Claims:
        return Claims(planners=(Planner(),) * len(PLANNERS))

    def damages(self, s: Claims) -> Iterator[str]:
        held = [b for b in s.batches if b.status != "abandoned"]
        for one, other in combinations(held, 2):
            if one.claims & other.claims:
                yield CLAIMED_TWICE
            on_way = one.status != "finalized" and other.status != "finalized"
            if on_way and one.request == other.request:
                yield TWO_BATCHES
        if any(b.status == "committed" and b.staged != b.claims for b in held):
            yield UNREAD
        if s.refused:
            yield REFUSED

    def ended(self, s: Claims) -> bool:
        done = 0
        for batch in s.batches:
            if batch.status == "finalized":
                done |= batch.claims
            elif batch.status != "abandoned":
                return False
        return s.records == CELLS and done == (1 << CELLS) - 1

    def steps(self, s: Claims) -> Iterator[tuple[str, Claims]]:
        if s.records < CELLS:
            yield "The file grows by a record.", s._replace(records=s.records + 1)
        for k in range(len(PLANNERS)):
            yield from self._planner(s, k)
        for i in range(len(s.batches)):
            yield from self._batch(s, i)

    def _planner(self, s: Claims, k: int) -> Iterator[tuple[str, Claims]]:
        name, request = PLANNERS[k]
        me = s.planners[k]
        now = setter(s, "planners", k)
        if me.at == IDLE:
            latest = self._latest(s, request)
            if latest < 0 or s.batches[latest].status in ("finalized", "abandoned"):
                seen = f"batch {latest + 1} as the last" if latest >= 0 else "no batch"
                yield f"{name} finds {seen} of its request.", now(Planner(ASKED, latest))
            return  # Otherwise that batch is the answer, and nothing changes.
        free = -1 if s.lock == k else s.lock
        yield f"{name} dies.", now(Planner(), lock=free)
        if me.at == ASKED:
            orphans, unclaimed = self._free(s, request)
            words = f"{name} reads that {shown(unclaimed)} is unclaimed."
            yield words, now(Planner(CUT, me.latest, orphans, unclaimed))
        elif me.at == CUT:
            if not self.pipeline_lock:
                yield f"{name} begins to write.", now(me._replace(at=LOCKED))
            elif s.lock < 0:
                yield f"{name} takes the lock.", now(me._replace(at=LOCKED), lock=k)
        elif me.at == LOCKED:
            fresh = (self._latest(s, request), *self._free(s, request)) == me[1:]
            if fresh or not self.re_read_under_the_lock:
                again = "the same" if self.re_read_under_the_lock else "nothing"
                yield f"{name} reads {again} again.", now(me._replace(at=AGREED))
            else:
                yield f"{name} reads something else under the lock.", now(Planner(), lock=free)
        elif me.free == 0:
            yield f"{name} has nothing to take.", now(Planner(), lock=free)
        else:
            yield self._write(s, k, now(Planner(), lock=free))

    def _write(self, s: Claims, k: int, over: Claims) -> tuple[str, Claims]:
        """One transaction: orphans are abandoned, the batch and its claims are written."""
        name, request = PLANNERS[k]
        me = s.planners[k]
        batches = list(s.batches)
        for i in range(len(batches)):
            if me.orphans >> i & 1:
                if batches[i].status != "planned":
                    return f"{name} finds its orphan not planned any more.", over
                batches[i] = batches[i]._replace(status="abandoned", silent=False)
        held = [b for b in batches if b.status != "abandoned"]
        ordinal = batches[me.latest].ordinal + 1 if me.latest >= 0 else 1
        same = any((b.request, b.ordinal) == (request, ordinal) for b in batches)
        overlaps = any(b.claims & me.free for b in held)
        if (same and self.request_key) or (overlaps and self.exclusion_constraint):
            return f"{name} is refused by the database.", over._replace(refused=True)
        made = Batch(request, ordinal, "planned", me.free)
        words = f"{name} stores batch {len(batches) + 1} with {shown(me.free)}"
        if me.orphans:
            words += " and abandons its orphans"
        return f"{words}.", over._replace(batches=(*batches, made))

    def _batch(self, s: Claims, i: int) -> Iterator[tuple[str, Claims]]:
        batch, name = s.batches[i], f"Batch {i + 1}"

        def now(**changes: object) -> Claims:
            return s._replace(batches=swap(s.batches, i, batch._replace(**changes)))

        may = s.lock < 0 or not self.pipeline_lock
        if batch.status == "committed":
            yield f"{name} is finalized.", now(status="finalized")
        if batch.status != "planned":
            return
        if not self.plan_is_written_down and not batch.staged:
            yield f"{name} is staged.", now(staged=batch.claims)
        elif may:
            staged = batch.staged or batch.claims
            words = f"{name} is committed."
            yield words, now(status="committed", staged=staged, silent=False)
        given_up = sum(b.silent or b.status == "abandoned" for b in s.batches)
        if batch.silent:
            yield f"{name} gives a sign of life.", now(silent=False)
        elif given_up < SILENT_MAX:
            yield f"{name} gives no sign of life for long.", now(silent=True)
        if may and given_up - batch.silent < SILENT_MAX:
            yield f"{name} is abandoned.", now(status="abandoned", silent=False)
        if not self.plan_is_written_down:
            others = [b for n, b in enumerate(s.batches) if n != i and b.status != "abandoned"]
            claims = (1 << s.records) - 1
            for other in others:
                claims &= ~other.claims
            if claims != batch.claims:
                words = f"{name} is retried and claims {shown(claims)}, which is free by now."
                yield words, now(claims=claims)

    def _latest(self, s: Claims, request: str) -> int:
        found = [i for i, batch in enumerate(s.batches) if batch.request == request]
        return max(found, key=lambda i: s.batches[i].ordinal, default=-1)

    def _free(self, s: Claims, request: str) -> tuple[int, int]:
        """Orphans of other requests, and what nobody else holds."""
        orphans, free = 0, (1 << s.records) - 1
        for i, batch in enumerate(s.batches):
            if batch.status == "planned" and batch.silent and batch.request != request:
                orphans |= 1 << i
            elif batch.status != "abandoned":
                free &= ~batch.claims
        return orphans, free
