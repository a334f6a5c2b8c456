"""A state machine of a folder: whatever tools do to files, each record is once in the output.

Real files on a real file system (inodes come back on ext4), real Postgres, the verbs as they are;
the engine is LocalEngine. The model (machine_folder) knows which file is which, and is never told
to semel; it also plays the person who follows the advice of a refusal, knowing the truth.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from fixtures.batches.account import advised, quiet
from fixtures.batches.workbench import Workbench
from fixtures.spark.local import LocalEngine
from machine_folder import Folder, Life
from machine_seed import explore
from semel.archive import layout
from semel.ledger import Ledger
from semel.runs.run import run_batch
from semel.sources import Refusal
from tiers import SEED, examples

STEPS_MIN = int(os.environ.get("SEMEL_FOLDER_STEPS", examples(300)))  # of each of the four
EXAMPLES, STEPS = examples(10), 40
SEEN_MIN = 9
"""So much of a folder's days is seen, of what tools do and of what is refused and advised."""
_ROUNDS_MAX = 6
LOGS = st.sampled_from(("app.log", "other.log"))
PICK = st.integers(0, 9)
COUNT = st.integers(1, 6)


@dataclass
class Place:
    """What the examples of one test share. `steps` and `seen` say what they did."""

    folder: Path
    ledger: Ledger
    patch: pytest.MonkeyPatch
    by_position: bool
    long: bool
    examples: int = 0
    steps: int = 0
    seen: Counter = field(default_factory=Counter)


class Machine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        place.examples += 1
        self.place = place
        self.bench = Workbench(place.folder / f"example{place.examples}")
        place.patch.setenv("SEMEL_DATA_ROOTS", str(self.bench.data))
        place.patch.setenv("SEMEL_PIPELINES_DIR", str(self.bench.pipelines))
        self.name = f"folder{place.examples}"
        self.spec = self.bench.spec(
            self.name,
            source={"path": "in/*"},
            record_id=None if place.by_position else ["id"],
        )
        self.folder = Folder(self.bench.data / "in", place.long)
        self.written: Counter[str] = Counter()
        self.markers: set[Path] = set()
        self.runs = 0

    def _note(self, what: str) -> None:
        self.place.steps += 1
        self.place.seen[what] += 1

    def _pick(self, which: int, lives: list[Life]) -> Life | None:
        return lives[which % len(lives)] if lives else None

    @rule(name=LOGS, count=COUNT)
    def write(self, name: str, count: int) -> None:
        self.folder.write(name, count)
        self._note("write")

    @rule(count=COUNT)
    def drop(self, count: int) -> None:
        """A producer that makes a file of its own."""
        self.folder.write(f"drop-{len(self.folder.lives)}.jsonl", count)
        self._note("drop")

    @precondition(lambda self: self.folder.plain())
    @rule(which=PICK, count=COUNT)
    def append(self, which: int, count: int) -> None:
        self.folder.append(self._pick(which, self.folder.plain()), count)
        self._note("append")

    @rule(
        name=LOGS,
        how=st.sampled_from(("rename", "copytruncate", "hole")),
        compress=st.sampled_from(("none", "compress", "delay")),
    )
    def rotate(self, name: str, how: str, compress: str) -> None:
        self.folder.rotate(name, 2, how, compress)
        self._note(f"rotate: {how}, {compress}")

    @precondition(lambda self: self.folder.there())
    @rule(which=PICK, what=st.sampled_from(("delete", "archive", "touch", "gzip", "rename")))
    def treat(self, which: int, what: str) -> None:
        folder = self.folder
        life = self._pick(which, folder.there())
        if what == "delete":
            folder.delete(life)
        elif what == "archive":
            folder.archive(life, self.bench.data / "attic")
        elif what == "touch":
            folder.touch(life)
        elif what == "gzip":
            folder.gzip(life)
        else:
            folder.rename(life, f"moved-{self.place.steps}{'.gz' if life.packed else ''}")
        self._note(what)

    @precondition(lambda self: self.folder.plain())
    @rule(which=PICK, count=COUNT, what=st.sampled_from(("rewrite", "rsync")))
    def write_anew(self, which: int, count: int, what: str) -> None:
        getattr(self.folder, what)(self._pick(which, self.folder.plain()), count)
        self._note(what)

    @precondition(lambda self: self.folder.plain())
    @rule(which=PICK)
    def link(self, which: int) -> None:
        self.folder.link(self._pick(which, self.folder.plain()))
        self._note("link")

    @precondition(lambda self: self.folder.plain())
    @rule(which=PICK)
    def copy(self, which: int) -> None:
        """`cp -p`, of a file that is read, and the next run comes before it is written to: what a
        small copy is, nobody sees later.
        """
        self.settle()
        if (life := self._pick(which, self.folder.plain())) and life.records:
            self.folder.copy(life)
            self._check(self._run())
            self._note("copy")

    @rule()
    def run(self) -> None:
        """What is there is read once, or its file is refused."""
        self._check(self._run())
        self._note("run")

    @rule()
    def settle(self) -> None:
        """A person follows the advice of each refusal, until there is none: nothing is amiss."""
        for _ in range(_ROUNDS_MAX):
            refused = self._run()
            self._check(refused)
            if not refused:
                break
            # With a link's second name gone, what else was in doubt may not be so any more.
            linked = [refusal for refusal in refused if refusal.reason == "hard link"]
            for refusal in linked or refused:
                self._follow(refusal)
        else:
            raise AssertionError(f"refused after {_ROUNDS_MAX} rounds of advice: {refused}")
        self._note("settle")

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:
            self.settle()

    def _run(self) -> tuple[Refusal, ...]:
        self.runs += 1
        done = run_batch(
            self.place.ledger, self.spec, f"r{self.runs}", LocalEngine(), log=quiet
        ).plan
        self.place.seen["files recognised by content"] += len(done.resumed)
        self._read_output()
        return done.refusals

    def _read_output(self) -> None:
        sink = self.spec.sink_path()
        for path in (
            set((layout.archive_folder(self.spec) / "markers").glob("b*.json")) - self.markers
        ):
            self.markers.add(path)
            marker = json.loads(path.read_text())
            assert marker["counts"]["quarantined"] == 0, path
            for file in marker["files"]:
                if file["kind"] == "data":
                    table = pq.ParquetFile(sink / file["path"]).read(columns=["id"])
                    self.written.update(table.column("id").to_pylist())

    def _check(self, refused: tuple[Refusal, ...]) -> None:
        twice = [record for record, count in self.written.items() if count > 1]
        assert not twice, f"twice: {[r[:6] for r in twice]}"
        told = {refusal.name for refusal in refused}
        for refusal in refused:
            self.place.seen[f"refused: {refusal.reason}"] += 1
            assert refusal.reason in ("copy", "replaced", "changed", "gone", "hard link"), refusal
        for life in self.folder.there():
            if str(life.path) in told:
                continue
            missing = [r[:6] for r in life.records if r not in self.written]
            assert not missing, f"{life.path}: {missing} are not read, and nothing says so"

    def _follow(self, refusal: Refusal) -> None:
        """The advice, by somebody who knows what was done."""
        path = Path(refusal.name)
        ledger = self.place.ledger
        if refusal.reason == "hard link":
            for other in path.parent.glob("link-*"):
                if path.exists() and other.samefile(path):
                    other.unlink()
            return
        if refusal.reason == "gone":
            advised(ledger, refusal.detail, "--lost")
            return
        if not path.exists():
            return  # An advice before this one has settled it.
        life = next(life for life in self.folder.there() if life.path == path)
        unread = [record for record in life.records if record not in self.written]
        was_read = len(unread) < len(life.records)
        option = next((o for o in ("--same", "--from") if was_read and o in refusal.detail), "")
        if life.copy or (was_read and not unread and not option):
            assert "Remove it if it is a copy;" in refusal.detail or (
                "Remove it if nothing writes it;" in refusal.detail
            ), refusal
            self.place.seen["advice: remove it"] += 1
            self.folder.delete(life)
            return
        self.place.seen[f"advice: {option or 'as new'}"] += 1
        assert option or not was_read, f"no advice reads only what is new: {refusal}"
        advised(ledger, refusal.detail, option)


@pytest.fixture
def place(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request
) -> Iterator[Place]:
    by_position, long = request.param
    yield Place(
        folder=tmp_path, ledger=ledger, patch=monkeypatch, by_position=by_position, long=long
    )


KINDS = {f"{i}-{s}": (i == "position", s == "long")
         for i in ("position", "id") for s in ("short", "long")}  # fmt: skip


# Attacks P8, P9, P16, P17, P18, P19, A3, A4, A5.
@pytest.mark.draws
@pytest.mark.parametrize("place", KINDS.values(), ids=KINDS, indirect=True)
def test_a_folder_in_daily_use(place: Place) -> None:
    """Each record that is there is in the output once, or its file is refused by name; the advice
    of each refusal works, and ends in every record that still exists once.

    SEMEL_FOLDER_STEPS: how many steps each kind makes at least.
    """
    apart = 10_000 * [*KINDS.values()].index((place.by_position, place.long))
    number = first = SEED + apart
    # Each example draws from some of the rules alone: few may be too much alike.
    while place.steps < STEPS_MIN or len(place.seen) <= SEEN_MIN:
        again = f"SEMEL_SEED={number - apart} python -m pytest tests/chaos/test_folder.py"
        explore(lambda: Machine(place), number, EXAMPLES, STEPS, again)
        number += 1
    print(f"{place.steps} steps, seeds {first} to {number - 1}:", dict(sorted(place.seen.items())))
    assert place.seen["run"]
