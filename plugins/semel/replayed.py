"""What a replay reads: the marker, the verdicts and the input of the batch that it replays.

Each is proven before it is used. Plan asks here whether a batch can be replayed, and stage runs the
job of one.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from semel.batch import Batch, Counts, Pipeline
from semel.errors import CorruptionError, TerminalError
from semel.ledger import Ledger, Row
from semel.reader import Marker, read_marker
from semel.sinks import archive
from semel.steps import account, verdicts
from semel.steps.job import StageJob
from semel.steps.verdicts import Verdicts

if TYPE_CHECKING:
    from semel.stage import Engine, Outcome


def newest_marker(pipeline: Pipeline, root: int, generation: int) -> Marker:
    """The marker of a batch, which lists its newest output. CorruptionError: it is not of that."""
    path = archive.marker(Path(pipeline.archive_path), root)
    marker = read_marker(path, None)
    if (marker.pipeline, marker.generation) != (pipeline.name, generation):
        raise CorruptionError(
            f"{path} is of generation {marker.generation} of {marker.pipeline!r}, and the newest "
            f"finalized output of batch {root} is generation {generation}; restore it from a backup"
        )
    return marker


def verdicts_of(ledger: Ledger, marker: Marker) -> tuple[Row, Verdicts]:
    """What the winner of a finalized batch counted, and its verdicts. CorruptionError as `read`."""
    won = ledger.rows("replay", "won", root=marker.batch_id)[0]
    return won, verdicts.read(marker, Counts.from_row(won))


# Keeps RP3.
def run_job(
    ledger: Ledger, pipeline: Pipeline, batch: Batch, job: StageJob, engine: "Engine"
) -> "Outcome":
    """Run the job of a replay; its reports hold the whole account, stored verdicts included.

    TerminalError: a survivor is not valid now, or the source is not what was read then.
    """
    marker = newest_marker(pipeline, batch.root, batch.generation - 1)
    won, stored = verdicts_of(ledger, marker)
    outcome = engine.run(replace(job, passed_over=stored.write(job.spill_dir, job.splits)))
    reports = stored.settled(outcome.reports, job.splits)
    digest = account.input_digest(job, reports)
    if digest != won["input_digest"]:
        raise TerminalError(
            f"batch {batch.batch_id} read other bytes (digest {digest[:12]}) than batch "
            f"{batch.root} did ({won['input_digest'][:12]}), which it replays: a source file was "
            "edited since. Put the file back as it was; the output stays what it is"
        )
    survivors = sum(report.counts.survivors for report in reports)
    if survivors != won["survivors"]:
        raise CorruptionError(
            f"batch {batch.batch_id} found {survivors:,} survivors, and batch {batch.root}, which "
            f"it replays, had {won['survivors']:,} of the same bytes: its decisions and dead "
            "letters name places where no record begins; restore them from a backup"
        )
    return replace(outcome, reports=reports)
