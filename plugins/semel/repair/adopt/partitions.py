"""Rebuild the source partitions of a lost ledger, from claims and from the source."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from semel.archive.marker import Marker
from semel.model.batch import Claim
from semel.sources import Partition, Source


@dataclass(frozen=True, kw_only=True)
class Adoptee:
    """A source partition to take over. `located`: the source has reported its current place.

    It is closed if another partition now has its name or its identity.
    """

    partition: Partition
    located: bool

    def current_claim(self, claim: Claim) -> Claim:
        """A claim of this partition, at its current place."""
        if not self.located:
            return claim
        return replace(claim, name=self.partition.name, identity=self.partition.identity)


def partitions_of(source: Source, markers: Iterable[Marker]) -> list[Adoptee]:
    """The source partitions in the claims of markers, ordered by number."""
    claims: dict[int, list[Claim]] = defaultdict(list)
    for marker in sorted(markers, key=lambda marker: (marker.batch_id, marker.generation)):
        for claim in marker.claims:
            claims[claim.source_partition_id].append(claim)
    generations: dict[str, int] = defaultdict(int)
    known_partitions = []
    for number in sorted(claims):
        part = _last_known(number, claims[number])
        generations[part.name] += 1
        known_partitions.append(replace(part, generation=generations[part.name]))
    places = zip(known_partitions, source.locate(known_partitions), strict=True)
    return _close_conflicts(
        [Adoptee(partition=now or was, located=now is not None) for was, now in places]
    )


def _last_known(number: int, claims: list[Claim]) -> Partition:
    """A partition as its claims describe it: the last claim has its name, the farthest one its end.

    Its fingerprint is lost.
    """
    last, farthest = claims[-1], max(claims, key=lambda claim: claim.end)
    return Partition(
        source_partition_id=number,
        name=last.name,
        generation=1,
        identity=last.identity,
        fingerprint="",
        settled=False,
        reached=farthest.end,
        seen=farthest.end,
        evidence=farthest.evidence,
        closed=False,
    )


def _close_conflicts(placed: list[Adoptee]) -> list[Adoptee]:
    """Close partitions that conflict with another: names and identities are each unique."""
    names: set[str] = set()
    identities: set[str] = set()
    closed: set[int] = set()
    # Partitions that the source located go first, then newer ones.
    for part in sorted(placed, key=lambda p: (not p.located, -p.partition.source_partition_id)):
        partition = part.partition
        if partition.name in names or partition.identity in identities:
            closed.add(partition.source_partition_id)
        else:
            names.add(partition.name)
            identities.add(partition.identity)
    return [
        replace(p, partition=replace(p.partition, closed=p.partition.source_partition_id in closed))
        for p in placed
    ]
