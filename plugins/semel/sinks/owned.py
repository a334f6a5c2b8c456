"""Whose a sink is: what lies there against what the ledger knows of its pipeline."""

from pathlib import Path

import sqlalchemy as sa

from semel.errors import TerminalError
from semel.ledger import rows
from semel.reader import Marker, markers_in
from semel.sinks import Sink, traces
from semel.spec.pipeline import Spec


# Keeps D1.
def refuse_traces(spec: Spec, sink: Sink, kept: Path) -> None:
    """TerminalError when earlier batches left anything in the sink of a pipeline that is new."""
    found = traces.first(spec.sink_path(), kept, spec)
    if not found and (landed := sink.batches(spec.name)):
        found = f"rows of batch {max(landed)}"
    if found:
        raise TerminalError(
            f"the sink {sink.address} holds {found}, and this ledger knows no pipeline "
            f"{spec.name!r}: its records would be written there again. Adopt what is there, or "
            "give the pipeline an empty sink",
            next=f"semel adopt {spec.name}",
        )


# Keeps D1.
def refuse_foreign_markers(
    connection: sa.Connection, pipeline_id: int, name: str, sink: Path | None, kept: Path
) -> None:
    """TerminalError when a sink that a pipeline moves to holds markers of other batches."""
    foreign = not_of(connection, pipeline_id, name, markers_in(sink, kept))
    if foreign:
        shown = ", ".join(f"{m.batch_id} of {m.pipeline!r}" for m in foreign[:3])
        raise TerminalError(
            f"{kept} holds markers of batches that {name!r} does not have in this ledger "
            f"(batch {shown}); move the pipeline's own sink and archive there first, or give it an "
            "empty sink"
        )


def not_of(
    connection: sa.Connection, pipeline_id: int, name: str, found: list[Marker]
) -> list[Marker]:
    """The markers that are of no committed batch of this pipeline in this ledger.

    That of a replayed batch is of two: the batch itself, and the newest of its replays.
    """
    known = {
        (r["batch_id"], r["fence"], r["commit_seq"])
        for r in rows(connection, "batch", "committed", pipeline_id=pipeline_id)
    }

    def is_known(m: Marker) -> bool:
        made = m.replay is None or (m.replay.batch_id, m.replay.fence, None) in known
        return made and (m.batch_id, m.fence, m.commit_seq) in known

    return [m for m in found if m.pipeline != name or not is_known(m)]
