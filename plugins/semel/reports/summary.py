"""What each verb's answer says to a person: a few plain lines, the last of them the next action.

Used by the command line and by the Airflow tasks alike, so that both say the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from semel.declare.wording import FILES_NAMED_MAX, KEYS_NAMED_MAX, named, size
from semel.declare.wording import count as _count
from semel.model.batch import LABELS, Batch, BatchStatus, Counts, Ignored, run_of
from semel.reports.intervals import moment
from semel.settings import local_airflow

if TYPE_CHECKING:  # Airflow imports this every few seconds, and the verbs take half a second.
    from semel.collect import Collected
    from semel.commit import Committed
    from semel.finalize import Finalized
    from semel.plan import Plan
    from semel.reports.gaps import Gap
    from semel.runs.downstream import Link
    from semel.runs.replay import Replayed, Root
    from semel.runs.requarantine import Admitted
    from semel.sources import ReceiveResult, Refusal
    from semel.stage import Staged

_NOTHING_BELOW = (
    "downstream: no batch of a pipeline that is declared beside this one, to read it by `type: "
    "pipeline`, has read these batches"
)
_NO_LETTERS = "nothing to do: these batches have no dead letter that is left"
REFUSED, LATE = "refused: ", "late: "
"""How the lines begin that somebody should see."""


def plan(answer: "Plan") -> str:
    """What is to be read, what is left, and what was refused. Last is the run's next task."""
    lines = [*planned(answer), *steps(answer)]
    if answer.batch is not None:
        done = answer.batch.status is BatchStatus.COMMITTED
        lines.append("next: finalize" if done else "next: stage")
    return "\n".join(lines)


def planned(answer: "Plan") -> list[str]:
    """The lines of `plan` before those that name a step."""
    name = answer.pipeline.name
    if answer.batch is None:
        lines = _idle(answer)
    elif answer.created:
        batch = answer.batch
        whose = _batch(batch)
        if batch.interval:
            whose += f" for {interval(*batch.interval)}"
        read = _count(len(answer.names), answer.source.part)
        lines = [f"planned: {whose} reads {read}, {_much(answer, answer.bytes)}"]
        lines += [f"  {name}" for name in answer.names[:FILES_NAMED_MAX]]
        if len(answer.names) > FILES_NAMED_MAX:
            lines.append(f"  and {len(answer.names) - FILES_NAMED_MAX:,} more")
    else:
        lines = [f"found: {_batch(answer.batch)} was planned before"]
        if answer.batch.status is not BatchStatus.PLANNED:
            lines[0] += f", and is {answer.batch.status}"
    if answer.anew:
        batch, reason = answer.anew
        lines.append(f"planned anew: batch {batch} never committed, and {reason}")
    if answer.bytes_left:
        lines.append(f"left over: {_much(answer, answer.bytes_left)}; the next run takes them")
    if answer.taken_over:
        shown = ", ".join(map(str, answer.taken_over))
        lines.append(f"taken over: the records of batches whose runs are gone ({shown})")
    for path, known in answer.resumed[:FILES_NAMED_MAX]:
        lines.append(f"recognised by its content: {path!r} continues {known!r}")
    if len(answer.resumed) > FILES_NAMED_MAX:
        more = len(answer.resumed) - FILES_NAMED_MAX
        lines.append(f"recognised by their content: {_count(more, 'file')} more")
    lines += refused(name, answer.refusals, answer.source.part)
    if answer.created and answer.pipeline.repeats:
        lines.append(answer.pipeline.repeats)
    if answer.batch is None and answer.idle.elsewhere:
        lines.append(_unread("other", answer.idle.elsewhere))
        if not _taking(answer):
            lines.append("the schedule takes them once their interval has ended")
    return lines


def steps(answer: "Plan") -> list[str]:
    """The commands to type after a plan, as lines: for what it refused, and what no run takes."""
    settle = [f"next: semel gaps {answer.pipeline.name}"] if answer.refusals else []
    return [*_taking(answer), *settle]


def _taking(answer: "Plan") -> list[str]:
    if answer.batch is not None:
        return []
    return takes(answer.pipeline.name, answer.idle.schedule, answer.idle.elsewhere)


def refused(name: str, refusals: "Sequence[Refusal]", part: str) -> list[str]:
    """A line for each refused file of a pipeline, as far as they are few."""
    lines = [f"{REFUSED}{one}" for one in refusals[:FILES_NAMED_MAX]]
    if len(refusals) > FILES_NAMED_MAX:
        more = _count(len(refusals) - FILES_NAMED_MAX, part)
        lines.append(f"{REFUSED}{more} more; `semel gaps {name}` lists all")
    return lines


def _much(answer: "Plan", amount: int) -> str:
    """So much of its source, in what that counts."""
    return answer.source.describe_amount(amount)


def _idle(answer: "Plan") -> list[str]:
    """Why nothing was taken: what has come, and who has it."""
    idle = answer.idle
    of = f" of {interval(*idle.interval)}" if idle.interval else ""
    part = answer.source.part
    refused = f"; some {part}s are refused (see below)" if answer.refusals else ""
    name = answer.pipeline.name
    if not idle.shown_count:
        lines = [f"nothing to do: no {part}{of} has come for {name}{refused}"]
        return [*lines, idle.unmatched] if idle.unmatched else lines
    parts = _count(idle.shown_count, part)
    if idle.holders:
        read = f"all records that {parts}{of} hold{'s' * (idle.shown_count == 1)} have a batch"
    else:
        read = f"{parts}{of} hold{'s' * (idle.shown_count == 1)} no {answer.source.complete}"
    lines = [f"nothing to do: {read}{refused}"]
    for holder in idle.holders:
        whose = f"batch {holder.batch_id} (run {run_of(holder.request_key)})"
        parts = _count(holder.names, part)
        if holder.status is BatchStatus.PLANNED:
            lines.append(f"{whose} is at work on {parts}")
        else:
            new = f"{holder.survivors:,} new"
            lines.append(f"{whose} has {parts}, {holder.status}, {new}")
    if idle.more:
        lines.append(f"{idle.more:,} more; `semel batches {name}` lists them")
    if idle.waiting:
        shown = named(idle.waiting)
        lines.append(f"waiting for {answer.source.awaited}: {shown}")
    return lines


def takes(name: str, schedule: str | None, days: Iterable[date]) -> list[str]:
    """What takes the unclaimed files of days, as lines; none when the schedule still does.

    A run by the schedule takes only the interval that ended last. The backfill has to reprocess:
    Airflow passes over each day that has a run. The local stack's Airflow has a page for it.
    """
    today = datetime.now(UTC).date()
    due = sorted(day for day in days if schedule is None or day < today)
    if not due:
        return []
    if schedule is None:
        return [f"next: {run_of_days(name, due)}"]
    if url := local_airflow():
        span = f"from={due[0]}T00:00:00Z&to={due[-1] + timedelta(days=1)}T00:00:00Z"
        return [
            f"a backfill does so in Airflow: {url}/semel/dags/{name}/backfill?{span}; or",
            f"next: {run_of_days(name, due)}",
        ]
    return [
        f"next: {backfill_of_days(name, due)}",
        f"or the same on the DAG's page: Trigger, Backfill, {_span(due)}, All Runs; or",
        f"next: {run_of_days(name, due)}",
    ]


def backfill_of_days(name: str, days: Iterable[date]) -> str:
    """The command by which Airflow takes what came late, from the first of some days to the last.

    A run keeps its configuration when it is reprocessed without one, `replay: true` too.
    """
    return (
        f"airflow backfill create --dag-id {name} --from-date {min(days)}T00:00:00+00:00 "
        f"--to-date {max(days)}T23:59:59+00:00 --reprocess-behavior completed "
        "--dag-run-conf '{}'"
    )


def run_of_days(name: str, days: Iterable[date]) -> str:
    """The same without Airflow."""
    return f"semel run {name} --interval {min(days)} {max(days) + timedelta(days=1)}"


def resumes(name: str, gap: "Gap") -> str:
    """The command that goes on with the batch of a request whose run is gone."""
    from semel.sources import quoted

    what = f"replay {name} --batches {gap.replays}" if gap.replays else f"run {name}"
    interval = " ".join(["", "--interval", *map(moment, gap.interval)]) if gap.interval else ""
    return f"semel {what} --request {quoted(gap.request_key)}{interval}"


def _span(days: Iterable[date]) -> str:
    """From the first of some days to the last."""
    return interval(_midnight(min(days)), _midnight(max(days) + timedelta(days=1)))


def late(name: str, days: Mapping[date, int]) -> str:
    """What of earlier days came after their runs. `days`: how many files of each."""
    return f"{LATE}{_unread('earlier', days)}; `semel gaps {name}` prints what takes them"


def left_out(name: str, start: datetime, end: datetime) -> list[str]:
    """A manual run keeps Airflow from creating the scheduled one of an interval."""
    return [
        f"Airflow will not create the scheduled run of {interval(start, end)}, because this manual "
        "run has its logical date. Run that interval yourself once it has ended",
        f"next: semel run {name} --interval {moment(start)} {moment(end)}",
    ]


def _unread(which: str, days: Mapping[date, int]) -> str:
    """How many files of which days no plan has taken, or seen as they are now."""
    count = sum(days.values())
    are = "is" if count == 1 else "are"
    return f"{_count(count, 'file')} of {which} days, {_span(days)}, {are} new or changed"


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def interval(start: datetime, end: datetime) -> str:
    """A data interval as people say it: `2026-11-21`, `2026-11-19 to 2026-11-20`, or with times."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    if start.time() == end.time() == time():
        last = end - timedelta(days=1)
        return f"{start:%F}" if last <= start else f"{start:%F} to {last:%F}"
    same = start.date() == end.date()
    shown = f"{end:%H:%M}" if same else f"{end:%F %H:%M}"
    return f"{start:%F %H:%M} to {shown} UTC"


def receive(answer: "ReceiveResult", reads: str) -> str:
    """What came into the spool. `reads`: what reads it."""
    return f"receive: {answer.describe()}\nnext: {reads}"


def stage(answer: "Staged") -> str:
    """What was read and found, and that no reader sees it yet."""
    if answer.attempt is None:
        state = f"{answer.batch.status} already; it committed {_when(answer.batch)}"
        lines = [f"nothing to do: {_batch(answer.batch)} is {state}"]
        return "\n".join([*lines, *counts(answer.counts)])
    attempt = f"{_batch(answer.batch)}, attempt {answer.attempt.fence}"
    if answer.found:
        lines = [f"staged, not committed: {attempt}, by an earlier stage"]
        return "\n".join([*lines, *counts(answer.counts), "next: commit"])
    lines = [f"staged, not committed: {attempt}", *counts(answer.counts)]
    if answer.aside and answer.aside.samples:
        lines += ["set aside:", *(f"  {line}" for line in answer.aside.samples)]
    lines += [f"finalize keeps {what} in {where}" for what, where in _kept(answer.kept)]
    if answer.ignored.tombstones:
        passed = _count(answer.ignored.tombstones, "message")
        lines.append(f"passed over: {passed} without a value; source.tombstones: keep takes them")
    if answer.ignored.keys:
        lines.append(_ignored(answer.ignored))
    lines += [f"wrote {_count(answer.files, 'file')} that no reader sees yet", "next: commit"]
    return "\n".join(lines)


def commit(answer: "Committed") -> str:
    """Which attempt won, how many were lost on the way, and what it came to then."""
    fence = f"attempt {answer.fence} of {_batch(answer.batch)}"
    if answer.found:
        lines = [f"nothing to do: {fence} had committed before, {_when(answer.batch)}"]
    else:
        lines = [f"committed: {fence}, as commit {answer.batch.commit_seq} of its pipeline"]
    if answer.losses:
        again = _count(answer.losses, "time")
        lines.append(f"staged again {again}: other batches committed the same records first")
    if answer.losses or answer.found:  # What stage told is not what it came to.
        lines += counts(answer.counts)
    done = answer.batch.status is BatchStatus.FINALIZED
    lines.append("it is finalized" if done else "next: finalize")
    return "\n".join(lines)


def finalize(answer: "Finalized") -> str:
    """What readers see now."""
    if answer.found:
        lines = [f"nothing to do: {_batch(answer.batch)} had been finalized before"]
    else:
        rows = _count(answer.counts.rows_written, "row")
        lines = [f"finalized: {_batch(answer.batch)}, {rows}"]
    lines += counts(answer.counts)
    lines += [f"{what}: {where}" for what, where in _kept(answer.kept)]
    if answer.counts.quarantined or answer.counts.late:
        of = f"{answer.batch.spec['name']} --batch {answer.batch.batch_id}"
        lines.append(f"what was set aside, and why: semel letters {of}")
    lines += [answer.note] if answer.note else []
    lines += [f"marker: {answer.marker}", "readers see this batch, whole"]
    return "\n".join(lines)


def replay_plan(found: "list[Root]") -> str:
    """Which batches would be replayed, and why others cannot be."""
    lines = []
    for one in found:
        span = f" of {interval(*one.interval)}" if one.interval else ""
        head = f"batch {one.batch_id}{span}:"
        head += f" {_count(one.counts.survivors, 'record')}," if one.generation else ""
        if one.why:
            lines.append(f"{head} cannot be replayed: {one.why}")
        elif one.done:
            lines.append(f"{head} left alone: this request made generation {one.generation}")
        else:
            lines.append(f"{head} generation {one.generation} now")
    return "\n".join(lines)


def replay(found: "list[Root]", done: "list[Replayed]") -> str:
    """What was computed again, and what readers see now."""
    lines = [f"replayed: {_replayed(one)}" for one in done]
    alone = [one.batch_id for one in found if one.done]
    if alone:
        shown = [str(number) for number in alone[:FILES_NAMED_MAX]]
        if len(alone) > len(shown):
            shown.append(f"and {len(alone) - len(shown):,} more")
        lines.append(
            f"left alone: {_count(len(alone), 'batch', 'batches')} ({', '.join(shown)}), whose "
            "newest output this request made; --request with a new name computes it again"
        )
    return "\n".join([*lines, "readers see these outputs, whole"])


def would_follow(links: "list[Link]") -> str:
    """Which batches further down the chain would be replayed, or why one cannot be."""
    lines = []
    for link in links:
        lines.append(f"{link.spec.name}, which reads {link.above}:")
        for number, why in link.batches.items():
            would = "would follow" if number in link.behind else "left alone: it is up to date"
            lines.append(f"  batch {number}: {f'NOT: {why}' if why else would}")
    return "\n".join(lines or [_NOTHING_BELOW])


def followed(links: "list[Link]", below: "list[tuple[Link, Replayed]]") -> str:
    """What was replayed further down the chain."""
    lines = []
    for link in links:
        done = [one for of, one in below if of is link]
        lines += [f"{link.spec.name}: replayed: {_replayed(one)}" for one in done]
        if alone := len(link.batches) - len(done):
            up = _count(alone, "batch is", "batches are")
            lines.append(f"{link.spec.name}: {up} up to date with {link.above}")
    return "\n".join(lines or [_NOTHING_BELOW])


def letters_left(left: dict[int, int]) -> str:
    """Which batches have dead letters that can be judged again."""
    lines = [f"batch {root}: {_count(count, 'dead letter')} left" for root, count in left.items()]
    return "\n".join(lines or [_NO_LETTERS])


def requarantine(done: "list[Admitted]") -> str:
    """What became of dead letters that were judged again."""
    lines = [
        f"judged again: {_count(one.finalized.counts.records_read, 'dead letter')} of batch "
        f"{one.root} by batch {one.batch.batch_id}: {one.finalized.counts.short}"
        for one in done
        if one.batch and one.finalized
    ]
    return "\n".join([*(lines or [_NO_LETTERS]), "readers see these batches, whole"])


def _replayed(one: "Replayed") -> str:
    batch, rows = one.batch, _count(one.finalized.counts.rows_written, "row")
    span = f" of {interval(*batch.interval)}" if batch.interval else ""
    return (
        f"batch {batch.root}{span}: generation {batch.generation}, by batch {batch.batch_id}, "
        f"{rows} of {one.finalized.counts.survivors:,} records"
    )


def collect(answer: "Collected | None") -> str:
    """What was forgotten and freed. None: the pipeline never planned a batch."""
    if answer is None:
        return "nothing to do: this pipeline has planned no batch yet"
    done = [
        _count(answer.batches_finalized, "open commit") + " finalized"
        if answer.batches_finalized
        else "",
        _count(answer.runs_retired, "id run") + " expired" if answer.runs_retired else "",
        _count(answer.runs_merged, "id run") + " merged" if answer.runs_merged else "",
        _count(answer.payloads_deleted, "payload") + " deleted" if answer.payloads_deleted else "",
        _count(answer.segments_dropped, "segment") + " dropped" if answer.segments_dropped else "",
        f"{_count(answer.folders_removed, 'staging folder')} removed ({size(answer.bytes_freed)})"
        if answer.folders_removed
        else "",
        f"the files of {_count(answer.replaced_removed, 'replaced batch', 'replaced batches')} "
        "removed"
        if answer.replaced_removed
        else "",
        f"{_count(answer.files_moved, 'source file')} moved" if answer.files_moved else "",
        f"{_count(answer.spooled_removed, 'spooled segment')} removed"
        if answer.spooled_removed
        else "",
    ]
    found = ", ".join(part for part in done if part)
    lines = [f"collected {answer.pipeline}: {found or 'nothing was due'}"]
    return "\n".join([*lines, *(f"NOT DONE: {why}" for why in answer.damaged)])


def counts(found: Counts) -> list[str]:
    """The account of a batch: what was read equals the sum of what became of it."""
    return [
        f"read {_count(found.records_read, 'record')}, {size(found.bytes_read)}",
        f"  new                       {found.survivors:>13,}   "
        f"({_count(found.rows_written, 'row')} written)",
        *(f"  {label:<25} {getattr(found, name):>13,}" for name, label in LABELS.items()),
    ]


def _kept(files: Mapping[str, Path]) -> list[tuple[str, Path]]:
    return [(kind.replace("_", " "), pattern) for kind, pattern in files.items()]


def _ignored(found: Ignored) -> str:
    named = list(found.keys.items())[: KEYS_NAMED_MAX]
    about = "about " if found.sampled else ""
    shown = [f"{key!r} in {about}{_count(count, 'record')}" for key, count in named]
    more = len(found.keys) - len(named)
    shown += [_count(more, "key") + " more"] if more else []
    kept = "source.unknown: keep or quarantine changes that"
    return f"ignored, as the schema does not name them: {', '.join(shown)}; {kept}"


def _when(batch: Batch) -> str:
    """When a batch committed, and the run that it is of."""
    when = f"at {batch.batch_time.astimezone(UTC):%F %H:%M} UTC"
    return f"{when} (run {run_of(batch.request_key)})"


def _batch(batch: Batch) -> str:
    return f"batch {batch.batch_id} of {batch.spec['name']}"
