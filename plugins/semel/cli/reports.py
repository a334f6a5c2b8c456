"""`semel batches | show | find | gaps | audit`: reports. They change nothing."""

import os
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel import console, storage
from semel.declare import wording
from semel.declare.wording import FILES_NAMED_MAX
from semel.errors import SemelError
from semel.storage import ArchivePath

if TYPE_CHECKING:
    from semel.audit import AuditVerdict
    from semel.pipeline.spec import Spec
    from semel.reports.code_versions import CodeVersionOutput
    from semel.reports.gaps import Gap, Gaps

BATCHES_SHOWN = 50
"""Batches that `semel batches` lists by default."""

Pipeline = Annotated[str, typer.Argument(help="The pipeline's name.")]

_CODE_DIGITS = 12
_CODE_NAMED_MAX = 5

_ACCOUNT = {
    "read": ("records_read",),
    "new": ("survivors",),
    "repeats": ("duplicates_batch", "duplicates_catalog"),
    "set aside": ("quarantined", "late"),
}
"""The columns of a batch's account, each with the counts that it sums."""


def audit(
    pipeline: Pipeline,
    sink: Annotated[
        Path | None, typer.Option(help="A copy of the output to audit, in another folder.")
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Prove from files alone that the output has each record of the source once. Exit 1 if not.

    Reads source, output, decisions, dead letters and the archived code of transforms again. It
    uses neither ledger nor catalog, except for the next step when a marker is missing.

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
            for offender in check.offenders:
                line = f"{check.name}: {_offender(offender, unit[:-1])}"
                console.result.print(line, markup=False)
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
    """The next commands after a failed audit: finalize a committed batch; else replay missing
    output, unless it is a `copy`; else show the first broken batch.
    """
    broken = [one for check in verdict.checks for one in check.offenders]
    if not copy and any(one.batch is None and one.file is None for one in broken):  # No marker.
        return [_finalizing(spec) or f"semel batches {spec.name}"]
    lost = () if copy else verdict.to_replay[:FILES_NAMED_MAX]
    if lost:
        spans = [f"{a}..{b}" if b > a else f"{a}" for a, b in lost]
        return [f"semel replay {verdict.pipeline} --batches {span}" for span in spans]
    batches = [one.batch for one in broken if one.batch]
    return [f"semel show {min(batches)}" if batches else f"semel batches {verdict.pipeline}"]


def _finalizing(spec: "Spec") -> str | None:
    """The command that finalizes the first committed batch. Returns None if there is no such batch,
    or the ledger does not answer.
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
    """Print where a record id is: in the output, among the repeats or dead letters, or nowhere.

    Example: semel find flights 2013 1 1 UA 1545 EWR
    """
    from semel import pipeline as pipelines
    from semel.reports.find import find as look_for

    spec = pipelines.find(pipeline)
    search = look_for(spec, identity)
    unit = spec.source.unit.removesuffix("s")
    pending = None if search.places else _files_not_finalized(spec)

    def render() -> None:
        for place in search.places:
            origin = f", from {place.source!r} {unit} {place.offset}" if place.source else ""
            detail = f" ({place.detail})" if place.detail else ""
            kind = "may be the dead letter" if place.what == "dead_letter" else place.what
            replay = f", made by its replay {place.made_by}" if place.made_by else ""
            print(f"{kind}: batch {place.batch_id}{replay}, {place.file}{origin}{detail}")
        for line in search.caveats:
            print(line)
        if not search.places:
            part = f"source {spec.source.part}{' has' if pending == 1 else 's have'}"
            more = f"{pending} {part} records that are not finalized"
            if pending is None:
                more = "the ledger does not answer, so the source's other records are unknown"
            where = "in any" if search.in_output else "among the repeats and dead letters"
            print(f"not {where} of {search.batches} finalized batches; {more}")
        if search.damaged:
            print(f"next: semel audit {pipeline}")
        elif not search.places:
            print(f"next: semel gaps {pipeline}")

    answer = {"found": bool(search.places), **vars(search), "files_not_finalized": pending}
    console.emit(answer, as_json=as_json, render=render)
    if search.damaged:
        raise typer.Exit(1)


def _files_not_finalized(spec: "Spec") -> int | None:
    """How many source files have records that are in no finalized batch. Returns None if the ledger
    does not answer.
    """
    from semel.errors import UnavailableError
    from semel.ledger import Ledger
    from semel.reports.gaps import gaps as look_for

    try:
        with Ledger() as ledger:
            return look_for(ledger, spec).files
    except UnavailableError:
        return None


def gaps(pipeline: Pipeline, as_json: console.AsJson = False) -> None:
    """List the records of the source that are not finalized. Exit 1 if some of them need you.

    Unclaimed records, a batch without a sign of life, and a refused file need you. Records of a
    living batch, and those of a file that waits for its end, are listed too, but do not count for
    exit 1.

    Example: semel gaps flights
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.reports.gaps import gaps as look_for

    spec = pipelines.find(pipeline)
    with Ledger() as ledger:
        answer = look_for(ledger, spec, console.say)
    unit = spec.source.unit

    def render() -> None:
        for gap in answer.gaps:
            holder = f" by batch {gap.batch_id} of {gap.request_key}" if gap.batch_id else ""
            silent = ", which gives no sign of life" if gap.silent else ""
            passed = f"; {spec.source.passes_by}" if gap.passed_by else ""
            print(
                f"{gap.state}{holder}{silent}: {gap.name!r} {unit} {gap.start} to {gap.end}{passed}"
            )
        for refusal in answer.refusals:
            print(f"refused: {refusal}")
        for loss in answer.losses:
            print(
                f"lost: {loss.name!r} {unit} {loss.start} to {loss.end}: {loss.reason}, by "
                f"{loss.accepted_by}, {loss.accepted_at:%Y-%m-%d %H:%M}"
            )
        for erasure in answer.erasures:
            print(
                f"erased: {erasure.rows:,} rows of batch {erasure.batch_id}: {erasure.reason}, by "
                f"{erasure.accepted_by}, {erasure.accepted_at:%Y-%m-%d %H:%M}"
            )
        if not answer.gaps and not answer.refusals:
            print(f"{pipeline}: all that the source holds is finalized")
        for line in _gap_commands(spec, answer):
            print(line)

    console.emit({"idle": answer.idle, **vars(answer)}, as_json=as_json, render=render)
    if answer.idle:
        raise typer.Exit(1)


def _gap_commands(spec: "Spec", answer: "Gaps") -> list[str]:
    """The `next:` lines: a command for each gap that is not in a living batch."""
    from semel.reports.gaps import GapReason
    from semel.reports.summary import catch_up_lines, resume_command

    silent = {gap.batch_id: gap for gap in answer.gaps if gap.silent}
    lines = [
        f"next: semel collect {spec.name}"
        if gap.state is GapReason.COMMITTED
        else f"next: {resume_command(spec.name, gap)}"
        for gap in silent.values()
    ]
    late = catch_up_lines(spec.name, spec.schedule, {gap.day for gap in answer.gaps if gap.day})
    lines += [_LATE, *late] if late and spec.schedule else late
    unclaimed = any(gap.state is GapReason.UNCLAIMED and not gap.passed_by for gap in answer.gaps)
    if unclaimed and spec.source.select == "arrival":
        lines.append(f"next: semel run {spec.name}")
    if unclaimed and spec.source.select == "interval" and not spec.source.dated:
        lines += _undated(spec, [gap for gap in answer.gaps if gap.state is GapReason.UNCLAIMED])
    return [*lines, *(line for line in _refusal_commands(spec, answer) if line not in lines)]


def _refusal_commands(spec: "Spec", answer: "Gaps") -> list[str]:
    """The `next:` lines for refused files: accept, or else a run after a correction."""
    from semel.repair.accept import accept_command, choices
    from semel.reports.summary import run_of_days

    commands = {
        refusal: accept_command(spec, refusal) for refusal in answer.refusals[:FILES_NAMED_MAX]
    }
    lines = [f"next: {accept}" for accept in commands.values() if accept]
    broken = [refusal for refusal in commands if not choices(spec.source, refusal.reason)]
    days = {refusal.when.astimezone(UTC).date() for refusal in broken if refusal.when}
    runs = f"semel run {spec.name}" if broken and spec.source.select == "arrival" else ""
    if days and spec.source.select == "interval":
        runs = run_of_days(spec.name, days)
    return [*lines, "after you have corrected the source:", f"next: {runs}"] if runs else lines


def _undated(spec: "Spec", unclaimed: "list[Gap]") -> list[str]:
    """The command for records with times of their own: an interval from their first time to now."""
    from semel.pipeline.opening import open_source

    source, now = open_source(spec), datetime.now(UTC)
    times = [source.first_time(g.name, g.start, g.end) for g in unclaimed[:FILES_NAMED_MAX]]
    first = min([now.timestamp(), *(time for time in times if time is not None)])
    day, today = datetime.fromtimestamp(first, UTC).date(), now.date()
    if day == today and spec.schedule:
        return []
    return [f"next: semel run {spec.name} --interval {day} {today + timedelta(days=1)}"]


_LATE = (
    "past days have records that came after their run, or before the first run. The schedule "
    "takes only the newest interval, so run these days yourself"
)


def batches(
    pipeline: Annotated[
        str | None, typer.Argument(help="The pipeline's name; all when left out.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = (BATCHES_SHOWN),
    by_code: Annotated[
        bool, typer.Option("--made-by", help="Group all finalized batches by their code.")
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """List the newest batches with their state and account.

    --made-by shows which version of the transforms made which batches of a pipeline, and so the
    days that a mistake in a transform has reached.

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
        rows = ledger.rows("look", "batches", name=name, count=count)

    def render() -> None:
        hidden = {"pipeline"} if name else set()
        hidden |= set() if any(r["attempts"] > 1 for r in rows) else {"tries"}
        hidden |= set() if any(r["interval_start"] for r in rows) else {"interval"}
        names = "pipeline", "batch", "state", "tries", "interval", *_ACCOUNT, "run"
        columns = [column for column in names if column not in hidden]
        table = console.table(*columns, numbers={"batch", "tries", *_ACCOUNT}, cut=["run"])
        for r in rows:
            cells = dict(zip(names, _cells(r), strict=True))
            table.add_row(*(cells[column] for column in columns))
        console.show(table)

    console.emit({"batches": [dict(r) for r in rows]}, as_json=as_json, render=render)


def _cells(r: Any) -> list[str]:
    """The cells of a batch's line. The screen may cut the run's name; `semel show` prints it."""
    from rich.markup import escape

    from semel.model.batch import run_of

    counted = r["records_read"] is not None
    sums = [sum(r[c] for c in names) if counted else 0 for names in _ACCOUNT.values()]
    run = run_of(r["request_key"]) + (f" #{r['ordinal']}" if r["ordinal"] > 1 else "")
    run = escape(f"{_relations(r)} {run}".lstrip())  # A run's name may look like rich's markup.
    head = [r["pipeline"], str(r["batch_id"]), r["status"], str(r["attempts"]), _interval(r)]
    return [*head, *(f"{n:,}" if counted else "" for n in sums), run]


def _show_made_by(pipeline: str, *, as_json: bool) -> None:
    """Print the finalized batches of a pipeline by the code that made them, the newest first."""
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.reports.code_versions import outputs_by_code

    spec = pipelines.find(pipeline)
    with Ledger() as ledger:
        versions = outputs_by_code(ledger, spec)

    def render() -> None:
        if not versions:
            print(f"{spec.name} has not finalized a batch yet")
        for version in versions:
            print("\n".join(_version_lines(version)))

    console.emit({"pipeline": spec.name, "made_by": versions}, as_json=as_json, render=render)


def _version_lines(version: "CodeVersionOutput") -> list[str]:
    from semel.reports.summary import interval

    code, count = version.code, len(version.batches)
    head = f"code {version.digest[:_CODE_DIGITS]}, semel {code.semel}" if code else "code unknown"
    if version.git_commits:
        commits = [commit[:_CODE_DIGITS] for commit in reversed(version.git_commits)]
        head += f", git commit {_shortened(commits)}"
    spans = [f"{first}" if first == last else f"{first} to {last}" for first, last in version.runs]
    lines = [head, f"  {'batch' if count == 1 else f'{count:,} batches:'} {', '.join(spans)}"]
    if version.intervals:
        lines.append(f"  of {_shortened([interval(*span) for span in version.intervals])}")
    return [*lines, *(f"  {name!r}: {path}" for name, path in version.texts.items())]


def _shortened(texts: list[str]) -> str:
    more = len(texts) - _CODE_NAMED_MAX
    return ", ".join([*texts[:_CODE_NAMED_MAX], *([f"and {more:,} more"] if more > 0 else [])])


def _relations(r: Any) -> str:
    """How a batch relates to other batches, in parentheses; also its erased rows."""
    relations = [
        f"replays {r['replays']}, generation {r['generation']}" if r["replays"] else "",
        f"judges dead letters of {r['admits']}" if r["admits"] else "",
        _replaced(r),
        f"{r['erased']:,} rows erased" if r["erased"] is not None else "",
    ]
    text = "; ".join(relation for relation in relations if relation)
    return f"({text})" if text else ""


def _replaced(r: Any) -> str:
    """The replay of a batch. Readers see the old output until the replay is finalized."""
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
        typer.Argument(metavar="[PIPELINE] BATCH", help="The batch's number."),
    ],
    as_json: console.AsJson = False,
) -> None:
    """Show everything about one batch: its claims, attempts and files, and the code that made it.

    Example: semel show 17
    """
    from semel.errors import TerminalError
    from semel.ledger import Ledger
    from semel.sources.spec import declaration

    pipeline, batch = _named(words)
    with Ledger() as ledger:
        rows = ledger.rows("look", "batch", batch_id=batch)
        if not rows:
            raise TerminalError(f"there is no batch {batch}", next="semel batches")
        if pipeline not in (None, rows[0]["pipeline"]):
            raise TerminalError(
                f"batch {batch} belongs to {rows[0]['pipeline']}, not to {pipeline}: all pipelines "
                "of a ledger share one sequence of numbers",
                next=f"semel batches {pipeline}",
            )
        replays = ledger.rows("look", "replays", batch_id=batch)
        claims = ledger.rows("plan", "claims", batch_id=batch)
        attempts = ledger.rows("look", "attempts", batch_id=batch)
        files = ledger.rows("look", "files", batch_id=batch)
    fields = dict(rows[0])
    if fields["packed_in"]:
        claims, files, fields["unreadable"] = _packed_rows(fields)
    code = _code(fields.pop("code"), fields, attempts)
    source = fields.pop("source")
    unit = declaration(source["type"]).unit_of(source)
    of = f" of batch {fields['claims_of']}" if fields["claims_of"] != batch else ""
    fields = {key: value for key, value in fields.items() if key != "claims_of"}
    fields["judged_by"] = None if fields["judged_by"] == batch else fields["judged_by"]

    def render() -> None:
        for key, value in fields.items():
            if value is not None and (key, value) not in _DEFAULTS:
                print(f"{key}: {value}")
        for replay in replays:
            of_replay = f"replay: batch {replay['batch_id']}, generation {replay['generation']}"
            print(f"{of_replay}, {replay['status']} {replay['finalized_at'] or ''}".rstrip())
        for claim in claims:
            part, span = claim["source_partition_id"], f"{claim['start']} to {claim['end']}"
            print(f"claim{of}: {claim['name']!r} {unit} {span} ({part=})")
        for attempt in attempts:
            print("attempt: " + ", ".join(f"{k} {v}" for k, v in attempt.items() if v is not None))
        for file in files:
            print(f"file: {file['kind']} {file['path']!r}, {wording.count(file['records'], 'row')}")
        _print_code(code)

    payload: dict[str, Any] = {
        "batch": fields,
        "replays": [dict(r) for r in replays],
        "claims": [dict(r) for r in claims],
        "attempts": [dict(r) for r in attempts],
        "files": [dict(r) for r in files],
        "code": code,
    }
    console.emit(payload, as_json=as_json, render=render)


def _packed_rows(
    batch: dict[str, Any],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str | None]:
    """The claims and files of a batch by its packed marker, as the ledger's rows have them; or why
    semel cannot read it here.
    """
    from semel.archive import layout
    from semel.archive.marker import read_marker

    path = layout.marker(storage.at(batch["archive_path"]), batch["batch_id"])
    try:
        marker = read_marker(path, None)
        claims = [vars(claim) for claim in marker.claims]
    except (OSError, SemelError) as error:
        return [], [], str(error)
    if marker.spec.sink.in_folder:
        marker = replace(marker, sink=Path(batch["sink_address"]))
    return claims, [{**vars(f), "path": marker.target_of(f)} for f in marker.files], None


def _named(words: list[str]) -> tuple[str | None, int]:
    """The pipeline, or None without one, and the number of a batch."""
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


_DEFAULTS = (("generation", 1), ("guarantee", "exactly_once"), ("exact_from", 1))
"""Values that nearly all batches have. `show` does not print them."""


def _code(planned: Any, batch: dict[str, Any], attempts: list[Any]) -> dict[str, Any] | None:
    """The code that made a batch, by its marker, or by its winner's folder, or as planned.

    Returns None if the version of semel that planned the batch did not record the code.
    """
    from semel.archive import layout, provenance

    root, batch_id = storage.at(batch["archive_path"]), batch["batch_id"]
    of, digests = "plan", None
    with suppress(OSError, SemelError):  # Without a readable archive, show what the ledger knows.
        of, digests = "marker", provenance.code_of_marker(_marker_of(root, batch))
        for winner in (a for a in attempts if a["status"] == "won" and not digests):
            attempt = layout.attempt(root, batch_id, winner["fence"])
            of, digests = "attempt", provenance.code_of_attempt(attempt)
    if not digests and planned:
        of, digests = "plan", provenance.CodeDigests.from_json(planned)
    if not digests:
        return None
    paths = digests.text_paths(layout.code(root))
    kept = {}
    with suppress(SemelError):
        kept = {name: str(path) for name, path in paths.items() if path.exists()}
    files = [
        {"name": n, "sha256": d, "text": kept.get(n)} for n, d in sorted(digests.files.items())
    ]
    about = {"semel": digests.semel, "git_commit": digests.git_commit, "digest": digests.digest}
    return {"of": of, **about, "files": files}


def _marker_of(root: ArchivePath, batch: dict[str, Any]) -> ArchivePath:
    """The marker of a batch's own output. A replay that replaces the output moves its marker."""
    from semel.archive import layout

    number = batch["replays"] or batch["batch_id"]
    if batch["status"] != "finalized":
        number = batch["batch_id"]  # Until then, the root's marker is of the output it replaces.
    if batch["replaced_by"] is None:
        return layout.marker(root, number)
    aside = layout.replaced_marker(root, number, batch["generation"])
    # A committed replay moves the marker only when it is finalized.
    return aside if aside.exists() else layout.marker(root, number)


def _print_code(code: dict[str, Any] | None) -> None:
    if code is None:
        print("code: unknown")
        return
    planned = ", as planned" if code["of"] == "plan" else ""
    commit = f"git commit {code['git_commit']}" if code["git_commit"] else "no git commit"
    print(f"code{planned}: semel {code['semel']}, {commit}")
    for file in code["files"]:
        text = f"text {file['text']!r}" if file["text"] else "its text is not in the archive"
        print(f"code{planned}: {file['name']!r} SHA-256 {file['sha256']}, {text}")


def _offender(offender: Any, unit: str) -> str:
    """An offender on one line: its place, then its fault."""
    place = [
        f"batch {offender.batch}" if offender.batch is not None else "",
        f"{offender.file!r}" if offender.file else "",
        f"{unit} {offender.offset}" if offender.offset is not None else "",
        f"id {offender.id}" if offender.id is not None else "",
    ]
    return ": ".join(text for text in (", ".join(filter(None, place)), offender.what) if text)
