"""compare: does the live path give what the batch path gives?

Purpose: compare the output of many small batches with that of one batch that reads all their ranges
at once, through the real stage; or with another pipeline's output.
How it works:
1. choose the finalized batches of a range, and find what they read;
2. find the ids that the range's batches knew from batches outside of it, for the batch path;
3. run stage's job over all of it, into a scratch folder;
4. hash the rows of both outputs, and match them by record id, position, window or whole row;
5. find the cause of each difference, where there is a way to tell.
What it does not do: prove, as the audit does, that a record which the live path dropped as a repeat
of a batch outside of the range is one; or read what no batch of the range has claimed.
Known limitations: docs/operations.md has them.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from semel.archive import layout
from semel.clients.duck import DuckEngine
from semel.compare import causes
from semel.compare.answer import BatchRange, Cause, Comparison, Difference, Position, Side
from semel.compare.known import find_known
from semel.compare.outputs import Output, Outputs, Row
from semel.compare.path import batch_path, scratch_folder
from semel.compare.which import Chosen, choose, find_source
from semel.declare.wording import count
from semel.errors import NO_STEP, TerminalError
from semel.formats.output import columns_in_files
from semel.ledger import Ledger
from semel.model.batch import Log
from semel.pipeline.opening import open_sinks, open_source
from semel.pipeline.spec import Spec
from semel.stage.job import JobEngine as Job

COMPARE_MEMORY_BYTES = 2 << 30
"""Memory in which a compare holds keys and hashes of rows: those of five million. What does not
fit goes to a temporary folder."""

LIVE, OTHER, AGAIN = 0, 1, 2
"""The sides: the live path, what it is compared with, and the batch path run once more."""


def compare(
    ledger: Ledger,
    spec: Spec,
    wanted: BatchRange,
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
    if other is not None and _counted(spec) != _counted(other):
        raise TerminalError(
            f"{spec.name} and {other.name} do not count the same: record_time, window and aggregate "
            "are to be equal; compare pipelines that should give the same rows",
            next=NO_STEP,
        )
    chosen = choose(ledger, spec, wanted)
    with DuckEngine("differences", memory_limit=f"{COMPARE_MEMORY_BYTES >> 20}MiB") as engine:
        if other is not None:
            return _Compare(engine, chosen, shown, log).with_pipeline(choose(ledger, other, wanted))
        compared = _Compare(engine, find_source(chosen), shown, log)
        staging = layout.staging(Path(chosen.pipeline.archive_path))
        with scratch_folder(staging) as scratch:
            return compared.with_batch_path(open_job, scratch)


def _counted(spec: Spec) -> tuple[object, ...]:
    """What a pipeline counts, but for when it calls a window complete."""
    if spec.aggregate is None:
        return ()
    return spec.record_time, spec.window.windows.slices, spec.window.windows.count, spec.aggregate


class _Compare:
    """One compare: the steps in their order."""

    def __init__(self, engine: DuckEngine, chosen: Chosen, shown: int, log: Log) -> None:
        self._engine, self._chosen, self._shown, self._log = engine, chosen, shown, log
        self._seconds: dict[str, float] = {}
        self._told = chosen.spec.limits.log_samples
        self._declared = [chosen.spec]

    def with_batch_path(
        self, open_job: Callable[[], AbstractContextManager[Job]], scratch: Path
    ) -> Comparison:
        """Run the batch path, and compare with what it made."""
        chosen, engine = self._chosen, self._engine
        with self._timed("known ids"):
            known = find_known(engine, chosen, scratch)
        if known:
            self._log(f"{known:,} ids are known from batches outside of the range")
        with open_job() as job:

            def run(name: str) -> Output:
                return batch_path(chosen, job, scratch, scratch / name, self._log)

            def run_again() -> None:
                self._log("the batch path runs once more, to see if it gives the same")
                outputs.add(AGAIN, [run("again")])

            with self._timed("stage"):
                made = run("once")
            outputs = self._outputs([made])
            for marker in chosen.markers:
                outputs.add_apart(LIVE, marker, letters=chosen.judges_last(marker))
            outputs.add_apart(OTHER, made)
            claims = [
                {"batch": at, "part": c.source_partition_id, "first": c.start, "behind": c.end}
                for at, own in chosen.claims.items()
                for c in own
            ]
            engine.run("insert_claims", pa.Table.from_pylist(claims))
            more = {"other": "batch path", "known": known, "counts": made.counts}
            return self._answer(outputs, run_again, **more)

    def with_pipeline(self, other: Chosen) -> Comparison:
        """Compare with the output of another pipeline's batches of the same range."""
        names = [set().union(*(columns_in_files(m).names for m in side.markers)) for side in (
            self._chosen, other)]  # fmt: skip
        if names[0] != names[1]:
            apart = ", ".join(sorted(repr(name) for name in names[0] ^ names[1]))
            raise TerminalError(
                f"{self._chosen.spec.name} and {other.spec.name} do not have the same columns: "
                f"only one of them has {apart}; compare pipelines that should give the same rows",
                next=NO_STEP,
            )
        self._told &= other.spec.limits.log_samples
        self._declared.append(other.spec)
        outputs = self._outputs(other.markers)
        return self._answer(
            outputs, None, other=other.spec.name, other_batches=other.batches
        )

    def _outputs(self, others: Sequence[Output]) -> Outputs:
        """The rows of both sides, in the engine."""
        chosen = self._chosen
        self._log(f"reads the output of {count(len(chosen.markers), 'batch', 'batches')}")
        outputs = Outputs.of(self._engine, chosen.spec, [*chosen.markers, *others])
        with self._timed("read outputs"), open_sinks(*self._declared) as sink_of:
            for side, some in ((LIVE, chosen.markers), (OTHER, others)):
                outputs.add(side, some, sink_of)
        return outputs

    def _answer(
        self, outputs: Outputs, run_again: Callable[[], None] | None, **more: Any
    ) -> Comparison:
        """Compare. `more`: what of the answer is of one kind of compare alone."""
        with self._timed("compare"):
            self._engine.run("differ")
            causes.blame(self._engine, self._chosen, by=outputs.by, run_again=run_again)
        totals = self._engine.rows("totals")
        [counted] = self._engine.rows("rows")
        apart: dict[str, dict[str, int]] = defaultdict(dict)
        for row in self._engine.rows("apart"):
            apart[row["side"]][row["reason"]] = row["records"]
        return Comparison(
            pipeline=self._chosen.spec.name,
            batches=self._chosen.batches,
            by=outputs.by,
            rows_live=counted["live"],
            rows_other=counted["other"],
            total=sum(row["differences"] for row in totals),
            causes={row["cause"]: row["differences"] for row in totals},
            differences=self._differences(outputs),
            apart=dict(apart),
            seconds=self._seconds,
            **more,
        )

    def _differences(self, outputs: Outputs) -> tuple[Difference, ...]:
        """Those to show. Each file that holds a row of theirs is read once more."""
        rows = self._engine.rows("shown", shown=self._shown)
        wanted: dict[int, set[int]] = defaultdict(set)
        places = [row[name] for row in rows for name in ("live_at", "other_at") if row[name]]
        for at in places if self._told else ():
            wanted[at["file"]].add(at["content"])
        examples: dict[tuple[int, str, int], Row] = {}
        with open_sinks(*self._declared) as sink_of:
            for file, contents in wanted.items():
                for own, row in outputs.examples(file, sorted(contents), sink_of).items():
                    examples[file, *own] = row

        def side(row: dict[str, Any], name: str) -> Side:
            at = row[f"{name}_at"] or {"batch": None, "file": None, "content": None}
            made, file = outputs.files[at["file"]] if at["batch"] is not None else (None, None)
            return Side(
                rows=row[name],
                batch_id=at["batch"],
                file=made and (made.target_of(file) if file else made.address),
                row=examples.get((at["file"], row["key"], at["content"])),
                position=self._position(row[f"{name}_part"], row[f"{name}_pos"]),
            )

        return tuple(
            Difference(
                kind=row["kind"],
                cause=Cause(row["cause"]),
                why=Cause(row["cause"]).says + (f" ({row['reason']})" if row["reason"] else ""),
                id=row["key"] if self._told and not row["key"].startswith("\x01") else None,
                live=side(row, "live"),
                other=side(row, "other"),
            )
            for row in rows
        )

    def _position(self, part: int | None, pos: int | None) -> Position | None:
        for batch_id, claims in self._chosen.claims.items():
            for claim in claims:
                if claim.source_partition_id == part and claim.start <= pos < claim.end:
                    source = open_source(self._chosen.spec)
                    (line,) = source.line_numbers(claim, [pos], batch_id)
                    return Position(source=claim.name, line=line, offset=pos)
        return None

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[name] = round(time.monotonic() - began, 3)
