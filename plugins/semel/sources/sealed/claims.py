"""Claims of parts: proven where they are, found under another name, and found for a lost ledger."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from semel.errors import AGAIN, ChangedError, CorruptionError, SourceError
from semel.model.batch import Claim
from semel.sources import GIVE_UP, Partition
from semel.sources.sealed.parts import Opens, SealedPart

_EVIDENCE = {"content": str, "stamp": str, "bytes": int}


# Keeps S6.
def find(source: Opens, claims: Collection[Claim], batch_id: int) -> list[Claim]:
    """The claims, proven, where their parts are now. SourceError names a part that is nowhere."""
    there: _Contents | None = None
    found = []
    for claim in claims:
        try:
            part = proven(source, claim, batch_id)
        except SourceError:
            if there is None:
                there = _Contents(source, source.below())
            part = next(there.of(claim), None)
            if part is None:
                raise
        evidence = claim.evidence | {"stamp": part.fingerprint}
        found.append(
            replace(claim, name=part.name, identity=part.identity, evidence=evidence)
        )
    return found


# Keeps S6.
def proven(source: Opens, claim: Claim, batch_id: int) -> SealedPart:
    """The part of a claim, under its name. ChangedError: it has other content by now. SourceError:
    it is away. CorruptionError: the claim says nothing of a part.

    Only a part that was touched since is read for that.
    """
    if {key: type(claim.evidence.get(key)) for key in _EVIDENCE} != _EVIDENCE:
        raise CorruptionError(
            f"the claim of {claim.name!r}, {source.context.declared.unit} {claim.start} to "
            f"{claim.end}, has no evidence of a whole file ({claim.evidence}); restore its marker"
        )
    try:
        part = source.now(claim.name)
        if part.fingerprint != claim.evidence["stamp"] and not _has_content(source, claim, part):
            raise changed(source, claim, batch_id)
    except OSError as error:
        raise unreadable(source, claim, batch_id, error) from error
    return part


def unreadable(source: Opens, claim: Claim, batch_id: int, error: OSError) -> SourceError:
    """The error for a part that cannot be looked at."""
    if why := source.removed(claim):
        return SourceError(
            f"{claim.name!r}, which batch {batch_id} has read, is gone: {why}", lasting=True
        )
    why = f"it cannot be read ({error.strerror})"
    return SourceError(_no_longer(source, claim, batch_id, why), next=AGAIN)


def changed(source: Opens, claim: Claim, batch_id: int) -> ChangedError:
    """The error for a part that has other content than was planned."""
    return ChangedError(_no_longer(source, claim, batch_id, "its content changed"))


def _no_longer(source: Opens, claim: Claim, batch_id: int, what: str) -> str:
    noun, unit = source.context.declared.part, source.context.declared.unit
    return (
        f"{claim.name!r} (partition {claim.source_partition_id}) is no longer what batch "
        f"{batch_id} planned: {what}; {unit} {claim.start} to {claim.end} of it are claimed. "
        f"Put the {noun} back. {GIVE_UP} instead (`semel abandon {batch_id}`): the next run reads "
        "what is there then"
    )


def _has_content(source: Opens, claim: Claim | Partition, part: SealedPart) -> bool:
    if part.length not in (None, claim.evidence.get("bytes")):
        return False
    return source.digest(part) == claim.evidence.get("content")


class _Contents:
    """Parts by their content. Those of one length are hashed when one of them is asked for, once.
    """

    def __init__(self, source: Opens, parts: Collection[SealedPart]) -> None:
        self._source = source
        self._by_length: dict[int, list[SealedPart]] = defaultdict(list)
        for part in parts:
            self._by_length[part.length].append(part)
        self._by_content: dict[tuple[int, str], list[SealedPart]] = defaultdict(list)

    def of(self, known: Claim | Partition) -> Iterator[SealedPart]:
        """The parts that have the content of a claim or a partition."""
        length, content = known.evidence.get("bytes"), known.evidence.get("content")
        for part in self._by_length.pop(length, ()):
            with suppress(OSError):
                self._by_content[length, self._source.digest(part)].append(part)
        return iter(self._by_content.get((length, content), ()))


def locate(
    source: Opens, there: list[SealedPart], partitions: list[Partition]
) -> list[Partition | None]:
    """As `Source.locate`: under the name, else by content. Of two that one part may be, the newer
    one gets it.
    """
    named, contents, taken = {part.name: part for part in there}, _Contents(source, there), set()
    placed: list[Partition | None] = []
    for known in reversed(partitions):
        part = named.get(known.name)
        if part in taken or not (part and _can_be(source, known, part)):
            part = next((part for part in contents.of(known) if part not in taken), None)
        taken.add(part)
        placed.append(part and _at(source, known, part))
    return placed[::-1]


def locate_by_name(
    source: Opens, there: Sequence[SealedPart], partitions: list[Partition]
) -> list[Partition | None]:
    """As `Source.locate`, where a name is a part's for ever. One with other content is refused by
    the next plan.
    """
    named = {part.name: part for part in there}
    return [
        replace(known, fingerprint=part.fingerprint)
        if (part := named.get(known.name)) and _can_be(source, known, part) else None
        for known in partitions
    ]  # fmt: skip


def _can_be(source: Opens, known: Partition, part: SealedPart) -> bool:
    """Whether a part has a partition's content; no, where it cannot be read."""
    with suppress(OSError, CorruptionError):
        return _has_content(source, known, part)
    return False


def _at(source: Opens, known: Partition, part: SealedPart) -> Partition:
    """A partition whose content a part has. A plan looks at it again: it is not settled."""
    seen = max(known.seen, known.reached)
    with suppress(OSError):
        seen = max(seen, source.look(part).rows)
    return replace(
        known,
        name=part.name,
        identity=part.identity,
        fingerprint=part.fingerprint,
        seen=seen,
    )
