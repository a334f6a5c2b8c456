"""Finds why rows differ: from the verdicts on their records, from changes since the batch, then
from a second run of the batch path. Each cause applies only to rows that no earlier one explains.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from semel.archive import provenance
from semel.archive.marker import Marker, generations, judging_output
from semel.clients.duck import DuckEngine
from semel.compare.answer import Cause
from semel.compare.choice import ChosenBatches
from semel.errors import SourceError
from semel.model.manifest import Kind
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.repair.adopt.ids import job_of
from semel.stage import account
from semel.stage.read import read_again


def blame(
    engine: DuckEngine, chosen: ChosenBatches, *, by: str, run_again: Callable[[], None] | None
) -> None:
    """Set the cause of each difference. `run_again` runs the batch path a second time, as side
    AGAIN; None if there is no batch path. `by`: how rows are matched.
    """
    spec = chosen.spec
    if run_again is not None:
        for step in ("blame_letters", "blame_copies", "blame_other_letters"):
            engine.run(step)
        if by in ("id", "position"):
            engine.run("blame_letters_of_none")
    _blame_batches(engine, chosen, Cause.FILE, _file_changed)
    _blame_batches(engine, chosen, Cause.SOURCE, partial(_source_changed, chosen))
    if run_again is not None and spec.transforms and engine.rows("unexplained"):
        run_again()
        engine.run("blame_random", keyless=by == "row")
    _blame_batches(engine, chosen, Cause.CODE, partial(_code_changed, spec))
    _blame_batches(engine, chosen, Cause.SPEC, lambda m: m.spec_digest != spec.digest())
    engine.run("blame_rest", cause=str(Cause.TRANSFORM if spec.transforms else Cause.UNKNOWN))


def _blame_batches(
    engine: DuckEngine, chosen: ChosenBatches, cause: Cause, applies: Callable[[Marker], bool]
) -> None:
    unexplained = {row["batch"] for row in engine.rows("unexplained")}
    # A row whose batch is unknown may come from any batch.
    candidates = [m for m in chosen.markers if unexplained & {m.batch_id, None}]
    if batches := [marker.batch_id for marker in candidates if applies(marker)]:
        engine.run("blame_batches", cause=str(cause), batches=batches)


def _file_changed(marker: Marker) -> bool:
    files = marker.of_kind(Kind.DATA) if marker.sink is not None else ()
    return not all(map(marker.is_whole, files))


def _source_changed(chosen: ChosenBatches, marker: Marker) -> bool:
    """True if the source differs from what the winner read, by the declaration of that time."""
    if marker.admits is not None:
        return False  # The check of its root covers it.
    claims, split_bytes = chosen.claims[marker.batch_id], chosen.split_bytes[marker.batch_id]
    # The digest belongs to the output whose declaration judged the records.
    marker = judging_output(generations(marker))
    job = job_of(marker, tuple(claims), open_source(marker.spec), split_bytes)
    no_offsets = np.zeros(0, np.int64)
    try:
        reports = [read_again(job, split).report for split in job.splits]
    except SourceError:
        return True
    return account.input_digest(job, reports) != marker.input_digest


def _code_changed(spec: Spec, marker: Marker) -> bool:
    now = provenance.read_code(spec).digests.digest
    return marker.code_digest is not None and marker.code_digest != now
