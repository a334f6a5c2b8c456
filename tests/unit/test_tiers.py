"""What `make test`, `make rest` and `make proof` take: no case is in none of them."""

import random
from dataclasses import dataclass, field
from itertools import combinations, product
from types import SimpleNamespace

import pytest

import tiers

FOLDER = "tests/chaos/test_some.py"


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
    """quick takes some of each function, rest all others but the long ones, none takes all."""
    long = cases("test_long", 3, proof=())
    items = [*cases("test_many", 20), *cases("test_one", 1), *cases("test_left", 2, rest=()), *long]
    quick, rest = taken("quick", items), taken("rest", items)
    names = [nodeid.partition("[")[0].partition("::")[2] for nodeid in quick]
    assert names == ["test_many", "test_one"]
    assert sorted(quick + rest) == sorted(item.nodeid for item in items if item not in long)
    assert taken("proof", items) == [item.nodeid for item in items]


def test_a_function_that_draws_runs_again() -> None:
    """quick gives it fewer steps, so rest does not leave it out."""
    items = cases("test_steps", 1, draws=())
    assert taken("quick", items) == taken("rest", items) == [items[0].nodeid]


def test_the_seed_decides() -> None:
    """The same seed draws the same cases, and in a hundred seeds each case is drawn."""
    items = cases("test_many", 20)
    assert tiers.in_quick(items, 7) == tiers.in_quick(items, 7)
    drawn = [tiers.in_quick(items, seed) for seed in range(100)]
    assert {len(one) for one in drawn} == {1}
    assert set().union(*drawn) == {item.nodeid for item in items}


def test_a_case_that_a_guard_names_is_always_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the seed: the absence of a guard is found by each run."""
    items = cases("test_many", 20)
    monkeypatch.setattr(tiers, "guards_cases", lambda: {items[13].nodeid})
    assert all(items[13].nodeid in tiers.in_quick(items, seed) for seed in range(20))


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
