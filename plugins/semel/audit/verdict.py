"""The audit's verdict: named checks, each with its count and the first offenders."""

from dataclasses import asdict, dataclass
from typing import Any

from semel.model.batch import Counts

AUDIT_OFFENDERS_SHOWN = 5
"""Records or files that the audit shows for each broken promise. It counts all."""

PROMISES = {
    "markers": "each marker is whole, and each commit number has one",
    "files": "each listed file exists, is listed once, and has its size, checksum and rows; their "
    "times belong to its folder",
    "strays": "a marker lists each output file, row, decisions file and dead-letter file",
    "generations": "each replaced output still has its marker, with the same counts; its files are "
    "whole or removed",
    "code": "the archive has each text of a marker's code, as it ran",
    "claims": "no batch claims a range of the source that another batch has claimed",
    "source": "the source still has each claimed range (of a file: with unchanged bytes around it; "
    "of a topic: under the same id), or its retention has deleted it",
    "accounted": "each record is one of survivor, decision, dead letter; none is invented",
    "records": "each survivor and each decision is a record of the declared schema, with its id",
    "dead letters": "each dead letter keeps the record's bytes, and its reason fits them",
    "decisions": "each duplicate has its first record among the survivors",
    "ids": "in batches written exactly once, no id survives twice within the horizon",
    "output": "the output holds each survivor once, and nothing else",
    "content": "each output row holds the values of its record (only without transforms)",
    "sums": "the counts of each marker equal those of source and files",
}
"""The checks in their order, each with the statement that it proves."""


@dataclass(frozen=True, kw_only=True)
class Offender:
    """One thing that breaks a promise. `file` belongs to the source or the sink; `offset` is in
    the source's unit."""

    what: str
    batch: int | None = None
    file: str | None = None
    offset: int | None = None
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Obligation:
    """One proof obligation: how many things it examined, how many broke it, the first few."""

    name: str
    examined: int
    broken: int
    offenders: tuple[Offender, ...]

    @property
    def ok(self) -> bool:
        return not self.broken

    @property
    def promise(self) -> str:
        return PROMISES[self.name]


@dataclass(frozen=True, kw_only=True)
class AuditVerdict:
    """The outcome of an audit. `proved_by`: how the audit matched output rows to survivors.

    `gone`: the number of batches without proof, because retention or compaction has deleted their
    records from the source or their rows from the sink. `replayed`: the number of batches whose
    current output is from a replay. `to_replay`: batches that lack output and that a replay can
    restore, judging by output and markers alone; as runs [first, last].
    """

    pipeline: str
    sink: str
    batches: int
    gone: int
    replayed: int
    proved_by: str
    to_replay: tuple[tuple[int, int], ...]
    checks: tuple[Obligation, ...]
    totals: Counts
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain values."""
        return {
            "ok": self.ok,
            **asdict(self),
            "checks": [{"ok": c.ok, "promise": c.promise, **asdict(c)} for c in self.checks],
        }


class Findings:
    """Collects the results of the checks: it counts all offenders and keeps each check's first."""

    def __init__(self) -> None:
        self._examined = dict.fromkeys(PROMISES, 0)
        self._broken = dict.fromkeys(PROMISES, 0)
        self._offenders: dict[str, list[Offender]] = {name: [] for name in PROMISES}

    def examine(self, name: str, count: int = 1) -> None:
        self._examined[name] += count

    def blame(self, name: str, offender: Offender | None, *, count: int = 1) -> None:
        """Count `count` offenders. `offender` is the one to show, if any."""
        self._broken[name] += count
        if offender is not None and len(self._offenders[name]) < AUDIT_OFFENDERS_SHOWN:
            self._offenders[name].append(offender)

    def checks(self) -> tuple[Obligation, ...]:
        return tuple(
            Obligation(
                name=name,
                examined=self._examined[name],
                broken=self._broken[name],
                offenders=tuple(self._offenders[name]),
            )
            for name in PROMISES
        )
