"""What an error says to do next: each has something, and each command in it can be typed."""

import ast
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer

from semel import errors
from semel.airflow.task_failure import WIDTH, wrap_lines
from semel.cli import app, commands, main
from semel.errors import AGAIN, ANEW, NO_STEP, Doing, SemelError
from semel.sources import quoted

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "plugins" / "semel").rglob("*.py"))

IN_AIRFLOW = ("clear the ", "load the page Days ", "trigger the DAG again")
IN_AIRFLOW += ("start the backfill again", "nothing, Airflow")
IN_A_SHELL = ("pip install ", "mkdir -p ", "nats consumer ")

FILLED = {
    "batch": "17", "root": "17", "number": "17", "['replay']": "17",
    "today": "2026-11-22", "in wider": "2026-11-20 2026-11-22",
    "path": "in/a.jsonl", "folder": "pipelines", "server.NAME": "kafka",
}  # fmt: skip
"""For the fields of a step, by a part of what stands in them; others are a pipeline's name."""

NAMES = {name for name in vars(errors) if name.endswith("Error")}


def accepted(step: str) -> None:
    """Let the command line's own parser take a step, if it is a command of semel's."""
    if not step.startswith("semel "):
        assert step.startswith(IN_AIRFLOW + IN_A_SHELL), step
        return
    _, name, *words = shlex.split(step)
    command = typer.main.get_command(app).get_command(None, name)
    assert command is not None, step
    if words != ["--help"]:
        command.make_context(name, words)


def classes(of: type[SemelError] = SemelError) -> Iterator[type[SemelError]]:
    """An error's class and those below it."""
    yield of
    for below in of.__subclasses__():
        yield from classes(below)


def raised() -> Iterator[tuple[str, ast.Call]]:
    """Each call in the package that makes an error of semel's, with its place."""
    names = {kind.__name__ for kind in classes()}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).split(".")[-1]
                if called in names or called == "transition":
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def text_of(node: ast.expr) -> str:
    """A text as it may come out, with something in each of its fields."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text_of, node.values))
    if isinstance(node, ast.FormattedValue):
        field = ast.unparse(node.value)
        return next((value for part, value in FILLED.items() if part in field), "flights")
    return ""


@pytest.mark.parametrize("kind", sorted(NAMES))
@pytest.mark.parametrize("pipeline", ["flights", ""])
@pytest.mark.parametrize("batch", [17, None])
def test_each_class_has_a_rule(kind: str, pipeline: str, batch: int | None) -> None:
    """Whatever is known of what failed, the step is whole."""
    error = getattr(errors, kind)("why")
    in_shell = Doing(again="semel run flights", anew="semel run flights")
    in_task = Doing(again="clear the run's stage task", anew="clear the whole run")
    for doing in (in_shell, in_task):
        known = Doing(**{**vars(doing), "pipeline": pipeline, "batch_id": batch})
        step = error.next_step(known)
        accepted(step)
        assert "{" not in step


def test_what_an_error_says_goes_before_its_class() -> None:
    """Its own words, the same again, the whole run anew, or nothing."""
    doing = Doing(again="semel run a", anew="clear the whole run", pipeline="a", batch_id=1)
    steps = {"semel up": "semel up", AGAIN: doing.again, ANEW: doing.anew, "": "semel gaps a"}
    steps[NO_STEP] = ""
    for said, step in steps.items():
        assert errors.SourceError("why", next=said).next_step(doing) == step


def test_each_command_in_an_error_can_be_typed() -> None:
    """The parser takes each `next` in the package as it stands, with its fields filled in."""
    found = []
    for place, call in raised():
        for keyword in call.keywords:
            if keyword.arg != "next":
                continue
            step = text_of(keyword.value)
            if isinstance(keyword.value, ast.Name) and keyword.value.id.startswith("_"):
                module = place.split(":")[0].removeprefix("plugins/").removesuffix(".py")
                step = getattr(import_module(module.replace("/", ".")), keyword.value.id)
            if step and step not in (AGAIN, ANEW):
                accepted(step)
                found.append(step)
    assert len(found) > 30 and any("semel accept" in step for step in found)


def test_a_message_that_names_a_command_has_a_step() -> None:
    """Advice is not in the prose alone, where nobody finds it and no test follows it."""
    complaints = []
    for place, call in raised():
        told = " ".join(text_of(part) for part in call.args)
        if "`semel " in told and not any(keyword.arg == "next" for keyword in call.keywords):
            complaints.append(f"{place}: say with next= what its message names: {told[-60:]}")
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("words", [["nonsense"], ["find"], ["accept", "flights"], ["run"]])
def test_a_wrong_command_line_is_led_to_its_help(words: list[str], capsys) -> None:
    """The last line names the help that there is."""
    assert main(words) == 2
    step = capsys.readouterr().err.splitlines()[-1].removeprefix("next: ")
    assert step == (f"semel {words[0]} --help" if words[0] in commands() else "semel --help")
    assert main(shlex.split(step)[1:]) == 0


def test_a_long_command_is_one_for_a_shell() -> None:
    """In a log it goes over several lines; pasted, it is what it was."""
    names = [f"/data/it's a folder/{'x' * 60} {n}.jsonl" for n in range(3)]
    step = " ".join(["semel new flights", *map(quoted, [*names, "a\nb"])])
    lines = wrap_lines(f"next: {step}")
    assert len(lines) > 2 and all(len(line) <= WIDTH for line in lines)
    assert all(line.endswith(" \\") for line in lines[:-1])
    joined = "".join(line.removesuffix("\\") for line in lines)
    assert joined.split() == f"next: {step}".split()


@pytest.mark.parametrize(
    ("text", "line"), [("a\nb", "a"), ("\n a \n", "a"), ("", "OSError"), (" \n", "OSError")]
)
def test_the_first_line_of_an_error(text: str, line: str) -> None:
    """An error that says nothing is named by its class, and ends no message."""
    assert errors.first_line(OSError(text)) == line
