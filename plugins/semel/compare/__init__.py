"""compare: does the live path give what the batch path gives?

Purpose: compare the output of many small batches with that of one batch that reads all their ranges
at once, through the real stage, commit and finalize; or with another pipeline's output.
How it works:
1. choose the finalized batches of a range, and find what they read;
2. find the ids that the range's batches knew from batches outside of it, for the batch path;
3. run the batch path into a scratch sink, with a scratch ledger;
4. hash the rows of both outputs, and match them by record id, position or whole row;
5. find the cause of each difference, where there is a way to tell.
What it does not do: prove, as the audit does, that a record which the live path dropped as a repeat
of a batch outside of the range is one; or read what no batch of the range has claimed.
Known limitations: docs/operations.md has them.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from semel.archive import layout
from semel.archive.marker import Marker
from semel.compare import causes
from semel.compare.answer import (
    ABOUT,
    Cause,
    Comparison,
    Difference,
    Position,
    Range,
    Side,
)
from semel.compare.engine import AGAIN, LIVE, OTHER, Engine
from semel.compare.known import find_known
from semel.compare.outputs import Columns, Outputs, Row
from semel.compare.path import Made, batch_path
from semel.compare.which import Chosen, choose, find_source
from semel.errors import TerminalError
from semel.formats.output import columns_in_files
from semel.ledger import Ledger, scratch
from semel.model.batch import Log
from semel.pipeline import Spec
from semel.pipeline.opening import open_sinks, open_source
from semel.stage import Engine as Job

__all__ = ["Cause", "Comparison", "Difference", "Position", "Range", "Side", "compare"]

BATCH_PATH = "batch path"

Examples = dict[int, dict[tuple[str, int], Row]]
"""Rows to show: by their file's number, then by key and content."""


def compare(
    ledger: Ledger,
    spec: Spec,
    wanted: Range,
    *,
    open_job: Callable[[], AbstractContextManager[Job]] | None = None,
    other: Spec | None = None,
    shown: int,
    log: Log = print,
) -> Comparison:
    """Compare a range of a pipeline's output with the batch path's, or with `other`'s output.

    `open_job` opens what runs the batch path. `shown`: differences to tell of; all are counted.
    TerminalError, StateError, SourceError: it cannot be compared; the message says why.
    """
    chosen = choose(ledger, spec, wanted)
    with Engine() as engine:
        if other is not None:
            return _Compare(engine, chosen, shown, log).with_pipeline(choose(ledger, other, wanted))
        scratch.remove_left(ledger, layout.staging(Path(chosen.pipeline.archive_path)))
        chosen = find_source(chosen)
        return _Compare(engine, chosen, shown, log).with_batch_path(ledger, open_job)


class _Compare:
    """One compare: the steps in their order."""

    def __init__(self, engine: Engine, chosen: Chosen, shown: int, log: Log) -> None:
        self._engine, self._chosen, self._shown, self._log = engine, chosen, shown, log
        self._seconds: dict[str, float] = {}
        self._told = chosen.spec.limits.log_samples
        self._declared = [chosen.spec]

    def with_batch_path(
        self, ledger: Ledger, open_job: Callable[[], AbstractContextManager[Job]]
    ) -> Comparison:
        """Run the batch path, and compare with what it made."""
        chosen = self._chosen
        known = self._timed("known ids", lambda: find_known(self._engine, chosen))
        count = sum(len(part.h1) for part in known)
        if count:
            self._log(f"{count:,} ids are known from batches outside of the range")
        with (
            open_job() as job,
            batch_path(ledger, chosen, job, known, self._log) as made,
        ):
            self._seconds |= made.seconds
            outputs = self._outputs([made.marker], numbered=False)
            for marker in chosen.markers:
                outputs.add_apart(LIVE, marker, letters=chosen.judges_last(marker))
            for batch_id, claims in chosen.claims.items():
                outputs.add_claims(batch_id, claims)
            outputs.add_apart(OTHER, made.marker)
            self._engine.run("verdicts")

            def run_again() -> None:
                self._log("the batch path runs once more, to see if it gives the same")
                with batch_path(ledger, chosen, job, known, self._log) as again:
                    outputs.add(AGAIN, again.marker, numbered=False)

            self._differ(outputs, run_again)
            apart = dict(causes.reasons(self._engine.rows("apart")))
            return self._answer(outputs, made=made, apart=apart, known=count)

    def with_pipeline(self, other: Chosen) -> Comparison:
        """Compare with the output of another pipeline's batches of the same range."""
        names = [set().union(*(columns_in_files(m).names for m in side.markers)) for side in (
            self._chosen, other)]  # fmt: skip
        if names[0] != names[1]:
            apart = ", ".join(sorted(repr(name) for name in names[0] ^ names[1]))
            raise TerminalError(
                f"{self._chosen.spec.name} and {other.spec.name} do not have the same columns: "
                f"only one of them has {apart}; compare pipelines that should give the same rows"
            )
        self._told &= other.spec.limits.log_samples
        self._declared.append(other.spec)
        outputs = self._outputs(other.markers, numbered=True)
        self._differ(outputs, None)
        return self._answer(outputs, other=other)

    def _outputs(self, others: Sequence[Marker], *, numbered: bool) -> Outputs:
        """The rows of both sides, in the engine."""
        chosen = self._chosen
        count = len(chosen.markers)
        batches = "1 batch" if count == 1 else f"{count:,} batches"
        self._log(f"reads the output of {batches}")
        columns = Columns.of(chosen.spec, chosen.markers, others)
        outputs = Outputs(engine=self._engine, spec=chosen.spec, columns=columns)

        def read() -> None:
            with open_sinks(*self._declared) as sink_of:
                for marker in chosen.markers:
                    outputs.add(LIVE, marker, numbered=True, sink_of=sink_of)
                for marker in others:
                    outputs.add(OTHER, marker, numbered=numbered, sink_of=sink_of)

        self._timed("read outputs", read)
        return outputs

    def _differ(self, outputs: Outputs, run_again: Callable[[], None] | None) -> None:
        def differ() -> None:
            self._engine.run("count")
            self._engine.run("differ")
            self._engine.run("place")
            keyless = outputs.columns.by == "row"
            causes.blame(self._engine, self._chosen, keyless=keyless, run_again=run_again)

        self._timed("compare", differ)

    def _answer(
        self,
        outputs: Outputs,
        *,
        made: Made | None = None,
        other: Chosen | None = None,
        apart: dict[str, dict[str, int]] | None = None,
        known: int = 0,
    ) -> Comparison:
        totals = self._engine.rows("totals")
        counted = self._engine.rows("rows")[0]
        rows = self._engine.rows("shown", shown=self._shown)
        examples = self._examples(outputs, rows)
        return Comparison(
            pipeline=self._chosen.spec.name,
            other=other.spec.name if other else BATCH_PATH,
            batches=self._chosen.batches,
            other_batches=other.batches if other else (),
            by=outputs.columns.by,
            rows_live=counted["live"],
            rows_other=counted["other"],
            total=sum(row["differences"] for row in totals),
            causes={row["cause"]: row["differences"] for row in totals},
            differences=tuple(self._difference(outputs, row, examples) for row in rows),
            apart=apart or {},
            known=known,
            counts=made.marker.counts if made else None,
            seconds=self._seconds,
        )

    def _examples(self, outputs: Outputs, rows: list[dict[str, Any]]) -> Examples:
        """The rows to show: each of their files is read once more. None without log_samples."""
        wanted: dict[int, set[int]] = {}
        places = [row[name] for row in rows for name in ("live_at", "other_at") if row[name]]
        for at in places if self._told else ():
            wanted.setdefault(at["file"], set()).add(at["content"])
        with open_sinks(*self._declared) as sink_of:
            return {
                at: outputs.examples(at, sorted(found), sink_of) for at, found in wanted.items()
            }

    def _difference(
        self, outputs: Outputs, row: dict[str, Any], examples: Examples
    ) -> Difference:
        cause = Cause(row["cause"])
        why = ABOUT[cause] + (f" ({row['reason']})" if row["reason"] else "")
        keyed = self._told and not row["key"].startswith("\x01")
        return Difference(
            kind=row["kind"],
            cause=cause,
            why=why,
            id=row["key"] if keyed else None,
            live=self._side(outputs, row, "live", examples),
            other=self._side(outputs, row, "other", examples),
        )

    def _side(
        self, outputs: Outputs, row: dict[str, Any], name: str, examples: Examples
    ) -> Side:
        at = row[f"{name}_at"]
        part, pos = row[f"{name}_part"], row[f"{name}_pos"]
        if part is None and at is not None:
            part, pos = at["part"], at["pos"]
        position = self._position(part, pos) if part is not None else None
        if at is None:
            return Side(rows=row[name], position=position)
        marker, file = outputs.files[at["file"]]
        values = examples.get(at["file"], {}).get((row["key"], at["content"]))
        path = marker.target_of(file) if file else marker.address
        return Side(
            rows=row[name],
            batch_id=at["batch"],
            file=path if at["batch"] is not None else None,
            row=values,
            position=position,
        )

    def _position(self, part: int, pos: int) -> Position | None:
        for batch_id, claims in self._chosen.claims.items():
            for claim in claims:
                if claim.source_partition_id == part and claim.start <= pos < claim.end:
                    source = open_source(self._chosen.spec)
                    (line,) = source.lines_of(claim, [pos], batch_id)
                    return Position(source=claim.name, line=line, offset=pos)
        return None

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        done = call()
        self._seconds[name] = round(time.monotonic() - began, 3)
        return done

