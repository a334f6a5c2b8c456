"""`semel accept | abandon | adopt | exact | collect`: what changes the ledger beside a run."""

import traceback
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel import console
from semel.cli import options
from semel.errors import Doing

if TYPE_CHECKING:
    from semel.ledger import Ledger
    from semel.pipeline.spec import Spec


def accept(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    path: Annotated[
        str | None, typer.Argument(help="The refused file, as `semel gaps` shows it.")
    ] = None,
    same: Annotated[
        bool,
        typer.Option("--same", help="It goes on in the partition that was read (checked)."),
    ] = False,
    lost: Annotated[
        bool,
        typer.Option("--lost", help="What was seen of it and never read is gone: record that."),
    ] = False,
    start: Annotated[
        int,
        typer.Option("--from", min=0, help="The byte, or offset, that a new generation begins at."),
    ] = 0,
    columns: Annotated[
        bool, typer.Option("--columns", help="Let the output have new columns from here on.")
    ] = False,
    moved: Annotated[
        bool, typer.Option("--moved", help="Its table or topic is where it is declared now.")
    ] = False,
    refused: Annotated[
        int | None,
        typer.Option("--refused", metavar="BATCH", help="Keep rows that its table refuses apart."),
    ] = None,
    erased: Annotated[
        str | None,
        typer.Option("--erased", metavar="A[..B]", help="Data of these batches were erased."),
    ] = None,
    rows: Annotated[
        int,
        typer.Option("--rows", min=0, help="With --erased: how many rows and kept records in all."),
    ] = 0,
    why: Annotated[
        str, typer.Option("--why", metavar="TEXT", help="With --erased: the reason, which is kept.")
    ] = "",
    late: Annotated[
        bool, typer.Option("--late", help="Held windows are complete: the rest of them is late.")
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """Settle a file that plan refused: as a new generation (default), --same or --lost.

    A new generation is read from its start (or --from a byte): with a record_id, what it repeats is
    dropped; by position it is written again. Of a topic that lost records it begins where others
    have their places. --same goes on where the old file ended. --lost is for
    records whose file is gone for good. The path is absolute, or below the data folder, the working
    folder or the source's. Or: let the output have new --columns. Or, for a committed batch of
    which the sink's table refuses rows: land the others, and keep the --refused ones apart. Or,
    where the sink's table or topic was --moved, or its host has another name: go on there, if its
    own notes prove that it is the same. Or: data of finalized batches were --erased on purpose, as
    many --rows of the output and records of the archive in all. Or let the windows that are held
    count as complete now, though --late records may still change them.

    Example: semel accept flights flights/flights-2013-01-01.jsonl
    """
    ways = {
        "a PATH": path is not None, "--columns": columns, "--moved": moved, "--late": late,
        "--refused BATCH": refused is not None, "--erased A..B": erased is not None,
    }  # fmt: skip
    if sum(ways.values()) != 1:
        *some, last = ways
        raise typer.BadParameter(f"give either {', '.join(some)} or {last}")
    if ways["--erased A..B"] != bool(rows and why.strip()):
        raise typer.BadParameter("--erased A..B, --rows and --why go together")
    if same + lost + columns + bool(start) > 1:
        raise typer.BadParameter("--same, --lost, --from and --columns exclude each other")
    from semel import pipeline as pipelines
    from semel.ledger import Ledger

    spec = pipelines.find(pipeline)
    with Ledger() as ledger:
        if path is not None and not lost:
            payload, lines = _file(ledger, spec, path, same=same, start=start)
        elif path is not None:
            payload, lines = _lost(ledger, spec, path)
        elif erased is not None:
            payload, lines = _erased(ledger, spec, erased, rows, why)
        elif refused is not None:
            payload, lines = _refused(ledger, spec, refused)
        else:
            way = _columns if columns else _moved if moved else _late
            payload, lines = way(ledger, spec)
        if refused is None:
            verb = "audit" if erased else "windows" if late else ""
            lines.append(_next(ledger, spec, verb, resume=columns or moved))
    payload = {"pipeline": pipeline, **payload}
    console.emit(payload, as_json=as_json, render=lambda: print("\n".join(lines)))


def _next(ledger: "Ledger", spec: "Spec", verb: str, *, resume: bool) -> str:
    """The line with the command that goes on: of this verb, or with a batch that waits for what was
    accepted (`resume`), or a run. A run by intervals needs one, which gaps prints.
    """
    from semel.reports.gaps import GapReason, open_gaps
    from semel.reports.summary import resume_command

    waiting = [gap for gap in open_gaps(ledger, spec) if gap.state is GapReason.PLANNED and resume]
    if waiting:
        return f"next: {resume_command(spec.name, waiting[0])}"
    goes_on = "run" if spec.source.select == "arrival" else "gaps"
    return f"next: semel {verb or goes_on} {spec.name}"


_Answer = tuple[dict[str, Any], list[str]]
"""What a way of accept says: for scripts, and to a person."""


def _file(ledger: "Ledger", spec: "Spec", path: str, *, same: bool, start: int) -> _Answer:
    from semel.repair.accept import accept_file

    done, unit = accept_file(ledger, spec, path, same=same, start=start), spec.source.unit
    how = "goes on in" if same else f"is read from {unit[:-1]} {done.start} on as"
    how = "is read already in" if done.found else how
    new = f"partition {done.source_partition_id}, generation {done.generation}"
    gone = [f"lost: {unit} {a} to {b} of partition {part}" for part, a, b in done.lost]
    return {"accepted": done}, [f"{done.name} {how} {new}", *gone]


def _lost(ledger: "Ledger", spec: "Spec", path: str) -> _Answer:
    from semel.repair.losses import accept_loss

    losses, unit = accept_loss(ledger, spec, path), spec.source.unit
    return {"lost": losses}, [f"lost: {unit} {x.start} to {x.end} of {x.name!r}" for x in losses]


def _erased(ledger: "Ledger", spec: "Spec", erased: str, rows: int, why: str) -> _Answer:
    from semel.model.batch import numbers
    from semel.repair.erased import accept_erased

    gone = accept_erased(ledger, spec, numbers(erased), lacking=rows, why=why)
    return {"erased": gone}, [f"erased: {one}" for one in gone] or ["this was recorded before"]


def _refused(ledger: "Ledger", spec: "Spec", batch: int) -> _Answer:
    from semel.repair.accept import accept_refused

    accept_refused(ledger, spec, batch)
    return {"batch": batch}, [f"batch {batch} is finalized; `semel show {batch}` names its archive"]


def _columns(ledger: "Ledger", spec: "Spec") -> _Answer:
    from semel.repair.accept import accept_columns

    accept_columns(ledger, spec)
    return {}, [f"{spec.name}: the next batch that commits decides the columns"]


def _moved(ledger: "Ledger", spec: "Spec") -> _Answer:
    from semel.repair.accept import accept_moved

    old, new = accept_moved(ledger, spec)
    return {"from": old, "to": new}, [f"{spec.name}: its sink is {new} from here on, and was {old}"]


def _late(ledger: "Ledger", spec: "Spec") -> _Answer:
    from semel.repair.accept import accept_late

    until = accept_late(ledger, spec)
    text = f"{spec.name}: windows are complete up to {until:%F %H:%M:%S} UTC"
    return {"event_time": until}, [text]


def abandon(
    batch: Annotated[int, typer.Argument(help="The batch's number.")],
    reason: Annotated[str, typer.Option(help="Kept with the batch.")] = "abandoned by hand",
    as_json: console.AsJson = False,
) -> None:
    """Give up a batch that never committed; its records are planned again by the next run.

    Example: semel abandon 17
    """
    from semel.declare.wording import count
    from semel.ledger import Ledger
    from semel.plan.abandon import abandon as give_up

    with Ledger() as ledger:
        ranges = give_up(ledger, batch, reason)
        about = ledger.rows("look", "batch", batch_id=batch)[0]
    text = f"batch {batch} is abandoned; "
    if about["replays"] and not ranges:
        text += f"the output of batch {about['replays']} stays what it is"
    elif about["admits"]:
        text += f"the dead letters of batch {about['admits']} stay what they are"
    else:
        text += f"{count(ranges, 'range')} of its source {'is' if ranges == 1 else 'are'} free, "
        text += f"and the next run plans {'it' if ranges == 1 else 'them'}"
    console.emit(
        {"batch_id": batch, "ranges_released": ranges}, as_json=as_json, render=lambda: print(text)
    )


@options.resumes
def adopt(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    forget_ids: Annotated[
        bool,
        typer.Option("--forget-ids", help="Go on without ids that neither files nor source hold."),
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """Take over what a lost ledger's batches left in a pipeline's sink: batches, claims, ids.

    Adopt every pipeline before any of them runs. The same command again changes nothing.

    Example: semel adopt flights
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.repair.adopt import adopt as take_over
    from semel.repair.adopt import told

    spec = pipelines.find(pipeline)
    others = [other for other in pipelines.loadable() if other.name != spec.name]
    with Ledger() as ledger:
        done = take_over(ledger, spec, others, forget_ids=forget_ids, log=console.say)
    console.emit({"adopted": done}, as_json=as_json, render=lambda: print(told(done)))


@options.resumes
def exact(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    as_json: console.AsJson = False,
) -> None:
    """Make a pipeline exactly once that was at least once: its catalog learns the horizon's ids.

    Take `guarantee: at_least_once` out of its file first. The same command again changes nothing.

    Example: semel exact flights
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.repair.exact import exact as make_exact
    from semel.repair.exact import told

    spec = pipelines.find(pipeline)
    with Ledger() as ledger:
        done = make_exact(ledger, spec, log=console.say)
    console.emit({"exact": done}, as_json=as_json, render=lambda: print(told(done)))


@options.resumes
def collect(
    pipeline: Annotated[
        str | None, typer.Argument(help="The pipeline's name; all when left out.")
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Forget ids past their horizon, merge id runs, remove files of lost attempts.

    Example: semel collect flights
    """
    from semel import pipeline as pipelines
    from semel.collect import collect as collect_one
    from semel.declare.yaml import declared_name
    from semel.errors import NO_STEP, SemelError, TerminalError
    from semel.ledger import Ledger
    from semel.reports import summary

    done, failed = [], []
    names = sorted({declared_name(path) for path in pipelines.declarations()})
    with Ledger() as ledger:
        for name in [pipeline] if pipeline else names:
            try:
                done.append(collect_one(ledger, pipelines.find(name), console.say))
            except Exception as error:  # Also a defect: the other pipelines are collected anyway.
                if pipeline:
                    raise
                if not isinstance(error, SemelError):
                    traceback.print_exc()
                    what = f"unexpected {type(error).__name__}: {error}; this is a defect of semel"
                    error = TerminalError(what, next=NO_STEP)
                failed.append((name, error))
    done = [one for one in done if one is not None]

    def render() -> None:
        for one in done:
            print(summary.collect(one))
        for name, error in failed:
            next = error.next_step(_collecting(name))
            console.fail(error, f"collect of {name} failed: {error}", next, as_json=False)
        for one in done:
            if one.damaged:  # Its lines say what to restore.
                print(f"next: semel collect {one.pipeline}")
        if not done and not failed:
            print("there is nothing to collect")

    told = [
        {
            "pipeline": name,
            "error": type(error).__name__,
            "message": str(error),
            "next": error.next_step(_collecting(name)),
        }
        for name, error in failed
    ]
    console.emit({"collected": done, "failed": told}, as_json=as_json, render=render)
    if failed or any(one.damaged for one in done):
        raise typer.Exit(1)


def _collecting(name: str) -> Doing:
    """collect of one pipeline, and how it is done again."""
    again = f"semel collect {name}"
    return Doing(again=again, anew=again, pipeline=name)
