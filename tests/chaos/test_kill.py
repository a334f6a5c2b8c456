"""Death at every fault point, in three ways, in three companies: run again, the output is exact.

A case is (sink, point, kind, companion). Each dies twice at its point: the second time while the
first is being repaired. CI runs each point with one kind and one companion, which the seed draws:
those of a run into files, and what comes behind the commit where the output is a table. `make test`
takes a third of these, `make proof` runs all.
"""

import os
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from fix_scene import Scene, live_runs, outputs, payload_tables, staged_folders, time_passes
from fixtures.batches.account import committed, run, sql
from fixtures.batches.faults import Child, Children, replaying
from fixtures.batches.replays import hours_pass
from fixtures.batches.workbench import Workbench, events
from fixtures.kinds import SINKS, points_of
from fixtures.postgres.server import lose
from fixtures.postgres.warehouse import Warehouse
from fixtures.postgres.wire import Wire
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.errors import RetryableError
from semel.ledger import Ledger
from semel.plan import plan
from semel.repair.accept import accept_columns
from semel.storage import folder
from tiers import SEED

PACKAGE = Path(failpoints.__file__).parent

KINDS = ("raise", "exit", "kill")
"""An exception that nobody foresaw; `os._exit`; SIGKILL from outside."""

COMPANIONS = ("retried", "twin", "reply lost")
"""Nobody; another attempt at the same time; and, at the first death, a lost reply to a COMMIT."""

REFUSED = 57
"""A number that r1 alone has: a table that refuses it."""

FLOOR = ("collect.before_floor", "collect.after_floor")
LEASE = ("commit.before_lease", "commit.after_lease")
IN_COLLECT = (
    "storage.before_rmtree", "storage.after_rmtree", "store.before_delete", "store.after_delete",
)  # fmt: skip
TWIN_STANDS = "stage.after_sync"
SCRIPT_OF = {
    "collect": "collecting", "abandon": "abandoning", "accept": "accepting", "adopt": "adopting",
    "replay": "replaying", "requarantine": "admitting", "exact": "exacting",
}  # fmt: skip
"""Who passes the points of a verb that is no part of a run."""

ELSEWHERE = ("away", "erase", "pack", "packs", "receive")
"""Verbs whose points have tests of their own: test_after_finalize.py, test_erased.py,
test_packs.py, test_receive_kills.py."""

ACCEPTED = "sink.before_accepted"
OF_TABLES = ("sink.before_commit", ACCEPTED)
"""What only a sink in a database passes."""

REPLACES = (
    "finalize.before_replace", "storage.before_swap", "storage.after_swap",
    "store.before_overwrite", "store.after_overwrite",
)  # fmt: skip
OF_REPLAYS = (
    "replay.before_write", "replay.after_write", *REPLACES, "collect.before_removed",
    "collect.after_removed", "requarantine.before_write", "requarantine.after_write",
)  # fmt: skip
"""What only replays and admissions pass, or collect behind one. A table with a key takes none."""

NOT_IN_REPLAYS = (
    "stage.before_store", "stage.after_store", "stage.before_lose", "stage.after_lose",
    "commit.before_compare", "commit.after_compare", "commit.before_restage",
)  # fmt: skip
"""What a replay does not pass of stage and commit: it has no ids, and loses to nobody."""

LINKS = ("storage.before_link", "storage.after_link")
"""What a replay passes with files as its sink alone: it has no decisions, dead letters or ids."""

IN_REPLAYS = ("stage", "commit", "finalize", "sink", "storage")
"""The verbs that a replay passes like any batch."""

BEHIND_COMMIT = ("finalize", "sink", "accept", "adopt")
"""The verbs that ask a sink: their points are tried with each sink in `make test`."""

OF_UPSERT = ("finalize", "sink")
"""All else is the same in both modes of a table, and where a service is the sink."""


OF_STORED = (*IN_REPLAYS, "store", "adopt", "collect", "exact", "replay", "requarantine")
"""The verbs that touch an archive."""


def scripts(sink: str, point: str) -> list[str]:
    """Whose death at a point is tried."""
    verb = point.partition(".")[0]
    if verb in ELSEWHERE or verb == "store" and not SINKS[sink].stored:
        return []
    if point == ACCEPTED:
        return ["refusing"]
    if script := SCRIPT_OF.get(verb):
        return [script]
    if point in REPLACES:
        return ["replaying"]
    found = ["leased" if point in LEASE else "contested"]
    if point in IN_COLLECT:
        found.append("collecting")
    not_passed = (*NOT_IN_REPLAYS, *LEASE, *(LINKS if sink != "files" else ()))
    if SINKS[sink].takes_replays and verb in (*IN_REPLAYS, "store") and point not in not_passed:
        found.append("replaying")
    return found


def points(sink: str) -> list[str]:
    """What is passed on the way to a sink; of others only what append does not pass alike."""
    of_any = {point for kind in SINKS.values() for point in kind.fault_points()}
    not_passed = of_any.difference(SINKS[sink].fault_points())
    passed = [point for point in failpoints.points() if point not in not_passed]
    if sink == "files":
        return passed
    if sink == "append":
        return [point for point in passed if not point.startswith("requarantine.")]
    if SINKS[sink].stored:
        passed = [point for point in passed if point not in points_of(folder)]
        return [point for point in passed if point.partition(".")[0] in OF_STORED]
    passed = [point for point in passed if point not in OF_REPLAYS]
    return [point for point in passed if point.partition(".")[0] in OF_UPSERT]


def is_long(sink: str, point: str) -> bool:
    """Whether `make proof` alone tries a point with this sink."""
    verb = point.partition(".")[0]
    if not SINKS[sink].takes_replays:
        return verb != "sink"
    return sink == "append" and verb not in BEHIND_COMMIT


def cases() -> list:
    """All of them; those that are left to `make proof` are marked."""
    found = []
    places = [
        (sink, point, script)
        for sink in SINKS
        for point in points(sink)
        for script in scripts(sink, point)
    ]
    for row, (sink, point, script) in enumerate(places):
        for (column, kind), (turn, companion) in product(enumerate(KINDS), enumerate(COMPANIONS)):
            drawn = column == (row + SEED) % 3 and (row + column + SEED // 3) % 3 == turn
            short = drawn and not is_long(sink, point)
            if script == "replaying" and point not in OF_REPLAYS:
                # A batch that is no replay dies there in each way.
                short &= point.partition(".")[0] in BEHIND_COMMIT
            marks = [] if short else [pytest.mark.proof]
            marks += SINKS[sink].marks
            name = f"{sink}-{script}-{point}-{kind}-{companion}"
            found.append(pytest.param(sink, script, point, kind, companion, id=name, marks=marks))
    return found


def test_every_point_is_found() -> None:
    """A fault point is called in one place, by its name: else `points` lacks it, and nobody dies."""
    code = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    called = sum(text.count("failpoints.point(") for text in code)
    assert len(failpoints.points()) == called > 0


class Deaths:
    """Starts a script and lets it die at a point."""

    def __init__(self, children: Children, wire: Wire, script: str, point: str) -> None:
        self.children, self.wire = children, wire
        self.script, self.point = script, point

    def dies(self, kind: str) -> bool:
        """Whether it passed the point, and so died there. Else it must have ended well."""
        if kind == "kill":
            child = self.children.start(self.script, f"{self.point}:pause")
            if child.reached(self.point):
                os.kill(child.process.pid, signal.SIGKILL)
                assert child.ended()[0] == -signal.SIGKILL
                return True
            assert child.ended() == (0, None)
            return False
        told = self.children.start(self.script, f"{self.point}:{kind}").ended()
        died = {"raise": (1, "FaultError"), "exit": (failpoints.EXIT_CODE, None)}[kind]
        assert told in (died, (0, None))
        return told == died

    def loses_a_reply(self) -> None:
        """The next COMMIT after the point lands, and its reply is lost."""
        child = self.children.start(self.script, f"{self.point}:pause", self.wire.dsn)
        child.paused(self.point)
        self.wire.cut("reply")
        (child.folder / self.point).unlink()
        # A merge that failed is left for the next time; and after some points no COMMIT comes.
        expected = [(1, "OutcomeUnknownError")] if self.script != "collecting" else []
        assert child.ended() in [*expected, (0, None), (1, "OutcomeUnknownError")]
        if self.point in OF_TABLES:  # It was the table's COMMIT, and not one of the ledger.
            assert "events: the reply to a commit was lost" in child.message
        self.wire.cut(None)


@pytest.fixture
def scenes(
    bench: Workbench, ledger: Ledger, table: Warehouse, scene_of: Callable[..., Scene]
) -> "Scenes":
    return Scenes(bench, ledger, table, scene_of)


class Scenes:
    """What there is before each script."""

    def __init__(
        self, bench: Workbench, ledger: Ledger, table: Warehouse, scene_of: Callable[..., Scene]
    ) -> None:
        self.bench, self.ledger, self.table, self.scene_of = bench, ledger, table, scene_of

    def make(self, sink: str, script: str, point: str) -> Scene:
        changes = {}
        if point in FLOOR:
            changes["record_time"] = "at"
            changes["dedup"] = {"shards": 2, "scope": "bucket", "horizon": "3650d"}
        if script == "exacting":
            changes["guarantee"] = "at_least_once"
        scene = self.scene_of(sink, **changes)
        if script == "abandoning":
            plan(self.ledger, scene.spec, "r1")
        elif script == "accepting":
            self._edited(scene)
        elif script == "adopting":
            scene.run("r1")
            lose(self.ledger)
        elif script == "refusing":
            committed(self.ledger, scene.spec, "r1")
            self.table.run(f"ALTER TABLE events ADD CHECK (n <> {REFUSED})")
        elif script == "admitting":
            self._letters(scene)
        elif script == "exacting":
            scene.spec = scene.declare(dedup={"shards": 2, "keep_ids": True})
        elif script == "collecting":
            self._garbage(scene)
        return scene

    def _edited(self, scene: Scene) -> None:
        """A file that was read, edited in place since; and one that went with a torn line."""
        path = scene.add("e.jsonl", [b"{bad", *events(105, 115)])
        gone = self.bench.data / "in" / "g.jsonl"
        gone.write_bytes(b"\n\ntorn")
        scene.run("e1", "e2", "e3", "e4")
        path.write_bytes(path.read_bytes().replace(b"{bad", b"{bed"))
        self.bench.write("in/e.jsonl", events(115, 120), mode="ab")
        gone.unlink()
        scene.run("e5")  # Both are refused; with the others all read, nothing is left.

    def _letters(self, scene: Scene) -> None:
        """Dead letters of the second batch, some of which are good by the declaration of now."""
        bad = [{**event, "n": event["n"] + 0.5} for event in (*events(39, 41), *events(300, 301))]
        self.bench.write("in/b.jsonl", [*events(30, 80), *bad, b"{not json"])
        self.bench.write("in/c.jsonl", events(60, 110))  # Written later, so r1 takes the other.
        scene.run("r1")
        scene.spec = scene.declare(
            source={"schema": {"id": "string", "n": "double", "at": "timestamp"}}
        )
        accept_columns(self.ledger, scene.spec)

    def _garbage(self, scene: Scene) -> None:
        """Runs to merge and to drop, the folder of an attempt that failed, replaced files."""
        time_passes(self.ledger, segments=True)
        scene.run("r1", "r2")
        if scene.sink != "upsert":
            replaying(self.ledger, scene.spec)
            hours_pass(self.ledger)
        scene.add("d.jsonl", events(110, 130))
        with pytest.raises(RetryableError):
            run(self.ledger, scene.spec, "r3", engine=LocalEngine(before_write=_fails))
        if scene.spec.dedup.scope == "bucket":
            self._old_bucket(scene)
        else:
            time_passes(self.ledger, runs=True)
        assert len(payload_tables(self.ledger)) == 2 and staged_folders(scene.spec)

    def _old_bucket(self, scene: Scene) -> None:
        """The horizon of one bucket is over, of which nothing comes again."""
        old = [{**event, "at": "2020-01-01T00:00:00Z"} for event in events(400, 410)]
        scene.add("old.jsonl", old)
        scene.run("old")
        newest = "(SELECT max(attempt_id) FROM semel.attempt)"
        sql(
            self.ledger,
            f"UPDATE semel.id_run SET expires_at = now() WHERE attempt_id = {newest}",
        )


# Attacks P1, F1, F6, A2, G1, C11, D4, D11, RP2, RP4, RP5, RP7, RP9, PG1, PG2, PG7, KP1, KP2, BQ2.
@pytest.mark.sample(36)
@pytest.mark.parametrize(("sink", "script", "point", "kind", "companion"), cases())
def test_killed_and_killed_again(
    scenes: Scenes, children: Children, wire: Wire, sink, script, point, kind, companion
) -> None:
    """Death at a point, death at its next pass while that is repaired, then the same requests.

    A twin that stood still all the while goes on at the end: it is told so, and changes nothing.
    """
    scene = scenes.make(sink, script, point)
    deaths = Deaths(children, wire, script, point)
    if companion == "reply lost":
        deaths.loses_a_reply()
    else:
        assert deaths.dies(kind), f"{script} does not pass {point}"
    twin = stands = None
    if companion == "twin":
        other = script if script in ("replaying", "admitting") else "r1"
        twin = children.start(other, f"{TWIN_STANDS}:pause")
        stands = twin.reached(TWIN_STANDS)
    deaths.dies(kind)
    if script == "collecting":
        assert children.start(script).ended() == (0, None)
        _only_garbage_went(scene, point, pinned=bool(stands))
        scene.add("e.jsonl", events(60, 140))
        assert sink != "files" or not _replaced(scene), "replaced files are there"
    elif script not in ("contested", "leased"):
        assert children.start(script).ended() == (0, None)
    found = scene.finish("r1", "r2", "r3", "r4")
    replays = SINKS[sink].takes_replays and script in ("replaying", "collecting")
    assert found.generations[1] == (2 if replays else 1)
    if twin:
        if stands or script not in ("adopting", "refusing", "exacting"):
            _goes_on(twin, stands=bool(stands))
        else:  # Before the adoption, or the switch, a plan is refused; the table refuses r1's row.
            assert twin.ended() == (1, "TerminalError")
        assert scene.check() == found


def _fails(_: object) -> None:
    raise RetryableError("the engine failed")


def _only_garbage_went(scene: Scene, point: str, *, pinned: bool) -> None:
    """All garbage is gone, but for what an open attempt holds."""
    tables, folders = payload_tables(scene.ledger), staged_folders(scene.spec)
    if point in FLOOR:  # One bucket is forgotten, and the runs of the other stay.
        expired = "retired_at IS NOT NULL AND retired_by IS NULL"
        buckets = sql(scene.ledger, f"SELECT buckets FROM semel.id_run WHERE {expired}")
        forgotten = sql(scene.ledger, "SELECT forgotten FROM semel.pipeline")
        assert forgotten == [{"forgotten": buckets[0]["buckets"]}]
    elif not pinned:
        assert len(tables) == 1 and max(live_runs(scene.ledger).values()) == 1
    assert len(folders) == (1 if pinned else 0)


def _replaced(scene: Scene) -> list[Path]:
    """Output files of the first batch that its replay replaced."""
    return [path for path in outputs(scene, 1) if path.exists()]


def _goes_on(twin: Child, *, stands: bool) -> None:
    if stands:
        (twin.folder / TWIN_STANDS).unlink()
        assert twin.ended() == (1, "AttemptLostError")
    else:
        assert twin.ended() == (0, None)
