"""The text of each verb's result: a few plain lines that end with the next action.

The command line and the Airflow tasks print the same text.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING

from semel.declare.wording import FILES_NAMED_MAX, KEYS_NAMED_MAX, named, size
from semel.declare.wording import count as _count
from semel.model.batch import LABELS, Batch, BatchStatus, Counts, Ignored, run_of
from semel.reports.intervals import moment
from semel.settings import local_airflow
from semel.storage import ArchivePath

if TYPE_CHECKING:  # Airflow imports this every few seconds; importing a verb takes half a second.
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
    "downstream: no pipeline in the same folder has read these batches with `type: pipeline`"
)
_NO_LETTERS = "nothing to do: no dead letters are left in these batches"
REFUSED, LATE = "refused: ", "late: "
"""The prefixes of lines that a person should see."""


def plan(answer: "Plan") -> str:
    """The batch's files, the rest for later runs, refusals, and the run's next task."""
    lines = [*plan_lines(answer), *plan_steps(answer)]
    if answer.batch is not None:
        committed = answer.batch.status is BatchStatus.COMMITTED
        lines.append("next: finalize" if committed else "next: stage")
    return "\n".join(lines)


def plan_lines(answer: "Plan") -> list[str]:
    """The lines of `plan` before its steps."""
    name = answer.pipeline.name
    if answer.batch is None:
        lines = _idle(answer)
    elif answer.created:
        batch = answer.batch
        span = f" for {interval(*batch.interval)}" if batch.interval else ""
        read = _count(len(answer.names), answer.source.part)
        lines = [f"planned: {_batch(batch)}{span} reads {read}, {_amount(answer, answer.bytes)}"]
        lines += [f"  {name}" for name in answer.names[:FILES_NAMED_MAX]]
        if len(answer.names) > FILES_NAMED_MAX:
            lines.append(f"  and {len(answer.names) - FILES_NAMED_MAX:,} more")
    else:
        lines = [f"found: {_batch(answer.batch)} was planned before"]
        if answer.batch.status is not BatchStatus.PLANNED:
            lines[0] += f", and is {answer.batch.status}"
    if answer.anew:
        batch, reason = answer.anew
        lines.append(f"planned again: batch {batch} never committed, and {reason}")
    if answer.bytes_left:
        lines.append(f"left over: {_amount(answer, answer.bytes_left)}; the next run reads them")
    if answer.taken_over:
        numbers = ", ".join(map(str, answer.taken_over))
        lines.append(f"taken over: the records of batches whose runs have disappeared ({numbers})")
    for path, earlier in answer.resumed[:FILES_NAMED_MAX]:
        lines.append(f"recognised by its content: {path!r} continues {earlier!r}")
    if len(answer.resumed) > FILES_NAMED_MAX:
        more = len(answer.resumed) - FILES_NAMED_MAX
        lines.append(f"recognised by their content: {_count(more, 'file')} more")
    lines += refusal_lines(name, answer.refusals, answer.source.part)
    if answer.created and answer.pipeline.repeats:
        lines.append(answer.pipeline.repeats)
    if answer.batch is None and answer.idle.elsewhere:
        lines.append(_unread("other", answer.idle.elsewhere))
        if not _catch_up(answer):
            lines.append("the schedule reads them when their interval has ended")
    return lines


def plan_steps(answer: "Plan") -> list[str]:
    """The commands to type after a plan, as lines: for refusals, and for files that no run reads.
    """
    settle = [f"next: semel gaps {answer.pipeline.name}"] if answer.refusals else []
    return [*_catch_up(answer), *settle]


def _catch_up(answer: "Plan") -> list[str]:
    if answer.batch is not None:
        return []
    return catch_up_lines(answer.pipeline.name, answer.idle.schedule, answer.idle.elsewhere)


def refusal_lines(name: str, refusals: "Sequence[Refusal]", part: str) -> list[str]:
    """A line for each refused file of a pipeline, up to FILES_NAMED_MAX, and their number."""
    lines = [f"{REFUSED}{one}" for one in refusals[:FILES_NAMED_MAX]]
    if len(refusals) > FILES_NAMED_MAX:
        more = _count(len(refusals) - FILES_NAMED_MAX, part)
        lines.append(f"{REFUSED}{more} more; `semel gaps {name}` lists all")
    return lines


def _amount(answer: "Plan", amount: int) -> str:
    """An amount in the source's unit."""
    return answer.source.describe_amount(amount)


def _idle(answer: "Plan") -> list[str]:
    """The reason for an empty plan: the files of the interval, and the batches that have them."""
    idle = answer.idle
    span = f" of {interval(*idle.interval)}" if idle.interval else ""
    part = answer.source.part
    refused = f"; some {part}s are refused (see below)" if answer.refusals else ""
    name = answer.pipeline.name
    if not idle.shown_count:
        lines = [f"nothing to do: {name} has no {part}{span} yet{refused}"]
        return [*lines, idle.unmatched] if idle.unmatched else lines
    parts = _count(idle.shown_count, part) + span
    if idle.holders:
        reason = f"batches already have all records of {parts}"
    else:
        has = "has" if idle.shown_count == 1 else "have"
        reason = f"{parts} {has} no {answer.source.complete}"
    lines = [f"nothing to do: {reason}{refused}"]
    for holder in idle.holders:
        batch = f"batch {holder.batch_id} (run {run_of(holder.request_key)})"
        parts = _count(holder.names, part)
        if holder.status is BatchStatus.PLANNED:
            lines.append(f"{batch} is working on {parts}")
        else:
            lines.append(f"{batch} has {parts}, {holder.status}, {holder.survivors:,} new")
    if idle.more:
        lines.append(f"{idle.more:,} more; `semel batches {name}` lists them")
    if idle.waiting:
        lines.append(f"waiting for {answer.source.awaited}: {named(idle.waiting)}")
    return lines


def catch_up_lines(name: str, schedule: str | None, days: Iterable[date]) -> list[str]:
    """Lines with the commands that read the unclaimed files of days. Empty if the schedule will.

    A scheduled run reads only the interval that ended last. The backfill has to reprocess, because
    Airflow skips each day that has a run. The local stack's Airflow has a page for it.
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
            f"a backfill in Airflow reads them: {url}/semel/dags/{name}/backfill?{span}; or",
            f"next: {run_of_days(name, due)}",
        ]
    return [
        f"next: {backfill_of_days(name, due)}",
        f"or the same on the DAG's page: Trigger, Backfill, {_span(due)}, All Runs; or",
        f"next: {run_of_days(name, due)}",
    ]


def backfill_of_days(name: str, days: Iterable[date]) -> str:
    """The Airflow command that reads late files, from the first day to the last.

    Its empty configuration is necessary: without one, Airflow reuses each run's configuration, even
    `replay: true`.
    """
    return (
        f"airflow backfill create --dag-id {name} --from-date {min(days)}T00:00:00+00:00 "
        f"--to-date {max(days)}T23:59:59+00:00 --reprocess-behavior completed "
        "--dag-run-conf '{}'"
    )


def run_of_days(name: str, days: Iterable[date]) -> str:
    """The same without Airflow."""
    return f"semel run {name} --interval {min(days)} {max(days) + timedelta(days=1)}"


def resume_command(name: str, gap: "Gap") -> str:
    """The command that continues the batch of a run that no longer exists."""
    from semel.sources import quoted

    verb = f"replay {name} --batches {gap.replays}" if gap.replays else f"run {name}"
    interval = " ".join(["", "--interval", *map(moment, gap.interval)]) if gap.interval else ""
    return f"semel {verb} --request {quoted(gap.request_key)}{interval}"


def _span(days: Iterable[date]) -> str:
    """The interval from the first day to the last."""
    return interval(_midnight(min(days)), _midnight(max(days) + timedelta(days=1)))


def late_files(name: str, days: Mapping[date, int]) -> str:
    """The line about files that came after their day's run. `days`: the number of files by day."""
    return f"{LATE}{_unread('earlier', days)}; `semel gaps {name}` prints the command to read them"


def unscheduled_interval(name: str, start: datetime, end: datetime) -> list[str]:
    """Warn that a manual run prevents the scheduled run of an interval."""
    return [
        f"Airflow will not create the scheduled run of {interval(start, end)}, because this manual "
        "run has its logical date. Run that interval yourself once it has ended",
        f"next: semel run {name} --interval {moment(start)} {moment(end)}",
    ]


def _unread(which: str, days: Mapping[date, int]) -> str:
    """The number and days of the files that are new or have changed since the last plan."""
    count = sum(days.values())
    are = "is" if count == 1 else "are"
    return f"{_count(count, 'file')} of {which} days, {_span(days)}, {are} new or changed"


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def interval(start: datetime, end: datetime) -> str:
    """A data interval for people: `2026-11-21`, `2026-11-19 to 2026-11-20`, or with times."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    if start.time() == end.time() == time():
        last = end - timedelta(days=1)
        return f"{start:%F}" if last <= start else f"{start:%F} to {last:%F}"
    same_day = start.date() == end.date()
    return f"{start:%F %H:%M} to {end:{'%H:%M' if same_day else '%F %H:%M'}} UTC"


def receive(answer: "ReceiveResult", reads: str) -> str:
    """The messages that came into the spool. `reads`: the command that reads them."""
    return f"receive: {answer.describe()}\nnext: {reads}"


def stage(answer: "Staged") -> str:
    """The counts of a staged attempt, which no reader sees yet."""
    if answer.attempt is None:
        state = f"{answer.batch.status} already; it committed {_commit_time(answer.batch)}"
        lines = [f"nothing to do: {_batch(answer.batch)} is {state}"]
        return "\n".join([*lines, *counts(answer.counts)])
    attempt = f"{_batch(answer.batch)}, attempt {answer.attempt.fence}"
    if answer.found:
        lines = [f"staged, not committed: {attempt}, by an earlier stage"]
        return "\n".join([*lines, *counts(answer.counts), "next: commit"])
    lines = [f"staged, not committed: {attempt}", *counts(answer.counts)]
    if answer.aside and answer.aside.samples:
        lines += ["set aside:", *(f"  {line}" for line in answer.aside.samples)]
    lines += [f"finalize keeps {kind} in {where}" for kind, where in _kept_files(answer.kept)]
    if answer.ignored.tombstones:
        skipped = _count(answer.ignored.tombstones, "message")
        lines.append(f"skipped: {skipped} without a value; source.tombstones: keep reads them")
    if answer.ignored.keys:
        lines.append(_ignored_keys(answer.ignored))
    lines += [f"wrote {_count(answer.files, 'file')} that no reader sees yet", "next: commit"]
    return "\n".join(lines)


def commit(answer: "Committed") -> str:
    """The attempt that committed, the number of lost races, and the final counts."""
    attempt = f"attempt {answer.fence} of {_batch(answer.batch)}"
    if answer.found:
        lines = [f"nothing to do: {attempt} had committed before, {_commit_time(answer.batch)}"]
    else:
        lines = [f"committed: {attempt}, as commit {answer.batch.commit_seq} of its pipeline"]
    if answer.losses:
        again = _count(answer.losses, "time")
        lines.append(f"staged again {again}: other batches committed the same records first")
    if answer.losses or answer.found:  # The counts that stage printed have changed.
        lines += counts(answer.counts)
    finalized = answer.batch.status is BatchStatus.FINALIZED
    lines.append("it is finalized" if finalized else "next: finalize")
    return "\n".join(lines)


def finalize(answer: "Finalized") -> str:
    """The published batch, its files and its marker."""
    if answer.found:
        lines = [f"nothing to do: {_batch(answer.batch)} had been finalized before"]
    else:
        rows = _count(answer.counts.rows_written, "row")
        lines = [f"finalized: {_batch(answer.batch)}, {rows}"]
    lines += counts(answer.counts)
    lines += [f"{kind}: {where}" for kind, where in _kept_files(answer.kept)]
    if answer.counts.quarantined or answer.counts.late:
        batch = f"{answer.batch.spec['name']} --batch {answer.batch.batch_id}"
        lines.append(f"records that were set aside, and why: semel letters {batch}")
    lines += [answer.note] if answer.note else []
    lines += [f"marker: {answer.marker}", "readers now see the whole batch"]
    return "\n".join(lines)


def replay_plan(roots: "list[Root]") -> str:
    """The batches that a replay would compute again, and why it cannot for others."""
    lines = []
    for root in roots:
        span = f" of {interval(*root.interval)}" if root.interval else ""
        head = f"batch {root.batch_id}{span}:"
        head += f" {_count(root.counts.survivors, 'record')}," if root.generation else ""
        if root.why:
            lines.append(f"{head} cannot be replayed: {root.why}")
        elif root.done:
            lines.append(f"{head} unchanged: this request wrote generation {root.generation}")
        else:
            lines.append(f"{head} generation {root.generation} now")
    return "\n".join(lines)


def replay(roots: "list[Root]", replayed: "list[Replayed]") -> str:
    """The batches that a replay computed again."""
    lines = [f"replayed: {_replayed(one)}" for one in replayed]
    unchanged = [root.batch_id for root in roots if root.done]
    if unchanged:
        numbers = [str(number) for number in unchanged[:FILES_NAMED_MAX]]
        if len(unchanged) > len(numbers):
            numbers.append(f"and {len(unchanged) - len(numbers):,} more")
        lines.append(
            f"unchanged: {_count(len(unchanged), 'batch', 'batches')} ({', '.join(numbers)}), "
            "whose newest output this request wrote; --request with a new name computes it again"
        )
    return "\n".join([*lines, "readers now see these outputs"])


def chain_plan(links: "list[Link]") -> str:
    """The batches further down the chain that a replay would compute again, and why it cannot."""
    lines = []
    for link in links:
        lines.append(f"{link.spec.name}, which reads {link.above}:")
        for number, why in link.batches.items():
            would = "would follow" if number in link.behind else "unchanged: it is up to date"
            lines.append(f"  batch {number}: {f'NOT: {why}' if why else would}")
    return "\n".join(lines or [_NOTHING_BELOW])


def chain_replay(links: "list[Link]", below: "list[tuple[Link, Replayed]]") -> str:
    """The replays further down the chain."""
    lines = []
    for link in links:
        replays = [replayed for its_link, replayed in below if its_link is link]
        lines += [f"{link.spec.name}: replayed: {_replayed(one)}" for one in replays]
        if unchanged := len(link.batches) - len(replays):
            are = _count(unchanged, "batch is", "batches are")
            lines.append(f"{link.spec.name}: {are} up to date with {link.above}")
    return "\n".join(lines or [_NOTHING_BELOW])


def remaining_letters(roots: dict[int, int]) -> str:
    """The batches with dead letters that requarantine can judge again."""
    lines = [f"batch {root}: {_count(count, 'dead letter')} left" for root, count in roots.items()]
    return "\n".join(lines or [_NO_LETTERS])


def requarantine(admitted: "list[Admitted]") -> str:
    """The result for dead letters that requarantine judged again."""
    lines = [
        f"judged again: {_count(one.finalized.counts.records_read, 'dead letter')} of batch "
        f"{one.root} by batch {one.batch.batch_id}: {one.finalized.counts.short}"
        for one in admitted
        if one.batch and one.finalized
    ]
    return "\n".join([*(lines or [_NO_LETTERS]), "readers now see these batches"])


def _replayed(replayed: "Replayed") -> str:
    batch, counts = replayed.batch, replayed.finalized.counts
    span = f" of {interval(*batch.interval)}" if batch.interval else ""
    return (
        f"batch {batch.root}{span}: generation {batch.generation}, by batch {batch.batch_id}, "
        f"{_count(counts.rows_written, 'row')} of {counts.survivors:,} records"
    )


def collect(answer: "Collected | None") -> str:
    """The expired and removed data. `answer` is None if the pipeline never planned a batch."""
    if answer is None:
        return "nothing to do: this pipeline has not planned a batch yet"
    actions = [
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
        f"the markers of {_count(answer.batches_packed, 'old batch', 'old batches')} packed"
        if answer.batches_packed
        else "",
    ]
    removed = ", ".join(action for action in actions if action)
    lines = [f"collected {answer.pipeline}: {removed or 'nothing was due'}"]
    return "\n".join([*lines, *(f"NOT DONE: {why}" for why in answer.damaged)])


def counts(values: Counts) -> list[str]:
    """The counts of a batch: the records read equal the sum of the lines below."""
    return [
        f"read {_count(values.records_read, 'record')}, {size(values.bytes_read)}",
        f"  new                       {values.survivors:>13,}   "
        f"({_count(values.rows_written, 'row')} written)",
        *(f"  {label:<25} {getattr(values, name):>13,}" for name, label in LABELS.items()),
    ]


def _kept_files(files: Mapping[str, ArchivePath]) -> list[tuple[str, ArchivePath]]:
    return [(kind.replace("_", " "), pattern) for kind, pattern in files.items()]


def _ignored_keys(ignored: Ignored) -> str:
    first = list(ignored.keys.items())[:KEYS_NAMED_MAX]
    about = "about " if ignored.sampled else ""
    keys = [f"{key!r} in {about}{_count(count, 'record')}" for key, count in first]
    more = len(ignored.keys) - len(first)
    keys += [_count(more, "key") + " more"] if more else []
    advice = "set source.unknown: keep or quarantine to change this"
    return f"ignored keys, which the schema does not declare: {', '.join(keys)}; {advice}"


def _commit_time(batch: Batch) -> str:
    """The time of a batch's commit, and its run."""
    when = f"at {batch.batch_time.astimezone(UTC):%F %H:%M} UTC"
    return f"{when} (run {run_of(batch.request_key)})"


def _batch(batch: Batch) -> str:
    return f"batch {batch.batch_id} of {batch.spec['name']}"
