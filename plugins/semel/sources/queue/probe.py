"""Whether a spool can be read, and what the queue says of itself: for `semel check`."""

from datetime import timedelta
from pathlib import Path

from semel.declare.context import Context
from semel.declare.durations import format_duration
from semel.declare.wording import count
from semel.errors import SourceError
from semel.sources import ExecutorCheck
from semel.sources.files import probe

_BEYOND = timedelta(days=1)
"""What the horizon has beyond the queue's retention: a last delivery is received and planned."""


_DELIVERIES_MIN = 5
"""One more than the tries of a task by the DAGs that semel makes; also Pub/Sub's own minimum."""


def of_spool(context: Context, sealed: Path) -> tuple[str, ExecutorCheck]:
    """As `Source.probe`: executors are to see the folder, and in it the newest segment; where
    nothing was received yet, the first folder above it that is there.
    """
    try:
        if not sealed.is_dir():
            above = next(path for path in sealed.parents if path.is_dir())
            return probe.folder_check(f"no spool of {context.name} in {sealed} yet", above, [])
        names = sorted(sealed.iterdir())
        told = f"{count(len(names), 'segment')} of {context.name} in {sealed}"
        return probe.folder_check(told, sealed, list(map(str, names[-1:])))
    except OSError as error:
        raise SourceError(f"{error}; let this user read all below {sealed}") from error


# Keeps Q6, Q8.
def of_service(context: Context, horizon: timedelta) -> str:
    """As `Source.service`."""
    with context.declared.opened_queue() as queue:
        about = queue.about()
        dead = queue.dead()
    letters = about.dead_letters
    if letters and dead:
        raise SourceError(
            f"{letters.address} has {count(dead, 'message')} that {about.address}, or another queue, "
            f"gave up after {letters.deliveries} deliveries, and semel does not read it. Bring them "
            "back, or remove them there",
            next=letters.back,
        )
    kept = about.retention
    if kept is not None and not context.by_position:
        if kept == timedelta.max:
            raise SourceError(
                f"{about.address} keeps messages for ever, and may deliver one again that long; "
                f"dedup.horizon is {format_duration(horizon)}. Give the queue a retention that is "
                "at least a day shorter"
            )
        if horizon < kept + _BEYOND:
            raise SourceError(
                f"{about.address} keeps messages for {format_duration(kept)}, and may deliver one "
                f"again that long; dedup.horizon is {format_duration(horizon)}. Declare at least "
                f"{format_duration(kept + _BEYOND)}"
            )
    told = f"{about.address}"
    if about.waiting is not None:
        told += f": about {count(about.waiting, 'message')} to be delivered"
    if kept is None:
        told += "; it does not say how long it keeps them: dedup.horizon must be a day longer"
    if letters:
        moved = f"{about.address} gives a message up after {letters.deliveries} deliveries: "
        moved += f"{letters.address} takes it, which semel does not read"
        if letters.deliveries < _DELIVERIES_MIN:
            raise SourceError(
                f"{moved}. Each receiver that is killed uses up one, and Airflow tries a task 4 times. "
                f"Allow {_DELIVERIES_MIN} or more"
            )
        told += f"; {moved}" + ("; nobody can say how many it has" if dead is None else "")
    if queue.rights:
        told += f"; receive needs {queue.rights}"
    return ". ".join([told, *about.notes])
