"""gaps: what the source holds and no finalized batch has, by file, and who is working on it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from semel import limits
from semel.batch import Pipeline
from semel.errors import RetryableError
from semel.ledger import Ledger, pipelines, rows
from semel.sources import files
from semel.sources.cut import want
from semel.sources.facts import Knowledge
from semel.sources.files import Refusal
from semel.sources.gather import gather
from semel.sources.wanted import Spans, Wanted, unclaimed
from semel.spec.pipeline import Spec
from semel.survey import Found, Request, look

_ROUNDS_MAX = 20


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
class Loss:
    """Bytes [start, end) of a file that a person called lost."""

    path: str
    start: int
    end: int
    reason: str
    accepted_by: str
    accepted_at: datetime


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """The answer of gaps. Refused files are judged as a plan would judge them now.

    `losses` are the last LOSSES_SHOWN of what a person gave up.
    """

    pipeline: str
    gaps: tuple[Gap, ...]
    refusals: tuple[Refusal, ...]
    losses: tuple[Loss, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether a person or a run is needed: there are idle gaps or refused files."""
        return bool(self.refusals) or any(gap.idle for gap in self.gaps)

    @property
    def files(self) -> int:
        """How many files hold what no finalized batch has."""
        return len({item.path for item in (*self.gaps, *self.refusals)})


def gaps(ledger: Ledger, spec: Spec) -> Gaps:
    """List the gaps of a pipeline, in the order of paths and positions.

    RetryableError: the ledger did not answer, or files are moved faster than they are looked at.
    """
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    if pipeline is None:
        wanted, refused = unplanned(spec)
        found = [gap for item in wanted for gap in _of_file(item, {})]
        return Gaps(pipeline=spec.name, gaps=tuple(found), refusals=refused)
    pipeline_id = pipeline.pipeline_id
    seen = _seen(ledger, spec, pipeline)
    with ledger.transaction() as connection:
        silent = spec.limits.orphan_after.total_seconds()
        held = rows(
            connection, "look", "open_claims", pipeline_id=pipeline_id, orphan_seconds=silent
        )
        losses = rows(
            connection,
            "partitions",
            "losses",
            pipeline_id=pipeline_id,
            count=limits.LOSSES_SHOWN,
        )
    found = [gap for item in seen.wanted for gap in _of_file(item, seen.free)]
    found += [Gap(**{**r, "state": State(r["state"])}) for r in held]
    found.sort(key=lambda gap: (gap.path, gap.start))
    return Gaps(
        pipeline=spec.name,
        gaps=tuple(found),
        refusals=seen.refusals,
        losses=tuple(Loss(**r) for r in losses),
    )


def _seen(ledger: Ledger, spec: Spec, pipeline: Pipeline) -> Found:
    for _ in range(_ROUNDS_MAX):
        try:
            return look(ledger, pipeline, Request(spec=spec))
        except FileNotFoundError:
            continue
    raise RetryableError(
        f"files of {spec.name} were moved {_ROUNDS_MAX} times in a row while they were looked at; "
        "run this again"
    )


def unplanned(spec: Spec) -> tuple[list[Wanted], tuple[Refusal, ...]]:
    """What a first plan would see."""
    listing = files.list_files(spec)
    known = Knowledge(
        refused=[],
        partitions=[],
        unsettled=listing.files,
        names={},
        lengths=lambda *_: [],
        like=lambda *_: [],
    )
    wanted, refused = want(spec, gather(spec, listing, known, None), None)
    return wanted, (*listing.refused, *refused)


def _of_file(item: Wanted, free: Spans) -> Iterator[Gap]:
    """What no batch has of one file."""
    path = item.file.path
    for start, end in unclaimed(item, free):
        yield Gap(path=path, start=start, end=end, state=State.UNCLAIMED)
    reached = max(item.end, item.start, item.known.reached if item.known else 0)
    # Of a gzip file that is not complete yet, only its size is known.
    size = item.content.size if item.content else max(item.file.size, reached + 1)
    if reached < size:
        yield Gap(path=path, start=reached, end=size, state=State.WAITING)
