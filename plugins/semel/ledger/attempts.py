"""Attempts that are given up: how, and what a user is told of the one that won in their place."""

from datetime import UTC

from semel import failpoints
from semel.ledger import Ledger, Row
from semel.model.batch import Attempt, AttemptStatus, Batch, Counts, run_of


def lose(ledger: Ledger, attempt_id: int, reason: str) -> None:
    """Give an attempt up. An attempt that won or is lost already stays what it is."""
    failpoints.point("stage.before_lose")
    ledger.rows("stage", "lose", attempt_id=attempt_id, reason=reason)
    failpoints.point("stage.after_lose")


def message(batch: Batch, attempt: Attempt, found: Row, became: Row) -> str:
    """What became of an attempt that was given up while it ran, and which one won."""
    fact = f"batch {batch.batch_id}: attempt {attempt.fence} is {found['status']}"
    if found["status"] == AttemptStatus.WON:
        return f"{fact} already: {winner(became)}"
    if not became["fence"]:
        return f"{fact} ({found['reason']}), and nothing that it wrote is used"
    return f"{fact}, and nothing that it wrote is used: {winner(became)}"


def previous_attempt(batch: Batch, last: Row) -> str:
    """What became of the attempt before the next one, as far as the ledger knows."""
    whose = f"batch {batch.batch_id}: attempt {last['fence']} before this one"
    about = f"(id {last['attempt_id']}, process {last['driver']})"
    if last["status"] == AttemptStatus.LOST:
        reason = (last["reason"] or "no reason is known").splitlines()[0]
        return f"{whose} {about} is lost: {reason}"
    began, seen = (last[key].astimezone(UTC) for key in ("started_at", "seen_at"))
    return (
        f"{whose} {about} is {last['status']} and did not end: it began at {began:%F %T} UTC, and "
        f"its last sign of life was at {seen:%F %T} UTC. Its process was killed, or is at work"
    )


def winner(became: Row) -> str:
    """Which attempt committed, of which run and when, and what it came to; or where it stands."""
    whose = f"batch {became['batch_id']} (run {run_of(became['request_key'])})"
    if not became["fence"]:
        reason = f" ({became['reason']})" if became["reason"] else ""
        return f"{whose} is {became['status']}{reason}"
    when = became["committed_at"].astimezone(UTC)
    return (
        f"attempt {became['fence']} of {whose} committed at {when:%F %H:%M} UTC, with "
        f"{Counts.from_row(became).short}"
    )
