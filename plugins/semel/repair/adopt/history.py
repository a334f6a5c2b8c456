"""The history of a batch whose ledger was lost: its outputs and claims, from its markers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from semel.archive.marker import Marker, generations, judging_output
from semel.errors import AGAIN, CorruptionError
from semel.model.batch import Claim

READ_AGAIN = (
    "A pipeline that reads this one (`type: pipeline`) without a record_id stops if it has read "
    "that batch: replace it by one with another name and sink"
)
"""The effect of moving a marker out, so that a run reads its records again."""


@dataclass(frozen=True, kw_only=True)
class History:
    """A batch. `outputs`: the markers of its generations, newest last.

    `previous`: for an admission, the batch whose dead letters it judged again. `claims`: the ranges
    that contain the batch's records. Those of an admission are its root's.
    """

    outputs: tuple[Marker, ...]
    previous: Marker | None
    claims: tuple[Claim, ...]

    @property
    def first(self) -> Marker:
        """The batch's first output. Its marker has the outcomes of the records."""
        return self.outputs[0]

    @property
    def newest(self) -> Marker:
        """The current output."""
        return self.outputs[-1]

    @property
    def replays(self) -> tuple[Marker, ...]:
        """The outputs of replays."""
        return self.outputs[1:]

    def judged_by(self, marker: Marker) -> int | None:
        """The batch whose verdicts an output uses. Returns None if it has verdicts of its own."""
        judge = judging_output([out for out in self.outputs if out.generation <= marker.generation])
        return None if judge is marker else judge.writer_id

    def own_claims(self, marker: Marker) -> list[Claim]:
        """The claims of an output that no earlier output has."""
        earlier = [output for output in self.outputs if output.generation < marker.generation]
        earlier_partitions = {c.source_partition_id for output in earlier for c in output.claims}
        return [c for c in marker.claims if c.source_partition_id not in earlier_partitions]


# Keeps D2.
def histories(markers: Sequence[Marker]) -> list[History]:
    """The batches of the markers, in the same order.

    Raises CorruptionError if the marker of a replaced output is missing, damaged or another
    batch's, or if an admission judged dead letters of a batch without a marker.
    """
    by_number = {marker.batch_id: marker for marker in markers}
    admissions = {(m.admits.batch_id, m.admits.admission): m for m in markers if m.admits}
    batches = []
    for marker in markers:
        previous, claims = None, marker.claims
        if marker.admits:
            root, number = marker.admits.batch_id, marker.admits.admission
            previous = admissions.get((root, number - 1)) if number > 1 else by_number.get(root)
            if previous is None or root not in by_number or admissions[root, number] is not marker:
                raise CorruptionError(
                    f"{marker.path}: this marker is of admission {number} of batch {root}. The "
                    "marker of that batch or of an earlier admission is missing, or another marker "
                    "has the same admission. Nothing was adopted. Restore these markers from a "
                    "backup. Or move all of them out of the archive, and the next run reads their "
                    f"records again. {READ_AGAIN}",
                    next=AGAIN,
                )
            claims = by_number[root].claims
        outputs = tuple(_outputs(marker))
        batches.append(History(outputs=outputs, previous=previous, claims=claims))
    return batches


def _outputs(marker: Marker) -> list[Marker]:
    try:
        outputs = generations(marker)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}. It is the copy from before a replay of batch {marker.batch_id}. Or move "
            f"{marker.path} out of the archive, with this batch's files in "
            f"{marker.archive / 'replaced'}: the next run reads its records again. {READ_AGAIN}",
            next=AGAIN,
        ) from error
    for output in outputs:
        if not output.counts.add_up:
            raise CorruptionError(
                f"{output.path}: the counts of this marker do not add up. Nothing was adopted. "
                "Restore it from a backup",
                next=AGAIN,
            )
    for old, newer in pairwise(outputs):
        same = ("pipeline", "fence", "commit_seq", "batch_time", "admits")
        if marker.spec.record_id or old.claims == newer.claims:
            same += ("input_digest", "claims")
        if any(getattr(old, name) != getattr(newer, name) for name in same):
            raise CorruptionError(
                f"{old.path} and {marker.path}: these markers have the same batch number, but are "
                "of different batches. Nothing was adopted. Restore the right ones from a backup",
                next=AGAIN,
            )
    return outputs
