"""gaps: what the source holds and no finalized batch has, by file, and who is working on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from semel.errors import RetryableError
from semel.ledger import Ledger, Row, row, rows
from semel.pipeline import Spec
from semel.plan import known
from semel.sources.cut import Wanted, want
from semel.sources.files import Known, Refusal, list_files


class State(StrEnum):
    """Why a range is not finalized."""

    UNCLAIMED = "unclaimed"
    """No batch has it: the next run takes it."""
    PLANNED = "planned"
    COMMITTED = "committed"
    WAITING = "waiting"
    """A last line without its end, or a file that is not closed yet: nothing to do."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Bytes [start, end) of a file. `silent`: its batch gives no sign of life; run it again."""

    path: str
    start: int
    end: int
    state: State
    batch_id: int | None = None
    request_key: str | None = None
    silent: bool = False

    @property
    def idle(self) -> bool:
        """Whether nobody is working on it, though somebody could."""
        return self.state is State.UNCLAIMED or self.silent


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """The answer of gaps. Refused files are judged as a plan would judge them now."""

    pipeline: str
    gaps: tuple[Gap, ...]
    refusals: tuple[Refusal, ...]

    @property
    def idle(self) -> bool:
        """Whether a person or a run is needed: there are idle gaps or refused files."""
        return bool(self.refusals) or any(gap.idle for gap in self.gaps)


def gaps(ledger: Ledger, spec: Spec) -> Gaps:
    """List the gaps of a pipeline, in the order of paths and positions.

    RetryableError: the ledger did not answer, or a file went away under our eyes.
    """
    listed, unread = list_files(spec)
    with ledger.transaction() as connection:
        pipeline = row(connection, "plan", "pipeline", name=spec.name)
        found: list[Known] = []
        held: list[Row] = []
        if pipeline is not None:
            identity = {"pipeline_id": pipeline["pipeline_id"]}
            found = known(connection, pipeline["pipeline_id"], listed)
            orphan_seconds = spec.limits.orphan_after.total_seconds()
            held = rows(
                connection, "look", "open_claims", orphan_seconds=orphan_seconds, **identity
            )
    try:
        wanted, refused = want(spec, listed, found)
    except FileNotFoundError as error:
        raise RetryableError(
            f"{error.filename!r} went away while it was looked at; run this again"
        ) from error
    partitions = [w.known.source_partition_id for w in wanted if w.known and w.end]
    ends = [w.end for w in wanted if w.known and w.end]
    free: dict[int, list[tuple[int, int]]] = {}
    for r in ledger.rows("plan", "free", partitions=partitions, ends=ends, orphans=[]):
        free.setdefault(r["source_partition_id"], []).append((r["start"], r["end"]))
    found = [gap for item in wanted for gap in _of_file(item, free)]
    found += [Gap(**{**r, "state": State(r["state"])}) for r in held]
    found.sort(key=lambda gap: (gap.path, gap.start))
    return Gaps(pipeline=spec.name, gaps=tuple(found), refusals=(*unread, *refused))


def _of_file(item: Wanted, free: dict[int, list[tuple[int, int]]]) -> Iterator[Gap]:
    """What no batch has of one file."""
    path = item.file.path
    spans = free.get(item.known.source_partition_id, []) if item.known else [(0, item.end)]
    for start, end in spans:
        if start < end:
            yield Gap(path=path, start=start, end=end, state=State.UNCLAIMED)
    reached = max(item.end, item.known.tail_end if item.known else 0)
    if reached < item.file.size:
        yield Gap(path=path, start=reached, end=item.file.size, state=State.WAITING)
