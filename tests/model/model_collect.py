"""Ids, with collect: it merges and forgets id runs while attempts and commits need them.

There are four scopes of what it does at once. "merge": it merges runs and deletes payloads.
"forgotten": in dedup.scope `bucket` the horizon of what was committed ends, the buckets of runs are
forgotten, runs are retired by age and payloads deleted. "drop": the same at once, and the segment's
span ends and it is dropped. "new" is "drop" where the run from before lies in an earlier segment.

What stage and commit do, and what is left away, stands in model_catalog.
"""

from collections.abc import Iterator

from model_catalog import BUCKETS, Catalog, Run, StageAndCommit, buckets_of
from model_search import swap


class CatalogModel(StageAndCommit):
    """See the module."""

    def steps(self, s: Catalog) -> Iterator[tuple[str, Catalog]]:
        yield from super().steps(s)
        if self.scope == "merge":
            yield from self._merge(s)
        else:
            yield from self._forget(s)
        if self.scope in ("drop", "new"):
            yield from self._drop(s)
        else:
            yield from self._delete(s)

    def _merge(self, s: Catalog) -> Iterator[tuple[str, Catalog]]:
        before = self.attempts_max
        if s.half_merged:
            yield "Collect makes the merged run visible.", self._merged(s, s.half_merged)
        elif s.merging:
            yield "Collect dies in its merge.", s._replace(merging=0)
            if s.lock < 0 or not self.lock:
                if self._live(s, 0) & s.merging != s.merging:
                    yield "Collect finds a part retired.", s._replace(merging=0)
                    return
                runs = self._retired(s, s.merging)
                parts = self._names(s.merging)
                if self.one_merge:
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
        seq = max(places) if self.seq_max else min(places)
        return s._replace(runs=(*s.runs, Run(ids, seq=seq)), half_merged=0)

    def _retired(self, s: Catalog, which: int) -> tuple[Run | None, ...]:
        asked = sum(1 << i for i, a in enumerate(s.attempts) if a.status in ("running", "staged"))
        return tuple(
            run._replace(retired=True, asked=asked) if which >> r & 1 else run
            for r, run in enumerate(s.runs)
        )

    def _delete(self, s: Catalog) -> Iterator[tuple[str, Catalog]]:
        for r, run in enumerate(s.runs):
            if run and run.retired and run.there:
                if not (self.payload and self._open(s, run.asked)):
                    words = f"Collect deletes the payload of run {self._name(r)}."
                    yield words, s._replace(runs=swap(s.runs, r, run._replace(there=False)))

    def _forget(self, s: Catalog) -> Iterator[tuple[str, Catalog]]:
        if not s.old:
            yield "The horizon of what was committed ends.", s._replace(old=True)
            return
        live = self._live(s, 0)
        if s.lock >= 0 and self.lock:
            return
        forgotten = s.forgotten | buckets_of(self._ids(s, live))
        if not self.unread_open:
            forgotten = (1 << len(BUCKETS)) - 1
        if self.scope != "forgotten":
            words = f"Collect forgets and then retires the old runs {self._names(live)}."
            yield words, s._replace(forgotten=forgotten, runs=self._retired(s, live))
            return
        if forgotten != s.forgotten:
            words = f"Collect forgets the buckets of the old runs {self._names(live)}."
            yield words, s._replace(forgotten=forgotten)
        old = live
        if self.forgotten_first:
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
        return not self.drop_asks or not self._open(s, early)

    def _open(self, s: Catalog, which: int) -> bool:
        return any(
            which >> i & 1 and a.status in ("running", "staged") for i, a in enumerate(s.attempts)
        )
