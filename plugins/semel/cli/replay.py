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
        typer.Option(metavar="A[..B]", help="The batches by number: one, or A to B."),
    ] = None,
    interval: Annotated[
        options.Span | None,
        typer.Option(
            metavar="START END",
            formats=options.DATES,
            help="The batches of the data intervals in [START, END), in UTC. Without intervals in "
            "the pipeline: the batches that committed then.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the batches to replay, or why replay refuses them."),
    ] = False,
    requarantine: Annotated[
        bool,
        typer.Option(
            "--requarantine", help="Instead, judge their dead letters again, and admit good ones."
        ),
    ] = False,
    downstream: Annotated[
        bool,
        typer.Option(
            "--downstream",
            help="Then replay the batches of other pipelines that read these, down the chain.",
        ),
    ] = False,
    request: Annotated[
        str | None,
        typer.Option(help="The request's name; by default, a digest of code and declaration."),
    ] = None,
    spark: options.Spark = None,
    as_json: console.AsJson = False,
) -> None:
    """Compute the output of finalized batches again, with today's transforms and declaration.

    Replay reads the same ranges of the source, and the same records survive: it does not decide
    again which ones are repeats or bad. Readers see either the old output of a batch or the new
    one. Replay skips a batch if this code and declaration wrote its newest output.

    --requarantine leaves the output and judges the dead letters again. Those that are good by
    today's declaration become new records, unless the catalog has their ids.

    --downstream then replays the batches of other pipelines that read the replaced output, down
    the chain. It stops at the first error, and the same command resumes there.

    Example: semel replay flights --interval 2013-01-01 2013-01-08 --dry-run
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.runs import replay as verb

    between, numbers = options.range_of(interval, batches)
    spec = pipelines.find(pipeline)
    if requarantine and downstream:
        raise typer.BadParameter(
            "--requarantine admits records as a new batch, and the next run of each downstream "
            "pipeline reads that. Leave --downstream out",
            param_hint="--downstream",
        )
    with Ledger() as ledger:
        roots = verb.roots(ledger, spec, batches=numbers, interval=between)
        if numbers and not {*numbers} <= {*roots}:
            console.say(_batches_in(spec.name, numbers, roots))
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


def _batches_in(name: str, numbers: tuple[int, int], roots: list[int]) -> str:
    """A sentence with the numbers of a range that are batches of a pipeline."""
    ranges = runs(roots, range(min(roots), max(roots) + 1))
    spans = [f"{first}" if first == last else f"{first} to {last}" for first, last in ranges]
    more = len(spans) - FILES_NAMED_MAX
    listed = spans[:FILES_NAMED_MAX] + [f"and {more:,} more"] * (more > 0)
    return f"of {numbers[0]} to {numbers[1]}, {name} has only batches {', '.join(listed)}"


def _compute_again(
    ledger: "Ledger",
    spec: "Spec",
    request_option: str | None,
    roots: list[int],
    spark: str | None,
    command: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Replay batches. `command` resumes the downstream replay; None without --downstream."""
    from semel import settings
    from semel.reports import summary
    from semel.runs import downstream
    from semel.runs import replay as verb
    from semel.spark.session import open_engine

    request = request_option or verb.request_of(spec)
    batches = [verb.check_root(ledger, spec, root, request) for root in roots]
    links: list[Link] | None = None
    if command:
        links = downstream.find_followers(
            ledger, spec, {root.batch_id: not root.done for root in batches}
        )
    if dry_run:
        _emit_plan(spec.name, batches, links, as_json=as_json)
        return
    verb.refuse(ledger, spec, {root.batch_id: root.why for root in batches})
    if command:
        downstream.refuse(spec, links or [], alone=command.replace(" --downstream", ""))
    replayed: list[Replayed] = []
    below: list[tuple[Link, Replayed]] = []
    todo = [root.batch_id for root in batches if not root.done]
    if todo or any(link.behind for link in links or ()):
        with open_engine(spark or settings.spark_remote(), console.say) as engine:
            replayed += verb.run_all(ledger, spec, request, todo, engine, console.say)
            more = {"request": request_option, "command": command or ""}
            below += downstream.run(ledger, links or [], engine, console.say, **more)
    plain = _plain(spec.name, request, batches, replayed)
    if links is not None:
        plain["downstream"] = [_plain_link(link, below) for link in links]

    def render() -> None:
        print(summary.replay(batches, replayed))
        if links is not None:
            print(summary.chain_replay(links, below))

    console.emit(plain, as_json=as_json, render=render)


def _emit_plan(
    pipeline: str, roots: "list[Root]", links: "list[Link] | None", *, as_json: bool
) -> None:
    """Print the batches that replay would compute. Exits with 1 if replay refuses any."""
    from semel.reports import summary

    plain = [{**vars(root), "why": str(root.why) if root.why else None} for root in roots]
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
        print(summary.replay_plan(roots))
        if links is not None:
            print(summary.chain_plan(links))

    console.emit(payload, as_json=as_json, render=render)
    whys = [root.why for root in roots]
    if any([*whys, *(why for link in links or () for why in link.batches.values())]):
        raise typer.Exit(1)


def _days(interval: "options.Span") -> str:
    return " ".join(time.isoformat() for time in interval)


def _plain_link(link: "Link", below: "list[tuple[Link, Replayed]]") -> dict[str, Any]:
    replayed = [result for of, result in below if of is link]
    skipped = [n for n in link.batches if n not in {result.batch.root for result in replayed}]
    return {
        "pipeline": link.spec.name,
        "reads": link.above,
        "replayed": list(map(_plain_replayed, replayed)),
        "left_alone": skipped,
    }


def _plain_replayed(result: "Replayed") -> dict[str, Any]:
    return {
        "batch_id": result.batch.root,
        "generation": result.batch.generation,
        "by": result.batch.batch_id,
        "counts": result.finalized.counts,
        "marker": result.finalized.marker,
    }


def _plain(
    pipeline: str, request: str, roots: "list[Root]", results: "list[Replayed]"
) -> dict[str, Any]:
    replayed = list(map(_plain_replayed, results))
    skipped = [root.batch_id for root in roots if root.done]
    return {"pipeline": pipeline, "request": request, "replayed": replayed, "left_alone": skipped}


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
    """Admit the dead letters that are good now, one batch after the other."""
    from semel import settings
    from semel.reports import summary
    from semel.runs import requarantine
    from semel.spark.session import open_engine

    letters = requarantine.letters_by_batch(ledger, spec, roots)
    requarantine.refuse(ledger, spec, roots, letters)
    if dry_run:
        payload = {"pipeline": spec.name, "letters": letters}
        console.emit(
            payload, as_json=as_json, render=lambda: print(summary.remaining_letters(letters))
        )
        return
    results = []
    if letters:
        with open_engine(spark or settings.spark_remote(), console.say) as engine:
            for at, (root, count) in enumerate(letters.items(), 1):
                console.say(f"batch {root} ({at} of {len(letters)}): {count:,} dead letters")
                results.append(requarantine.run(ledger, spec, request, root, engine, console.say))
    admitted = [
        {
            "batch_id": result.root,
            "by": result.batch.batch_id,
            "admission": result.batch.admission,
            "counts": result.finalized.counts,
            "marker": result.finalized.marker,
        }
        for result in results
        if result.batch
    ]
    payload = {"pipeline": spec.name, "request": request, "admitted": admitted}
    console.emit(payload, as_json=as_json, render=lambda: print(summary.requarantine(results)))
