"""The batches of a range, with their markers and claims; or why they cannot be compared."""

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from semel.archive import layout
from semel.archive.marker import Marker, read_marker
from semel.compare.answer import BatchRange
from semel.declare.parts import Select
from semel.errors import AGAIN, SourceError, StateError, TerminalError
from semel.ledger import Ledger, pipelines, rows
from semel.model.batch import BatchStatus, Claim, Pipeline
from semel.model.manifest import Kind
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.sources import finalized_reason


@dataclass(frozen=True, kw_only=True)
class ChosenBatches:
    """Finalized batches in the order of their commits, each with its admissions. `claims` by batch,
    as their files lie now; `split_bytes` as each was cut. Admissions have no claims of their own.
    """

    spec: Spec
    pipeline: Pipeline
    markers: tuple[Marker, ...]
    claims: dict[int, list[Claim]]
    split_bytes: dict[int, int]

    @property
    def batches(self) -> tuple[int, ...]:
        """Their numbers."""
        return tuple(marker.batch_id for marker in self.markers)

    def claims_of(self, marker: Marker) -> tuple[Claim, ...]:
        """The ranges that a batch's records lie in."""
        return tuple(self.claims[marker.admits.batch_id if marker.admits else marker.batch_id])

    def judges_last(self, marker: Marker) -> bool:
        """Whether no admission has judged its dead letters again."""
        root = marker.admits.batch_id if marker.admits else marker.batch_id
        later = [m.batch_id for m in self.markers if m.admits and m.admits.batch_id == root]
        return marker.batch_id == max(later, default=root)


def choose_batches(ledger: Ledger, spec: Spec, wanted: BatchRange) -> ChosenBatches:
    """The finalized batches of a range.

    TerminalError: there are none, or their rows cannot be told apart. StateError: a batch of the
    range is at work.
    """
    listing = f"semel batches {spec.name}"
    if spec.sink.replaces_rows:
        raise TerminalError(
            f"{spec.name} writes with mode: upsert: later batches have replaced rows of earlier "
            "ones, so what those made cannot be compared any more; compare a pipeline with mode: "
            "append, or prove this one's rows",
            next=f"semel audit {spec.name}",
        )
    by = "interval" if spec.source.select is Select.INTERVAL else "time"
    values = {**vars(wanted), "by": by if wanted.first is None else "number"}
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        there = []
        if pipeline is not None:
            values["pipeline_id"] = pipeline.pipeline_id
            there = rows(connection, "compare", "batches", **values)
        numbers = [r["batch_id"] for r in there]
        claimed = rows(connection, "compare", "claims", batches=numbers) if numbers else []
    if pipeline is None or not there:
        what = {"interval": "interval is in", "time": "commit is in", "number": "number is in"}
        raise TerminalError(
            f"{spec.name} has no finalized batch whose {what[values['by']]} {wanted}",
            next=listing,
        )
    for found in there:
        if found["status"] != BatchStatus.FINALIZED:
            raise StateError(
                f"batch {found['batch_id']} of {spec.name} is {found['status']} and belongs to the "
                "range; compare it once it is finalized or abandoned",
                next=f"semel show {found['batch_id']}",
            )
        if found["replay"] is not None:
            raise StateError(
                f"batch {found['batch_id']} of {spec.name} is being replayed by batch "
                f"{found['replay']}; compare its output once that is finalized or abandoned",
                next=f"semel show {found['replay']}",
            )
    claims: dict[int, list[Claim]] = defaultdict(list)
    for r in claimed:
        claims[r["batch_id"]].append(Claim.from_row(r))
    root = Path(pipeline.archive_path)
    found = [read_marker(layout.marker(root, n), spec.sink_path()) for n in numbers]
    for marker in found:
        if marker.erased:
            raise TerminalError(
                f"data of batch {marker.batch_id} were erased, as a person recorded: its output is "
                "not what the batch made; compare a range without it",
                next=f"semel show {marker.batch_id}",
            )
        if marker.of_kind(Kind.REFUSED):
            raise TerminalError(
                f"the table refused rows of batch {marker.batch_id}, as a person accepted: its "
                "output is not what the batch made; compare a range without it",
                next=f"semel letters {spec.name} --batch {marker.batch_id}",
            )
        if marker.spec.record_id and marker.exact == spec.by_position:
            made = "exactly once" if marker.exact else "at least once"
            raise TerminalError(
                f"batch {marker.batch_id} was made {made}, and {spec.name} is declared "
                f"{spec.guarantee}: the batch path would drop other records; compare a range "
                "without it",
                next=listing,
            )
    return ChosenBatches(
        spec=spec,
        pipeline=pipeline,
        markers=tuple(sorted(found, key=lambda marker: marker.commit_seq)),
        claims=claims,
        split_bytes={r["batch_id"]: r["split_bytes"] for r in there},
    )


def find_claims(chosen: ChosenBatches) -> ChosenBatches:
    """The same, with the claims in the files that hold them now.

    SourceError: what a batch read is not there any more, or was changed.
    """
    source, claims = open_source(chosen.spec), {}
    for batch_id, own in chosen.claims.items():
        try:
            claims[batch_id] = source.find(own, batch_id)
        except SourceError as error:
            lead = "Compare" if error.lasting else "Or compare"
            raise SourceError(
                "the batch path cannot read again what the live path read: "
                f"{finalized_reason(error)}. {lead} a range without batch {batch_id}",
                next=f"semel batches {chosen.spec.name}" if error.lasting else AGAIN,
                lasting=error.lasting,
            ) from error
    return replace(chosen, claims=claims)
