"""Each place of the library that names a next step, and the test that types it.

`steps.txt` has a line for each place: the test that types its step, or `-` and why none does. A
listed test fails unless it typed the step, and the step did not end at the same place again.
`SEMEL_STEPS=FILE` appends what each test types, for new lines.

A place is a module and a function, as line numbers change; `#2` is the second one of a function.
The place of a class's rule is `errors.py` and the class.
"""

import ast
import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (ROOT / "plugins" / "semel", ROOT / "plugins" / "semel_local")
TABLE = Path(__file__).with_suffix(".txt")
RULE = "errors.py:{}"
"""The place of a step that is a class's rule."""


@cache
def places() -> dict[tuple[str, int], str]:
    """File and line of each call in the package that names a next step -> its place."""
    return {
        (str(path), line): place
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
        for lines, place in _places_of(path, str(path.relative_to(package)))
        for line in lines
    }


def _places_of(path: Path, name: str) -> Iterator[tuple[range, str]]:
    counted: defaultdict[str, int] = defaultdict(int)
    for call, function in _calls(ast.parse(path.read_text(encoding="utf-8")), ""):
        counted[function] += 1
        number = f"#{counted[function]}" if counted[function] > 1 else ""
        yield range(call.lineno, call.end_lineno + 1), f"{name}:{function}{number}"


def _calls(node: ast.AST, function: str) -> Iterator[tuple[ast.Call, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _calls(child, f"{function}.{child.name}".lstrip("."))
            continue
        if isinstance(child, ast.Call) and _names_a_step(child):
            yield child, function
        yield from _calls(child, function)


def _names_a_step(call: ast.Call) -> bool:
    """Whether `next` is given here, and not handed on."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "next"]
    return bool(given) and ast.unparse(given[0]) not in ("next", "NO_STEP", "result['next']")


def all_places() -> set[str]:
    """Those of the calls, and of the rules of errors."""
    module = ast.parse((PACKAGES[0] / "errors.py").read_text(encoding="utf-8"))
    kinds = [node for node in module.body if isinstance(node, ast.ClassDef)]
    rules = [kind.name for kind in kinds if "\n    rule" in ast.unparse(kind)]
    return {*places().values(), *(RULE.format(name) for name in rules)}


@cache
def table() -> dict[str, str]:
    """Place -> the test that types its step, or `-` and why none does."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return dict(line.split(" ", 1) for line in lines)


class Steps:
    """The steps that errors named in one test, and those of them that it typed."""

    def __init__(self) -> None:
        self.named: defaultdict[str, set[str]] = defaultdict(set)
        self.typed: set[str] = set()


STEPS = Steps()


def typed_in_a_shell(step: str) -> None:
    """For tests: a step that is no command of semel's was typed."""
    STEPS.typed |= STEPS.named[step]


def _watch() -> None:
    """Note where each error is made, each step that it names, and each command that is typed."""
    from semel import cli
    from semel.errors import SemelError

    make, name, run = SemelError.__init__, SemelError.next_step, cli._Commands.main

    def made(error: SemelError, *given: Any, next: str = "") -> None:
        make(error, *given, next=next)
        error.place = _place() if next else ""

    def named(error: SemelError, doing: Any) -> str:
        step = name(error, doing)
        STEPS.named[step].add(_place_of(error))
        return step

    def typed(group: Any, args: list[str], **given: Any) -> Any:
        places: set[str] = set()
        for step, its_places in STEPS.named.items():
            if step.startswith("semel ") and shlex.split(step)[1:] == args:
                places |= its_places
        try:
            return run(group, args, **given)
        except SemelError as error:
            places.discard(_place_of(error))
            raise
        except SystemExit as end:
            if end.code == cli.EXIT_USAGE:
                places.clear()
            raise
        finally:
            STEPS.typed |= places

    SemelError.__init__, SemelError.next_step = made, named
    cli._Commands.main = typed


def _place_of(error: Any) -> str:
    kinds = (kind.__name__ for kind in type(error).__mro__ if "rule" in vars(kind))
    return error.place or RULE.format(next(kinds))


def _place() -> str:
    frame = sys._getframe(2)
    while frame is not None:
        if place := places().get((frame.f_code.co_filename, frame.f_lineno)):
            return place
        frame = frame.f_back
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test of the table types what it is listed for."""
    STEPS.__init__()
    result = yield
    if STEPS.typed and (path := os.environ.get("SEMEL_STEPS")):
        with open(path, "a", encoding="utf-8") as lines:
            lines.writelines(f"{place} {item.nodeid}\n" for place in sorted(STEPS.typed))
    listed = {place for place, test in table().items() if test == item.nodeid}
    assert listed <= STEPS.typed, f"its table says that it types {listed - STEPS.typed}"
    return result


def pytest_configure() -> None:
    """Once in each process of a run."""
    _watch()
