"""compare: does the live path write the same rows as the batch path?

Purpose: compare the output of many small batches with the output of one batch that reads all their
ranges at once, through the real stage; or with another pipeline's output.
How it works:
1. choose the finalized batches of a range, and find their claims in the source;
2. find the ids that these batches knew from batches outside of the range, for the batch path;
3. run stage's job over all claims, into a scratch folder;
4. hash the rows of both outputs, and match them by record id, position, window or whole row;
5. find the cause of each difference, if possible.
Not covered: compare does not prove that a record dropped as a repeat of a batch outside of the
range is one; the audit does. It does not read ranges that no batch has claimed.
Known limitations: see docs/operations.md.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa

from semel import storage
from semel.archive import layout
from semel.clients.duck import DuckEngine
from semel.compare import causes
from semel.compare.answer import BatchRange, Cause, Comparison, Difference, Position, Side
from semel.compare.choice import ChosenBatches, choose_batches, find_claims
from semel.compare.known_ids import find_known
from semel.compare.outputs import Output, Outputs, Row
from semel.compare.path import Scratch, batch_path, scratch_folders
from semel.declare.wording import count
from semel.errors import NO_STEP, TerminalError
from semel.formats.output import columns_in_files
from semel.ledger import Ledger
from semel.model.batch import Log
from semel.pipeline.opening import open_sinks, open_source
from semel.pipeline.spec import Spec
from semel.stage.job import JobEngine as Job

COMPARE_MEMORY_BYTES = 2 << 30
"""Memory for keys and hashes of rows, enough for five million. The rest goes to a temporary
folder."""

LIVE, OTHER, AGAIN = 0, 1, 2
"""The sides: the live path, the other output, and a second run of the batch path."""


def compare(
    ledger: Ledger,
    spec: Spec,
    wanted: BatchRange,
    *,
    open_job: Callable[[], AbstractContextManager[Job]] | None = None,
    other: Spec | None = None,
    difference_limit: int,
    log: Log = print,
) -> Comparison:
    """Compare a range of a pipeline's output with the batch path's, or with `other`'s output.

    `open_job` opens the engine of the batch path. `difference_limit`: differences to return; the
    counts include all. Raises TerminalError, StateError or SourceError if a comparison is not
    possible.
    """
    if other is not None and _counting_declaration(spec) != _counting_declaration(other):
        raise TerminalError(
            f"{spec.name} and {other.name} do not count the same: record_time, window or aggregate "
            "differs. Compare two pipelines that should write the same rows",
            next=NO_STEP,
        )
    chosen = choose_batches(ledger, spec, wanted)
    with DuckEngine("differences", memory_limit=f"{COMPARE_MEMORY_BYTES >> 20}MiB") as engine:
        if other is not None:
            comparison = _Compare(engine, chosen, difference_limit, log)
            return comparison.with_pipeline(choose_batches(ledger, other, wanted))
        comparison = _Compare(engine, find_claims(chosen), difference_limit, log)
        staging = layout.staging(storage.at(chosen.pipeline.archive_path))
        with scratch_folders(ledger, staging) as scratch:
            return comparison.with_batch_path(open_job, scratch)


def _counting_declaration(spec: Spec) -> tuple[object, ...]:
    """The parts of a declaration that determine a pipeline's counts. A delay does not."""
    if spec.aggregate is None:
        return ()
    return spec.record_time, spec.window.windows.slices, spec.window.windows.count, spec.aggregate


class _Compare:
    """One compare: the steps in their order."""

    def __init__(
        self, engine: DuckEngine, chosen: ChosenBatches, difference_limit: int, log: Log
    ) -> None:
        self._engine, self._chosen, self._log = engine, chosen, log
        self._difference_limit = difference_limit
        self._seconds: dict[str, float] = {}
        self._shows_values = chosen.spec.limits.log_samples
        self._declared = [chosen.spec]

    def with_batch_path(
        self, open_job: Callable[[], AbstractContextManager[Job]], scratch: Scratch
    ) -> Comparison:
        """Run the batch path, and compare with its output."""
        chosen, engine = self._chosen, self._engine
        with self._timed("known ids"):
            known_count = find_known(engine, chosen, scratch.shared)
        if known_count:
            self._log(f"the batches knew {known_count:,} ids from batches outside of the range")
        with open_job() as job:

            def run(name: str) -> Output:
                return batch_path(chosen, job, scratch, name, self._log)

            def run_again() -> None:
                self._log("the batch path runs a second time, to see whether its rows differ")
                outputs.add(AGAIN, [run("again")])

            with self._timed("stage"):
                output = run("once")
            outputs = self._outputs([output])
            for marker in chosen.markers:
                outputs.add_apart(LIVE, marker, letters=chosen.judges_last(marker))
            outputs.add_apart(OTHER, output)
            claims = [
                {"batch": batch, "part": c.source_partition_id, "first": c.start, "behind": c.end}
                for batch, of_batch in chosen.claims.items()
                for c in of_batch
            ]
            engine.run("insert_claims", pa.Table.from_pylist(claims))
            more = {"other": "batch path", "known": known_count, "counts": output.counts}
            return self._answer(outputs, run_again, **more)

    def with_pipeline(self, other: ChosenBatches) -> Comparison:
        """Compare with another pipeline's batches of the same range."""
        names = [set().union(*(columns_in_files(m).names for m in side.markers)) for side in (
            self._chosen, other)]  # fmt: skip
        if names[0] != names[1]:
            unshared = ", ".join(sorted(repr(name) for name in names[0] ^ names[1]))
            raise TerminalError(
                f"{self._chosen.spec.name} and {other.spec.name} have different columns: only one "
                f"of the two has {unshared}. Compare pipelines that should write the same rows",
                next=NO_STEP,
            )
        self._shows_values &= other.spec.limits.log_samples
        self._declared.append(other.spec)
        outputs = self._outputs(other.markers)
        return self._answer(
            outputs, None, other=other.spec.name, other_batches=other.batches
        )

    def _outputs(self, others: Sequence[Output]) -> Outputs:
        """Read the rows of both sides into the engine."""
        chosen = self._chosen
        self._log(f"reads the output of {count(len(chosen.markers), 'batch', 'batches')}")
        outputs = Outputs.of(self._engine, chosen.spec, [*chosen.markers, *others])
        with self._timed("read outputs"), open_sinks(*self._declared) as sink_of:
            for side, of_side in ((LIVE, chosen.markers), (OTHER, others)):
                outputs.add(side, of_side, sink_of)
        return outputs

    def _answer(
        self, outputs: Outputs, run_again: Callable[[], None] | None, **more: Any
    ) -> Comparison:
        """Compare. `more`: fields of the answer that only one kind of compare has."""
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
        """The first differences. Reads each file with one of their rows again."""
        rows = self._engine.rows("shown", shown=self._difference_limit)
        wanted: dict[int, set[int]] = defaultdict(set)
        places = [row[name] for row in rows for name in ("live_at", "other_at") if row[name]]
        for at in places if self._shows_values else ():
            wanted[at["file"]].add(at["content"])
        examples: dict[tuple[int, str, int], Row] = {}
        with open_sinks(*self._declared) as sink_of:
            for file, contents in wanted.items():
                for key, row in outputs.examples(file, sorted(contents), sink_of).items():
                    examples[file, *key] = row

        def side(row: dict[str, Any], name: str) -> Side:
            at = row[f"{name}_at"] or {"batch": None, "file": None, "content": None}
            output, file = outputs.files[at["file"]] if at["batch"] is not None else (None, None)
            return Side(
                rows=row[name],
                batch_id=at["batch"],
                file=output and (output.target_of(file) if file else output.address),
                row=examples.get((at["file"], row["key"], at["content"])),
                position=self._position(row[f"{name}_part"], row[f"{name}_pos"]),
            )

        return tuple(
            Difference(
                kind=row["kind"],
                cause=Cause(row["cause"]),
                why=Cause(row["cause"]).says + (f" ({row['reason']})" if row["reason"] else ""),
                id=row["key"] if self._shows_values and not row["key"].startswith("\x01") else None,
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
