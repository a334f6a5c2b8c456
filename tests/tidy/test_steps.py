"""Each step that an error names is in a test that types it, or says why none does."""

import ast

import steps
from tidy.tree import ROOT, parsed


def test_each_step_has_its_line() -> None:
    """A new `next` in the library needs a test; a line of one that is gone is removed."""
    listed, places = set(steps.table()), steps.all_places()
    assert listed == places, f"without a line: {places - listed}; gone: {listed - places}"
    lines = steps.TABLE.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines)), "the lines are sorted, and each is there once"


def test_each_test_of_a_step_is_there() -> None:
    """A test that is renamed takes its lines along: each listed one would fail else, unseen."""
    for place, test in steps.table().items():
        if not test.startswith("- "):
            path, _, name = test.partition("::")
            functions = (n for n in ast.walk(parsed(ROOT / path)) if isinstance(n, ast.FunctionDef))
            assert name.partition("[")[0] in {n.name for n in functions}, (place, test)
