"""Why rows differ: by what became of their records, then by what changed since, then by running
the batch path once more. Each cause is tried only on rows that no earlier one explains.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from semel.archive import layout, provenance
from semel.archive.marker import Marker, read_marker
from semel.compare.answer import Cause
from semel.compare.engine import Engine
from semel.compare.which import Chosen
from semel.errors import SourceError
from semel.model.manifest import Kind
from semel.pipeline.opening import open_source
from semel.repair.adopt.ids import job_of
from semel.stage import account
from semel.stage.read import read_again
from semel.storage import checksum


def blame(
    engine: Engine, chosen: Chosen, *, keyless: bool, run_again: Callable[[], None] | None
) -> None:
    """Give each difference its cause. `run_again` runs the batch path once more, as side AGAIN;
    None: there is no batch path. `keyless`: rows are matched by their content alone.
    """
    if run_again is not None:
        for step in ("blame_letters", "blame_copies", "blame_other_letters"):
            engine.run(step)
        if not keyless:
            engine.run("blame_letters_of_none")
    _blame_batches(engine, chosen, Cause.FILE, _file_changed)
    _blame_batches(engine, chosen, Cause.SOURCE, _source_changed)
    if run_again is not None and chosen.spec.transforms and engine.rows("unexplained"):
        run_again()
        engine.run("blame_random", keyless=keyless)
    _blame_batches(engine, chosen, Cause.CODE, _code_changed)
    _blame_batches(engine, chosen, Cause.SPEC, _spec_changed)
    rest = Cause.TRANSFORM if chosen.spec.transforms else Cause.UNKNOWN
    engine.run("blame_rest", cause=str(rest))


def _blame_batches(
    engine: Engine, chosen: Chosen, cause: Cause, holds: Callable[[Chosen, Marker], bool]
) -> None:
    wanted = {row["batch"] for row in engine.rows("unexplained")}
    asked: Iterable[Marker] = chosen.markers
    if None not in wanted:  # Of rows whose batch is not known, it may be any.
        asked = (m for m in chosen.markers if m.batch_id in wanted)
    found = [marker.batch_id for marker in asked if holds(chosen, marker)] if wanted else []
    if found:
        facts = {"batch": found, "cause": [str(cause)] * len(found)}
        engine.insert("insert_facts", pa.table(facts))
        engine.run("blame_batches", cause=str(cause))


def _file_changed(chosen: Chosen, marker: Marker) -> bool:  # noqa: ARG001 - as the others
    files = marker.of_kind(Kind.DATA) if marker.sink is not None else ()
    return any(
        (path := marker.path_of(file)).lstat().st_size != file.bytes
        or checksum(path) != file.checksum
        for file in files
    )


def _source_changed(chosen: Chosen, marker: Marker) -> bool:
    """Whether the source is not what the winner read, by the declaration of that time."""
    if marker.admits is not None:
        return False  # Its root tells it.
    claims = chosen.claims[marker.batch_id]
    if marker.replay is not None:  # The digest is of the first output, and its declaration.
        first = layout.replaced(marker.archive, marker.batch_id, 1)
        marker = read_marker(first, marker.sink)
    source = open_source(marker.spec)
    split_bytes = chosen.split_bytes[marker.batch_id]
    job = job_of(marker, tuple(claims), source, split_bytes)
    nothing = np.zeros(0, np.int64)
    try:
        reports = [read_again(job, split, nothing).report for split in job.splits]
    except SourceError:
        return True
    return account.input_digest(job, reports) != marker.input_digest


def _code_changed(chosen: Chosen, marker: Marker) -> bool:
    now = provenance.look(chosen.spec).named.digest
    return marker.code_digest is not None and marker.code_digest != now


def _spec_changed(chosen: Chosen, marker: Marker) -> bool:
    return marker.spec_digest != chosen.spec.digest()


def reasons(rows: Iterable[dict]) -> Iterator[tuple[str, dict[str, int]]]:
    """How many records one side alone kept out, by reason."""
    names = {0: "only_live", 1: "only_other"}
    for side, name in names.items():
        found = {r["reason"]: r["records"] for r in rows if r["side"] == side}
        if found:
            yield name, found
