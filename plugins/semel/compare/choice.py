"""Chooses the batches of a range, with markers and claims, or refuses to compare them."""

from collections import defaultdict
from dataclasses import dataclass, replace

from semel import storage
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
from semel.stage.replayed import packed


@dataclass(frozen=True, kw_only=True)
class ChosenBatches:
    """Finalized batches in the order of their commits, each with its admissions. By batch:
    `claims`, in the files that have them now, and `split_bytes`. Admissions do not have claims.
    """

    spec: Spec
    pipeline: Pipeline
    markers: tuple[Marker, ...]
    claims: dict[int, list[Claim]]
    split_bytes: dict[int, int]

    @property
    def batches(self) -> tuple[int, ...]:
        """The ids of the batches."""
        return tuple(marker.batch_id for marker in self.markers)

    def claims_of(self, marker: Marker) -> tuple[Claim, ...]:
        """The claims with a batch's records. An admission has those of its root."""
        return tuple(self.claims[marker.admits.batch_id if marker.admits else marker.batch_id])

    def judges_last(self, marker: Marker) -> bool:
        """True if no admission has judged its dead letters again."""
        root = marker.admits.batch_id if marker.admits else marker.batch_id
        later = [m.batch_id for m in self.markers if m.admits and m.admits.batch_id == root]
        return marker.batch_id == max(later, default=root)


def choose_batches(ledger: Ledger, spec: Spec, wanted: BatchRange) -> ChosenBatches:
    """The finalized batches of a range.

    Raises StateError if a batch of the range is not finalized yet, TerminalError if the range is
    empty or its batches are not comparable.
    """
    listing = f"semel batches {spec.name}"
    if spec.sink.replaces_rows:
        raise TerminalError(
            f"{spec.name} writes with mode: upsert. Later batches have replaced rows of earlier "
            "ones, so compare cannot see the rows of one batch. Audit the pipeline instead",
            next=f"semel audit {spec.name}",
        )
    by = "interval" if spec.source.select is Select.INTERVAL else "time"
    values = {**vars(wanted), "by": by if wanted.first is None else "number"}
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
        batches = []
        if pipeline is not None:
            values["pipeline_id"] = pipeline.pipeline_id
            batches = rows(connection, "compare", "batches", **values)
        numbers = [r["batch_id"] for r in batches]
        claim_rows = rows(connection, "compare", "claims", batches=numbers) if numbers else []
        # Read after the claims, because collect may pack some meanwhile.
        again = rows(connection, "compare", "batches", **values) if numbers else []
        packed_now = {r["batch_id"] for r in again if r["packed_in"]}
    if pipeline is None or not batches:
        what = {"interval": "interval", "time": "commit time", "number": "id"}[values["by"]]
        raise TerminalError(
            f"{spec.name} has no finalized batch whose {what} is in the range {wanted}",
            next=listing,
        )
    for batch in batches:
        if batch["batch_id"] in packed_now:
            raise packed(batch["batch_id"])
        if batch["status"] != BatchStatus.FINALIZED:
            raise StateError(
                f"batch {batch['batch_id']} of {spec.name} is in the range, but its status is "
                f"{batch['status']}. Finalize or abandon it, then compare again",
                next=f"semel show {batch['batch_id']}",
            )
        if batch["replay"] is not None:
            raise StateError(
                f"batch {batch['replay']} is replaying batch {batch['batch_id']} of {spec.name}. "
                "Finalize or abandon the replay, then compare again",
                next=f"semel show {batch['replay']}",
            )
    claims: dict[int, list[Claim]] = defaultdict(list)
    for r in claim_rows:
        claims[r["batch_id"]].append(Claim.from_row(r))
    root = storage.at(pipeline.archive_path)
    markers = [read_marker(layout.marker(root, n), spec.sink_path()) for n in numbers]
    for marker in markers:
        if marker.erased:
            raise TerminalError(
                f"an operator has recorded an erasure in batch {marker.batch_id}, so its output is "
                "no longer complete. Compare a range without it",
                next=f"semel show {marker.batch_id}",
            )
        if marker.of_kind(Kind.REFUSED):
            raise TerminalError(
                f"the table refused rows of batch {marker.batch_id}, and an operator accepted "
                "that, so its output is not complete. Compare a range without it",
                next=f"semel letters {spec.name} --batch {marker.batch_id}",
            )
        if marker.spec.record_id and marker.exact == spec.by_position:
            guarantee = "exactly once" if marker.exact else "at least once"
            raise TerminalError(
                f"semel wrote batch {marker.batch_id} {guarantee}, but {spec.name} declares "
                f"{spec.guarantee}, so the batch path would drop other records. Compare a range "
                "without it",
                next=listing,
            )
    return ChosenBatches(
        spec=spec,
        pipeline=pipeline,
        markers=tuple(sorted(markers, key=lambda marker: marker.commit_seq)),
        claims=claims,
        split_bytes={r["batch_id"]: r["split_bytes"] for r in batches},
    )


def find_claims(chosen: ChosenBatches) -> ChosenBatches:
    """The same batches, with their claims in the files that have them now.

    Raises SourceError if the source of a batch is gone or has changed.
    """
    source, claims = open_source(chosen.spec), {}
    for batch_id, of_batch in chosen.claims.items():
        try:
            claims[batch_id] = source.find(of_batch, batch_id)
        except SourceError as error:
            lead = "Compare" if error.lasting else "Or compare"
            raise SourceError(
                "the batch path cannot read the source of the live path again: "
                f"{finalized_reason(error)}. {lead} a range without batch {batch_id}",
                next=f"semel batches {chosen.spec.name}" if error.lasting else AGAIN,
                lasting=error.lasting,
            ) from error
    return replace(chosen, claims=claims)
