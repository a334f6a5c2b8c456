"""Several runs of one pipeline at once, each in a process of its own, on one ledger."""

import json
import multiprocessing.pool
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from fix_scene import Scene
from fixtures.batches.account import quiet, sql
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel import pipeline
from semel.collect import collect
from semel.commit import ATTEMPTS_LOST_BEFORE_LEASE
from semel.errors import AttemptLostError, RetryableError, SemelError, StateError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan.abandon import abandon
from semel.runs.run import run_batch

DAILY = {"select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
LONG_SECONDS = 0.6
PLACE = """
    SELECT p.commit_seq, b.batch_id AS holder FROM semel.pipeline AS p
    LEFT JOIN semel.batch AS b ON b.batch_id = p.lease_batch_id AND b.status = 'planned'
"""
LIVE_IDS = 400  # Ids of a backfill that live batches may bring along.
RETRIES = 3  # As many as a task has in Airflow.
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Here:
    """What a process keeps between the calls that it gets."""

    ledger: Ledger
    spec_path: Path
    barrier: object

    @property
    def spec(self) -> Spec:
        return pipeline.load(self.spec_path)


_here: list[Here] = []


def _begin(dsn: str, spec_path: Path, barrier: object, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    _here.append(Here(ledger=Ledger(dsn), spec_path=spec_path, barrier=barrier))


@contextmanager
def processes(
    forks: multiprocessing.context.BaseContext, scene: Scene, number: int
) -> Iterator[multiprocessing.pool.Pool]:
    """Processes that have a ledger each; a call per process begins in all of them at once."""
    environment = {k: v for k, v in os.environ.items() if k.startswith("SEMEL_")}
    spec_path = scene.bench.pipelines / f"{scene.spec.name}.yaml"
    arguments = (scene.ledger.dsn, spec_path, forks.Barrier(number, timeout=60), environment)
    pool = forks.Pool(number, _begin, arguments)
    try:
        yield pool
        pool.close()
    except BaseException:
        pool.terminate()
        raise
    finally:
        pool.join()


def run(request: str, interval: tuple[datetime, datetime] | None = None) -> tuple[int, int]:
    """One run, retried as Airflow does. Returns its losses and how often it was retried."""
    here = _here[0]
    here.barrier.wait()
    for retry in range(RETRIES + 1):
        try:
            done = run_batch(here.ledger, here.spec, request, LocalEngine(), interval, log=quiet)
            return (done.committed.losses if done.committed else 0), retry
        except RetryableError:
            if retry == RETRIES:
                raise
    raise AssertionError


def days(number: int) -> tuple[datetime, datetime]:
    return START + timedelta(days=number), START + timedelta(days=number + 1)


# Attacks C2, C4, C6, C9.
@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.proof)])
def test_same_id_in_a_live_batch_and_three_backfills(
    bench: Workbench, ledger: Ledger, forks: multiprocessing.context.BaseContext, rounds: int
) -> None:
    """Each time one of the four takes the record, and the three others drop it."""
    scene = Scene.empty(bench, ledger, source=DAILY)
    losses = retries = 0
    started = time.monotonic()
    with processes(forks, scene, 4) as pool:
        for number in range(rounds):
            calls = []
            for day in range(4 * number, 4 * number + 4):
                name = f"{days(day)[0]:%Y-%m-%d}.jsonl"
                own = events(1000 + 9 * day, 1009 + 9 * day)
                scene.add(name, [*events(number, number + 1), *own])
                kind = "scheduled" if day % 4 == 3 else "backfill"
                calls.append((f"{kind}__{days(day)[0].isoformat()}", days(day)))
            answers = pool.starmap_async(run, calls, chunksize=1)
            collect(ledger, scene.spec, quiet)
            for lost, retried in answers.get(60):
                losses, retries = losses + lost, retries + retried
    seconds = time.monotonic() - started
    found = scene.check()
    took = Counter(record_id for _, record_id, _ in found.survivors)
    dropped = Counter(record_id for _, record_id, _ in found.decisions)
    exact = sum(took[e["id"]] == 1 and dropped[e["id"]] == 3 for e in events(0, rounds))
    print(f"{exact} of {rounds}: once; {losses} lost, {retries} retried, {seconds:.1f} s")
    assert exact == rounds
    assert losses >= rounds // 4, "they did not meet"


# Attacks P2, P3, P5, C7, C12.
@pytest.mark.parametrize("keys", ["equal", "different"])
def test_two_deployments_on_one_ledger(
    bench: Workbench, ledger: Ledger, forks: multiprocessing.context.BaseContext, keys: str
) -> None:
    """Runs of equal keys share a batch as twins, those of different ones never a byte: exact."""
    scene = Scene.empty(bench, ledger)
    rounds = attempts = 0
    with processes(forks, scene, 2) as pool:
        # The twins of equal keys stage both only when they meet, so until they did.
        while rounds < 3 or (keys == "equal" and attempts == rounds < 30):
            scene.add(f"d{rounds}.jsonl", events(30 * rounds, 30 * rounds + 50))
            mine = [f"{rounds}" if keys == "equal" else f"{rounds} of {who}" for who in "ab"]
            pool.starmap_async(run, [(key,) for key in mine], chunksize=1).get(60)
            attempts = len(sql(ledger, "SELECT FROM semel.attempt"))
            rounds += 1
    batches = len(sql(ledger, "SELECT FROM semel.batch WHERE status = 'finalized'"))
    assert batches == len(sql(ledger, "SELECT FROM semel.batch")) == rounds
    assert attempts > rounds if keys == "equal" else attempts == rounds
    scene.check()


def storm(seed: int, acts: int) -> tuple[Counter[str], list[str]]:
    """So many verbs at random. Returns what was done, and the errors."""
    here, dice = _here[0], random.Random(seed)
    done: Counter[str] = Counter()
    errors: list[str] = []
    spec = here.spec
    here.barrier.wait()
    for number in range(acts):
        act = dice.choice(("run", "run", "run", "collect", "abandon"))
        try:
            if act == "run":
                _land(spec, f"{seed}-{number}", dice)
                # A few keys only, so that twins meet too.
                run_batch(here.ledger, spec, f"r{dice.randrange(4)}", LocalEngine(), log=quiet)
            elif act == "collect":
                collect(here.ledger, spec, quiet)
            else:
                text = "SELECT batch_id FROM semel.batch WHERE status = 'planned'"
                if planned := sql(here.ledger, text):
                    abandon(here.ledger, dice.choice(planned)["batch_id"], "given up by the test")
            done[act] += 1
        except (AttemptLostError, StateError) as error:
            done[type(error).__name__] += 1  # Another process was faster.
        except SemelError as error:
            errors.append(f"{type(error).__name__}: {error}")
    here.ledger.engine.dispose()
    return done, errors


def _land(spec: Spec, name: str, dice: random.Random) -> None:
    """A new file of the source; most of its ids are others' too."""
    first = dice.randrange(400)
    _write(spec, name, events(first, first + 20))


def _write(spec: Spec, name: str, records: list[dict]) -> None:
    """A new file of the source, there whole at once."""
    path = spec.source_root() / f"{name}.jsonl"
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


# Attacks C3, P2, A2, G2.
@pytest.mark.parametrize("acts", [10, pytest.param(100, marks=pytest.mark.proof)])
def test_no_deadlock(
    bench: Workbench, ledger: Ledger, forks: multiprocessing.context.BaseContext, acts: int
) -> None:
    """All verbs in six processes at once: nobody waits in vain.

    In which order each takes its locks shows test_rules.py.
    """
    scene = Scene.empty(bench, ledger, limits={"bytes_per_batch_max": 9000})
    before = deadlocks(ledger)
    with processes(forks, scene, 6) as pool:
        calls = [(seed, acts) for seed in range(6)]
        answers = pool.starmap_async(storm, calls, chunksize=1).get(60 + 3 * acts)
    done = sum((answer[0] for answer in answers), Counter())
    print(dict(done))
    assert [error for answer in answers for error in answer[1]] == []
    assert min(done[act] for act in ("run", "collect", "abandon")) > 0, "a verb never ended well"
    assert deadlocks(ledger) == before
    scene.sources += sorted(scene.spec.source_root().glob("*.jsonl"))
    while run_batch(ledger, scene.spec, "last", LocalEngine(), log=quiet).plan.batch:
        pass
    scene.run("r0", "r1", "r2", "r3")
    scene.check()


def deadlocks(ledger: Ledger) -> int:
    text = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    return sql(ledger, text)[0]["deadlocks"]


def long_backfill(day: int) -> int:
    """A run whose stage takes longer than a live run. Returns how often it was beaten."""
    here = _here[0]

    def meanwhile(_: object) -> None:
        first = sql(here.ledger, PLACE)[0]
        for _ in range(1000):
            now = sql(here.ledger, PLACE)[0]
            if now["holder"]:
                time.sleep(LONG_SECONDS)  # Now nobody beats it, however long it takes.
            if now["holder"] or now["commit_seq"] > first["commit_seq"]:
                return
            time.sleep(0.02)

    here.barrier.wait()
    engine = LocalEngine(before_write=meanwhile)
    done = run_batch(here.ledger, here.spec, f"backfill {day}", engine, days(day), log=quiet)
    return done.committed.losses


def live(who: int, backfills: int) -> list[float]:
    """Runs one after the other, each with ids of each backfill that is not finalized yet.

    Returns how long each took.
    """
    here, taken = _here[0], []
    here.barrier.wait()
    text = "SELECT FROM semel.batch WHERE status = 'finalized' AND request_key LIKE 'backfill%'"
    for number in count():
        started = time.monotonic()
        if len(sql(here.ledger, text)) == backfills:
            return taken
        assert number < LIVE_IDS, "a backfill starves"
        day = 100 + 2 * number + who
        ids = [i * 1000 + day for i in range(backfills)] + [1_000_000 + day]
        _write(here.spec, f"{days(day)[0]:%Y-%m-%d}", [e for i in ids for e in events(i, i + 1)])
        run_batch(here.ledger, here.spec, f"live {day}", LocalEngine(), days(day), log=quiet)
        taken.append(time.monotonic() - started)
    raise AssertionError


# Attacks C9.
@pytest.mark.parametrize("backfills", [1, pytest.param(3, marks=pytest.mark.proof)])
def test_a_long_backfill_beside_live_batches_finishes(
    bench: Workbench, ledger: Ledger, forks: multiprocessing.context.BaseContext, backfills: int
) -> None:
    """Live batches that share ids with it beat it a bounded number of times, and then wait."""
    scene = Scene.empty(bench, ledger, source=DAILY, limits={})
    for day in range(backfills):
        _write(scene.spec, f"{days(day)[0]:%Y-%m-%d}", events(day * 1000, day * 1000 + 1000))
    with processes(forks, scene, backfills + 2) as pool:
        long = [pool.apply_async(long_backfill, (day,)) for day in range(backfills)]
        lives = [pool.apply_async(live, (who, backfills)) for who in range(2)]
        losses = [each.get(120) for each in long]
        taken = sorted(seconds for each in lives for seconds in each.get(120))
    print(
        f"beaten {losses} times, beside {len(taken)} live batches of "
        f"{taken[len(taken) // 2]:.2f} s (median), {taken[-1]:.2f} s (longest)"
    )
    # Who lost three has right of way; of several such, each waits for the others' too.
    enough = ATTEMPTS_LOST_BEFORE_LEASE
    assert max(losses) >= enough and min(losses) <= enough
    assert backfills > 1 or losses == [enough]
    scene.sources += sorted(scene.spec.source_root().glob("*.jsonl"))
    scene.check()
