"""`semel accept | abandon | adopt | exact | collect`: the other commands that change the ledger."""

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
        typer.Option("--same", help="Resume the old partition, if the file's start still matches."),
    ] = False,
    lost: Annotated[
        bool,
        typer.Option("--lost", help="Its unread records are lost for good: write that down."),
    ] = False,
    start: Annotated[
        int,
        typer.Option("--from", min=0, help="The first byte, or offset, of the new generation."),
    ] = 0,
    columns: Annotated[
        bool, typer.Option("--columns", help="Let the output have new columns from here on.")
    ] = False,
    moved: Annotated[
        bool, typer.Option("--moved", help="The sink's table or topic is at its declared address.")
    ] = False,
    refused: Annotated[
        int | None,
        typer.Option("--refused", metavar="BATCH", help="Archive the rows that the table refuses."),
    ] = None,
    erased: Annotated[
        str | None,
        typer.Option("--erased", metavar="A[..B]", help="You erased data of these batches."),
    ] = None,
    rows: Annotated[
        int,
        typer.Option("--rows", min=0, help="With --erased: rows and archived records in all."),
    ] = 0,
    why: Annotated[
        str, typer.Option("--why", metavar="TEXT", help="With --erased: the reason to record.")
    ] = "",
    late: Annotated[
        bool, typer.Option("--late", help="Treat held windows as complete; more records are late.")
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """Settle a file that plan refused: as a new generation (default), --same or --lost.

    Semel reads a new generation from its start, or from --from. With a record_id it drops the
    repeats; by position it writes all records again. In a topic that lost records, the generation
    starts at the first offset that has another record now. --same resumes where the old file
    ended. --lost is for a file that has disappeared for good. PATH is absolute, or relative to the
    data folder, the working folder or the source's.

    Without PATH: --columns lets the output have new columns. --refused finishes a committed batch
    whose table refuses rows: finalize lands the other rows and archives these. --moved goes on at
    the declared address of the table or topic, if the target's notes prove that it is the same
    one. --erased records that you erased data of finalized batches; --rows counts rows of the
    output and records of the archive together. --late completes the held windows now, and records
    that arrive for them later are late.

    Example: semel accept flights flights/flights-2013-01-01.jsonl
    """
    ways = {
        "a PATH": path is not None, "--columns": columns, "--moved": moved, "--late": late,
        "--refused BATCH": refused is not None, "--erased A..B": erased is not None,
    }  # fmt: skip
    if sum(ways.values()) != 1:
        *others, last = ways
        raise typer.BadParameter(f"give either {', '.join(others)} or {last}")
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
    """The `next:` line: resume the first planned batch (`resume`), or `verb`, or run.

    A run by intervals needs its interval, which gaps prints.
    """
    from semel.reports.gaps import GapReason, open_gaps
    from semel.reports.summary import resume_command

    waiting = [gap for gap in open_gaps(ledger, spec) if gap.state is GapReason.PLANNED and resume]
    if waiting:
        return f"next: {resume_command(spec.name, waiting[0])}"
    goes_on = "run" if spec.source.select == "arrival" else "gaps"
    return f"next: semel {verb or goes_on} {spec.name}"


_Answer = tuple[dict[str, Any], list[str]]
"""The answer for scripts, and the lines for people."""


def _file(ledger: "Ledger", spec: "Spec", path: str, *, same: bool, start: int) -> _Answer:
    from semel.repair.accept import accept_file

    accepted, unit = accept_file(ledger, spec, path, same=same, start=start), spec.source.unit
    how = "goes on in" if same else f"is read from {unit[:-1]} {accepted.start} on as"
    how = "is read already in" if accepted.found else how
    new = f"partition {accepted.source_partition_id}, generation {accepted.generation}"
    losses = [f"lost: {unit} {a} to {b} of partition {part}" for part, a, b in accepted.lost]
    return {"accepted": accepted}, [f"{accepted.name} {how} {new}", *losses]


def _lost(ledger: "Ledger", spec: "Spec", path: str) -> _Answer:
    from semel.repair.losses import accept_loss

    losses, unit = accept_loss(ledger, spec, path), spec.source.unit
    return {"lost": losses}, [f"lost: {unit} {x.start} to {x.end} of {x.name!r}" for x in losses]


def _erased(ledger: "Ledger", spec: "Spec", erased: str, rows: int, why: str) -> _Answer:
    from semel.model.batch import numbers
    from semel.repair.erasure import accept_erased

    erasures = accept_erased(ledger, spec, numbers(erased), lacking=rows, why=why)
    lines = [f"erased: {erasure}" for erasure in erasures]
    return {"erased": erasures}, lines or ["this was recorded before"]


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
    """Give up a batch that never committed. The next run plans its records again.

    Example: semel abandon 17
    """
    from semel.declare.wording import count
    from semel.ledger import Ledger
    from semel.plan.abandon import abandon as give_up

    with Ledger() as ledger:
        ranges = give_up(ledger, batch, reason)
        row = ledger.rows("look", "batch", batch_id=batch)[0]
    text = f"batch {batch} is abandoned; "
    if row["replays"] and not ranges:
        text += f"the output of batch {row['replays']} stays what it is"
    elif row["admits"]:
        text += f"the dead letters of batch {row['admits']} stay what they are"
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
        typer.Option("--forget-ids", help="Go on without ids that no file and no source has."),
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """Restore batches, claims and ids of a lost ledger from a pipeline's sink and archive.

    Adopt every pipeline before you run any pipeline. The same command again changes nothing.

    Example: semel adopt flights
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.repair.adopt import adopt as take_over
    from semel.repair.adopt import describe

    spec = pipelines.find(pipeline)
    others = [other for other in pipelines.loadable() if other.name != spec.name]
    with Ledger() as ledger:
        adopted = take_over(ledger, spec, others, forget_ids=forget_ids, log=console.say)
    console.emit({"adopted": adopted}, as_json=as_json, render=lambda: print(describe(adopted)))


@options.resumes
def exact(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    as_json: console.AsJson = False,
) -> None:
    """Change a pipeline from at least once to exactly once: register the horizon's ids.

    First remove `guarantee: at_least_once` from its YAML. The same command again changes nothing.

    Example: semel exact flights
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.repair.exact import exact as make_exact
    from semel.repair.exact import describe

    spec = pipelines.find(pipeline)
    with Ledger() as ledger:
        since = make_exact(ledger, spec, log=console.say)
    console.emit({"exact": since}, as_json=as_json, render=lambda: print(describe(since)))


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

    collected, failed = [], []
    names = sorted({declared_name(path) for path in pipelines.declarations()})
    with Ledger() as ledger:
        for name in [pipeline] if pipeline else names:
            try:
                collected.append(collect_one(ledger, pipelines.find(name), console.say))
            except Exception as error:  # Even after a bug, collect the other pipelines.
                if pipeline:
                    raise
                if not isinstance(error, SemelError):
                    traceback.print_exc()
                    text = f"unexpected {type(error).__name__}: {error}. "
                    error = TerminalError(f"{text}This is a bug of semel: report it", next=NO_STEP)
                failed.append((name, error))
    collected = [each for each in collected if each is not None]

    def render() -> None:
        for each in collected:
            print(summary.collect(each))
        for name, error in failed:
            next = error.next_step(_collecting(name))
            console.fail(error, f"collect of {name} failed: {error}", next, as_json=False)
        for each in collected:
            if each.damaged:  # The summary's lines name the files to restore.
                print(f"next: semel collect {each.pipeline}")
        if not collected and not failed:
            print("there is nothing to collect")

    failures = [
        {
            "pipeline": name,
            "error": type(error).__name__,
            "message": str(error),
            "next": error.next_step(_collecting(name)),
        }
        for name, error in failed
    ]
    console.emit({"collected": collected, "failed": failures}, as_json=as_json, render=render)
    if failed or any(each.damaged for each in collected):
        raise typer.Exit(1)


def _collecting(name: str) -> Doing:
    """The command that collects one pipeline again, for an error's `next`."""
    again = f"semel collect {name}"
    return Doing(again=again, anew=again, pipeline=name)
