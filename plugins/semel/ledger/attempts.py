"""Gives attempts up, and describes to the user the attempt that won instead."""

from datetime import UTC

from semel import failpoints
from semel.ledger import Ledger, Row
from semel.model.batch import Attempt, AttemptStatus, Batch, Counts, run_of


def lose(ledger: Ledger, attempt_id: int, reason: str) -> None:
    """Give an attempt up. Has no effect if it has won or is lost already."""
    failpoints.point("stage.before_lose")
    ledger.rows("stage", "lose", attempt_id=attempt_id, reason=reason)
    failpoints.point("stage.after_lose")


def message(batch: Batch, attempt: Attempt, attempt_row: Row, batch_row: Row) -> str:
    """The error text for an attempt that was given up while it ran, and for the winning one."""
    fact = f"batch {batch.batch_id}: attempt {attempt.fence} is {attempt_row['status']}"
    if attempt_row["status"] == AttemptStatus.WON:
        return f"{fact} already: {winner(batch_row)}"
    if not batch_row["fence"]:
        return f"{fact} ({attempt_row['reason']}), and semel does not use its output"
    return f"{fact}, and semel does not use its output: {winner(batch_row)}"


def previous_attempt(batch: Batch, last: Row) -> str:
    """The outcome of the previous attempt, as far as the ledger knows."""
    whose = f"batch {batch.batch_id}: attempt {last['fence']} before this one"
    about = f"(id {last['attempt_id']}, process {last['driver']})"
    if last["status"] == AttemptStatus.LOST:
        reason = (last["reason"] or "the reason is unknown").splitlines()[0]
        return f"{whose} {about} is lost: {reason}"
    began, seen_at = (last[key].astimezone(UTC) for key in ("started_at", "seen_at"))
    return (
        f"{whose} {about} is {last['status']} and did not end: it began at {began:%F %T} UTC, and "
        f"its last sign of life was at {seen_at:%F %T} UTC. Its process was killed or still runs"
    )


def winner(batch_row: Row) -> str:
    """The committed attempt with its run, time and counts, or the state of the batch."""
    whose = f"batch {batch_row['batch_id']} (run {run_of(batch_row['request_key'])})"
    if not batch_row["fence"]:
        reason = f" ({batch_row['reason']})" if batch_row["reason"] else ""
        return f"{whose} is {batch_row['status']}{reason}"
    when = batch_row["committed_at"].astimezone(UTC)
    return (
        f"attempt {batch_row['fence']} of {whose} committed at {when:%F %H:%M} UTC, with "
        f"{Counts.from_row(batch_row).short}"
    )
