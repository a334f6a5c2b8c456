"""`semel batches | show | find | gaps | audit`: what there is. Nothing here changes anything."""

import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel import console
from semel.declare import wording
from semel.declare.wording import FILES_NAMED_MAX

if TYPE_CHECKING:
    from semel.audit import AuditVerdict
    from semel.pipeline.spec import Spec
    from semel.reports.code_versions import CodeVersionOutput
    from semel.reports.gaps import Gap, Gaps

BATCHES_SHOWN = 50
"""Batches that `semel batches` lists unless told otherwise."""

Pipeline = Annotated[str, typer.Argument(help="The pipeline's name.")]

_CODE_DIGITS = 12
_CODE_NAMED_MAX = 5

_ACCOUNT = {
    "read": ("records_read",),
    "new": ("survivors",),
    "repeats": ("duplicates_batch", "duplicates_catalog"),
    "set aside": ("quarantined", "late"),
}
"""The columns of a batch's account, each with the counts that it adds up."""


def audit(
    pipeline: Pipeline,
    sink: Annotated[
        Path | None, typer.Option(help="Another folder than the pipeline's sink, such as a copy.")
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Prove from files alone that the output holds each record of the source once. Exit 1 if not.

    Reads source, output, decisions, dead letters and the kept texts of transforms again; asks
    neither ledger nor catalog. Where a marker is missing, the ledger names the next step.

    Example: semel audit flights
    """
    from semel import pipeline as pipelines
    from semel.audit import audit as prove

    spec = pipelines.find(pipeline)
    verdict, unit = prove(spec, sink), spec.source.unit

    def render() -> None:
        columns = "", "promise", "examined", "broken"
        table = console.table(*columns, numbers=columns[2:], folded=["promise"])
        for check in verdict.checks:
            mark = "[green]ok[/]" if check.ok else "[red]BROKEN[/]"
            table.add_row(mark, check.promise, f"{check.examined:,}", f"{check.broken:,}")
        console.show(table)
        for check in verdict.checks:
            for one in check.offenders:
                console.result.print(f"{check.name}: {_offender(one, unit[:-1])}", markup=False)
            if check.broken > len(check.offenders):
                more = check.broken - len(check.offenders)
                console.result.print(f"{check.name}: and {more:,} more", markup=False)
        for note in verdict.notes:
            console.result.print(f"note: {note}", markup=False)
        total = verdict.totals
        word = "passed" if verdict.ok else "FAILED"
        if verdict.ok and verdict.gone:
            word = f"passed for {verdict.batches - verdict.gone:,} of {verdict.batches:,} batches"
        again = f" ({verdict.replayed:,} replayed)" if verdict.replayed else ""
        batches = wording.count(verdict.batches, "batch", "batches")
        records = wording.count(total.records_read, "record")
        survivors = wording.count(total.survivors, "survivor")
        text = (
            f"audit of {pipeline}: {word}; {batches}{again}, {records}, {survivors}; "
            f"proved by {verdict.proved_by}"
        )
        console.result.print(text, markup=False)
        if not verdict.ok:
            for step in _steps(spec, verdict, copy=sink is not None):
                print(f"next: {step}")

    console.emit(verdict.to_json(), as_json=as_json, render=render)
    if not verdict.ok:
        raise typer.Exit(1)


def _steps(spec: "Spec", verdict: "AuditVerdict", *, copy: bool) -> list[str]:
    """What to do about a verdict that failed. A batch that has committed is finalized first; output
    that is gone is computed again, if not of a copy.
    """
    broken = [one for check in verdict.checks for one in check.offenders]
    if not copy and any(one.batch is None and one.file is None for one in broken):  # No marker.
        return [_finalizing(spec) or f"semel batches {spec.name}"]
    found = () if copy else verdict.to_replay[:FILES_NAMED_MAX]
    if found:
        spans = [f"{a}..{b}" if b > a else f"{a}" for a, b in found]
        return [f"semel replay {verdict.pipeline} --batches {span}" for span in spans]
    batches = [one.batch for one in broken if one.batch]
    return [f"semel show {min(batches)}" if batches else f"semel batches {verdict.pipeline}"]


def _finalizing(spec: "Spec") -> str | None:
    """The command that finalizes the first batch that has committed. None: the ledger knows none,
    or does not answer.
    """
    from semel.errors import UnavailableError
    from semel.ledger import Ledger
    from semel.reports.gaps import GapReason, open_gaps
    from semel.reports.summary import resume_command

    with suppress(UnavailableError), Ledger() as ledger:
        waiting = [
            g for g in open_gaps(ledger, spec) if g.state is GapReason.COMMITTED and not g.replays
        ]
        if waiting:
            return resume_command(spec.name, min(waiting, key=lambda gap: gap.batch_id))
    return None


def find(
    pipeline: Pipeline,
    identity: Annotated[
        list[str],
        typer.Argument(metavar="ID", help="One value for each id column, or one JSON object."),
    ],
    as_json: console.AsJson = False,
) -> None:
    """Say in which batch and file a record id is, of what it is a duplicate, or that it is nowhere.

    Example: semel find flights 2013 1 1 UA 1545 EWR
    """
    from semel import pipeline as pipelines
    from semel.reports.find import find as look_for

    spec = pipelines.find(pipeline)
    found = look_for(spec, identity)
    unit = spec.source.unit.removesuffix("s")
    behind = None if found.places else _files_not_finalized(spec)

    def render() -> None:
        for place in found.places:
            origin = f", from {place.source!r} {unit} {place.offset}" if place.source else ""
            detail = f" ({place.detail})" if place.detail else ""
            kind = "may be the dead letter" if place.what == "dead_letter" else place.what
            made = f", made by its replay {place.made_by}" if place.made_by else ""
            print(f"{kind}: batch {place.batch_id}{made}, {place.file}{origin}{detail}")
        for told in found.caveats:
            print(told)
        if not found.places:
            part = f"source {spec.source.part}{' holds' if behind == 1 else 's hold'}"
            more = f"{behind} {part} what none of them has"
            if behind is None:
                more = "what else the source holds cannot be told, as the ledger does not answer"
            where = "in any" if found.in_output else "among the repeats and dead letters"
            print(f"not {where} of {found.batches} finalized batches; {more}")
        if found.damaged:
            print(f"next: semel audit {pipeline}")
        elif not found.places:
            print(f"next: semel gaps {pipeline}")

    answer = {"found": bool(found.places), **vars(found), "files_not_finalized": behind}
    console.emit(answer, as_json=as_json, render=render)
    if found.damaged:
        raise typer.Exit(1)


def _files_not_finalized(spec: "Spec") -> int | None:
    """How many source files hold what no finalized batch has. None: the ledger does not answer."""
    from semel.errors import UnavailableError
    from semel.ledger import Ledger
    from semel.reports.gaps import gaps as look_for

    try:
        with Ledger() as ledger:
            return look_for(ledger, spec).files
    except UnavailableError:
        return None


def gaps(pipeline: Pipeline, as_json: console.AsJson = False) -> None:
    """List what the source holds and is not finalized. Exit 1 if nobody is working on some of it.

    That is: what no batch has claimed, a batch without a sign of life, a refused file. What waits
    for its end, or is in a living batch, is listed too, and is no reason for exit 1.

    Example: semel gaps flights
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.reports.gaps import gaps as look_for

    spec = pipelines.find(pipeline)
    with Ledger() as ledger:
        found = look_for(ledger, spec, console.say)
    unit = spec.source.unit

    def render() -> None:
        for gap in found.gaps:
            holder = f" by batch {gap.batch_id} of {gap.request_key}" if gap.batch_id else ""
            silent = ", which gives no sign of life" if gap.silent else ""
            passed = f"; {spec.source.passes_by}" if gap.passed_by else ""
            print(
                f"{gap.state}{holder}{silent}: {gap.name!r} {unit} {gap.start} to {gap.end}{passed}"
            )
        for refusal in found.refusals:
            print(f"refused: {refusal}")
        for loss in found.losses:
            print(
                f"lost: {loss.name!r} {unit} {loss.start} to {loss.end}: {loss.reason}, by "
                f"{loss.accepted_by}, {loss.accepted_at:%Y-%m-%d %H:%M}"
            )
        for one in found.erasures:
            print(
                f"erased: {one.rows:,} rows of batch {one.batch_id}: {one.reason}, by "
                f"{one.accepted_by}, {one.accepted_at:%Y-%m-%d %H:%M}"
            )
        if not found.gaps and not found.refusals:
            print(f"{pipeline}: all that the source holds is finalized")
        for line in _takes(spec, found):
            print(line)

    console.emit({"idle": found.idle, **vars(found)}, as_json=as_json, render=render)
    if found.idle:
        raise typer.Exit(1)


def _takes(spec: "Spec", found: "Gaps") -> list[str]:
    """What takes each gap that nobody is working on."""
    from semel.reports.gaps import GapReason
    from semel.reports.summary import catch_up_lines, resume_command

    silent = {gap.batch_id: gap for gap in found.gaps if gap.silent}
    lines = [
        f"next: semel collect {spec.name}"
        if gap.state is GapReason.COMMITTED
        else f"next: {resume_command(spec.name, gap)}"
        for gap in silent.values()
    ]
    late = catch_up_lines(spec.name, spec.schedule, {gap.day for gap in found.gaps if gap.day})
    lines += [_LATE, *late] if late and spec.schedule else late
    unclaimed = any(gap.state is GapReason.UNCLAIMED and not gap.passed_by for gap in found.gaps)
    if unclaimed and spec.source.select == "arrival":
        lines.append(f"next: semel run {spec.name}")
    if unclaimed and spec.source.select == "interval" and not spec.source.dated:
        lines += _undated(spec, [gap for gap in found.gaps if gap.state is GapReason.UNCLAIMED])
    return [*lines, *(line for line in _settles(spec, found) if line not in lines)]


def _settles(spec: "Spec", found: "Gaps") -> list[str]:
    """The commands for refused files: what accepts each, or what reads it once it is corrected."""
    from semel.repair.accept import choices, command
    from semel.reports.summary import run_of_days

    commands = {refusal: command(spec, refusal) for refusal in found.refusals[:FILES_NAMED_MAX]}
    lines = [f"next: {accept}" for accept in commands.values() if accept]
    left = [refusal for refusal in commands if not choices(spec.source, refusal.reason)]
    days = {refusal.when.astimezone(UTC).date() for refusal in left if refusal.when}
    runs = f"semel run {spec.name}" if left and spec.source.select == "arrival" else ""
    if days and spec.source.select == "interval":
        runs = run_of_days(spec.name, days)
    return [*lines, "once that is corrected:", f"next: {runs}"] if runs else lines


def _undated(spec: "Spec", unclaimed: "list[Gap]") -> list[str]:
    """What takes records by their own times: an interval up to now takes them wherever they lie."""
    from semel.pipeline.opening import open_source

    source, now = open_source(spec), datetime.now(UTC)
    times = [source.first_time(g.name, g.start, g.end) for g in unclaimed[:FILES_NAMED_MAX]]
    first = min([now.timestamp(), *(time for time in times if time is not None)])
    day, today = datetime.fromtimestamp(first, UTC).date(), now.date()
    if day == today and spec.schedule:
        return []
    return [f"next: semel run {spec.name} --interval {day} {today + timedelta(days=1)}"]


_LATE = (
    "past days have records that came after their run, or before there was one: the schedule "
    "alone takes only the interval that ended last"
)


def batches(
    pipeline: Annotated[
        str | None, typer.Argument(help="The pipeline's name; all when left out.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many, from the newest on.")] = (
        BATCHES_SHOWN
    ),
    by_code: Annotated[
        bool, typer.Option("--made-by", help="Group all finalized ones by the code that made them.")
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """List the newest batches with their state and account.

    With --made-by: which version of the transforms made which batches of a pipeline, and so which
    days a mistake in one of them has reached.

    Example: semel batches flights
    """
    if by_code:
        if pipeline is None:
            raise typer.BadParameter("name a pipeline: semel batches PIPELINE --made-by")
        _show_made_by(pipeline, as_json=as_json)
        return

    from semel import pipeline as pipelines
    from semel.ledger import Ledger

    name = pipelines.find(pipeline).name if pipeline else None
    with Ledger() as ledger:
        found = ledger.rows("look", "batches", name=name, count=count)

    def render() -> None:
        left_out = {"pipeline"} if name else set()
        left_out |= set() if any(r["attempts"] > 1 for r in found) else {"tries"}
        left_out |= set() if any(r["interval_start"] for r in found) else {"interval"}
        columns = "pipeline", "batch", "state", "tries", "interval", *_ACCOUNT, "run"
        shown = [column for column in columns if column not in left_out]
        table = console.table(*shown, numbers={"batch", "tries", *_ACCOUNT}, cut=["run"])
        for r in found:
            cells = dict(zip(columns, _cells(r), strict=True))
            table.add_row(*(cells[column] for column in shown))
        console.show(table)

    console.emit({"batches": [dict(r) for r in found]}, as_json=as_json, render=render)


def _cells(r: Any) -> list[str]:
    """A batch's line, `semel show` has all of it: the run's name is cut where the screen ends."""
    from rich.markup import escape

    from semel.model.batch import run_of

    won = r["records_read"] is not None
    sums = [sum(r[c] for c in names) if won else 0 for names in _ACCOUNT.values()]
    run = run_of(r["request_key"]) + (f" #{r['ordinal']}" if r["ordinal"] > 1 else "")
    run = escape(f"{_beside(r)} {run}".lstrip())  # It may hold what looks like rich's markup.
    head = [r["pipeline"], str(r["batch_id"]), r["status"], str(r["attempts"]), _interval(r)]
    return [*head, *(f"{n:,}" if won else "" for n in sums), run]


def _show_made_by(pipeline: str, *, as_json: bool) -> None:
    """Print the finalized batches of a pipeline by the code that made them, the newest first."""
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.reports.code_versions import outputs_by_code

    spec = pipelines.find(pipeline)
    with Ledger() as ledger:
        found = outputs_by_code(ledger, spec)

    def render() -> None:
        if not found:
            print(f"{spec.name} has no finalized batch yet")
        for made in found:
            print("\n".join(_made_lines(made)))

    console.emit({"pipeline": spec.name, "made_by": found}, as_json=as_json, render=render)


def _made_lines(made: "CodeVersionOutput") -> list[str]:
    from semel.reports.summary import interval

    code, count = made.code, len(made.batches)
    head = f"code {made.digest[:_CODE_DIGITS]}, semel {code.semel}" if code else "code not known"
    if made.git_commits:
        head += f", git commit {_some([c[:_CODE_DIGITS] for c in reversed(made.git_commits)])}"
    numbers = [f"{first}" if first == last else f"{first} to {last}" for first, last in made.runs]
    lines = [head, f"  {'batch' if count == 1 else f'{count:,} batches:'} {', '.join(numbers)}"]
    if made.intervals:
        lines.append(f"  of {_some([interval(*span) for span in made.intervals])}")
    return [*lines, *(f"  {name!r}: {path}" for name, path in made.texts.items())]


def _some(texts: list[str]) -> str:
    more = len(texts) - _CODE_NAMED_MAX
    return ", ".join([*texts[:_CODE_NAMED_MAX], *([f"and {more:,} more"] if more > 0 else [])])


def _beside(r: Any) -> str:
    """What a batch is to others."""
    said = [
        f"replays {r['replays']}, generation {r['generation']}" if r["replays"] else "",
        f"judges dead letters of {r['admits']}" if r["admits"] else "",
        _replaced(r),
        f"{r['erased']:,} rows erased" if r["erased"] is not None else "",
    ]
    found = "; ".join(part for part in said if part)
    return f"({found})" if found else ""


def _replaced(r: Any) -> str:
    """By which replay: readers see the old output until that is finalized."""
    if r["replaced_by"] is None:
        return ""
    number = r["replaced_by"]
    return f"replaced by {number}" if r["is_replaced"] else f"{number} will replace it"


def _interval(r: Any) -> str:
    from semel.reports.summary import interval

    start, end = r["interval_start"], r["interval_end"]
    return interval(start, end) if start else ""


def show(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[PIPELINE] BATCH", help="The batch's number, and whose it is."),
    ],
    as_json: console.AsJson = False,
) -> None:
    """Show all that is known of one batch: its claims, attempts, files, and the code that made it.

    Example: semel show 17
    """
    from semel.errors import TerminalError
    from semel.ledger import Ledger
    from semel.sources.spec import declaration

    pipeline, batch = _named(words)
    with Ledger() as ledger:
        found = ledger.rows("look", "batch", batch_id=batch)
        if not found:
            raise TerminalError(f"there is no batch {batch}", next="semel batches")
        if pipeline not in (None, found[0]["pipeline"]):
            raise TerminalError(
                f"batch {batch} is of {found[0]['pipeline']}, and not of {pipeline}: all pipelines "
                "of a ledger number their batches together",
                next=f"semel batches {pipeline}",
            )
        replays = ledger.rows("look", "replays", batch_id=batch)
        claims = ledger.rows("plan", "claims", batch_id=batch)
        attempts = ledger.rows("look", "attempts", batch_id=batch)
        files = ledger.rows("look", "files", batch_id=batch)
    known = dict(found[0])
    code = _code(known.pop("code"), known, attempts)
    source = known.pop("source")
    unit = declaration(source["type"]).unit_of(source)
    of = f" of batch {known['claims_of']}" if known["claims_of"] != batch else ""
    known = {key: value for key, value in known.items() if key != "claims_of"}
    known["judged_by"] = None if known["judged_by"] == batch else known["judged_by"]

    def render() -> None:
        for key, value in known.items():
            if value is not None and (key, value) not in _AS_ALL:
                print(f"{key}: {value}")
        for replay in replays:
            of_replay = f"replay: batch {replay['batch_id']}, generation {replay['generation']}"
            print(f"{of_replay}, {replay['status']} {replay['finalized_at'] or ''}".rstrip())
        for claim in claims:
            part, span = claim["source_partition_id"], f"{claim['start']} to {claim['end']}"
            print(f"claim{of}: {claim['name']!r} {unit} {span} ({part=})")
        for attempt in attempts:
            shown = ", ".join(f"{k} {v}" for k, v in attempt.items() if v is not None)
            print(f"attempt: {shown}")
        for file in files:
            print(f"file: {file['kind']} {file['path']!r}, {wording.count(file['records'], 'row')}")
        _print_code(code)

    payload: dict[str, Any] = {
        "batch": known,
        "replays": [dict(r) for r in replays],
        "claims": [dict(r) for r in claims],
        "attempts": [dict(r) for r in attempts],
        "files": [dict(r) for r in files],
        "code": code,
    }
    console.emit(payload, as_json=as_json, render=render)


def _named(words: list[str]) -> tuple[str | None, int]:
    """The pipeline, if it is given, and the number of a batch."""
    from semel import pipeline as pipelines
    from semel.errors import UsageError

    *names, number = words
    if len(names) > 1:
        raise typer.BadParameter("give the number of one batch")
    name = pipelines.find(names[0]).name if names else None
    if number.isdecimal():
        return name, int(number)
    raise UsageError(
        f"{number!r} is not the number of a batch",
        next=f"semel batches {name or pipelines.find(number).name}",
    )


_AS_ALL = (("generation", 1), ("guarantee", "exactly_once"), ("exact_from", 1))
"""What is not said of a batch, because it is so of nearly all."""


def _code(planned: Any, batch: dict[str, Any], attempts: list[Any]) -> dict[str, Any] | None:
    """Which code made a batch, by its marker, else by its winner's folder; else the planned one.

    None: a version that did not write it down planned it.
    """
    from semel.archive import layout, provenance

    root, batch_id = Path(batch["archive_path"]), batch["batch_id"]
    of, found = "plan", None
    with suppress(OSError):  # What the ledger knows is shown where the archive cannot be read.
        of, found = "marker", provenance.of_marker(_marker_of(root, batch))
        for won in (a for a in attempts if a["status"] == "won" and not found):
            attempt = layout.attempt(root, batch_id, won["fence"])
            of, found = "attempt", provenance.of_attempt(attempt)
    if not found and planned:
        of, found = "plan", provenance.CodeDigests.from_json(planned)
    if not found:
        return None
    kept = found.kept(layout.code(root))
    files = [
        {"name": n, "sha256": d, "text": str(kept[n]) if os.path.isfile(kept[n]) else None}
        for n, d in sorted(found.files.items())
    ]
    about = {"semel": found.semel, "git_commit": found.git_commit, "digest": found.digest}
    return {"of": of, **about, "files": files}


def _marker_of(root: Path, batch: dict[str, Any]) -> Path:
    """Where the marker of a batch's own output is: kept aside once a replay has replaced it."""
    from semel.archive import layout

    number = batch["replays"] or batch["batch_id"]
    if batch["status"] != "finalized":
        number = batch["batch_id"]  # A replay's is not there yet, but that of the output before.
    if batch["replaced_by"] is None:
        return layout.marker(root, number)
    aside = layout.replaced(root, number, batch["generation"])
    # The replay has committed; until it is finalized the marker is there still.
    return aside if aside.exists() else layout.marker(root, number)


def _print_code(code: dict[str, Any] | None) -> None:
    if code is None:
        print("code: not known")
        return
    planned = ", as planned" if code["of"] == "plan" else ""
    commit = f"git commit {code['git_commit']}" if code["git_commit"] else "no git commit"
    print(f"code{planned}: semel {code['semel']}, {commit}")
    for file in code["files"]:
        text = f"text {file['text']!r}" if file["text"] else "no text is kept"
        print(f"code{planned}: {file['name']!r} SHA-256 {file['sha256']}, {text}")


def _offender(one: Any, unit: str) -> str:
    """One offender on a line: where it is, then what is wrong."""
    where = [
        f"batch {one.batch}" if one.batch is not None else "",
        f"{one.file!r}" if one.file else "",
        f"{unit} {one.offset}" if one.offset is not None else "",
        f"id {one.id}" if one.id is not None else "",
    ]
    return f"{', '.join(part for part in where if part)}: {one.what}"
