"""The models of the protocol: right with all their guards, and wrong without each.

The searches are exhaustive: every interleaving and every crash of a small scope.
"""

from pathlib import Path

import pytest

from explore import main, parser
from model_guards import GUARDS, SCOPES, Guard
from model_search import STUCK, Model, search

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.proof if s.soak else ()) for n, s in SCOPES.items()],
)
def test_the_protocol_holds(name: str) -> None:
    """No interleaving and no crash does damage, and from each state all work can be ended."""
    scope = SCOPES[name]
    found = search(scope.without())
    print(f"{name}: {found.states} states, {found.steps} steps")
    assert found.damage is None, found.told()
    assert found.states >= scope.states_min


@pytest.mark.sample(20)
@pytest.mark.parametrize("guard", GUARDS, ids=lambda g: f"{g.scope}-{g.name}-{g.rules}")
def test_each_guard_is_needed(guard: Guard) -> None:
    """Without it there is a way to the damage that it prevents; it is printed."""
    found = search(SCOPES[guard.scope].without(*guard.without), guard.damage)
    assert found.damage == guard.damage
    print(f"Without {guard.name}:\n{found.told()}")
    assert len(found.way) <= 25, "a way that nobody can read"


def test_each_guard_is_in_the_table() -> None:
    """A guard of a model without a row would never be taken out, but for the second lines: what
    the database refuses is never tried with all else in place, and is taken out with others."""
    there = {(SCOPES[g.scope].model, name) for g in GUARDS for name in g.without}
    wanted = {(s.model, name) for s in SCOPES.values() for name in s.model.GUARDS}
    assert there == wanted


@pytest.mark.parametrize("guard", GUARDS, ids=lambda g: f"{g.scope}-{g.name}-{g.rules}")
def test_each_counterexample_is_replayed(guard: Guard) -> None:
    """The table names rules of the protocol and tests of the real verbs, and they exist."""
    for test in guard.tests:
        file, _, name = test.partition("::")
        assert f"\ndef {name}(" in (TESTS / file).read_text(encoding="utf-8"), test
    assert guard.tests
    pages = (TESTS.parent / "docs" / name for name in ("protocol.md", "files.md", "kafka.md"))
    rules = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert all(f"- **{rule}** " in rules for rule in guard.rules.split(", "))


class Walk(Model):
    """From 0 up to 3 or down to a hole at -1, from which nothing leads away."""

    GUARDS = {}

    def start(self):  # noqa: ANN201
        return 0

    def steps(self, state):  # noqa: ANN001, ANN201
        if 0 <= state < 3:
            yield "up", state + 1
        if state == 1:
            yield "into the hole", -1

    def damages(self, state):  # noqa: ANN001, ANN201
        return ["at the top"] if state == 3 else []

    def ended(self, state):  # noqa: ANN001, ANN201
        return state == 2


def test_the_search_finds_the_shortest_way() -> None:
    """It tells the steps to a damage, and to a state that cannot come to an end."""
    found = search(Walk())
    assert found.told() == "1. up\n2. up\n3. up\nDamage: at the top."
    found = search(Walk(), STUCK)
    assert (found.damage, found.way) == (STUCK, ("up", "into the hole"))


def test_a_guard_that_no_model_has_is_refused() -> None:
    """A mistyped guard would search the whole protocol, and find nothing."""
    with pytest.raises(ValueError, match="no guards"):
        SCOPES["claims"].without("pipelin lock")


def test_the_command_prints_the_interleaving(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints numbered steps, the damage and the tests; its help names every guard."""
    assert main(["--scope", "batch", "--without", "abandon takes the lock"]) == 0
    told = capsys.readouterr().out
    assert "\n1. Driver A sees a planned batch" in told
    assert "\nDamage: an attempt is open though its batch has ended.\n" in told
    assert main(["--scope", "finalize"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert main(["--without", "no such"]) == 2
    assert all(f"  {guard.name}\n" in parser().format_help() for guard in GUARDS)
