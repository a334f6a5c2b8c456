"""What the audit found: a verdict of named checks, each with its count and the first offenders."""

from dataclasses import asdict, dataclass
from typing import Any

from semel.model.batch import Counts

AUDIT_OFFENDERS_SHOWN = 5
"""Records or files that the audit shows for each broken promise; all are counted."""

PROMISES = {
    "markers": "each marker is whole, and no place in the order of commits is empty",
    "files": "each listed file is there, listed once, with its size, checksum and rows, in the "
    "folder of their times",
    "strays": "no output, row, decisions or dead-letter file is there that no marker lists",
    "generations": "what a replay replaced has its marker kept, of the same account, and its files "
    "whole or gone",
    "code": "the archive has each text that a marker's code names, as it ran",
    "claims": "nothing of the source is claimed twice",
    "source": "each claimed range is still in the source: of a file with the bytes around it "
    "unchanged, of a topic under the same id, or deleted by its retention",
    "accounted": "each record is one of survivor, decision, dead letter; none is invented",
    "records": "each survivor and each decision is a record of the declared schema, with its id",
    "dead letters": "each dead letter keeps the record's bytes, and its reason is true of them",
    "decisions": "each duplicate has its first record among the survivors",
    "ids": "no id survives twice within the horizon, of what was made exactly once",
    "output": "the output holds each survivor once, and nothing else",
    "content": "each output row holds the values of its record (only without transforms)",
    "sums": "the account of each marker is what source and files show",
}
"""The checks in their order, each with what it proves."""


@dataclass(frozen=True, kw_only=True)
class Offender:
    """One thing that breaks a promise. `file` is the source's or the sink's; `offset` is the
    place in it, in the source's unit."""

    what: str
    batch: int | None = None
    file: str | None = None
    offset: int | None = None
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Obligation:
    """One proof obligation: how many things were examined, how many broke it, the first of them."""

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
    """The outcome of an audit. `proved_by` says by what output rows were matched to survivors.

    `gone`: how many of the batches cannot be proven, because a topic's retention or compaction has
    deleted what they read, or the retention of the sink's what they wrote. `replayed`: of how many
    a replay made the output that counts. `to_replay`: the batches, as runs [first, last],
    of whose output some is gone, and which a replay makes again, as far as output and markers tell.
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
    """Collects what the checks find: the first offenders of each are kept, all are counted."""

    def __init__(self) -> None:
        self._examined = dict.fromkeys(PROMISES, 0)
        self._broken = dict.fromkeys(PROMISES, 0)
        self._offenders: dict[str, list[Offender]] = {name: [] for name in PROMISES}

    def examine(self, name: str, count: int = 1) -> None:
        self._examined[name] += count

    def blame(self, name: str, offender: Offender | None, *, count: int = 1) -> None:
        """Count `count` broken things, of which `offender` is one to show."""
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
