"""Proves claims of parts, and finds their parts again: after a rename, or for a lost ledger."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from semel.errors import AGAIN, ChangedError, CorruptionError, SourceError
from semel.model.batch import Claim
from semel.sources import GIVE_UP, Partition
from semel.sources.sealed.parts import PartAccess, SealedPart

_EVIDENCE = {"content": str, "stamp": str, "bytes": int}


# Keeps S6.
def find_claims(source: PartAccess, claims: Collection[Claim], batch_id: int) -> list[Claim]:
    """Prove the claims, and return them with the current names of their parts. Raises SourceError
    with the name of a part that no name has.
    """
    candidates: _PartsByContent | None = None
    located = []
    for claim in claims:
        try:
            part = prove_claim(source, claim, batch_id)
        except SourceError:
            if candidates is None:
                candidates = _PartsByContent(source, source.find_candidates())
            part = next(candidates.matching(claim), None)
            if part is None:
                raise
        evidence = claim.evidence | {"stamp": part.fingerprint}
        located.append(
            replace(claim, name=part.name, identity=part.identity, evidence=evidence)
        )
    return located


# Keeps S6.
def prove_claim(source: PartAccess, claim: Claim, batch_id: int) -> SealedPart:
    """The part of a claim, under its name. Raises ChangedError if its content changed, SourceError
    if it is missing, CorruptionError if the claim lacks the evidence of a part.

    Reads the part only if its fingerprint changed since it was claimed.
    """
    if {key: type(claim.evidence.get(key)) for key in _EVIDENCE} != _EVIDENCE:
        raise CorruptionError(
            f"the claim of {claim.name!r}, {source.context.declared.unit} {claim.start} to "
            f"{claim.end}, lacks the evidence of its content ({claim.evidence}). Restore its marker"
        )
    try:
        part = source.current_part(claim.name)
        if part.fingerprint != claim.evidence["stamp"] and not _has_content(source, claim, part):
            raise changed_error(source, claim, batch_id)
    except OSError as error:
        raise unreadable_error(source, claim, batch_id, error) from error
    return part


def unreadable_error(
    source: PartAccess, claim: Claim, batch_id: int, error: OSError
) -> SourceError:
    """The error for a part that cannot be read."""
    if why := source.removal_reason(claim):
        return SourceError(
            f"{claim.name!r}, which batch {batch_id} has read, was removed: {why}", lasting=True
        )
    why = f"it cannot be read ({error.strerror})"
    return SourceError(_describe_change(source, claim, batch_id, why), next=AGAIN)


def changed_error(source: PartAccess, claim: Claim, batch_id: int) -> ChangedError:
    """The error for a part whose content changed since the plan."""
    return ChangedError(_describe_change(source, claim, batch_id, "its content changed"))


def _describe_change(source: PartAccess, claim: Claim, batch_id: int, what: str) -> str:
    noun, unit = source.context.declared.part, source.context.declared.unit
    return (
        f"{claim.name!r} (partition {claim.source_partition_id}) is no longer what batch "
        f"{batch_id} planned: {what}; {unit} {claim.start} to {claim.end} of it are claimed. "
        f"Put the {noun} back. {GIVE_UP} instead (`semel abandon {batch_id}`): the next run reads "
        "what is there then"
    )


def _has_content(source: PartAccess, claim: Claim | Partition, part: SealedPart) -> bool:
    if part.length not in (None, claim.evidence.get("bytes")):
        return False
    return source.digest(part) == claim.evidence.get("content")


class _PartsByContent:
    """Parts by their content. Hashes the parts of a length once, when a claim has that length."""

    def __init__(self, source: PartAccess, parts: Collection[SealedPart]) -> None:
        self._source = source
        self._by_length: dict[int, list[SealedPart]] = defaultdict(list)
        for part in parts:
            self._by_length[part.length].append(part)
        self._by_content: dict[tuple[int, str], list[SealedPart]] = defaultdict(list)

    def matching(self, original: Claim | Partition) -> Iterator[SealedPart]:
        """The parts that have the content of a claim or a partition."""
        length, content = original.evidence.get("bytes"), original.evidence.get("content")
        for part in self._by_length.pop(length, ()):
            with suppress(OSError):
                self._by_content[length, self._source.digest(part)].append(part)
        return iter(self._by_content.get((length, content), ()))


def locate_by_content(
    source: PartAccess, parts: list[SealedPart], partitions: list[Partition]
) -> list[Partition | None]:
    """As `Source.locate`: by name, else by content. If two partitions match one part, the newer
    partition gets it.
    """
    named, contents = {part.name: part for part in parts}, _PartsByContent(source, parts)
    assigned: set[SealedPart | None] = set()
    located: list[Partition | None] = []
    for partition in reversed(partitions):
        part = named.get(partition.name)
        if part in assigned or not (part and _may_have_content(source, partition, part)):
            part = next((p for p in contents.matching(partition) if p not in assigned), None)
        assigned.add(part)
        located.append(part and _place(source, partition, part))
    return located[::-1]


def locate_by_name(
    source: PartAccess, parts: Sequence[SealedPart], partitions: list[Partition]
) -> list[Partition | None]:
    """As `Source.locate`, for parts that never change their name. The next plan refuses a part
    whose content changed.
    """
    named = {part.name: part for part in parts}
    return [
        replace(partition, fingerprint=part.fingerprint)
        if (part := named.get(partition.name)) and _may_have_content(source, partition, part)
        else None
        for partition in partitions
    ]  # fmt: skip


def _may_have_content(source: PartAccess, partition: Partition, part: SealedPart) -> bool:
    """Whether a part has a partition's content. False if it cannot be read."""
    with suppress(OSError, CorruptionError):
        return _has_content(source, partition, part)
    return False


def _place(source: PartAccess, partition: Partition, part: SealedPart) -> Partition:
    """A partition under the name of its part. It is not settled, so the next plan inspects it."""
    rows_seen = max(partition.seen, partition.reached)
    with suppress(OSError):
        rows_seen = max(rows_seen, source.inspect(part).rows)
    return replace(
        partition,
        name=part.name,
        identity=part.identity,
        fingerprint=part.fingerprint,
        seen=rows_seen,
    )
