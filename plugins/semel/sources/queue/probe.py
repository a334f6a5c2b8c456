"""`semel check` of a queue: can executors read the spool, and do the queue's settings fit?"""

from datetime import timedelta

from semel.declare.context import Context
from semel.declare.durations import format_duration
from semel.declare.wording import count
from semel.errors import SourceError
from semel.sources import ExecutorCheck
from semel.sources.files import probe
from semel.sources.objects.probe import ARCHIVES_REMEDY, store_check
from semel.sources.queue.spool import Spool
from semel.storage import StorePath, check_guarantees, remedy

_MARGIN = timedelta(days=1)
"""How much longer than the queue's retention the horizon is: time to receive and plan the last
delivery."""


_DELIVERIES_MIN = 5
"""One more than the tries of a task in semel's DAGs; also the minimum of Pub/Sub."""


def probe_spool(context: Context, spool: Spool) -> tuple[str, ExecutorCheck]:
    """As `Source.probe`: executors check the folder and its newest segment. If semel has received
    nothing yet, they check the nearest existing parent folder.
    """
    sealed = spool.sealed
    if isinstance(sealed, StorePath):
        return _probe_store(context, sealed)
    try:
        if not sealed.is_dir():
            above = next(path for path in sealed.parents if path.is_dir())
            return probe.folder_check(f"no spool of {context.name} in {sealed} yet", above, [])
        names = sorted(sealed.iterdir())
        summary = f"{count(len(names), 'segment')} of {context.name} in {sealed}"
        return probe.folder_check(summary, sealed, list(map(str, names[-1:])))
    except OSError as error:
        raise SourceError(f"{error}. Let this user read {sealed} and everything in it") from error


def _probe_store(context: Context, sealed: StorePath) -> tuple[str, ExecutorCheck]:
    try:
        check_guarantees(sealed.parent)
        folder = f"{sealed.key}/"
        items = [item for page in sealed.store.list(sealed.key) for item in page]
    except OSError as error:
        raise SourceError(f"{sealed}: {error.strerror}. {remedy(sealed.parent)}") from error
    newest = [(item.key.removeprefix(folder), item.etag) for item in items[-1:]]
    summary = f"{count(len(items), 'segment')} of {context.name} in {sealed}"
    return store_check(summary, str(sealed), sealed.connection, newest, ARCHIVES_REMEDY)


# Keeps Q6, Q8.
def check_service(context: Context, horizon: timedelta) -> str:
    """As `Source.service`."""
    with context.declared.open_queue() as queue:
        about = queue.describe()
        dead = queue.count_dead_letters()
    letters = about.dead_letters
    if letters and dead:
        raise SourceError(
            f"{letters.address} has {count(dead, 'message')} that {about.address} or another queue "
            f"moved there after {letters.deliveries} deliveries. semel does not read "
            f"{letters.address}. Bring the messages back, or remove them",
            next=letters.restore_command,
        )
    retention = about.retention
    if retention is not None and not context.by_position:
        if retention == timedelta.max:
            raise SourceError(
                f"{about.address} keeps messages for ever, so one may come again at any time, but "
                f"dedup.horizon is {format_duration(horizon)}. Give the queue a retention that "
                "is at least a day shorter"
            )
        if horizon < retention + _MARGIN:
            raise SourceError(
                f"{about.address} keeps messages for {format_duration(retention)} and may deliver "
                f"one again that long, but dedup.horizon is {format_duration(horizon)}. Declare at "
                f"least {format_duration(retention + _MARGIN)}"
            )
    summary = f"{about.address}"
    if about.waiting is not None:
        summary += f": about {count(about.waiting, 'message')} to deliver"
    if retention is None:
        summary += "; its retention is unknown: make dedup.horizon a day longer than that"
    if letters:
        limit = f"{about.address} delivers a message at most {letters.deliveries} times, then "
        limit += f"moves it to {letters.address}, which semel does not read"
        if letters.deliveries < _DELIVERIES_MIN:
            raise SourceError(
                f"{limit}. Each killed receiver uses up one delivery, and Airflow tries a task 4 "
                f"times. Allow {_DELIVERIES_MIN} or more"
            )
        summary += f"; {limit}" + ("; the number there is unknown" if dead is None else "")
    if queue.rights:
        summary += f"; receive needs {queue.rights}"
    return ". ".join([summary, *about.notes])
