"""Many short histories of a pipeline of what arrives, and which windows it calls complete.

The judge knows which records were there when, and in which batch each is, and nothing of the rule.
A window may be complete only when some look at the source saw a record after it, and all that was
there at that look is finalized or lost. Most histories stage in the test, so that plan, abandon and
the ledger's part of finalize take all the time; some run every verb.

`SEMEL_COMPLETE_HISTORIES=1000 SEMEL_SEED=1 pytest tests/chaos/test_complete_histories.py` runs so
many, and `1000..2000` the second thousand of them; so does SEMEL_LEDGER_HISTORIES of those that have
the ledger's statements alone, with a source that is a list.
"""

import json
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import quiet, run
from fixtures.batches.chains import link
from fixtures.batches.workbench import Workbench
from fixtures.postgres.server import lose
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.archive.marker import markers
from semel.commit import commit
from semel.errors import SemelError, StateError
from semel.finalize import _mark_finalized, finalize
from semel.ledger import Ledger, change, pipelines, row
from semel.ledger.batches import pipeline_and_batch
from semel.model.manifest import Kind
from semel.pipeline.spec import Spec
from semel.plan import abandon, event_time, partitions, plan
from semel.repair.adopt import adopt
from semel.repair.losses import accept_loss
from semel.reports import completeness
from semel.runs import replay
from semel.stage import stage
from tiers import SEED

FIRST, _, LAST = os.environ.get("SEMEL_COMPLETE_HISTORIES", "48").rpartition("..")
LEDGER_FIRST, _, LEDGER_LAST = os.environ.get("SEMEL_LEDGER_HISTORIES", "300").rpartition("..")
STEPS, LEDGER_STEPS = (6, 14), (8, 20)
WHOLE = 25
"""One history of so many runs every verb."""

SIZES = "1 hour", "45 minutes", "24 minutes", "17280 s", "1 day", "1 week"
ZONES = (
    "UTC", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Chatham", "Pacific/Apia",
    "Africa/Casablanca", "America/Sao_Paulo", "America/Havana",
)  # fmt: skip

DAY = datetime(2025, 11, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)
AHEAD = datetime.now(UTC).replace(microsecond=0) + timedelta(days=9)


class Record:
    """A record of the source. `at`: None where it has no time. `seen`: the tick since when it is
    there whole.
    """

    def __init__(self, number: int, name: str, start: int, at: datetime | None) -> None:
        self.number, self.name, self.start, self.at = number, name, start, at
        self.seen: int | None = None
        text = {"id": f"r{number}", "n": 1, "at": at and at.isoformat()}
        self.line = json.dumps(text).encode() + b"\n"


class History:
    """One pipeline in a ledger that others have as well."""

    def __init__(self, bench: Workbench, ledger: Ledger, seed: str) -> None:
        self.random, self.ledger, self.bench = random.Random(seed), ledger, bench
        self.said = [f"seed {seed}"]
        self.name = f"h{seed.rpartition(' ')[2]}"
        self.folder = bench.data / self.name
        self.folder.mkdir()
        self.delay = self.random.choice([0, 0, 1])
        self.spec = bench.spec(
            self.name,
            source={"path": f"{self.name}/*.jsonl", "on_refused": "warn"},
            record_id=self.random.choice([["id"], None]),
            record_time="at",
            window={"delay": f"{self.delay} hours", **self.drawn_window()},
            limits={"bytes_per_batch_max": self.random.choice([1, 200, 300, 10**6])},
        )
        self.records: list[Record] = []
        self.tails: dict[str, Record] = {}
        """By file: a record of which half is written."""
        self.gone: dict[str, int] = {}
        """By file: the tick since when it is gone."""
        self.tick = self.keys = 0
        self.looks: list[int] = []
        self.newest, self.allowed = 4, None
        self.now: datetime | None = None

    def __str__(self) -> str:
        there = [f"{r.number} {r.name}+{r.start} at {r.at} since {r.seen}" for r in self.records]
        return "\n".join([", ".join(self.said), *there, f"looks {self.looks}"])

    def drawn_window(self) -> dict[str, str]:
        """Of any size and zone: how far the records have come depends on neither."""
        return {"size": self.random.choice(SIZES), "zone": self.random.choice(ZONES)}

    # What may happen.

    def append(self) -> None:
        """Records of about now, late ones, some without a time, and some of the far future."""
        name = self.random.choice(["a", "b", f"c{self.random.randint(0, 9)}"])
        if name in self.gone:
            return
        self.finish_line(name)
        for _ in range(self.random.choice([1, 1, 2, 4])):
            self.newest += self.random.choice([0, 0, 1, 2])
            back = self.random.choice([0, 0, 0, 1, 3, 30])
            at = DAY + (self.newest - back) * HOUR + self.random.choice([0, 30]) * HOUR / 60
            at = self.random.choice([at] * 12 + [None, AHEAD])
            self.write(Record(len(self.records), name, self.size(name), at))
        self.tick += 1

    def half_a_line(self) -> None:
        name = self.random.choice(["a", "b"])
        if name not in self.gone and name not in self.tails:
            at = DAY + self.newest * HOUR
            made = self.tails[name] = Record(len(self.records), name, self.size(name), at)
            self.records.append(made)
            with self.path(name).open("ab") as file:
                file.write(made.line[:7])

    def finish_line(self, name: str | None = None) -> None:
        name = name or self.random.choice(["a", "b"])
        if made := self.tails.pop(name, None):
            with self.path(name).open("ab") as file:
                file.write(made.line[7:])
            self.tick += 1
            made.seen = self.tick

    def write(self, record: Record) -> None:
        with self.path(record.name).open("ab") as file:
            file.write(record.line)
        record.seen = self.tick + 1
        self.records.append(record)

    def refused(self) -> None:
        """Something that no plan can read, until it is gone."""
        path = self.path("d")
        if path.exists():
            path.unlink()
        else:
            os.mkfifo(path)

    def vanishes(self) -> None:
        """A file goes, and with it what nobody has claimed."""
        name = self.random.choice(["a", "b", "c1"])
        if self.path(name).exists() and name not in self.tails:
            self.path(name).unlink()
            self.tick += 1
            self.gone[name] = self.tick

    def loss_accepted(self) -> None:
        for name in self.gone:
            with suppress(SemelError):
                accept_loss(self.ledger, self.spec, str(self.path(name)))

    def plans(self) -> None:
        self.keys += 1
        self.planned(f"k{self.keys}")

    def plans_again(self) -> None:
        self.planned(f"k{self.random.randint(1, self.keys or 1)}")

    def plans_beside_others(self) -> None:
        """Something else happens between a plan's look and its lock."""
        self.keys += 1
        beside = self.random.choice([self.append, self.plans, self.lands, self.gives_up])
        with failpoints.armed("plan.before_lock", beside):
            self.planned(f"k{self.keys}", alone=False)

    def planned(self, key: str, *, alone: bool = True) -> None:
        before, began = self.event_time(), self.tick
        done = plan(self.ledger, self.spec, key)
        # A plan that was beaten looked again: the earliest look is the weakest statement.
        self.looks.append(began)
        if alone and not done.created and (after := self.event_time()) != before:
            # What a plan without a batch completes, it reports.
            [(start, end)] = done.covers.ranges or [(after, after)]
            assert end == after and start in (before, min(self.times_of(self.settled())))

    def taken_over(self) -> None:
        """An open batch shows no life for long, and another plan comes."""
        for batch in self.open_batches("planned")[:1]:
            with self.ledger.engine.begin() as connection:
                connection.exec_driver_sql(
                    "UPDATE semel.batch SET seen_at = seen_at - interval '9 days' "
                    "WHERE batch_id = %s", (batch,)
                )  # fmt: skip
        self.plans()

    def gives_up(self) -> None:
        if found := self.open_batches("planned"):
            abandon.abandon(self.ledger, self.random.choice(found), "a history gives it up")

    def lands(self) -> None:
        """An open batch goes on by one verb."""
        if found := self.open_batches("planned", "committed"):
            self.goes_on(self.random.choice(found))

    def goes_on(self, batch: int) -> None:
        """Commits without a stage, or finalizes without files."""
        if batch in self.open_batches("planned"):
            self.sets_times(batch)
            with self.ledger.engine.begin() as connection:
                connection.exec_driver_sql(
                    "WITH p AS (UPDATE semel.pipeline SET commit_seq = commit_seq + 1 "
                    "WHERE name = %s RETURNING commit_seq) UPDATE semel.batch "
                    "SET status = 'committed', committed_at = clock_timestamp(), "
                    "batch_time = clock_timestamp(), commit_seq = p.commit_seq FROM p "
                    "WHERE batch_id = %s", (self.name, batch)
                )  # fmt: skip
            return
        with self.ledger.transaction() as connection:
            pipeline, found = pipeline_and_batch(connection, self.name, batch)
            assert pipelines.find(connection, self.name) == pipeline
            _mark_finalized(connection, pipeline, self.spec, found, {"covers": None}, timed=True)

    def sets_times(self, batch: int) -> None:
        """As stage does."""
        until = datetime.now(UTC)
        with self.ledger.engine.begin() as connection:
            for ordinal, name, start, end in connection.exec_driver_sql(
                "SELECT ordinal, name, lower(span), upper(span) FROM semel.claim "
                "JOIN semel.source_partition USING (source_partition_id) WHERE batch_id = %s",
                (batch,),
            ).all():  # fmt: skip
                of = [r.at for r in self.records if str(self.path(r.name)).endswith(name)
                      and start <= r.start < end and r.at and r.at < until]  # fmt: skip
                if of:
                    connection.exec_driver_sql(
                        "UPDATE semel.claim SET time_min = %s, time_max = %s "
                        "WHERE batch_id = %s AND ordinal = %s", (min(of), max(of), batch, ordinal)
                    )  # fmt: skip

    def replays(self) -> None:
        """Of a model's batches there are no files."""

    # What is there.

    def path(self, name: str) -> Any:
        return self.folder / f"{name}.jsonl"

    def size(self, name: str) -> int:
        return self.path(name).stat().st_size if self.path(name).exists() else 0

    def open_batches(self, *status: str) -> list[int]:
        return self.sql(
            "SELECT batch_id FROM semel.batch JOIN semel.pipeline USING (pipeline_id) "
            "WHERE name = %s AND batch.status = ANY(%s) AND replays IS NULL", self.name,
            list(status),
        )  # fmt: skip

    def sql(self, statement: str, *values: object) -> list[Any]:
        with self.ledger.engine.connect() as connection:
            return [*connection.exec_driver_sql(statement, values).scalars()]

    def event_time(self) -> datetime | None:
        return next(iter(self.sql("SELECT event_time FROM semel.pipeline WHERE name = %s",
                                  self.name)), None)  # fmt: skip

    def times_of(self, numbers: set[int]) -> list[datetime]:
        return [r.at for r in self.records if r.number in numbers and r.at and r.at < AHEAD]

    def settled(self, *, lost: bool = False) -> set[int]:
        """The records in finalized batches, or also those that are lost by a person's word."""
        with self.ledger.engine.connect() as connection:
            spans = connection.exec_driver_sql(
                "SELECT s.name, lower(c.span), upper(c.span) FROM semel.claim AS c "
                "JOIN semel.batch AS b USING (batch_id) "
                "JOIN semel.source_partition AS s USING (source_partition_id) "
                "JOIN semel.pipeline AS p ON p.pipeline_id = b.pipeline_id "
                "WHERE p.name = %(name)s AND b.status = 'finalized' AND b.replays IS NULL "
                "UNION ALL SELECT s.name, lower(l.span), upper(l.span) FROM semel.loss AS l "
                "JOIN semel.source_partition AS s USING (source_partition_id) "
                "JOIN semel.pipeline AS p USING (pipeline_id) WHERE p.name = %(name)s AND %(lost)s",
                {"name": self.name, "lost": lost},
            ).all()
        return {
            r.number for r in self.records for name, start, end in spans
            if str(self.path(r.name)).endswith(name) and start <= r.start < end
        }  # fmt: skip

    # What must hold.

    def judge(self) -> None:
        """No window is complete too early, and none is taken back."""
        finalized, settled = self.settled(), self.settled(lost=True)
        self.now = self.event_time()
        for look in self.looks:
            there = [
                r for r in self.records
                if r.seen is not None and r.seen <= look < self.gone.get(r.name, self.tick + 1)
            ]  # fmt: skip
            if all(r.number in settled for r in there):
                of = self.times_of(finalized & {r.number for r in there})
                self.allowed = max(filter(None, (self.allowed, *of)), default=None)
        if self.now is not None:
            assert self.allowed is not None and self.now <= self.allowed
        if self.told:
            assert self.now is not None and self.now >= self.told
        self.told = self.now
        known = completeness.read_completeness(self.ledger, self.spec)
        assert known.event_time == self.now

    told: datetime | None = None

    def ends(self) -> None:
        """When all is settled, all is complete that can be: nothing is held for ever."""
        if self.path("d").exists():
            self.path("d").unlink()
        for name in ("a", "b"):
            self.finish_line(name)
        for turn in range(99):
            self.loss_accepted()
            self.plans()
            while found := self.open_batches("planned", "committed"):
                self.goes_on(found[0])
            settled = self.settled(lost=True)
            if turn > 1 and not self.left(settled):
                break
        self.plans()
        self.judge()
        assert self.now == max(self.times_of(self.settled()), default=None)

    def left(self, settled: set[int]) -> bool:
        return any(r.number not in settled and r.name not in self.gone for r in self.records)

    def runs(self) -> None:
        steps: list[Callable[[], None]] = [
            self.append, self.append, self.append, self.half_a_line, self.finish_line,
            self.plans, self.plans, self.plans, self.plans_again, self.plans_beside_others,
            self.lands, self.lands, self.lands, self.lands, self.lands, self.gives_up,
            self.taken_over, self.refused, self.vanishes, self.loss_accepted, self.replays,
        ]  # fmt: skip
        for _ in range(self.random.randint(*STEPS)):
            step = self.random.choice(steps)
            self.said.append(step.__name__)
            step()
            self.judge()
        self.said.append("ends")
        self.ends()


class WholeHistory(History):
    """All verbs, as a run has them; a pipeline that reads this one; and at the end a lost ledger."""

    def __init__(self, bench: Workbench, ledger: Ledger, seed: str) -> None:
        super().__init__(bench, ledger, seed)
        self.below = link(
            SimpleNamespace(bench=bench), f"{self.name}_below", self.name, record_time="at",
            window=self.drawn_window(),
        )  # fmt: skip
        self.below_allowed: list[datetime] = []

    def replays_below(self) -> None:
        """The pipeline below runs, or plans and leaves the rest to a later run."""
        self.keys += 1
        key = f"k{self.random.randint(max(1, self.keys - 3), self.keys)}"
        steps = self.random.choice([plan, run, run])
        with suppress(StateError):
            steps(self.ledger, self.below, key)

    def judge(self) -> None:
        """The pipeline below may be complete only up to what one look at the source above saw."""
        super().judge()
        done = {int(row["id"][1:]) for marker in markers(self.below.sink_path())
                for file in marker.of_kind(Kind.DATA)
                for row in pq.read_table(marker.path_of(file)).to_pylist()}  # fmt: skip
        dead = {r.number for r in self.records if r.at is None} | self.settled(lost=True) - (
            self.settled()
        )
        for look in self.looks:
            there = {r.number for r in self.records if r.seen is not None
                     and r.seen <= look < self.gone.get(r.name, self.tick + 1)}  # fmt: skip
            if there <= done | dead:
                self.below_allowed += self.times_of(there & done)
        now = next(iter(self.sql(
            "SELECT event_time FROM semel.pipeline WHERE name = %s", self.below.name)), None)
        assert now is None or now <= max(self.below_allowed, default=DAY - 99 * HOUR)

    def ends(self) -> None:
        """And a new ledger calls nothing complete that this one does not."""
        super().ends()
        for key in ("last", "last too"):
            run(self.ledger, self.below, key)
            self.judge()
        before = self.now
        if not markers(self.spec.sink_path()):
            return
        lose(self.ledger)
        adopt(self.ledger, self.spec, log=quiet)
        after = self.event_time()
        assert after is None or after <= before
        self.told = None
        self.looks.append(self.tick)
        plan(self.ledger, self.spec, "adopted")
        self.judge()

    def goes_on(self, batch: int) -> None:
        spec, ledger = self.spec, self.ledger
        stage(ledger, spec, batch, LocalEngine(), log=quiet)
        commit(ledger, spec, batch, lambda: None, log=quiet)
        finalize(ledger, spec, batch)

    def lands(self) -> None:
        if found := self.open_batches("planned"):
            self.goes_on(self.random.choice(found))

    def replays(self) -> None:
        self.replays_below()
        self.keys += 1
        for batch in self.open_batches("finalized")[:1]:
            replay.run(
                self.ledger, self.spec, f"again{self.keys}", batch, LocalEngine(), log=quiet
            )


# Attacks W4, W6, W1.
@pytest.mark.parametrize("part", range(4))
@pytest.mark.draws
def test_no_window_is_complete_too_early(bench: Workbench, ledger: Ledger, part: int) -> None:
    """Whatever runs, fails, comes late, is given up, taken over, refused or lost."""
    for number in range(int(FIRST or 0) + part, int(LAST), 4):
        kind = WholeHistory if number % WHOLE == 1 % WHOLE else History
        history = kind(bench, ledger, f"{SEED} {number}")
        try:
            history.runs()
        except AssertionError as error:
            pytest.fail(f"{error}\n{history}")


class LedgerHistory:
    """A source that is a list of record times, and what plan, abandon and finalize do in the ledger.

    A position is a record. A plan of a model looks at one moment, and writes at a later one.
    """

    def __init__(self, ledger: Ledger, spec: Spec, seed: str) -> None:
        self.random, self.ledger, self.spec = random.Random(seed), ledger, spec
        self.said: list[object] = [seed]
        with ledger.engine.begin() as connection:
            self.pipeline = connection.exec_driver_sql(
                "INSERT INTO semel.pipeline (name, sink_address, archive_path, identity, shards, "
                "bucket_seconds) VALUES (%(seed)s, %(seed)s, %(seed)s, '{}', 1, 60) "
                "RETURNING pipeline_id", {"seed": seed},
            ).scalar_one()  # fmt: skip
            self.part = connection.exec_driver_sql(
                "INSERT INTO semel.source_partition (pipeline_id, name, generation, identity) "
                "VALUES (%s, 'part', 1, 'part') RETURNING source_partition_id", (self.pipeline,)
            ).scalar_one()  # fmt: skip
        self.times: list[datetime | None] = []
        self.hidden: set[int] = set()
        """Records that are refused, or whose upstream is open: no look is of all while they are."""
        self.claimed: dict[int, set[int]] = {}
        self.committed: set[int] = set()
        self.finalized: set[int] = set()
        self.looks: list[set[int]] = []
        self.pending: tuple[int, int, set[int], bool] | None = None
        self.newest, self.keys, self.told = 4, 0, None

    def append(self) -> None:
        for _ in range(self.random.choice([1, 1, 3])):
            self.newest += self.random.choice([0, 1, 2])
            back = self.random.choice([0, 0, 1, 5, 40])
            at = DAY + (self.newest - back) * HOUR
            self.times.append(self.random.choice([at] * 9 + [None, AHEAD]))

    def refuses(self) -> None:
        left = [n for n in range(len(self.times)) if n not in self.taken()]
        if self.hidden:
            self.hidden.pop()
        elif left:
            self.hidden.add(self.random.choice(left))

    def taken(self) -> set[int]:
        return set().union(*self.claimed.values()) if self.claimed else set()

    def looks_now(self) -> None:
        """A plan looks, and cuts: all that is free, or the first of it."""
        there = set(range(len(self.times)))
        free = sorted(there - self.taken() - self.hidden)
        cut = self.random.choice([len(free), len(free), 1, 0])
        takes = set(free[:cut])
        is_full = len(takes) == len(free) and not self.hidden
        self.pending = self.version(), len(self.times), takes, is_full
        if self.random.random() < 0.7:
            self.writes()

    def writes(self) -> None:
        """The plan that looked before writes, if its basis still holds."""
        if self.pending is None:
            return
        version, there, takes, is_full = self.pending
        self.pending = None
        if version != self.version():
            return
        self.looks.append(set(range(there)))
        with self.ledger.transaction() as connection:
            if takes:
                self.keys += 1
                claims = [
                    {"ordinal": n, "source_partition_id": self.part, "start": at, "end": at + 1,
                     "evidence": {}} for n, at in enumerate(sorted(takes))
                ]  # fmt: skip
                made = row(
                    connection, "plan", "insert_batch", pipeline_id=self.pipeline,
                    request_key=f"k{self.keys}", ordinal=1, spec="{}", spec_digest="",
                    split_bytes=1, interval_start=None, interval_end=None,
                    claims=json.dumps(claims), covers=None, is_full=is_full,
                )  # fmt: skip
                self.claimed[made["batch_id"]] = takes
            elif is_full:
                event_time.record_full_plan(connection, self.spec, self.pipeline)

    def version(self) -> int:
        with self.ledger.engine.connect() as connection:
            return partitions.version(connection, self.pipeline)

    def gives_up(self) -> None:
        if found := [b for b in self.claimed if b not in self.committed]:
            batch = self.random.choice(found)
            abandon.abandon(self.ledger, batch, "a history gives it up")
            del self.claimed[batch]

    def lands(self) -> None:
        if not (found := [b for b in self.claimed if b not in self.finalized]):
            return
        batch = self.random.choice(found)
        if batch not in self.committed:
            self.commits(batch)
            return
        with self.ledger.transaction() as connection:
            change(connection, "finalize", "finalize_batch", batch_id=batch)
            event_time.take_in(
                connection, self.spec, SimpleNamespace(batch_id=batch, pipeline_id=self.pipeline)
            )
        self.finalized.add(batch)

    def commits(self, batch: int) -> None:
        self.committed.add(batch)
        times = [
            {"n": n, "at": self.times[at].isoformat()}
            for n, at in enumerate(sorted(self.claimed[batch]))
            if self.times[at] is not None
            and (self.times[at] < AHEAD or self.random.random() < 0.5)
        ]  # fmt: skip
        with self.ledger.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE semel.batch SET status = 'committed', committed_at = clock_timestamp(), "
                "batch_time = clock_timestamp(), commit_seq = %s WHERE batch_id = %s",
                (len(self.committed), batch),
            )
            connection.exec_driver_sql(
                "UPDATE semel.claim AS c SET time_min = t.at, time_max = t.at "
                "FROM jsonb_to_recordset(CAST(%s AS jsonb)) AS t (n int, at timestamptz) "
                "WHERE c.batch_id = %s AND c.ordinal = t.n", (json.dumps(times), batch),
            )  # fmt: skip

    def of(self, positions: set[int]) -> list[datetime]:
        return [at for n in positions if (at := self.times[n]) and at < AHEAD]

    def judge(self) -> None:
        with self.ledger.engine.connect() as connection:
            now = connection.exec_driver_sql(
                "SELECT event_time FROM semel.pipeline WHERE pipeline_id = %s", (self.pipeline,)
            ).scalar_one()
        done = set().union(*(self.claimed[b] for b in self.finalized)) if self.finalized else set()
        ends = [at for look in self.looks if look <= done for at in self.of(look)]
        self.allowed = max([*ends, *self.allowed_before], default=None)
        self.allowed_before = [self.allowed] if self.allowed else []
        assert now is None or (self.allowed and now <= self.allowed), (now, self.said)
        assert self.told is None or (now and now >= self.told), (now, self.said)
        self.told = now

    allowed_before: Sequence[datetime] = ()

    def runs(self) -> None:
        steps = [
            self.append, self.append, self.looks_now, self.looks_now, self.looks_now, self.writes,
            self.gives_up, self.refuses, *[self.lands] * self.random.choice([1, 3, 6]),
        ]  # fmt: skip
        for _ in range(self.random.randint(*LEDGER_STEPS)):
            step = self.random.choice(steps)
            self.said.append((step.__name__, len(self.times)))
            step()
            self.judge()
        self.hidden, self.pending = set(), None
        while set(self.claimed) - self.finalized:
            self.lands()
        left = set(range(len(self.times))) - self.taken()
        self.pending = self.version(), len(self.times), left, True
        self.writes()
        while set(self.claimed) - self.finalized:
            self.lands()
        self.judge()
        assert self.told == max(self.of(set(range(len(self.times)))), default=None), self.said


# Attacks W4, W6.
@pytest.mark.draws
def test_the_ledger_calls_nothing_complete_too_early(bench: Workbench, ledger: Ledger) -> None:
    """Whatever order the statements of plan, abandon and finalize come in."""
    spec = bench.spec(record_time="at", window={"size": "1 hour"})
    for number in range(int(LEDGER_FIRST or 0), int(LEDGER_LAST)):
        LedgerHistory(ledger, spec, f"{SEED} {number}").runs()
