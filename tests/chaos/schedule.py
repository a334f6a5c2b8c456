"""All orders in which several verbs can pass their fault points.

Each actor is a thread with a ledger and a filter cache of its own. At a named point it stands still
until it gets the next turn, so one turn leads from one point to the next. An actor that waits for a
lock of one that stands still gets no turn: that order is impossible, and Postgres says so. It goes
on by itself once the other has let go of the lock.

What it does not do: part what happens between two points. Two actors that are both between points
(one of them was just let go by a lock) run freely there.
"""

import copy
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import psycopg
import sqlalchemy as sa

from fix_scene import Scene
from semel import collect, failpoints, settings
from semel.catalog.payload import FilterCache
from semel.ledger import Ledger
from semel.stage import shard

WAIT_SECONDS = 30
TURNS_MAX = 200  # An order that is longer goes round in circles.
_ASK_SECONDS = 0.01  # How long a turn takes before Postgres is asked whether it waits for a lock.
TABLES = (
    "pipeline source_partition batch claim loss attempt manifest_file segment id_run "
    "refusal erasure".split()
)

Act = Callable[[Scene], object]
"""What an actor does, in a scene whose ledger is its own."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Who got a turn, who could have had it, and who waited for a lock when it was over."""

    who: str
    could: tuple[str, ...]
    blocked: tuple[str, ...]


@dataclass
class Actor:
    """A thread that runs one act. `passed`: the points at which it stood."""

    name: str
    act: Callable[[Ledger], object]
    ledger: Ledger
    state: str = "standing"
    value: object = None
    error: BaseException | None = None
    passed: list[str] = field(default_factory=list)


@dataclass
class Played:
    """One order that was played to its end."""

    turns: list[Turn]
    actors: dict[str, Actor]

    @property
    def order(self) -> str:
        return " ".join(turn.who for turn in self.turns)

    def values(self) -> list[object]:
        """What the actors' acts returned. Raises what one of them raised."""
        for actor in self.actors.values():
            if actor.error is not None:
                raise actor.error
        return [actor.value for actor in self.actors.values()]


After = Callable[[Scene, Played], None]
"""What must hold after an order was played."""


class Play:
    """Several actors on one ledger that take turns at the named points."""

    def __init__(
        self, dsn: str, acts: dict[str, Callable[[Ledger], object]], points: Collection[str]
    ) -> None:
        assert set(points) <= set(failpoints.points())
        url = sa.make_url(dsn).set(drivername="postgresql")
        self.connection = psycopg.connect(
            url.render_as_string(hide_password=False), autocommit=True
        )
        self.points, self.acts = points, acts
        self.actors: dict[str, Actor] = {}
        self._ledgers = {name: Ledger(dsn) for name in acts}
        self._backends: dict[str, set[int]] = {name: set() for name in acts}
        for name, ledger in self._ledgers.items():
            add = self._backends[name].add
            sa.event.listen(
                ledger.engine, "connect", lambda raw, _, add=add: add(raw.info.backend_pid)
            )
        self._changed = threading.Condition()
        self._here = threading.local()
        self._over = False
        self._cache_dir = settings.cache_dir()

    def __enter__(self) -> "Play":
        return self

    def __exit__(self, *exc: object) -> None:
        self.connection.close()
        for ledger in self._ledgers.values():
            ledger.engine.dispose()

    def play(self, wanted: Sequence[str]) -> Played:
        """Give turns as `wanted`, and after that to the first who can go on, until all ended."""
        self.actors = {
            name: Actor(name=name, act=act, ledger=self._ledgers[name])
            for name, act in self.acts.items()
        }
        for name in self.acts:
            shutil.rmtree(self._cache_dir / name, ignore_errors=True)
        threads = [
            threading.Thread(target=self._run, args=(actor,), name=name, daemon=True)
            for name, actor in self.actors.items()
        ]
        turns: list[Turn] = []
        self._over = False
        with self._hooks():
            for thread in threads:
                thread.start()
            try:
                while could := self._names("standing"):
                    assert len(turns) < TURNS_MAX, f"no end after {len(turns)} turns"
                    who = wanted[len(turns)] if len(turns) < len(wanted) else could[0]
                    assert who in could, f"the same turns led elsewhere: {who} not in {could}"
                    with self._changed:
                        self.actors[who].state = "running"
                        self._changed.notify_all()
                    turns.append(Turn(who=who, could=could, blocked=self._settled()))
            finally:
                with self._changed:
                    self._over = True
                    self._changed.notify_all()
                for thread in threads:
                    thread.join(WAIT_SECONDS)
        return Played(turns=turns, actors=self.actors)

    @contextmanager
    def _hooks(self) -> Iterator[None]:
        """Points are ours, and so is what a process keeps: its ledger and its filters. An actor has
        one thread, so that the same turns lead to the same place.
        """
        with ExitStack() as stack:
            for owner, name, ours in (
                (failpoints, "point", self._point),
                (settings, "cache_dir", lambda: self._cache_dir / self._here.actor.name),
                (shard, "ledger_of", lambda _: self._here.actor.ledger),
                (shard, "filters_in", FilterCache),
                (collect, "MERGES_AT_ONCE", 1),
            ):
                stack.enter_context(patch.object(owner, name, ours))
            yield

    def _names(self, state: str) -> tuple[str, ...]:
        return tuple(name for name, actor in self.actors.items() if actor.state == state)

    def _run(self, actor: Actor) -> None:
        self._here.actor = actor
        try:
            self._stand(actor)
            actor.value = actor.act(actor.ledger)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            actor.error = error
        with self._changed:
            actor.state = "ended"
            self._changed.notify_all()

    def _point(self, name: str) -> None:
        actor = getattr(self._here, "actor", None)
        if actor is not None and name in self.points:
            actor.passed.append(name)
            actor.state = "standing"
            self._stand(actor)

    def _stand(self, actor: Actor) -> None:
        with self._changed:
            self._changed.notify_all()
            going = self._changed.wait_for(
                lambda: self._over or actor.state == "running", WAIT_SECONDS
            )
        assert going, "no turn came"

    def _settled(self) -> tuple[str, ...]:
        """Wait until nobody runs, but for those who wait for one who stands. Returns these."""
        end = time.monotonic() + WAIT_SECONDS
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: not self._names("running"), _ASK_SECONDS):
                    return ()
                running = self._names("running")
            if self._names("standing") and self._blocked(running):
                return running
            assert time.monotonic() < end, f"{running} neither went on nor waited for a lock"

    def _blocked(self, names: tuple[str, ...]) -> bool:
        """Whether each of them waits for a lock that another actor holds or waits for."""
        ours = [backend for backends in self._backends.values() for backend in backends]
        found = self.connection.execute(
            "SELECT array_agg(pid) FROM unnest(%s::int[]) AS pid "
            "WHERE pg_blocking_pids(pid) && %s::int[]",
            (ours, ours),
        ).fetchone()[0]
        return all(self._backends[name] & {*(found or ())} for name in names)


def every_order(scene: Scene, points: tuple[str, ...], after: After, **acts: Act) -> list[Played]:
    """Play all orders from the scene as it is now; `after` proves each. Returns them."""
    started = time.monotonic()
    bound = {name: partial(_act, scene, act) for name, act in acts.items()}
    with Play(scene.ledger.dsn, bound, points) as cast:
        saved = _Saved(cast.connection, scene.spec.sink_path().parent)

        def play(wanted: tuple[str, ...]) -> Played:
            saved.again()
            played = cast.play(wanted)
            try:
                after(scene, played)
            except BaseException as error:
                error.add_note(f"in the order {played.order}")
                raise
            return played

        found = list(_all_orders(play))
    waited = sum(any(turn.blocked for turn in played.turns) for played in found)
    seconds = time.monotonic() - started
    print(f"{len(found)} orders, {waited} impossible by locks, {seconds:.1f} s")
    assert len({played.order for played in found}) == len(found)
    assert {point for p in found for actor in p.actors.values() for point in actor.passed} == {
        *points
    }, "a point that no order passes"
    return found


def _act(scene: Scene, act: Act, ledger: Ledger) -> object:
    """The same act on a ledger of the actor's own."""
    other = copy.copy(scene)
    other.ledger = ledger
    return act(other)


def _all_orders(play: Callable[[Sequence[str]], Played]) -> Iterator[Played]:
    """Play every order there is, depth first: each time the last turn that may be another's is."""
    wanted: tuple[str, ...] | None = ()
    while wanted is not None:
        played = play(wanted)
        yield played
        wanted = _next(played.turns)


def _next(turns: list[Turn]) -> tuple[str, ...] | None:
    for at in reversed(range(len(turns))):
        turn = turns[at]
        later = turn.could[turn.could.index(turn.who) + 1 :]
        if later:
            return (*(t.who for t in turns[:at]), later[0])
    return None


class _Saved:
    """A ledger and a folder as they are now, to begin from as long as the connection lives."""

    def __init__(self, connection: psycopg.Connection, folder: Path) -> None:
        self._run = connection.execute
        self._folder, self._copy = folder, folder.with_name(f"{folder.name}.saved")
        shutil.copytree(folder, self._copy)
        self._segments = self._payload()
        tables = [*TABLES, *self._segments]
        assert set(tables) == set(self._tables("%")), "a table that would not be put back"
        for table in tables:
            self._run(f"CREATE TEMP TABLE was_{table} AS TABLE semel.{table}")
        self._refill = ";".join(
            [f"DELETE FROM semel.{table}" for table in reversed(tables)]
            + [
                f"INSERT INTO semel.{table} OVERRIDING SYSTEM VALUE TABLE was_{table}"
                for table in tables
            ]
        )

    def again(self) -> None:
        """Make folder and ledger what they were. Numbers that were given are not given again."""
        shutil.rmtree(self._folder)
        shutil.copytree(self._copy, self._folder)
        there = self._payload()
        for table in set(there) - set(self._segments):
            self._run(f"DROP TABLE semel.{table}")
        for table in set(self._segments) - set(there):
            self._run(f"CREATE TABLE semel.{table} (LIKE was_{table})")
            self._run(f"ALTER TABLE semel.{table} ADD PRIMARY KEY (id_run_id, kind, piece)")
        self._run(self._refill)

    def _payload(self) -> list[str]:
        return self._tables("ids\\_%")

    def _tables(self, like: str) -> list[str]:
        text = "SELECT tablename FROM pg_tables WHERE schemaname = 'semel' AND tablename LIKE %s"
        return [name for (name,) in self._run(text, (like,))]
