"""`semel replay`: compute the output of finalized batches again, without Airflow."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel import console
from semel.cli import options
from semel.declare.wording import FILES_NAMED_MAX
from semel.model.batch import runs

if TYPE_CHECKING:
    from semel.ledger import Ledger
    from semel.pipeline.spec import Spec
    from semel.runs.downstream import Link
    from semel.runs.replay import Replayed, Root


@options.resumes
def replay(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    batches: Annotated[
        str | None,
        typer.Option(metavar="A[..B]", help="The batches, by number: one, or from A to B."),
    ] = None,
    interval: Annotated[
        options.Span | None,
        typer.Option(
            metavar="START END",
            formats=options.DATES,
            help="The batches of the data intervals in [START, END), in UTC; by the time of their "
            "commit, where the pipeline has no intervals.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Tell what would be replayed, or why it cannot be."),
    ] = False,
    requarantine: Annotated[
        bool,
        typer.Option(
            "--requarantine", help="Judge their dead letters again instead: what is good is new."
        ),
    ] = False,
    downstream: Annotated[
        bool,
        typer.Option(
            "--downstream",
            help="Then replay what other pipelines have made of these batches, down the chain.",
        ),
    ] = False,
    request: Annotated[
        str | None,
        typer.Option(help="The request's name, if not that of the code and declaration of now."),
    ] = None,
    spark: options.Spark = None,
    as_json: console.AsJson = False,
) -> None:
    """Compute the output of finalized batches again, with today's transforms and declaration.

    The same ranges of the source are read, and the same records survive: which ones were repeats or
    bad is not decided again. Readers see the old output of a batch, or the new one. A batch whose
    newest output this code and this declaration have made already is left alone.

    With --requarantine the output stays, and the dead letters of the batches are read again: those
    that are good by today's declaration become new records, unless the catalog has their ids.

    With --downstream the batches of the pipelines that read this one follow, and of those that read
    them: each that has read what was replaced. It stops at the first error, and the same command
    goes on from there.

    Example: semel replay flights --interval 2013-01-01 2013-01-08 --dry-run
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.runs import replay as verb

    between, numbers = options.range_of(interval, batches)
    spec = pipelines.find(pipeline)
    if requarantine and downstream:
        raise typer.BadParameter(
            "what --requarantine admits is a new batch, which the pipelines that read this one "
            "take by their next run",
            param_hint="--downstream",
        )
    with Ledger() as ledger:
        roots = verb.roots(ledger, spec, batches=numbers, interval=between)
        if numbers and not {*numbers} <= {*roots}:
            console.say(_there(spec.name, numbers, roots))
        if requarantine:
            key = request or verb.request_of(spec)
            _judge_again(ledger, spec, key, roots, spark, dry_run=dry_run, as_json=as_json)
            return
        which = f"--batches {batches}" if batches else f"--interval {_days(between)}"
        command = f"semel replay {pipeline} {which} --downstream" if downstream else None
        for option, value in (("--request", request), ("--spark", spark)):
            if command and value:
                command += f" {option} {shlex.quote(value)}"
        _compute_again(
            ledger, spec, request, roots, spark, command, dry_run=dry_run, as_json=as_json
        )


def _there(name: str, asked: tuple[int, int], roots: list[int]) -> str:
    """Which numbers of a range are batches of a pipeline."""
    found = runs(roots, range(min(roots), max(roots) + 1))
    spans = [f"{first}" if first == last else f"{first} to {last}" for first, last in found]
    more = len(spans) - FILES_NAMED_MAX
    shown = spans[:FILES_NAMED_MAX] + [f"and {more:,} more"] * (more > 0)
    return f"of {asked[0]} to {asked[1]} {name} has batches {', '.join(shown)}"


def _compute_again(
    ledger: "Ledger",
    spec: "Spec",
    asked: str | None,
    roots: list[int],
    spark: str | None,
    command: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """`asked`: the request's name. `command`: goes on with the chain, if that follows."""
    from semel import settings
    from semel.reports import summary
    from semel.runs import downstream
    from semel.runs import replay as verb
    from semel.spark.session import open_engine

    request = asked or verb.request_of(spec)
    found = [verb.look(ledger, spec, root, request) for root in roots]
    links: list[Link] | None = None
    if command:
        moving = {one.batch_id: not one.done for one in found}
        links = downstream.find_followers(ledger, spec, moving)
    if dry_run:
        _emit_plan(spec.name, found, links, as_json=as_json)
        return
    verb.refuse(ledger, spec, {one.batch_id: one.why for one in found})
    if command:
        downstream.refuse(spec, links or [], alone=command.replace(" --downstream", ""))
    done: list[Replayed] = []
    below: list[tuple[Link, Replayed]] = []
    todo = [one.batch_id for one in found if not one.done]
    if todo or any(link.behind for link in links or ()):
        with open_engine(spark or settings.spark_remote(), console.say) as engine:
            done += verb.run_all(ledger, spec, request, todo, engine, console.say)
            more = {"request": asked, "command": command or ""}
            below += downstream.run(ledger, links or [], engine, console.say, **more)
    plain = _plain(spec.name, request, found, done)
    if links is not None:
        plain["downstream"] = [_plain_link(link, below) for link in links]

    def render() -> None:
        print(summary.replay(found, done))
        if links is not None:
            print(summary.followed(links, below))

    console.emit(plain, as_json=as_json, render=render)


def _emit_plan(
    pipeline: str, found: "list[Root]", links: "list[Link] | None", *, as_json: bool
) -> None:
    """What would be replayed. Exit code 1 where a batch cannot be."""
    from semel.reports import summary

    plain = [{**vars(one), "why": str(one.why) if one.why else None} for one in found]
    payload: dict[str, Any] = {"pipeline": pipeline, "batches": plain}
    if links is not None:
        payload["downstream"] = [
            {
                "pipeline": link.spec.name,
                "reads": link.above,
                "batches": [
                    {"batch_id": n, "behind": n in link.behind, "why": str(why) if why else None}
                    for n, why in link.batches.items()
                ],
            }
            for link in links
        ]

    def render() -> None:
        print(summary.replay_plan(found))
        if links is not None:
            print(summary.would_follow(links))

    console.emit(payload, as_json=as_json, render=render)
    whys = [one.why for one in found]
    if any([*whys, *(why for link in links or () for why in link.batches.values())]):
        raise typer.Exit(1)


def _days(interval: "options.Span") -> str:
    return " ".join(end.isoformat() for end in interval)


def _plain_link(link: "Link", below: "list[tuple[Link, Replayed]]") -> dict[str, Any]:
    done = [one for of, one in below if of is link]
    alone = [n for n in link.batches if n not in {one.batch.root for one in done}]
    return {
        "pipeline": link.spec.name,
        "reads": link.above,
        "replayed": list(map(_plain_one, done)),
        "left_alone": alone,
    }


def _plain_one(one: "Replayed") -> dict[str, Any]:
    return {
        "batch_id": one.batch.root,
        "generation": one.batch.generation,
        "by": one.batch.batch_id,
        "counts": one.finalized.counts,
        "marker": one.finalized.marker,
    }


def _plain(
    pipeline: str, request: str, found: "list[Root]", done: "list[Replayed]"
) -> dict[str, Any]:
    replayed = list(map(_plain_one, done))
    alone = [one.batch_id for one in found if one.done]
    return {"pipeline": pipeline, "request": request, "replayed": replayed, "left_alone": alone}


def _judge_again(
    ledger: "Ledger",
    spec: "Spec",
    request: str,
    roots: list[int],
    spark: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Admit what is good now of the dead letters of some batches, one batch after the other."""
    from semel import settings
    from semel.reports import summary
    from semel.runs import requarantine
    from semel.spark.session import open_engine

    left = requarantine.letters_by_batch(ledger, spec, roots)
    requarantine.refuse(ledger, spec, roots, left)
    if dry_run:
        payload = {"pipeline": spec.name, "letters": left}
        console.emit(payload, as_json=as_json, render=lambda: print(summary.letters_left(left)))
        return
    done = []
    if left:
        with open_engine(spark or settings.spark_remote(), console.say) as engine:
            for at, (root, letters) in enumerate(left.items(), 1):
                console.say(f"batch {root} ({at} of {len(left)}): {letters:,} dead letters")
                done.append(requarantine.run(ledger, spec, request, root, engine, console.say))
    admitted = [
        {
            "batch_id": one.root,
            "by": one.batch.batch_id,
            "admission": one.batch.admission,
            "counts": one.finalized.counts,
            "marker": one.finalized.marker,
        }
        for one in done
        if one.batch
    ]
    payload = {"pipeline": spec.name, "request": request, "admitted": admitted}
    console.emit(payload, as_json=as_json, render=lambda: print(summary.requarantine(done)))
