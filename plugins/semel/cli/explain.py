"""`semel explain`: Spark's stages for a batch, with fused steps, lifted sums and shuffles."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from semel import console

if TYPE_CHECKING:
    from semel.spark.explain import BatchPlan, Stage, Step

_PLANNER = "local[1]"


def explain(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    plan: Annotated[bool, typer.Option("--plan", help="Print Spark's own plans, too.")] = False,
    as_json: console.AsJson = False,
) -> None:
    """Show the stages that Spark makes of a batch, with fused steps, lifted sums and shuffles.

    Plans in a Spark of its own and runs no job. It needs neither the source nor the ledger.

    Example: semel explain flights
    """
    from semel import pipeline as pipelines
    from semel.spark import session
    from semel.spark.explain import explain as ask
    from semel.spark.settings import CONNECT_VARIABLES

    spec = pipelines.find(pipeline)
    for name in CONNECT_VARIABLES:  # Over Spark Connect, a plan is not visible.
        os.environ.pop(name, None)
    with ExitStack() as stack:
        with _quiet_jvm():
            engine = stack.enter_context(session.open_engine(_PLANNER, console.say))
        answer = ask(spec, engine)
    console.emit(answer, as_json=as_json, render=lambda: _render(answer, plans=plan))


@contextmanager
def _quiet_jvm() -> Iterator[None]:
    """Hide the standard error of a JVM that starts here, unless its start fails."""
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        except BaseException:
            log.seek(0)
            os.write(screen, log.read())
            raise
        finally:
            os.dup2(screen, 2)
            os.close(screen)


def _render(answer: "BatchPlan", *, plans: bool) -> None:
    from rich.text import Text

    print(f"{answer.pipeline}, as Spark {answer.spark} plans a batch of several tasks")
    table = console.table("query", "stage", "tasks", "in one task", folded=["in one task"])
    for query in answer.queries:
        for stage in query.stages:
            name = query.name if stage is query.stages[0] else ""
            lines = Text("\n".join([*_steps(stage.steps), *_end(stage)]))
            table.add_row(name, f"{stage.number}", _tasks(stage.tasks), lines)
    console.show(table)
    print(f"a task of the batch reads about {answer.task_size}; {_shuffles(answer)}")
    for note in answer.notes:
        print(f"note: {note}")
    for query in answer.queries if plans else ():
        print(f"\n{query.name}:\n{query.plan}")


def _steps(steps: "tuple[Step, ...]") -> list[str]:
    """A line for each step. Steps that Spark compiles to one function share a line."""
    lines = []
    for (runs, fused), group in groupby(steps, lambda step: (step.runs, step.fused)):
        texts = [step.text for step in group]
        lines += texts if fused is None else [" > ".join(texts)]
        if runs == "python":
            lines[-1] += "  [Python]"
    return lines


def _end(stage: "Stage") -> list[str]:
    """A line that says where the rows of a stage go. Empty for the result stage."""
    from semel.declare.wording import count

    if stage.ends == "result":
        return []
    if stage.ends == "broadcast":
        return ["-> broadcast: whole, to each executor"]
    if stage.ends == "subquery":
        return ["-> subquery: its value, to each task"]
    to = f"-> shuffle to tasks {_tasks(stage.partitions)}"
    if stage.partitions is not None:
        to = f"-> shuffle to {count(stage.partitions, 'task')}"
    if stage.of == "semel":
        return [f"{to}: {stage.by}"]
    lifted = "combined before it (lifted)" if stage.lifted else "not combined before it"
    return [f"{to} for {stage.of}, {lifted}: {stage.by}"]


def _tasks(number: int | None) -> str:
    return "of the batch" if number is None else f"{number:,}"


def _shuffles(answer: "BatchPlan") -> str:
    from semel.declare.wording import count

    text = f"a batch has {count(answer.shuffles, 'shuffle')}"
    if answer.shuffles_of_one_task < answer.shuffles:
        text += f", or {answer.shuffles_of_one_task} if one task reads all of it"
    return text
