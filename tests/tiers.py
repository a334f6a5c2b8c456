"""Which tests a command runs: all that there are, or a sample that a seed draws.

- `--tier quick` is `make test`: of the tests without the marker `rest` or `proof`, of the matrices in
  SAMPLED a sample, what fits into BUDGET: first one attack on each rule, then others that the seed
  draws, a cheap one sooner than a dear one.
- `--tier rest` is `make rest`, and CI runs both: each case of a guard that quick left out with the
  same SEMEL_SEED; of other tests what fits into REST_BUDGET, of one file in three, and of a matrix in
  SAMPLED of some cases, that the seed draws; and with more examples and steps the tests that draw
  some.
- `--tier proof` is `make proof`: each case, and more examples of Hypothesis.
- Without a tier, as by `pytest` and `make test T=...`: each case but those marked `proof`; and what
  is given by its name, whatever it is marked with.

A sample is one case of a function, drawn by SEMEL_SEED, and each case that a guard names. Quick or
rest takes each of these, so that CI finds a guard's absence whatever the seed. `@pytest.mark.sample(n)`
asks for another number, `@pytest.mark.pairs` for as many as show each pair of two parameters'
values. Steps that are random, and made for a time, have the marker `soak` and run in no tier.

A test with `@pytest.mark.follows("test_name")` needs what that test of its file leaves behind. Quick
and rest draw the two together, and count the CPU seconds of both.
"""

import itertools
import math
import os
import random
import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from costs import cost

ROOT = Path(__file__).resolve().parent.parent

SEED = int(os.environ.setdefault("SEMEL_SEED", str(secrets.randbelow(10**9))))
"""Set here, so that processes started later (pytest-xdist's, too) have the same."""

TIERS = ("quick", "rest", "proof")
VARIABLE = "PYTEST_SEMEL_TIER"
SAMPLED = ("tests/integration/", "tests/chaos/", "tests/controls/")
"""Where a case costs a database, a server or a process. Of the others each runs."""

BUDGET = float(os.environ.get("SEMEL_BUDGET", "350"))
"""CPU seconds of the tests that quick takes; servers, which tests share, and the collection take more than that."""

CHEAP = 0.02
"""Tests that cost less are drawn alike."""

EXAMPLES = {"quick": 0.2, "rest": 0.5, "proof": 5}
"""How many examples Hypothesis draws, to those that a test asks for."""

NEVER = "not soak and not icu"
NOT_LONG = f"{NEVER} and not proof"
"""What `addopts` of pyproject.toml says."""
REST_CASES, REST_SHARE = 2, 1 / 12
"""What rest takes of a matrix that quick has sampled: so many cases, or such a share if that is
more."""
REST_FILES = 1 / 3
"""The share of the files that rest takes something of."""
REST_BUDGET = 60
"""CPU seconds of what rest takes so, beside the cases of guards and the tests that draw more."""
_RULE = re.compile(r"\b[A-Z]{1,3}\d+\b")
_GUARDED = re.compile(r"`(tests/[^`]+\.py::[^`]+)`")
_OF_RULES = (
    "protocol", "postgres", "kafka", "queues", "objects", "delta", "bigquery", "aggregates",
)  # fmt: skip
PAGES = [ROOT / "docs" / f"{name}.md" for name in _OF_RULES]
"""Those with tables "Guards"."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, help="which cases to run (tests/tiers.py)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose by marker, unless `-m` did; a test that is given by its name runs whatever it has."""
    tier = config.getoption("tier")
    if config.option.markexpr == NOT_LONG:  # pytest-xdist's workers read their own options.
        named = config.args and all("::" in argument for argument in config.args)
        if tier:
            config.option.markexpr = NEVER
        elif named:
            config.option.markexpr = ""
    if tier:
        config.option.hypothesis_seed = str(SEED)
        os.environ[VARIABLE] = tier
    # No test is timed: a machine that has other work to do must not turn one red.
    slow = [HealthCheck.too_slow]
    settings.register_profile(
        "semel", deadline=None, suppress_health_check=slow, max_examples=examples(100)
    )
    settings.load_profile("semel")


def examples(many: int) -> int:
    """How many examples a test of Hypothesis draws in this tier; `many` without one."""
    return max(1, int(many * EXAMPLES.get(os.environ.get(VARIABLE, ""), 1)))


def pytest_report_header(config: pytest.Config) -> str:
    """What a run can be repeated by."""
    return f"semel: tier {config.getoption('tier') or 'none'}, SEMEL_SEED={SEED}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("tier")
    if tier not in ("quick", "rest"):
        return
    quick = in_quick(items, SEED)
    taken = quick
    if tier == "rest":
        taken = in_rest(items, quick, SEED)
        again = {item.nodeid for item in items if item.nodeid in quick and draws(item)}
        taken |= with_predecessors(again, predecessors(items))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in taken])
    items[:] = [item for item in items if item.nodeid in taken]


def draws(item: pytest.Item) -> bool:
    """Whether it draws more examples or steps outside of quick, so that `rest` runs it again."""
    return is_hypothesis_test(item.obj) or item.get_closest_marker("draws") is not None


def in_quick(items: Sequence[pytest.Item], seed: int) -> set[str]:
    """The node ids of the tests that `make test` runs with a seed."""
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    guarded = guards_cases()
    for item in items:
        name = function_of(item.nodeid)
        left = item.get_closest_marker("rest") or item.get_closest_marker("proof")
        if not left or guarded & {item.nodeid, name}:
            functions[name].append(item)
    drawn, first = {}, set()
    for name, cases in functions.items():
        some = cases
        if name.startswith(SAMPLED) or cases[0].get_closest_marker("sample"):
            some = sample(cases, random.Random(f"{seed} {name}"))
            some += [item for item in cases if item.nodeid in guarded]
        drawn[name] = {item.nodeid for item in some}
    before = predecessors(items)
    # Each process draws alike, whatever the order of its sets.
    for _, names in sorted(attacks(drawn).items()):
        if not any(drawn[name] <= first for name in names):
            first |= drawn[min(names, key=lambda name: len(drawn[name]) * cost(name))]
    first = with_predecessors(first, before)
    left = sorted(set().union(*drawn.values()) - first)
    budget = BUDGET - math.fsum(map(cost, first))
    return fitting(left, budget, random.Random(seed), first, before)


def fitting(
    names: list[str],
    budget: float,
    draw: random.Random,
    first: Set[str],
    before: Mapping[str, Set[str]],
) -> set[str]:
    """The tests `first`, and those of a drawn order that fit into the CPU seconds `budget`.

    A test brings its predecessors. A test that costs half as much is drawn twice as likely: a sample
    with weights and without replacement (Efraimidis and Spirakis 2006).
    """
    keys = {}
    for name in names:
        seconds = math.fsum(map(cost, with_predecessors({name}, before)))
        keys[name] = draw.random() ** max(seconds, CHEAP)
    taken = {*first}
    for name in sorted(names, key=keys.__getitem__, reverse=True):
        added = with_predecessors({name}, before) - taken
        if (seconds := math.fsum(map(cost, added))) <= budget:
            taken |= added
            budget -= seconds
    return taken


def predecessors(items: Iterable[pytest.Item]) -> dict[str, set[str]]:
    """The node ids that run before a test, by its own: the earlier cases of the functions that its
    marker `follows` names, and the predecessors of these cases.
    """
    cases: dict[str, list[str]] = defaultdict(list)
    before: dict[str, set[str]] = {}
    for item in items:
        file, marker = item.nodeid.partition("::")[0], item.get_closest_marker("follows")
        named = [f"{file}::{name}" for name in (marker.args if marker else ())]
        direct = {case for name in named for case in cases[name]}
        if direct:
            before[item.nodeid] = with_predecessors(direct, before)
        cases[function_of(item.nodeid)].append(item.nodeid)
    return before


def with_predecessors(names: Set[str], before: Mapping[str, Set[str]]) -> set[str]:
    return {*names}.union(*(before.get(name, ()) for name in names))


def attacks(functions: Iterable[str]) -> dict[str, list[str]]:
    """By rule, those of some functions of tests that attack it, as the comments above them say."""
    found: dict[str, list[str]] = defaultdict(list)
    by_file: dict[str, set[str]] = defaultdict(set)
    for name in functions:
        by_file[name.partition("::")[0]].add(name)
    for file, names in sorted(by_file.items()):
        rules: set[str] = set()
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
            if line.startswith("# "):
                rules |= {*_RULE.findall(line)}
            elif line.startswith("def ") and (name := f"{file}::{line[4:].split('(')[0]}") in names:
                for rule in rules:
                    found[rule].append(name)
                rules = set()
            elif line[:1] not in ("", "@", " ", ")", "#"):
                rules = set()
    return found


def function_of(nodeid: str) -> str:
    """A test without its case."""
    return nodeid.partition("[")[0]


def in_rest(items: Sequence[pytest.Item], quick: set[str], seed: int) -> set[str]:
    """The node ids of what `make rest` takes of what `make test` leaves out."""
    functions: dict[str, list[str]] = defaultdict(list)
    guarded, found = guards_cases(), set()
    for item in items:
        name = function_of(item.nodeid)
        is_long = item.get_closest_marker("proof") and not guarded & {item.nodeid, name}
        if item.nodeid not in quick and not is_long:
            functions[name].append(item.nodeid)
    files = sorted({name.partition("::")[0] for name in functions})
    drawn = random.Random(f"{seed} rest").sample(files, math.ceil(len(files) * REST_FILES))
    before = predecessors(items)
    first = {n for name, left in functions.items() for n in left if guarded & {n, name}}
    first = with_predecessors(first, before)
    for name, left in functions.items():
        if name.partition("::")[0] not in drawn:
            continue
        if name.startswith(SAMPLED):
            many = max(REST_CASES, math.ceil(len(left) * REST_SHARE))
            left = random.Random(f"{seed} rest {name}").sample(left, min(many, len(left)))
        found |= {*left}
    left = sorted(found - first)
    return fitting(left, REST_BUDGET, random.Random(f"{seed} rest"), first, before)


def sample(cases: list[pytest.Item], draw: random.Random) -> list[pytest.Item]:
    """The cases of a function that a seed chooses."""
    cases = draw.sample(cases, len(cases))
    if cases[0].get_closest_marker("pairs"):
        return pairs(cases)
    marker = cases[0].get_closest_marker("sample")
    return cases[: marker.args[0] if marker else 1]


def pairs(cases: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Few of the cases, in which each two values that are in one of them are in one together.

    Greedy, as AETG does it (Cohen et al. 1997): each time the case with the most new pairs.
    """
    left = {item: set(itertools.combinations(sorted(_values(item)), 2)) for item in cases}
    wanted, taken = set().union(*left.values()), []
    while wanted:
        best = max(left, key=lambda item: len(left[item] & wanted))
        wanted -= left.pop(best)
        taken.append(best)
    return taken


def _values(item: pytest.Item) -> set[tuple[str, str]]:
    return {(name, str(value)) for name, value in item.callspec.params.items()}


def guards_cases() -> set[str]:
    """The cases that the tables "Guards" of the documents name."""
    return {name for page in PAGES for name in _GUARDED.findall(page.read_text(encoding="utf-8"))}
