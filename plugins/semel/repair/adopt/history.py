"""The history of a batch whose ledger was lost, from markers: its outputs, and what it read."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from semel.archive.marker import Marker, generations, judged
from semel.errors import AGAIN, CorruptionError
from semel.model.batch import Claim

READ_AGAIN = (
    "A pipeline that has read that batch (`type: pipeline`), without a record_id, begins no new "
    "batch from then on: declare one of another name and sink in its place"
)
"""The consequence of moving a marker aside, whose records are then read again."""


@dataclass(frozen=True, kw_only=True)
class History:
    """A batch. `outputs`: the markers of its generations, newest last.

    `before`: for an admission, the batch that left it its dead letters. `claims`: the ranges that
    contain its records: its own, or those of the batch that it admits.
    """

    outputs: tuple[Marker, ...]
    before: Marker | None
    claims: tuple[Claim, ...]

    @property
    def first(self) -> Marker:
        """The batch's own output. Its marker gives the outcomes of the records."""
        return self.outputs[0]

    @property
    def newest(self) -> Marker:
        """The current output."""
        return self.outputs[-1]

    @property
    def replays(self) -> tuple[Marker, ...]:
        """The outputs that replays made."""
        return self.outputs[1:]

    def judged_by(self, marker: Marker) -> int | None:
        """The batch whose verdicts an output takes. None: its own."""
        judge = judged([one for one in self.outputs if one.generation <= marker.generation])
        return None if judge is marker else judge.made_by

    def own_claims(self, marker: Marker) -> list[Claim]:
        """What the batch of an output claimed itself."""
        before = [one for one in self.outputs if one.generation < marker.generation]
        known = {c.source_partition_id for one in before for c in one.claims}
        return [c for c in marker.claims if c.source_partition_id not in known]


# Keeps D2.
def histories(found: Sequence[Marker]) -> list[History]:
    """The batches of these markers, in the same order.

    CorruptionError: the marker of a replaced output is gone, damaged or another batch's; or an
    admission judged dead letters that no marker mentions.
    """
    of = {marker.batch_id: marker for marker in found}
    admissions = {(m.admits.batch_id, m.admits.admission): m for m in found if m.admits}
    made = []
    for marker in found:
        before, claims = None, marker.claims
        if marker.admits:
            root, number = marker.admits.batch_id, marker.admits.admission
            before = admissions.get((root, number - 1)) if number > 1 else of.get(root)
            if before is None or root not in of or admissions[root, number] is not marker:
                raise CorruptionError(
                    f"the marker {marker.path} is of admission {number} of batch {root}, whose "
                    "dead letters it judged again, and the marker of that batch or of an "
                    "admission before is gone, or there are two of this one. Restore them from a "
                    f"backup, or move all of them aside: then their records are read again. {READ_AGAIN}",
                    next=AGAIN,
                )
            claims = of[root].claims
        outputs = tuple(_outputs(marker))
        made.append(History(outputs=outputs, before=before, claims=claims))
    return made


def _outputs(marker: Marker) -> list[Marker]:
    try:
        found = generations(marker)
    except CorruptionError as error:
        raise CorruptionError(
            f"{error}. It was kept aside when batch {marker.batch_id} was replayed. Or move "
            f"{marker.path} aside, and what is left of {marker.archive / 'replaced'} for that "
            f"batch: then its records are read again by the pipeline's next run. {READ_AGAIN}",
            next=AGAIN,
        ) from error
    for one in found:
        if not one.counts.add_up:
            raise CorruptionError(
                f"the counts in {one.path} do not add up; restore it from a backup", next=AGAIN
            )
    for old, after in pairwise(found):
        same = ("pipeline", "fence", "commit_seq", "batch_time", "admits")
        if marker.spec.record_id or old.claims == after.claims:
            same += ("input_digest", "claims")
        if any(getattr(old, name) != getattr(after, name) for name in same):
            raise CorruptionError(
                f"{old.path} and {marker.path} are of one number, and not of one batch; restore "
                "the right ones from a backup",
                next=AGAIN,
            )
    return found
