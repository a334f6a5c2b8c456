"""Many short histories of a pipeline with select: interval, by the time of the files' last writes.

The judge knows when each record was written, and in which batch it is, and nothing of the rule. An
hour may be complete only when each record that was written for it is in a finalized batch. Files
are written on, renamed and begun; runs come in order, late, again and together; their batches wait,
land and are given up. A run begins after its interval, no file goes, and the file system knows when
each file began. Each record is of the time of its write: `delay` counts up to the last write of a
file, so a late record in a file that grows on may miss its hour (docs/windows.md).

`SEMEL_INTERVAL_HISTORIES=2000 SEMEL_SEED=1 pytest tests/chaos/test_interval_histories.py` runs so
many, and `1000..2000` the second thousand of them.
"""

import json
import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fixtures.batches.workbench import Workbench
from semel.finalize import _mark_finalized
from semel.ledger import Ledger
from semel.ledger.batches import pipeline_and_batch
from semel.plan import abandon, plan
from semel.reports import completeness
from semel.sources.files import evidence
from tiers import SEED

FIRST, _, LAST = os.environ.get("SEMEL_INTERVAL_HISTORIES", "60").rpartition("..")
STEPS = (8, 20)

DAY = datetime(2025, 11, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)


class LogFile:
    """A file by its inode: its names so far, and the positions of its records."""

    def __init__(self, path: Path) -> None:
        self.path, self.names = path, [str(path)]
        self.records: list[tuple[int, datetime]] = []
        """By record: where it begins, and its record time."""


class IntervalHistory:
    """One pipeline in a ledger that others have as well, and a clock that the history moves."""

    def __init__(self, bench: Workbench, ledger: Ledger, seed: str) -> None:
        self.random, self.ledger = random.Random(seed), ledger
        self.name, self.said = f"i{seed.rpartition(' ')[2]}", [f"seed {seed}"]
        self.folder = bench.data / self.name
        self.folder.mkdir()
        self.delay = self.random.choice([0, 0, 1])
        lookback = self.random.choice([0, 0, 1])
        self.spec = bench.spec(
            self.name,
            source={
                "path": f"{self.name}/*.jsonl", "on_refused": "warn", "select": "interval",
                "interval_from": "mtime", "lookback": f"{lookback} hours",
            },
            record_time="at",
            window={"size": "1 hour", "delay": f"{self.delay} hours"},
        )  # fmt: skip
        self.files: list[LogFile] = []
        self.births: dict[int, datetime] = {}
        self.now, self.done, self.keys, self.made = 0.0, 0, 0, 0
        self.told: set[int] = set()

    def __str__(self) -> str:
        files = [f"{f.names}: {[(s, f'{t:%H:%M}') for s, t in f.records]}" for f in self.files]
        return "\n".join([", ".join(self.said), *files])

    # What may happen.

    def passes(self) -> None:
        self.now += self.random.choice([0.02, 0.3, 0.7, 1.1])

    def begins(self) -> None:
        self.made += 1
        file = LogFile(self.folder / f"f{self.made}.jsonl")
        self.files.append(file)
        self.writes(file)

    def goes_on(self) -> None:
        if self.files:
            self.writes(self.random.choice(self.files[-3:]))

    def writes(self, file: LogFile) -> None:
        self.now += 0.01
        when = DAY + self.now * HOUR
        self.keys += 1
        with file.path.open("ab") as out:
            file.records.append((out.tell(), when))
            text = {"id": f"r{self.keys}", "n": 1, "at": when.isoformat()}
            out.write(json.dumps(text).encode() + b"\n")
        self.births.setdefault(file.path.stat().st_ino, when)
        os.utime(file.path, (when.timestamp(), when.timestamp()))

    def renames(self) -> None:
        if self.files:
            file = self.random.choice(self.files)
            self.made += 1
            file.path = file.path.rename(self.folder / f"old{self.made}.jsonl")
            file.names.append(str(file.path))

    def runs_in_order(self) -> None:
        """The runs of the hours that are over, as a scheduler makes them; each takes its own."""
        while self.done + 1 <= self.now:
            self.planned(self.done, self.done + 1)
            self.done += 1
            if self.random.random() < 0.4:
                return

    def runs_again(self) -> None:
        """A backfill of hours that are over."""
        if self.now >= 1:
            first = self.random.randrange(int(self.now))
            self.planned(first, self.random.randint(first + 1, int(self.now)))

    def planned(self, first: int, last: int) -> None:
        self.keys += 1
        self.said.append(f"[{first}, {last}) at {self.now:.2f}")
        between = DAY + first * HOUR, DAY + last * HOUR
        plan(self.ledger, self.spec, f"k{self.keys}", between)

    def gives_up(self) -> None:
        if found := self.open_batches("planned"):
            abandon.abandon(self.ledger, self.random.choice(found), "a history gives it up")

    def lands(self) -> None:
        if found := self.open_batches("planned", "committed"):
            self.settles(self.random.choice(found))

    def settles(self, batch: int) -> None:
        """A planned batch commits without a stage, a committed one is finalized without files."""
        if batch in self.open_batches("planned"):
            with self.ledger.engine.begin() as connection:
                connection.exec_driver_sql(
                    "WITH p AS (UPDATE semel.pipeline SET commit_seq = commit_seq + 1 "
                    "WHERE name = %s RETURNING commit_seq) UPDATE semel.batch "
                    "SET status = 'committed', committed_at = clock_timestamp(), "
                    "batch_time = clock_timestamp(), commit_seq = p.commit_seq FROM p "
                    "WHERE batch_id = %s", (self.name, batch),
                )  # fmt: skip
            return
        covers = self.rows("SELECT covers FROM semel.batch WHERE batch_id = %s", batch)[0][0]
        with self.ledger.transaction() as connection:
            pipeline, found = pipeline_and_batch(connection, self.name, batch)
            _mark_finalized(connection, pipeline, self.spec, found, {"covers": covers}, timed=False)

    # What is there.

    def rows(self, statement: str, *values: object) -> list[tuple]:
        with self.ledger.engine.connect() as connection:
            return [*connection.exec_driver_sql(statement, values).all()]

    def open_batches(self, *status: str) -> list[int]:
        found = self.rows(
            "SELECT batch_id FROM semel.batch JOIN semel.pipeline USING (pipeline_id) "
            "WHERE name = %s AND batch.status = ANY(%s)", self.name, list(status),
        )  # fmt: skip
        return [number for (number,) in found]

    def unsettled(self) -> list[datetime]:
        """The record times of what is in no finalized batch."""
        spans = self.rows(
            "SELECT s.name, lower(c.span), upper(c.span) FROM semel.claim AS c "
            "JOIN semel.batch AS b USING (batch_id) "
            "JOIN semel.source_partition AS s USING (source_partition_id) "
            "JOIN semel.pipeline AS p ON p.pipeline_id = b.pipeline_id "
            "WHERE p.name = %s AND b.status = 'finalized'", self.name,
        )  # fmt: skip
        return [
            at for file in self.files for begin, at in file.records
            if not any(name in file.names and start <= begin < end for name, start, end in spans)
        ]  # fmt: skip

    # What must hold.

    def complete(self) -> set[int]:
        known = completeness.read_completeness(self.ledger, self.spec)
        hours = range(-1, int(self.now) + 3)
        return {n for n in hours if known.complete(DAY + n * HOUR, DAY + (n + 1) * HOUR)}

    def judge(self) -> None:
        """No hour is complete too early, and none is taken back."""
        complete = self.complete() if self.keys and self.planned_once() else set()
        early = [
            n for n in complete for at in self.unsettled()
            if DAY + n * HOUR <= at < DAY + (n + 1) * HOUR
        ]  # fmt: skip
        assert not early, f"complete without all of it: hours {early}"
        assert self.told <= complete, f"taken back: {self.told - complete}"
        self.told = complete

    def planned_once(self) -> bool:
        return bool(self.rows("SELECT 1 FROM semel.pipeline WHERE name = %s", self.name))

    def ends(self) -> None:
        """When all is read, all is complete: nothing is held for ever."""
        last = int(self.now) + 1
        self.now = float(last)
        for _ in range(2 * self.keys + 9):
            self.planned(-2, last)
            while found := self.open_batches("planned", "committed"):
                self.settles(found[0])
            if not self.unsettled():
                break
        self.planned(-2, last)
        self.judge()
        assert self.told >= {*range(last - self.delay)}

    def runs(self) -> None:
        steps = [
            self.passes, self.passes, self.begins, self.goes_on, self.goes_on, self.renames,
            self.runs_in_order, self.runs_in_order, self.runs_in_order, self.runs_again,
            self.lands, self.lands, self.lands, self.lands, self.gives_up,
        ]  # fmt: skip
        for _ in range(self.random.randint(*STEPS)):
            step = self.random.choice(steps)
            self.said.append(step.__name__)
            step()
            self.judge()
        self.said.append("ends")
        self.ends()


# Attacks W1, W2, P10.
@pytest.mark.draws
def test_no_hour_is_complete_too_early(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written on, renamed, run late or again, given up or left open."""
    births: dict[int, datetime] = {}

    def birth_ns(place: int | str) -> int | None:
        status = os.fstat(place) if isinstance(place, int) else os.stat(place)
        born = births.get(status.st_ino)
        return born and int(born.timestamp()) * 10**9

    monkeypatch.setattr(evidence, "birth_ns", birth_ns)
    for number in range(int(FIRST or 0), int(LAST)):
        history = IntervalHistory(bench, ledger, f"{SEED} {number}")
        history.births = births
        try:
            history.runs()
        except AssertionError as error:
            pytest.fail(f"{error}\n{history}")
