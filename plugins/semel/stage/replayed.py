"""Reads and checks earlier batches for a replay or an admission: markers, verdicts, input.

Plan checks here whether a batch can be replayed, and stage runs a replay's job. All these jobs read
the ranges that the first batch claimed:
- a replay reads all records without a verdict, and judges none;
- an admission reads only the records in the previous dead letters, and judges them again;
- a replay of an admission reads the survivors of the admission, and judges none.
If another pipeline has replaced the input, a replay differs: it judges all records itself, and the
next replay uses its verdicts.
"""

from dataclasses import replace
from typing import NamedTuple

from semel import storage
from semel.archive import layout
from semel.archive.marker import Marker, read_marker
from semel.errors import AGAIN, CorruptionError, SourceError, TerminalError
from semel.ledger import Ledger, Row
from semel.model.batch import Batch, Claim, Counts, Pipeline
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.sinks import ReplacedOutput
from semel.sources import finalized_reason
from semel.stage import account, verdicts
from semel.stage.context import StageContext
from semel.stage.job import Outcome, StageJob
from semel.stage.verdicts import Verdicts


class NewestOutput(NamedTuple):
    """The counts of a finalized batch's newest output, and the verdicts behind it."""

    won: Row
    verdicts: Verdicts


def marker_of(pipeline: Pipeline, root: int, generation: int) -> Marker:
    """The marker of a batch whose newest finalized output has this generation.

    If the next generation's marker has replaced it already, before that batch is finalized, reads
    the backup. Raises CorruptionError if the marker is missing, or from an earlier generation.
    """
    path = layout.marker(storage.at(pipeline.archive_path), root)
    marker = read_marker(path, None)
    if marker.pipeline == pipeline.name and marker.generation > generation:
        path = layout.replaced_marker(storage.at(pipeline.archive_path), root, generation)
        marker = read_marker(path, None)
    if marker.pipeline != pipeline.name or marker.generation < generation:
        raise CorruptionError(
            f"{path} is of generation {marker.generation} of {marker.pipeline!r}, but the newest "
            f"finalized output of batch {root} is generation {generation}. Restore it from a backup"
        )
    return marker


def verdicts_of(ledger: Ledger, pipeline: Pipeline, batch_id: int) -> NewestOutput:
    """The verdicts of the newest output of a finalized batch that is not a replay.

    Raises CorruptionError if its marker, decisions or dead letters are missing or changed.
    """
    won, marker = _winner(ledger, pipeline, batch_id)
    return NewestOutput(won, verdicts.read(marker, Counts.from_row(won)))


def check_verdicts(ledger: Ledger, pipeline: Pipeline, batch_id: int) -> None:
    """Raises CorruptionError as `verdicts_of` does, but without reading the verdicts."""
    won, marker = _winner(ledger, pipeline, batch_id)
    verdicts.check(marker, Counts.from_row(won))


def _winner(ledger: Ledger, pipeline: Pipeline, batch_id: int) -> tuple[Row, Marker]:
    won = ledger.rows("replay", "won", root=batch_id)[0]
    if won["packed_in"]:
        raise packed(batch_id)
    marker = marker_of(pipeline, batch_id, won["generation"])
    # Keeps ER4.
    if marker.erased:
        raise erased(batch_id)
    return won, marker


def erased(root: int) -> TerminalError:
    """The error for a replay or an admission of a batch whose data were erased."""
    return TerminalError(
        f"data of batch {root} were erased, and computing it again could bring them back. The "
        "output stays. Declare the new transforms in a pipeline with another name and sink",
        next=f"semel show {root}",
    )


# Keeps HI2.
def packed(root: int) -> TerminalError:
    """The error for a replay, an admission or a comparison of a batch whose marker is in a pack."""
    return TerminalError(
        f"batch {root} was older than limits.keep_history: semel has packed its marker, and keeps "
        "only the output, the marker, the dead letters and the account. The output stays. To use "
        "other transforms for it, declare a pipeline with another name and sink",
        next=f"semel show {root}",
    )


def has_letters(ledger: Ledger, admits: int, admission: int) -> int:
    """The batch whose dead letters an admission judges: the previous admission, or `admits`."""
    if admission == 1:
        return admits
    values = {"root": admits, "admission": admission - 1}
    return ledger.rows("replay", "admission", **values)[0]["batch_id"]


def old_of(ledger: Ledger, pipeline: Pipeline, batch: Batch) -> ReplacedOutput:
    """The output that a replay replaces: the newest earlier output of its root."""
    return outputs(ledger, pipeline, batch.root, batch.generation)


def outputs(ledger: Ledger, pipeline: Pipeline, root: int, generation: int) -> ReplacedOutput:
    """The outputs of a batch before a generation."""
    earlier = ledger.rows("replay", "generations", root=root, generation=generation)
    return ReplacedOutput(
        pipeline=pipeline.name,
        commit_seq=earlier[0]["commit_seq"],
        batches=tuple(r["batch_id"] for r in earlier),
        modes=tuple(r["mode"] for r in earlier),
        types=tuple(r["type"] for r in earlier),
    )


def check_source(ledger: Ledger, spec: Spec, root: int, letters: str = "") -> None:
    """Raises SourceError if the source has lost or changed the input of a batch's newest output.
    `letters`: the command that shows the dead letters to admit.
    """
    claims = [Claim.from_row(r) for r in ledger.rows("compare", "claims", batches=[root])]
    source = open_source(spec)
    try:
        current = source.find(claims, root)
        source.check(current, root)
        source.check_columns(current, root)
    except SourceError as error:
        step, why = AGAIN, f"{finalized_reason(error)}. The output stays what it is"
        if error.lasting:
            step = letters or f"semel show {root}"
            why += ". Send the dead letters' bytes to the source again, corrected" * bool(letters)
        raise type(error)(why, next=step, lasting=error.lasting) from error


def run_job(context: StageContext, job: StageJob) -> Outcome:
    """Run the job of a replay or an admission. A replay's reports also count the records left out.

    Raises TerminalError if a survivor is no longer valid, or the source has changed since.
    """
    ledger, pipeline, batch = context.ledger, context.pipeline, context.batch
    root = verdicts_of(ledger, pipeline, batch.replays or batch.admits)
    chosen = root.verdicts
    if batch.admission is not None:
        judged_batch = has_letters(ledger, batch.admits, batch.admission)
        letters = verdicts_of(ledger, pipeline, judged_batch).verdicts.letters()
        chosen = letters.without(chosen) if batch.replays else letters
    only, judged = batch.admission is not None, batch.replays is None
    selected = chosen.select(job.spill_dir, job.splits, only=only, judged=judged)
    outcome = context.engine.run(replace(job, selected=selected))
    if judged:
        reports = root.verdicts.add_left_out(outcome.reports, job.splits)
        _check_input(batch, account.input_digest(job, reports), batch.admits, root.won)
        records = sum(report.counts.records_read for report in outcome.reports)
        _check_records(batch, "dead letters", records, len(chosen.offset))
        return outcome
    reports = root.verdicts.add_left_out(outcome.reports, job.splits)
    # Keeps RP3.
    _check_input(batch, account.input_digest(job, reports), batch.judged_by, root.won)
    survivors = sum(report.counts.survivors for report in reports)
    _check_records(batch, "survivors", survivors, root.won["survivors"])
    return replace(outcome, reports=reports)


def _check_input(batch: Batch, digest: str, of: int, won: Row) -> None:
    if digest != won["input_digest"]:
        raise TerminalError(
            f"batch {batch.batch_id} read other bytes (digest {digest[:12]}) than batch {of} did "
            f"({won['input_digest'][:12]}), although it uses the same records: the source has "
            "changed since. The output stays what it is. Restore the source"
        )


def _check_records(batch: Batch, kind: str, number: int, wanted: int) -> None:
    if number != wanted:
        raise CorruptionError(
            f"batch {batch.batch_id} read {number:,} {kind} from bytes that had {wanted:,} before: "
            "decisions or dead letters name positions where no record begins. Restore them from a "
            "backup"
        )
