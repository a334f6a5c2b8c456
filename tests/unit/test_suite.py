"""The suite itself: no case is in none of `make test`, `make rest` and `make proof`; a tool that is
missing on a user's machine skips tests with a line, and in CI is a failure; nothing is left behind.
"""

import ast
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import costs
import leftovers
import old_postgres
import tiers
from no_skips import VARIABLE

FOLDER = "tests/chaos/test_kill.py"


@dataclass(eq=False)
class Case:
    """As much of a pytest.Item as a tier asks for."""

    nodeid: str
    marks: dict[str, tuple] = field(default_factory=dict)
    params: dict[str, object] = field(default_factory=dict)
    obj: object = None
    fixturenames: tuple[str, ...] = ()

    @property
    def callspec(self) -> SimpleNamespace:
        return SimpleNamespace(params=self.params)

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(args=self.marks[name]) if name in self.marks else None


def cases(name: str, count: int, **marks: tuple) -> list[Case]:
    return [Case(f"{FOLDER}::{name}[{n}]", dict(marks)) for n in range(count)]


def config(tier: str | None) -> SimpleNamespace:
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    return SimpleNamespace(getoption=lambda _: tier, hook=hook)


def taken(tier: str, items: list[Case]) -> list[str]:
    items = list(items)
    tiers.pytest_collection_modifyitems(config(tier), items)
    return [item.nodeid for item in items]


def test_what_is_left_out_is_the_rest() -> None:
    """quick takes some of each function, rest others but the long ones, none takes all; of many
    cases rest takes a twelfth, or two.
    """
    long = cases("test_long", 3, proof=())
    items = [*cases("test_many", 3), *cases("test_one", 1), *cases("test_left", 2, rest=()), *long]
    quick, rest = taken("quick", items), taken("rest", items)
    names = [nodeid.partition("[")[0].partition("::")[2] for nodeid in quick]
    assert names == ["test_many", "test_one"]
    assert sorted(quick + rest) == sorted(item.nodeid for item in items if item not in long)
    assert taken("proof", items) == [item.nodeid for item in items]
    assert [len(taken("rest", cases("test_many", n))) for n in (3, 10, 61)] == [2, 2, 5]


def test_a_function_that_draws_runs_again() -> None:
    """quick gives it fewer steps, so rest does not leave it out."""
    items = cases("test_steps", 1, draws=())
    assert taken("quick", items) == taken("rest", items) == [items[0].nodeid]


def test_the_seed_decides() -> None:
    """The same seed draws the same cases, and in two hundred seeds each case is drawn."""
    items = cases("test_many", 20)
    assert tiers.in_quick(items, 7) == tiers.in_quick(items, 7)
    drawn = [tiers.in_quick(items, seed) for seed in range(200)]
    assert {len(one) for one in drawn} == {1}
    assert set().union(*drawn) == {item.nodeid for item in items}


@pytest.mark.parametrize("mark", [{}, {"rest": ()}, {"proof": ()}])
@pytest.mark.parametrize("budget", [0, 550])
def test_a_case_that_a_guard_names_is_always_taken(
    budget: int, mark: dict[str, tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By quick or by rest, whatever the seed and its marker: CI finds the absence of a guard."""
    items = cases("test_many", 20, **mark)
    monkeypatch.setattr(tiers, "BUDGET", budget)
    monkeypatch.setattr(tiers, "guards_cases", lambda: {items[13].nodeid})
    for seed in range(20):
        quick = tiers.in_quick(items, seed)
        assert items[13].nodeid in quick | tiers.in_rest(items, quick, seed)


def test_quick_takes_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack on each rule comes first, the cheapest one; the seed draws others up to the budget;
    rest has each guard's case that quick left out.
    """
    items = [case for n in range(60) for case in cases(f"test_{n}", 1)]
    items += cases("test_guard", 1, rest=())
    names = [item.nodeid for item in items]
    seconds = {name: 20.0 + at for at, name in enumerate(names)}
    monkeypatch.setattr(tiers, "BUDGET", 550)
    monkeypatch.setattr(tiers, "cost", lambda name: seconds.get(name) or seconds[f"{name}[0]"])
    monkeypatch.setattr(tiers, "guards_cases", lambda: {names[9], names[-1]})
    ours = {"Q1": [f"{FOLDER}::test_4", f"{FOLDER}::test_3"], "P9": [f"{FOLDER}::test_9"]}
    monkeypatch.setattr(tiers, "attacks", lambda functions: ours)
    taken = [tiers.in_quick(items, seed) for seed in range(50)]
    first = {names[3], names[9]}
    assert all(first <= one for one in taken) and names[4] not in set.intersection(*taken)
    assert set.union(*taken) == {*names}
    for one in taken:
        spent = sum(seconds[name] for name in one)
        assert spent <= tiers.BUDGET < spent + min(seconds[n] for n in {*names} - one)
    assert tiers.in_rest(items, {names[9]}, 1) >= {names[-1]}


@pytest.mark.parametrize("budget", [3.5, 4.5])
def test_predecessors_are_drawn_and_counted(budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quick and rest draw a test together with the tests that it follows, directly or not, also if
    only rest may draw those alone; the CPU seconds of all of them count. A case may follow the
    earlier cases of its own function.
    """
    pages = cases("test_page", 3, follows=("test_page",))
    items = [*cases("test_first", 1, rest=()), *cases("test_next", 1, follows=("test_first",)),
             *cases("test_last", 1, follows=("test_next",)), *pages]  # fmt: skip
    names = [item.nodeid for item in items]
    first, after, last, *pages = names
    monkeypatch.setattr(tiers, "BUDGET", budget)
    monkeypatch.setattr(tiers, "REST_BUDGET", budget)
    monkeypatch.setattr(tiers, "REST_FILES", 1)
    monkeypatch.setattr(tiers, "cost", lambda _: 1.0)
    monkeypatch.setattr(tiers, "guards_cases", set)
    monkeypatch.setattr(tiers, "attacks", lambda functions: {})
    before = tiers.predecessors(items)
    assert before == {
        after: {first}, last: {first, after}, pages[1]: {pages[0]}, pages[2]: {*pages[:2]},
    }  # fmt: skip
    seen = set()
    for seed in range(60):
        quick = tiers.in_quick(items, seed)
        rest = tiers.in_rest(items, quick, seed)
        for taken in (quick, rest):
            assert len(taken) <= budget
            assert all(before.get(name, set()) <= taken for name in taken)
        seen |= quick
    assert seen == {*names}
    monkeypatch.setattr(tiers, "attacks", lambda functions: {"Q1": [f"{FOLDER}::test_last"]})
    assert tiers.in_quick(items, 1) >= {first, after, last}
    monkeypatch.setattr(tiers, "guards_cases", lambda: {last})
    assert tiers.in_rest(items, {first, after}, 1) >= {first, after, last}


def test_what_a_test_follows_stands_above_it() -> None:
    """`follows` names tests of the same file that are collected before, or the function itself."""
    marked = 0
    for path in TESTS.rglob("test_*.py"):
        tree = ast.parse(text := path.read_text(encoding="utf-8"))
        if "mark.follows(" not in text or path == Path(__file__):
            continue
        above: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                above.add(node.name)
                marks = "\n".join(map(ast.unparse, node.decorator_list))
                for arguments in re.findall(r"mark\.follows\((.*)\)", marks):
                    marked += 1
                    assert {*re.findall(r"'(\w+)'", arguments)} <= above, f"{path}: {node.name}"
    assert marked


def test_rules_are_attacked_by_who_stands_below() -> None:
    """The rules of a comment above a function's decorators are its own, and of no other."""
    names = [f"{FOLDER}::test_killed_and_killed_again", f"{FOLDER}::test_killed_anywhere"]
    text = (TESTS.parent / FOLDER).read_text(encoding="utf-8")
    above = text[: text.index("def test_killed_and_killed_again(")].rpartition("# Attacks ")[2]
    rules = {*re.findall(r"[A-Z]+\d+", above.partition("\n")[0])}
    found = tiers.attacks(names[:1])
    assert rules and {*found} >= rules and {*map(tuple, found.values())} == {(names[0],)}


def test_costs_are_refreshed() -> None:
    """A function has its median case; what is cheap is in its folder's mean; what no file has any
    more goes, and what was not measured stays.
    """
    there = {"tests/unit/test_a.py": "def test_one(x):\ndef test_two():\ndef test_old():\n"}
    before = {f"tests/unit/test_a.py::test_{name}": 7.0 for name in ("one", "old", "gone")}
    one = "tests/unit/test_a.py::test_one"
    measured = {f"{one}[{n}]": seconds for n, seconds in enumerate((9.0, 1.0, 2.0))}
    measured["tests/unit/test_a.py::test_two"] = 0.25
    assert costs.refreshed(before, measured, there) == {
        "tests/unit": 0.25, "tests/unit/test_a.py::test_old": 7.0, one: 2.0
    }  # fmt: skip


def test_the_documents_name_guards_cases() -> None:
    """The tables are found: some name one case of a function, some the whole function."""
    found = tiers.guards_cases()
    assert len(found) > 90 and any("[" in name for name in found)


def test_pairs_of_values_are_all_there() -> None:
    """Of 5 x 6 x 6 cases some 36 show each two values together."""
    axes = {"how": 5, "state": 6, "event": 6}
    items = [
        Case(f"{FOLDER}::test_cell[{n}]", {"pairs": ()}, dict(zip(axes, values, strict=True)))
        for n, values in enumerate(product(*map(range, axes.values())))
    ]
    drawn = tiers.sample(items, random.Random(1))
    shown = {pair for item in drawn for pair in combinations(sorted(item.params.items()), 2)}
    assert shown == {p for item in items for p in combinations(sorted(item.params.items()), 2)}
    assert 36 <= len(drawn) <= 45


TESTS = Path(old_postgres.__file__).parent

SKIPS = """
import pytest

@pytest.fixture
def broker():
    pytest.skip("no broker: apt-get install redis-server")

def test_with_a_fixture(broker): ...

def test_with_the_same(broker): ...

def test_by_itself():
    pytest.skip("no mount")

@pytest.mark.skipif(True, reason="only root can")
def test_by_a_mark(): ...

@pytest.mark.xfail(reason="is known", strict=True)
def test_that_is_expected_to_fail():
    raise AssertionError

def test_that_passes(): ...
"""

SKIPS_WHOLE = 'import pytest\n\npytest.importorskip("no_such_module")\n'


@pytest.mark.parametrize("strict", [False, True])
def test_a_skip_is_a_failure_where_nothing_may_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """Of a fixture, a test, a mark or a module; what is expected to fail is left alone. Elsewhere
    one line says what is missing, however many tests lack it."""
    (tmp_path / "test_some.py").write_text(SKIPS)
    (tmp_path / "test_whole.py").write_text(SKIPS_WHOLE)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv(VARIABLE, "1" if strict else "")
    options = ["-p", "no_skips", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *options, "-q", "-rA", "--rootdir", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    if strict:
        assert done.returncode == 1
        assert "1 failed, 1 passed, 1 xfailed, 4 errors" in done.stdout, done.stdout
        for why in ("no broker: apt-get install redis-server", "no mount", "only root can",
                    "no_such_module"):  # fmt: skip
            assert re.search(f"{why}.*is set, and a skipped", done.stdout), done.stdout
    else:
        assert done.returncode == 0
        assert "1 passed, 5 skipped, 1 xfailed" in done.stdout, done.stdout
        told = re.findall(r"^SKIPPED \[(\d+)\] .*: (.*)$", done.stdout, re.M)
        assert ("2", "apt-get install redis-server") in told and len(told) == 4, done.stdout


@pytest.mark.parametrize("strict", [False, True])
def test_no_older_postgres(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    strict: bool,
) -> None:
    """Where none can be fetched, one line says what to install; in CI that is a failure."""
    monkeypatch.setattr(old_postgres, "INSTALLED", tmp_path)
    monkeypatch.setattr(old_postgres, "FETCHED", tmp_path / "state" / "postgresql")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SEMEL_TEST_POSTGRES", raising=False)
    monkeypatch.setenv(VARIABLE, "1" if strict else "")
    assert old_postgres.main() == (1 if strict else 0)
    said = capsys.readouterr().err.splitlines()
    assert "apt-get" in said[0]
    assert "sudo apt-get install -y postgresql-15" in said[1] and len(said) == 2
    assert not (tmp_path / "state" / "postgresql.new").exists()


def test_the_oldest_postgres_is_taken(tmp_path: Path) -> None:
    """Of those that semel knows: 13 is too old, and a folder without programs is none."""
    for version in ("9.6", "13", "16", "15", "17"):
        (tmp_path / "postgresql" / version / "bin").mkdir(parents=True)
        if version != "15":
            (tmp_path / "postgresql" / version / "bin" / "initdb").touch()
    assert old_postgres.there(tmp_path) == tmp_path / "postgresql" / "16" / "bin"
    assert old_postgres.there(tmp_path / "postgresql") is None


@pytest.mark.parametrize("test", old_postgres.TESTS)
def test_what_an_older_postgres_runs_is_there(test: str) -> None:
    """A test that was renamed is not lost, where no older server is either."""
    file, _, name = test.partition("::")
    assert file in old_postgres.FILES
    assert f"\ndef {name.partition('[')[0]}(" in (TESTS.parent / file).read_text()


def test_what_is_fetched_of_a_server() -> None:
    """The server and the libraries that are not there yet; the compiler is left out."""
    simulated = """
NOTE: This is only a simulation!
Inst libllvm14 (1:14.0.6-12 Debian:12 [amd64])
Inst libpq5 (15.20-0+deb12u1 Debian-Security:12 [amd64])
Inst libxml2 [2.9.14-1] (2.9.14-2 Debian:12 [amd64])
Inst postgresql-client-15 (15.20-0+deb12u1 Debian-Security:12 [amd64])
Inst postgresql-common (248+deb12u2 Debian-Security:12 [all])
Inst postgresql-15 (15.20-0+deb12u1 Debian-Security:12 [amd64])
Inst postgresql (15+248+deb12u2 Debian-Security:12 [all])
Conf libpq5 (15.20-0+deb12u1 Debian-Security:12 [amd64])
"""
    assert old_postgres.packages(simulated) == ["libpq5", "postgresql-15"]


def test_ci_skips_nothing() -> None:
    """It runs what a newcomer does, and with the same seed what that left out; and `make test` runs
    the tests on an older PostgreSQL."""
    root = TESTS.parent
    ci = (root / ".ci" / "run").read_text()
    assert f"\nexport {VARIABLE}=1 SEMEL_SEED=" in ci
    assert ci.endswith("\nmake test\nexec make rest\n")
    assert "\n\t@.venv/bin/python tests/old_postgres.py\n" in (root / "Makefile").read_text()


def test_airflow_writes_to_the_run_alone() -> None:
    """Airflow makes its home when it is imported. It is one of this run, and not the user's."""
    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow"))
    assert home.parent == Path(os.environ[leftovers.VARIABLE])
    imported = sys.modules.get("airflow.configuration")
    assert imported is None or imported.AIRFLOW_HOME == str(home)


LEAVES = """
import os, pathlib, subprocess, time

def test_that_has_a_server():
    server = subprocess.Popen(["sleep", "600"], start_new_session=True)
    started = pathlib.Path(__file__).with_name("started")
    started.with_suffix(".new").write_text(f"{server.pid} {os.environ['TMPDIR']}")
    started.with_suffix(".new").rename(started)
    time.sleep(600)
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_nothing_is_left_by_a_run_that_is_ended(
    tmp_path: Path, number: signal.Signals, workers: tuple[str, ...]
) -> None:
    """By Ctrl-C, or by SIGTERM as `timeout 60 make test` and a cancelled CI send it, to each process
    of the group: the servers of its tests end, and their folder goes.
    """
    (tmp_path / "test_some.py").write_text(LEAVES)
    environment = {k: v for k, v in os.environ.items() if k != leftovers.VARIABLE}
    options = ["-p", "leftovers", "-p", "no:cacheprovider", "-q", *workers]
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path)],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(TESTS)}, process_group=0,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline and run.poll() is None
        time.sleep(0.05)
    pid, folder = (tmp_path / "started").read_text().split()
    server = psutil.Process(int(pid))
    os.killpg(run.pid, number)
    said, _ = run.communicate(timeout=60)
    try:
        assert not server.is_running() and not Path(folder).exists(), said
        assert run.returncode == pytest.ExitCode.INTERRUPTED, said
    finally:
        if server.is_running():
            server.kill()
