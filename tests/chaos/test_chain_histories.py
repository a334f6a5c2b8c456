"""Many short histories of a pipeline that reads another one, each step of it apart.

The upstream is a model: markers and files in the form of one that semel wrote, so that the steps of
the pipeline below take all the time. What has to be there is known from the model alone.

`SEMEL_CHAIN_HISTORIES=2000 SEMEL_SEED=1 pytest tests/chaos/test_chain_histories.py` runs so many, and
`1000..2000` the second thousand of them.
"""

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import ids, quiet, run, settled, sql
from fixtures.batches.chains import link
from fixtures.batches.workbench import Workbench
from fixtures.contract.sources import Upstream, parquet_of
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.commit import commit
from semel.errors import SemelError
from semel.failpoints import FaultError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.plan import abandon, plan
from semel.reports.gaps import gaps
from semel.runs import replay
from semel.stage import stage
from semel.storage import checksum
from tiers import SEED

FIRST, _, LAST = os.environ.get("SEMEL_CHAIN_HISTORIES", "6").rpartition("..")
STEPS = 6, 12
ROWS = 8
"""Of each batch of the upstream, at most."""

VERBS = ("plan", "abandon", "replay", "stage", "commit", "finalize", "storage")
POINTS = [point for point in failpoints.points() if point.partition(".")[0] in VERBS]


class ModelUpstream:
    """A pipeline whose batches are written here. `versions`: what each batch had and has."""

    def __init__(self, up: Upstream, marker: dict[str, Any], name: str) -> None:
        self.name, self.marker = name, marker
        self.sink = up.bench.data / "out" / name
        self.markers = up.bench.data / "out" / "_semel" / name / "markers"
        for folder in (self.sink, self.markers):
            folder.mkdir(parents=True)
        up.bench.spec(name)
        self.versions: dict[int, list[list[str]]] = {}

    def write(self, number: int, rows: int) -> None:
        """The first, or another, output of a batch: so many of its rows, or none."""
        generation = len(self.versions.get(number, ())) + 1
        path = self.sink / f"b{number:08d}-g{generation}.parquet"
        start = number * ROWS
        path.write_bytes(parquet_of(start, start + max(rows, 1)))
        file = {"kind": "data", "root": "sink", "path": path.name, "records": rows,
                "bytes": path.stat().st_size, "checksum": checksum(path)}  # fmt: skip
        made = {**self.marker, "pipeline": self.name, "batch_id": number,
                "files": [file] if rows else []}  # fmt: skip
        if generation > 1:
            before = {"batch_id": number, "generation": generation - 1}
            made |= {"generation": generation, "replay": {}, "replaces": [before]}
        whole = self.markers / ".whole"
        whole.write_text(json.dumps(made))
        whole.replace(self.markers / f"b{number:08d}.json")
        self.versions.setdefault(number, []).append(ids(start, start + rows))

    @property
    def now(self) -> list[str]:
        """The ids that a rebuild from nothing would have."""
        return sorted(one for versions in self.versions.values() for one in versions[-1])


class History:
    """One pipeline that reads a model, in a ledger that others have as well."""

    def __init__(
        self, up: Upstream, ledger: Ledger, marker: dict[str, Any], seed: str, *, staged: bool
    ) -> None:
        self.random, self.ledger, self.told = random.Random(seed), ledger, [f"seed {seed}"]
        name = f"h{seed.rpartition(' ')[2]}"
        self.up = ModelUpstream(up, marker, f"{name}_up")
        limit = self.random.choice([1, ROWS + 1, 3 * ROWS, 1_000])
        self.spec = link(up, name, self.up.name, limits={"records_per_batch_max": limit})
        self.keys = 0
        self.ends = [up.bench.pipelines / f"{one}.yaml" for one in (name, self.up.name)]
        for _ in range(self.random.choice([1, 1, 2, 3])):
            self.append()
        if staged:
            self.staged()
            self.replay_up()

    # What may happen.

    def append(self) -> None:
        number = len(self.up.versions) + 1
        self.up.write(number, self.random.choice([0, 3, ROWS]))

    def replay_up(self) -> None:
        number = self.random.choice([*self.up.versions])
        self.up.write(number, self.random.choice([0, 1, 5, ROWS]))

    def key(self) -> str:
        self.keys += 1
        return f"k{self.keys}"

    def staged(self) -> None:
        planned = plan(self.ledger, self.spec, self.key())
        if planned.batch:
            stage(self.ledger, self.spec, planned.batch.batch_id, LocalEngine(), log=quiet)

    def planned(self) -> None:
        plan(self.ledger, self.spec, self.key())

    def runs(self) -> None:
        run(self.ledger, self.spec, self.key())

    def runs_again(self) -> None:
        run(self.ledger, self.spec, f"k{self.random.randint(1, self.keys or 1)}")

    def open_goes_on(self) -> None:
        """One more verb of an open batch."""
        if not (found := self.open_batches()):
            return
        batch = self.random.choice(found)["batch_id"]
        stages = lambda: stage(self.ledger, self.spec, batch, LocalEngine(), log=quiet)  # noqa: E731
        steps: list[Callable[[], object]] = [
            stages, lambda: commit(self.ledger, self.spec, batch, stages, log=quiet),
            lambda: finalize(self.ledger, self.spec, batch),
        ]  # fmt: skip
        for step in steps[: self.random.choice([1, 2, 3, 3])]:
            step()

    def falls_silent(self) -> None:
        sql(self.ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '1 hour' WHERE "
            "pipeline_id = (SELECT pipeline_id FROM semel.pipeline WHERE name = :name)",
            name=self.spec.name)  # fmt: skip

    def given_up(self) -> None:
        if found := self.open_batches():
            abandon.abandon(self.ledger, self.random.choice(found)["batch_id"], "given up")

    def replay_planned(self) -> None:
        if roots := self.roots():
            replay.plan(self.ledger, self.spec, self.key(), self.random.choice(roots))

    def replays(self) -> None:
        if roots := self.roots():
            self.replayed(self.random.choice(roots))

    def replayed(self, root: int, key: str = "") -> None:
        key = key or self.key()
        replay.run(self.ledger, self.spec, key, root, LocalEngine(), log=quiet)

    STEPS = (
        (append, 2), (replay_up, 4), (staged, 4), (planned, 3), (runs, 3), (runs_again, 2),
        (open_goes_on, 6), (falls_silent, 3), (given_up, 1), (replay_planned, 2), (replays, 2),
    )  # fmt: skip

    # How it goes.

    def open_batches(self) -> list:
        return sql(self.ledger, "SELECT batch_id, request_key, replays, b.status FROM semel.batch "
                   "AS b JOIN semel.pipeline USING (pipeline_id) WHERE name = :name AND status IN "
                   "('planned', 'committed') ORDER BY batch_id", name=self.spec.name)  # fmt: skip

    def roots(self) -> list[int]:
        found = sql(self.ledger, "SELECT batch_id FROM semel.batch JOIN semel.pipeline USING "
                    "(pipeline_id) WHERE name = :name AND status = 'finalized' AND replays IS NULL",
                    name=self.spec.name)  # fmt: skip
        return [row["batch_id"] for row in found]

    def goes(self) -> None:
        steps, weights = zip(*self.STEPS, strict=True)
        for step in self.random.choices(steps, weights, k=self.random.randint(*STEPS)):
            self.step(step)
            self.has_one_version_of_each()

    def step(self, step: Callable[["History"], None]) -> None:
        """One step, which may die, or may be refused: a scheduler would come again."""
        self.told.append(step.__name__)
        try:
            if self.random.random() > 0.15:
                step(self)
                return
            point = self.random.choice(POINTS)

            def dies() -> None:
                self.told.append(f"died at {point}")
                raise FaultError(point)

            with failpoints.armed(point, dies, 1):
                step(self)
        except (SemelError, FaultError) as error:
            self.told.append(f"{type(error).__name__}: {error}")

    def has_one_version_of_each(self) -> None:
        """Of each batch of the upstream nothing, or one output that it had, whole."""
        if not self.roots():
            return
        rows = Counter(settled(self.spec, audited=False).ids)
        for number, versions in self.up.versions.items():
            mine = {one: rows[one] for one in ids(number * ROWS, (number + 1) * ROWS) if rows[one]}
            assert mine in [{}, *(dict(Counter(v)) for v in versions)], (number, mine)

    def ends_like_a_rebuild(self) -> None:
        for _ in range(12):
            self.falls_silent()
            for batch in self.open_batches():
                with suppress(SemelError):
                    if batch["replays"]:
                        self.replayed(batch["replays"], batch["request_key"])
                    else:
                        run(self.ledger, self.spec, batch["request_key"])
            done = run(self.ledger, self.spec, self.key()).plan
            for refusal in done.refusals:
                self.told.append(f"refused {refusal.name}: {refusal.detail}")
                root = re.search(r"`semel replay \w+ --batches (\d+)`", refusal.detail)
                assert refusal.reason == "replayed" and root, refusal
                self.replayed(int(root[1]))
            if not (done.batch or done.refusals or self.open_batches()):
                break
        else:
            raise AssertionError("it never comes to rest")
        left = gaps(self.ledger, self.spec)
        assert left.gaps == () and left.refusals == ()
        there = settled(self.spec, audited=False).ids if self.roots() else []
        assert there == self.up.now


@pytest.fixture
def marker(linked: Upstream) -> dict[str, Any]:
    """A marker as finalize writes it."""
    linked.append(0, 1)
    plain = json.loads((linked.markers / "b00000001.json").read_text())
    plain["spec"]["sink"].pop("partition_by", None)
    return plain


# Attacks CH1, CH2, P25, C15.
@pytest.mark.timeout(0)
def test_the_end_is_what_the_upstream_has(
    linked: Upstream, ledger: Ledger, marker: dict[str, Any]
) -> None:
    """Half of the histories begin with a staged batch whose part is replayed. It takes a second for
    each: what is open, silent and replayed at once is only met by many.
    """
    assert pq.read_schema(next(linked.declared.sink_path().rglob("*.parquet")))
    for at in range(int(FIRST or 0), int(LAST)):
        history = History(linked, ledger, marker, f"{SEED} {at}", staged=at % 2 == 0)
        try:
            history.goes()
            history.ends_like_a_rebuild()
        except BaseException:
            print("\n".join(history.told))
            raise
        print(f"{at}: {len(history.told)} lines", flush=True)
        for path in history.ends:
            path.unlink()
