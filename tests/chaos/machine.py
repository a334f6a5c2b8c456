"""The world of the state machine: two pipelines over one source, on one ledger, and their verbs.

`live` takes what arrives, `hours` takes files by the hour in their names and has scope `bucket`.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from multiprocessing.context import BaseContext
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from fixtures.batches.account import quiet, run
from fixtures.batches.faults import Children
from fixtures.batches.workbench import Workbench
from fixtures.spark.local import LocalEngine
from machine_clock import Clock, Killed, Mortal
from machine_files import COLUMNS, OWN, Files, Header
from machine_output import Output
from semel import commit as commit_module
from semel import errors, failpoints
from semel.archive import ownership
from semel.collect import collect, pack
from semel.collect.merge import merge_candidates
from semel.commit import commit
from semel.declare.parts import Limits
from semel.errors import (
    CorruptionError,
    RetryableError,
    SemelError,
    SourceError,
    StateError,
)
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import Plan, plan
from semel.plan.abandon import abandon
from semel.repair.accept import accept_file
from semel.repair.losses import accept_loss
from semel.runs import replay
from semel.sources.files.source import FilesSource
from semel.stage import shard, stage

Interval = tuple[datetime, datetime]
DAY = datetime(2026, 1, 1, tzinfo=UTC)
ORPHAN = timedelta(minutes=30)
_ROUNDS_MAX = 12
_NEW = 9  # The pick of no request that is there.
_BATCHES = """
SELECT b.batch_id, b.status FROM semel.batch AS b JOIN semel.pipeline AS p USING (pipeline_id)
WHERE p.name = :name ORDER BY b.batch_id
"""
_ROOTS = """
SELECT b.batch_id FROM semel.batch AS b JOIN semel.pipeline AS p USING (pipeline_id)
WHERE p.name = :name AND b.replays IS NULL AND b.status = 'finalized' AND b.packed_in IS NULL
ORDER BY b.batch_id
"""
_REFUSALS = """
SELECT r.name, r.reason FROM semel.refusal AS r JOIN semel.pipeline AS p USING (pipeline_id)
WHERE p.name = :name ORDER BY r.name
"""


def tune(patch: pytest.MonkeyPatch, clock: Clock) -> None:
    """Small limits: a few records make merges, splits, leases, packs and claims beside the marker.
    """
    patch.setattr(pack, "PACK_BATCHES_MIN", 1)
    patch.setattr(pack, "PACK_BATCHES_MAX", 2)
    patch.setattr(ownership, "NOTES_COMPARED", 3)
    patch.setitem(merge_candidates.__kwdefaults__, "live_max", 1)
    patch.setattr(FilesSource, "split_size", 500)
    patch.setattr("semel.archive.write_marker.CLAIMS_IN_MARKER_MAX", 1)
    patch.setattr("semel.commit.ATTEMPTS_LOST_BEFORE_LEASE", 1)
    # Who waits for a lease sees it end: its holder stands still below us, or is dead.
    waits = SimpleNamespace(sleep=lambda _: clock.advance(timedelta(minutes=5)))
    patch.setattr(commit_module, "time", waits)


@dataclass
class Arena:
    """What the examples of one test share. `steps` and `seen` say what they did."""

    folder: Path
    ledger: Mortal
    clock: Clock
    patch: pytest.MonkeyPatch
    forks: BaseContext | None = None
    examples: int = 0
    steps: int = 0
    seen: dict[str, int] = field(default_factory=dict)

    def note(self, what: str, times: int = 1) -> None:
        self.seen[what] = self.seen.get(what, 0) + times


class World:
    """One example: its source, its pipelines and what the model knows of them."""

    def __init__(self, arena: Arena, headers: Sequence[Header]) -> None:
        """`headers`: of the files. The pipelines have `columns` if one is not as declared."""
        arena.examples += 1
        self.arena, self.ledger, self.clock = arena, arena.ledger, arena.clock
        self.clock.begin()
        folder = arena.folder / f"example{arena.examples}"
        bench = Workbench(folder)
        arena.patch.setenv("SEMEL_DATA_ROOTS", str(bench.data))
        arena.patch.setenv("SEMEL_CACHE_DIR", str(folder / "cache"))
        shard.filters_in.cache_clear()
        self.files = Files(bench.data / "in", folder / "attic", headers)
        self.declared = bench.pipelines
        self.specs = {spec.name: spec for spec in _declare(bench, headers)}
        self.outputs = {n: Output(spec, self.files.states) for n, spec in self.specs.items()}
        self.requests: dict[str, list[tuple[str, Interval | None]]] = {n: [] for n in self.specs}
        self._made = 0
        self.moved = False
        """Whether a file is not where it was: a batch that was planned before may be refused."""

    def request(self, name: str, pick: int, hours: int = 1) -> tuple[str, Interval | None]:
        """One of the last requests that were not deleted, or a new one."""
        kept = self.requests[name][-3:]
        if pick < len(kept):
            return kept[pick]
        self._made += 1
        first = DAY + timedelta(hours=9 + pick % 3)
        window = (first, first + timedelta(hours=hours)) if name == "hours" else None
        self.requests[name].append((f"r{self._made}", window))
        return self.requests[name][-1]

    def batch(self, name: str, pick: int) -> int | None:
        """One of the last batches."""
        found = [r["batch_id"] for r in self.sql(_BATCHES, name=name)][-4:]
        return found[-1 - pick % len(found)] if found else None

    def feed(self, which: int, new: int = 2) -> None:
        """New records, and those that came last once more."""
        lines = self.files.records(self.clock.now(), new, range(3))
        self.files.append(self.files.pick(which), lines)

    def sql(self, text: str, **values: object) -> list[sa.RowMapping]:
        with self.ledger.engine.connect() as connection:
            return list(connection.execute(sa.text(text), values).mappings())

    def act(self, name: str, verb: str, pick: int, hours: int = 1) -> None:
        """Call a verb, or all of a run."""
        spec = self.specs[name]
        if verb == "collect":
            done = collect(self.ledger, spec, quiet)
            if done is not None:
                assert not done.damaged, done.damaged
                self.arena.note("runs merged", done.runs_merged)
                self.arena.note("runs expired", done.runs_retired)
                self.arena.note("segments dropped", done.segments_dropped)
                self.arena.note("finalized by collect", done.batches_finalized)
                self.arena.note("replaced outputs removed", done.replaced_removed)
                self.arena.note("batches packed", done.batches_packed)
        elif verb == "plan":
            request, interval = self.request(name, pick, hours)
            self._planned(name, plan(self.ledger, spec, request, interval))
        elif verb == "run":
            request, interval = self.request(name, pick, hours)
            ran = run(self.ledger, spec, request, interval)
            self._planned(name, ran.plan)
            if ran.committed is not None:
                self.arena.note("attempts lost to a rival", ran.committed.losses)
        elif verb == "replay":
            found = [r["batch_id"] for r in self.sql(_ROOTS, name=name)][-3:]
            if found:
                root, request = found[pick % len(found)], f"again{pick % 2}"
                replay.run(self.ledger, spec, request, root, LocalEngine(), quiet)
        else:
            self.on(name, verb, self.batch(name, pick))

    def on(self, name: str, verb: str, batch_id: int | None) -> None:
        """Call a verb on a batch. StateError when it is in another state."""
        if batch_id is None:
            return
        spec = self.specs[name]
        if verb == "stage":
            stage(self.ledger, spec, batch_id, LocalEngine(), quiet)
        elif verb == "commit":

            def restage() -> None:
                stage(self.ledger, spec, batch_id, LocalEngine(), quiet)

            done = commit(self.ledger, spec, batch_id, restage, quiet)
            self.arena.note("attempts lost to a rival", done.losses)
        elif verb == "finalize":
            finalize(self.ledger, spec, batch_id)
        else:
            abandon(self.ledger, batch_id, "given up by the machine")

    def calm(
        self, call: Callable[[], None], *, any_state: bool = False, beside: bool = False
    ) -> None:
        """Undisturbed, a verb succeeds; only files that moved, and the wrong state, may stop it;
        and `beside` others, that one of these is at it.
        """
        expected: tuple[type[SemelError], ...] = (StateError,) if any_state else ()
        expected += (RetryableError,) if beside else ()
        expected += (SourceError,) if self.moved else ()
        try:
            call()
        except expected as error:
            self.arena.note(f"told {type(error).__name__}")

    def disturbed(
        self, point: str, nth: int, call: Callable[[], None], action: Callable[[], None]
    ) -> None:
        """A verb in whose middle something happens: it may end with any error but corruption."""
        with failpoints.armed(point, action, nth) as fault:
            try:
                call()
            except CorruptionError:
                raise
            except (SemelError, failpoints.FaultError, Killed) as error:
                self.arena.note(f"ended by {type(error).__name__}")
            finally:
                self.ledger.dead = False
        self.arena.note("points passed" if fault.hit else "points not passed")

    def die(self) -> None:
        """The process is killed: nothing that it does from here on reaches the ledger."""
        self.ledger.dead = True
        raise Killed

    def kill_a_process(self, name: str, place: tuple[str, str, int], pick: int) -> None:
        """A verb in a process of its own, which ends at a point."""
        spec_path, request = self.declared / f"{name}.yaml", self.request(name, pick)
        with Children(
            context=self.arena.forks, dsn=self.ledger.dsn, spec_path=spec_path,
            folder=Path(tempfile.mkdtemp(dir=self.arena.folder)),
        ) as children:  # fmt: skip
            code, error = children.start(doomed, "", None, place, *request).ended()
        told = issubclass(getattr(errors, error or "", object), SemelError)
        known = told and error != "CorruptionError" or code in (0, failpoints.EXIT_CODE)
        assert known, f"a process that was to end at {place} ended with {code}, {error}"
        self.arena.note(f"processes that ended with {error or code}")

    def meanwhile(self, name: str, acts: tuple[str, ...], pick: int) -> None:
        """What others do while somebody stands still."""
        for verb in acts:
            if verb == "orphan":
                self.clock.advance(ORPHAN + timedelta(minutes=1))
            if verb == "rival":
                self.feed(pick, new=1)
            try:
                if verb in ("rival", "orphan"):
                    self.act(name, "run", _NEW)
                else:
                    self.act(name, verb, pick if verb in ("run", "plan", "replay") else 0)
            except CorruptionError:
                raise
            except SemelError as error:
                self.arena.note(f"meanwhile {type(error).__name__}")

    def accept(self, name: str, pick: int) -> None:
        """A person's word on what is refused."""
        found = self.sql(_REFUSALS, name=name)
        if found:
            self._accept(name, *found[pick % len(found)].values())

    def _accept(self, name: str, path: str, reason: str) -> None:
        """With an id all that changed is read; only what went unread with its file is asked for,
        and a file that was cut and written anew, where its copy was replaced before anybody saw it.
        """
        assert reason in ("gone", "changed"), (name, path, reason)
        try:
            if reason == "changed":
                accept_file(self.ledger, self.specs[name], path, same=False)
            else:
                accept_loss(self.ledger, self.specs[name], path)
        except (SourceError, StateError):  # It came back, or a batch has it again.
            return
        self.arena.note(f"accepted {reason}")

    def look(self) -> None:
        for output in self.outputs.values():
            output.look()

    def finish(self) -> None:
        """Do what an operator and a scheduler would, until nothing is left; then all is exact."""
        for number in range(_ROUNDS_MAX):
            left = [self._finish(name, f"last{number}") for name in self.specs]
            self.look()
            if not any(left):
                break
        else:
            raise AssertionError(f"not finished after {_ROUNDS_MAX} rounds")
        drawn = [file.header for file in self.files.all if file.data]
        lacking = any(None in header.values() for header in drawn)
        renamed = any(set(header.values()) - {None} for header in drawn)
        self.arena.note("examples with a file that lacks a column", lacking)
        self.arena.note("examples with a file that renames a column", renamed)
        for name, output in self.outputs.items():
            output.complete(self.files.all)
            for what, count in output.counts.items():
                self.arena.note(f"{name}: {what}", count)

    def _finish(self, name: str, request: str) -> bool:
        loose = Limits(quarantine_ratio_max=1.0, late_ratio_max=1.0)
        spec = self.specs[name].model_copy(update={"limits": loose})
        interval = (DAY, DAY + timedelta(days=1)) if name == "hours" else None
        batch = None
        with contextlib.suppress(SourceError):  # What is gone makes an interval fail.
            planned = plan(self.ledger, spec, request, interval)
            self._planned(name, planned)
            batch = planned.batch
        for row in self.sql(_BATCHES, name=name):
            if row["status"] in ("planned", "committed"):
                self._finish_batch(name, row["batch_id"])
        refused = self.sql(_REFUSALS, name=name)
        for row in refused:
            self._accept(name, row["name"], row["reason"])
        return batch is not None or bool(refused)

    def _finish_batch(self, name: str, batch_id: int) -> None:
        try:
            for verb in ("stage", "commit", "finalize"):
                self.on(name, verb, batch_id)
        except SourceError:
            assert self.moved
            self.on(name, "abandon", batch_id)

    def _planned(self, name: str, planned: Plan) -> None:
        if planned.batch is not None and not planned.created:
            return
        told = {refusal.reason for refusal in planned.refusals}
        assert told <= {"gone", "changed"}, (name, planned.refusals)
        self.arena.note("files refused", len(planned.refusals))
        self.arena.note("files recognised by content", len(planned.resumed))
        self.arena.note("orphans taken over", len(planned.taken_over))


def _declare(bench: Workbench, headers: Sequence[Header]) -> list[Spec]:
    columns = {"columns": COLUMNS} if any(header != OWN for header in headers) else {}
    common = {"quarantine_ratio_max": 1.0, "late_ratio_max": 1.0, "orphan_after": "30m"}
    common |= {"keep_history": "1h"}
    live = bench.spec(
        "live",
        source=columns,
        dedup={"shards": 2, "horizon": "4h"},
        sink={"position_columns": True},
        limits={**common, "bytes_per_batch_max": 900},
    )
    hours = bench.spec(
        "hours",
        source={"select": "interval", "interval_from": "%Y-%m-%d-%H-%M.jsonl", **columns},
        record_time="at",
        dedup={"scope": "bucket", "shards": 1, "horizon": "8h"},
        sink={"format": "jsonl", "position_columns": True},
        limits=common,
    )
    return [live, hours]


def doomed(
    ledger: Ledger, spec: Spec, place: tuple[str, str, int], key: str, interval: Interval | None
) -> None:
    """In a process of its own: a run or a collect that ends at a point as SIGKILL would end it."""
    verb, point, nth = place
    tune(pytest.MonkeyPatch(), Clock(ledger.dsn))
    failpoints.arm(point, lambda: os._exit(failpoints.EXIT_CODE), nth)
    if verb == "collect":
        done = collect(ledger, spec, quiet)
        assert done is None or not done.damaged, done.damaged
    else:
        run(ledger, spec, key, interval)
