"""What the pages show: read from the ledger, for the pipelines that somebody may see."""

from collections import defaultdict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from semel import limits, pipeline
from semel.declare.parts import ORPHAN_SECONDS
from semel.declare.wording import FILES_NAMED_MAX
from semel.declare.yaml import declared_name
from semel.errors import SpecError
from semel.ledger import Ledger, rows
from semel.model.batch import BatchStatus, Counts
from semel.pipeline.spec import Spec

PAGE_BATCHES = 30
"""Batches of each pipeline that the page of all pipelines sums up."""

PAGE_LINES = 200
"""Claims or files of a batch that its page lists; `semel show` lists them all."""


@dataclass(frozen=True, kw_only=True)
class Newest:
    """One of the newest batches of a pipeline. `counts`: None until it has committed. `replays`:
    the batch that it computed again, whose records it counts once more.
    """

    batch_id: int
    request_key: str
    status: BatchStatus
    interval_start: datetime | None
    interval_end: datetime | None
    planned_at: datetime
    finalized_at: datetime | None
    replays: int | None
    counts: Counts | None


VERBS = {"stage": "staged", "commit": "committed", "finalize": "finalized"}
"""The verbs after plan, and what they make of a batch."""


@dataclass(frozen=True, kw_only=True)
class Behind:
    """How far one verb is. `since`: when the oldest batch was planned that it has still to do;
    None: there is none.

    `watermark`: it has done all planned batches of intervals before that; of a pipeline without
    intervals, all that were planned before that. None: nothing was planned.
    """

    verb: str
    since: datetime | None
    watermark: datetime | None

    @property
    def done(self) -> str:
        return VERBS[self.verb]


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A pipeline's line. `newest`: its batches from the newest on, PAGE_BATCHES at most.

    `open` batches are not finalized; `silent` of them give no sign of life. `behind`: how far each
    verb is. `refused`: the files that the last plan refused; if `looked`, that a plan would refuse
    now.
    """

    name: str
    newest: tuple[Newest, ...]
    open: int = 0
    behind: tuple[Behind, ...] = ()
    silent: int = 0
    refused: int = 0
    looked: bool = False

    @property
    def counts(self) -> Counts:
        found = (b.counts for b in self.newest if b.counts and b.replays is None)
        return sum(found, start=Counts())

    @property
    def last(self) -> Newest | None:
        return self.newest[0] if self.newest else None

    def order(self) -> tuple[bool, str]:
        return not self.needs, self.name

    @property
    def needs(self) -> bool:
        """Whether a person has to do something."""
        return bool(self.silent or self.refused)

    @property
    def bars(self) -> list[tuple[int, int]]:
        """New records of each batch, the oldest first, with its height of 20 at most."""
        first = [b for b in reversed(self.newest) if b.replays is None]
        new = [b.counts.survivors if b.counts else 0 for b in first]
        most = max(new, default=0)
        return [(n, round(20 * n / most) if most else 0) for n in new]


def overviews(ledger: Ledger, permitted: Collection[str]) -> list[Overview]:
    """The pipelines among some DAGs, those that need a person first."""
    with ledger.transaction() as connection:
        known = [r["name"] for r in rows(connection, "page", "names")]
        names = sorted(permitted & {*known, *_declared()})
        newest = rows(
            connection, "page", "newest", names=names, count=PAGE_BATCHES
        )
        silent = ORPHAN_SECONDS
        opened = rows(connection, "page", "open", names=names, orphan_seconds=silent)
        ends = {r["name"]: r["at"] for r in rows(connection, "page", "ends", names=names)}
        refused = {r["name"]: r["files"] for r in rows(connection, "page", "refused", names=names)}
    batches: dict[str, list[Newest]] = defaultdict(list)
    for r in newest:
        counts = None if r["records_read"] is None else Counts.from_row(r)
        own = {key: r[key] for key in Newest.__dataclass_fields__ if key != "counts"}
        own["status"] = BatchStatus(r["status"])
        batches[r["name"]].append(Newest(**own, counts=counts))
    of_open = {r["name"]: r for r in opened}
    found = [
        Overview(
            name=name,
            newest=tuple(batches[name]),
            refused=refused.get(name, 0),
            **_open(of_open.get(name), batches[name], ends.get(name)),
        )
        for name in names
    ]
    return sorted(found, key=Overview.order)


def _open(r: Any, newest: list[Newest], end: datetime | None) -> dict[str, Any]:
    """What is open of a pipeline, as its overview has it. `end`: of its newest interval."""
    newest_of_all = end or (newest[0].planned_at if newest else None)
    behind = []
    for verb in VERBS:
        since = r and r[f"{verb}_since"]
        first = (r[f"{verb}_from"] if end else since) if r else None
        mark = newest_of_all if first is None else first
        behind.append(Behind(verb=verb, since=since, watermark=mark))
    counts = {"open": r["batches"], "silent": r["silent"]} if r else {}
    return {"behind": tuple(behind), **counts}


def _declared() -> set[str]:
    with suppress(OSError):
        return {declared_name(path) for path in pipeline.declarations()}
    return set()


def spec_of(ledger: Ledger, name: str) -> tuple[Spec, bool] | None:
    """A pipeline as it is declared; else as its newest batch was planned. None: it is none.

    The second value says whether it is declared, as far as this server's folders tell.
    """
    with suppress(SpecError):
        return pipeline.find(name), True
    found = ledger.rows("page", "spec", name=name)
    return (Spec.from_json(found[0]["spec"]), False) if found else None


@dataclass(frozen=True, kw_only=True)
class BatchShown:
    """All of one batch. `claims` are the first of `claim_count`, of a replay those of the batch
    that it replays, of an admission those of the batch whose dead letters it judges. `id_runs`: the
    first of what it added to the catalog. `generations`: the outputs of that batch, its own among
    them.
    """

    batch: dict[str, Any]
    attempts: list[dict[str, Any]]
    claims: list[dict[str, Any]]
    claim_count: int
    files: list[dict[str, Any]]
    id_runs: list[dict[str, Any]]
    generations: list[dict[str, Any]]

    @property
    def root(self) -> int:
        """The batch whose output it made: itself, or the one that it replayed."""
        return self.output["replays"] or self.output["batch_id"]

    @property
    def output(self) -> dict[str, Any]:
        """Its own one of the generations; an abandoned one is not among them."""
        mine = self.batch["batch_id"]
        found = (one for one in self.generations if one["batch_id"] == mine)
        none = dict.fromkeys(("replays", "replaced_by", "admits"))
        return next(found, {"batch_id": mine, **none})

    @property
    def won(self) -> dict[str, Any] | None:
        """The attempt that landed."""
        return next((a for a in self.attempts if a["status"] == "won"), None)

    @property
    def set_aside(self) -> int:
        """Dead letters of a finalized batch that judged its records."""
        own = self.batch["status"] == "finalized"
        own &= self.batch["judged_by"] == self.batch["batch_id"]
        won = self.won if own else None
        return won["quarantined"] + won["late"] if won else 0

    @property
    def steps(self) -> list[tuple[str, str, datetime, datetime]]:
        """Each verb that is done, what its time counts, and from when to when."""
        b, won = self.batch, self.won
        if won is None:
            return []
        first = min(a["started_at"] for a in self.attempts)
        found = [
            ("waiting", "From the plan to the first attempt", b["planned_at"], first),
            ("stage", "The attempt that won: until its files were staged", won["started_at"],
             won["staged_at"]),
            ("commit", "From staged to committed", won["staged_at"], b["committed_at"]),
            ("finalize", "From committed to finalized", b["committed_at"], b["finalized_at"]),
        ]  # fmt: skip
        return [step for step in found if None not in step]


def batch_of(ledger: Ledger, name: str, batch_id: int) -> BatchShown | None:
    """A batch of a pipeline; None when that has none of this number."""
    with ledger.transaction() as connection:
        found = rows(connection, "look", "batch", batch_id=batch_id)
        if not found or found[0]["pipeline"] != name:
            return None
        count = PAGE_LINES
        claims = rows(connection, "page", "claims", batch_id=batch_id, count=count)
        attempts = rows(connection, "look", "attempts", batch_id=batch_id)
        files = rows(connection, "look", "files", batch_id=batch_id)
        id_runs = rows(connection, "page", "id_runs", batch_id=batch_id, count=count)
        generations = rows(connection, "page", "generations", batch_id=batch_id)
    return BatchShown(
        batch=dict(found[0]),
        attempts=[dict(r) for r in attempts],
        claims=[dict(r) for r in claims],
        claim_count=claims[0]["claims"] if claims else 0,
        files=[dict(r) for r in files],
        id_runs=[dict(r) for r in id_runs],
        generations=[dict(r) for r in generations],
    )


def batch_of_run(ledger: Ledger, name: str, request_key: str) -> int | None:
    """The newest batch of a request; None: it has none."""
    found = ledger.rows("page", "of_run", name=name, request_key=request_key)
    return found[0]["batch_id"] if found else None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A batch, as far as who abandons it has to know: what it has claimed, and who is at work.

    `attempts`: fence and state of each, the last PAGE_LINES. `alive`: one gave a sign of life
    within the last two heartbeats. `records`: as many as its last staged attempt read.
    """

    batch_id: int
    status: str
    request_key: str
    interval_start: datetime | None
    interval_end: datetime | None
    files: int
    ranges: int
    bytes: int
    names: list[str]
    records: int | None
    seen_at: datetime
    alive: bool
    attempts: list[list[Any]]


def planned_of(ledger: Ledger, name: str, batch_id: int) -> Planned | None:
    """A batch of a pipeline; None when that has none of this number."""
    found = ledger.rows(
        "page",
        "planned",
        name=name,
        batch_id=batch_id,
        count=FILES_NAMED_MAX,
        attempts=PAGE_LINES,
        silent_seconds=2 * limits.HEARTBEAT_SECONDS,
    )
    return Planned(**found[0]) if found else None


def refusals_of(ledger: Ledger, name: str) -> list[dict[str, Any]]:
    """What the last plan of a pipeline refused; one more than a page lists at most."""
    found = ledger.rows("page", "refusals", name=name, count=PAGE_LINES + 1)
    return [dict(r) for r in found]
