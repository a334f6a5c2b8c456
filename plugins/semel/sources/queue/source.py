"""A queue as a source: a source partition is a segment of the pipeline's spool, and a position the
number of a message in it.

The queue itself is not asked: what is here was acknowledged, and the queue has it no more.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import xxhash

from semel.declare.context import Context
from semel.errors import AGAIN, CorruptionError, SourceError
from semel.model.batch import Claim
from semel.sources import (
    Evidence,
    LedgerView,
    ExecutorCheck,
    MatchResult,
    Partition,
    Refusal,
    RefusedError,
    Window,
    Acceptance,
)
from semel.sources.queue import probe, records
from semel.sources.queue.segment import read_foot, read_head, whole_messages
from semel.sources.queue.spec import UNKNOWN
from semel.sources.queue.spool import Spool
from semel.sources.sealed import claims
from semel.sources.sealed.matching import refusal, unreadable
from semel.sources.sealed.parts import PartListing, Looked, SealedPart, PartOffer
from semel.sources.sealed.source import SealedSource
from semel.storage import checksum

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split

SPLIT_MESSAGES = 200_000
"""Messages that one task reads: some 200 MB of them."""

_HASHED_BYTES = 1 << 20

_ONLY_COPY = (
    "The queue has its messages no more: restore it from a backup; or move it out of the spool, "
    "and have its messages published again"
)


def opened(context: Context) -> "Segments":
    """The spool of a pipeline."""
    return Segments(context=context, spool=Spool(context.declared.spool_of(context.name)))


@dataclass(frozen=True, kw_only=True)
class Segments(SealedSource):
    """`source: {type: nats}`, and all other queues. Whatever lies in `sealed` is a segment."""

    context: Context
    spool: Spool

    split_size: ClassVar[int] = SPLIT_MESSAGES

    @property
    def sealed(self) -> Path:
        """The folder of the segments that can be read."""
        return self.spool.sealed

    # Keeps Q2.
    def discover(self) -> PartListing:
        """As in `Source`; what dead receivers left is sealed before."""
        recovered = self.spool.recover(lambda _: None)
        found, notes = [], tuple(recovered.told())
        refused = [
            Refusal(name=str(path), reason="damaged", detail=why)
            for path, why in recovered.damaged.items()
        ]
        try:
            names = sorted(os.listdir(self.sealed))
        except (FileNotFoundError, NotADirectoryError):
            return PartListing(items=[], refusals=[self._missing()], complete=False, notes=notes)
        except OSError as error:
            why = f"{error.strerror}; give the reader access"
            refused.append(Refusal(name=str(self.sealed), reason="unreadable", detail=why))
            return PartListing(items=[], refusals=refused, complete=False, notes=notes)
        for name in names:
            try:
                name.encode()
                found.append(self.now(name))
            except UnicodeEncodeError:
                why = "its name is no UTF-8; give it another one, whatever it is"
                refused.append(Refusal(name=ascii(name), reason="unreadable", detail=why))
            except OSError as error:
                if isinstance(error, FileNotFoundError) and not os.path.lexists(self.sealed / name):
                    continue  # Collect has removed it meanwhile.
                part = SealedPart(name=name, identity="", fingerprint="", when=None)
                refused.append(unreadable(part, error))
        complete = len(refused) == len(recovered.damaged)
        return PartListing(items=found, refusals=refused, complete=complete, notes=notes)

    def _missing(self) -> Refusal:
        name = self.context.name
        return Refusal(
            name=str(self.spool.path),
            reason="missing",
            detail=f"nothing was received on this machine yet, or the spool is on another one, or "
            f"not mounted: `semel receive {name}` makes it; else mount it, or correct source.spool",
        )

    # Keeps Q7.
    def match(self, shown: PartListing, known: LedgerView, window: Window) -> MatchResult:
        """As in `Source`. A spool that has nothing of what has to be there is another one."""
        found = super().match(shown, known, window)
        offers, others = self._addressed(self._brought_back(found.offers, known), known)
        found = replace(found, offers=offers, refusals=[*found.refusals, *others])
        # Also one of which nothing is taken now is missed when it is gone: it is the only copy.
        begun = [offer for offer in found.offers if offer.partition is None]
        found = replace(found, new_partition_offers=[*begun, *self._damaged(found, known)])
        if not shown.complete or any(o.partition and o.partition.reached for o in found.offers):
            return found
        names, identities = ([getattr(p, k) for p in shown.items] for k in ("name", "identity"))
        for newest in known.query("sealed", "newest", names=names, identities=identities):
            # Its name and its age prove nothing: collect may have been another machine's.
            if not (newest["there"] or self.spool.was_removed(newest["content"] or "-")):
                # What is not in another spool is not gone.
                there = [gone for gone in found.lost_ranges if gone.partition.name in names]
                refused = [*found.refusals, self._another(newest["name"])]
                return replace(found, lost_ranges=there, refusals=refused)
        return found

    def _brought_back(self, offers: list[PartOffer], known: LedgerView) -> list[PartOffer]:
        """The same; of one that was gone, and of which nothing was read, the name tells that it is
        back: no content of it is known.
        """
        gone = {refusal.name for refusal in known.refusals if refusal.reason == "gone"}
        names = [offer.name for offer in offers if offer.partition is None and offer.name in gone]
        if not names:
            return offers
        closed = [Partition(**row) for row in known.query("sealed", "closed", names=names)]
        missed = {k.name: k for k in closed if not (k.reached or k.evidence.get("content"))}
        return [
            replace(offer, partition=offer.partition or missed.get(offer.name)) for offer in offers
        ]

    # Keeps Q4.
    def _addressed(
        self, offers: list[PartOffer], known: LedgerView
    ) -> tuple[list[PartOffer], list[Refusal]]:
        """The same, each with the address that its ids get; of those that get none nothing is
        offered, and the refusals say why.
        """
        newest = known.query("sealed", "address") if offers else []
        last = (newest[0]["address"] or UNKNOWN) if newest else None
        found, refused = [], []
        for offer in offers:
            evidence = dict(offer.evidence)
            address = segment = evidence.pop("address", None)
            if offer.partition and offer.partition.reached:  # As the batch before took it.
                address = offer.partition.evidence.get("address")
            elif segment:
                address = self.context.declared.id_address(segment, last)
                if address is None:
                    refused.append(refusal(offer.part, "other stream", _another(segment, last)))
                    offer = replace(offer, end=0, settled=False)
            evidence |= {"address": address} if address else {}
            found.append(replace(offer, evidence=evidence))
        return found, refused

    def _damaged(self, found: MatchResult, known: LedgerView) -> Iterator[PartOffer]:
        """The segments that are refused as damaged for the first time. Nothing of them is offered,
        but with a source partition each is missed when it is gone.
        """
        damaged = {refusal.name for refusal in found.refusals if refusal.reason == "damaged"}
        damaged -= {partition.name for partition in known.partitions}
        for part in known.unsettled:
            if part.name in damaged:
                with suppress(OSError), self._steady(part) as path:
                    messages = whole_messages(path)
                    yield PartOffer(
                        name=part.name, identity=part.identity, fingerprint=part.fingerprint,
                        partition=None, seen=messages, ahead=messages, settled=False, part=part,
                        length=part.length, content=None,
                    )  # fmt: skip

    def _another(self, name: str) -> Refusal:
        return Refusal(
            name=str(self.spool.path),
            reason="missing",
            detail=f"no segment that was read is here, and collect has not removed {name!r} from "
            "it: this is a new spool, or another machine's, and messages of the right one may be "
            "unread. Mount that, or correct source.spool; where it is lost, run with "
            "source.on_refused: warn until a run has read something of this one",
        )

    def now(self, name: str) -> SealedPart:
        found = os.stat(self.sealed / name)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file; move it out of the spool")
        return _part(name, found)

    def look(self, part: SealedPart) -> Looked:
        try:
            with self._steady(part) as path:
                head, foot = read_head(path), read_foot(path)
        except CorruptionError as error:
            why = f"{error}. {_ONLY_COPY}"
            return Looked(part=part, length=part.length, refused=refusal(part, "damaged", why))
        refused = None
        if head.pipeline != self.context.name:
            place = Spool(self.spool.path.parent / head.pipeline).sealed
            why = f"its messages were received for pipeline {head.pipeline!r}; move it to {place}"
            refused = refusal(part, "foreign", why)
        return Looked(
            part=part, length=part.length, key=foot.digest, rows=foot.messages, refused=refused,
            evidence={"address": head.address},
        )  # fmt: skip

    def accept(
        self,
        shown: PartListing,
        known: LedgerView,
        name: str,
        *,
        same: bool,
        start: int,
        is_open: bool,
    ) -> Acceptance | None:
        word = super().accept(shown, known, name, same=same, start=start, is_open=is_open)
        if word is not None:
            (offer,), refused = self._addressed([word.offer], known)
            if refused:
                raise RefusedError(refused[0])
            word = replace(word, offer=offer)
        return word

    # Keeps Q3.
    def evidence(self, offer: PartOffer, end: int) -> Evidence:
        """As in `Source`; a segment is claimed only if its bytes are those that its foot counts."""
        if not offer.refused:
            try:
                with self._steady(offer.part) as path:
                    whole, content = _read_whole(path)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise RefusedError(unreadable(offer.part, error)) from error
            except CorruptionError:
                whole = False
            if not whole:
                why = f"its bytes are not those that were sealed. {_ONLY_COPY}"
                raise RefusedError(refusal(offer.part, "damaged", why))
            offer = replace(offer, content=content)
        return super().evidence(offer, end)

    def digest(self, part: SealedPart) -> str:
        with self._steady(part) as path:
            return checksum(path)

    # Keeps Q5.
    def removed(self, claim: Claim) -> str | None:
        gone = self.spool.was_removed(claim.evidence["content"])
        return "collect has removed it, as source.keep_spool was over" if gone else None

    # Keeps P19.
    @contextmanager
    def _steady(self, part: SealedPart) -> Iterator[Path]:
        """The file of a part, to be read in the block. FileNotFoundError: another one is there, or
        it was written to.
        """
        for at_end in (False, True):
            if self.now(part.name).fingerprint != part.fingerprint:
                raise FileNotFoundError(part.name)
            if not at_end:
                yield self.sealed / part.name

    # Keeps S6, Q3.
    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        claim = split.claim
        part = claims.proven(self, claim, batch_id)
        digest.update(claim.evidence["content"].encode())
        address = claim.evidence.get("address")
        try:
            with self._steady(part) as path:
                yield from records.blocks(
                    self.context, path, split.start, split.end, address, selection
                )
        except FileNotFoundError as error:
            raise claims.changed(self, claim, batch_id) from error
        except CorruptionError as error:
            raise SourceError(f"{claim.name!r}: {error}. {_ONLY_COPY}", next=AGAIN) from error

    def probe(self) -> tuple[str, ExecutorCheck]:
        return probe.of_spool(self.context, self.sealed)

    def check_service(self, horizon: timedelta) -> str:
        return probe.of_service(self.context, horizon)

    # Keeps Q5.
    def archive_part(self, known: Partition) -> bool:
        """Remove a segment. It is finalized, and stayed for source.keep_spool."""
        try:
            if self.now(known.name).fingerprint != known.fingerprint:
                return False
            self.spool.remove(known.name, known.evidence["content"])
        except FileNotFoundError:
            return False  # Another collect was faster, or somebody moved it.
        except OSError as error:
            raise SourceError(
                f"{known.name!r} is finalized, and was left in the spool: {error.strerror}; this "
                f"user must be able to write to {str(self.sealed)!r}",
            ) from error
        return True


def _part(name: str, found: os.stat_result) -> SealedPart:
    """A file as a part. What it is known by holds all that changes when it is written again."""
    stamp = f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"
    return SealedPart(
        name=name,
        identity=f"{found.st_dev}:{stamp}",
        fingerprint=f"{stamp}:{found.st_ctime_ns}",
        length=found.st_size,
        when=None,
    )


def _another(segment: str, last: str) -> str:
    before = last or "a stream that an older semel did not write down"
    return (
        f"it has messages of {segment}, and the last ones that were read are of {before}. Declare "
        "source.address: the old stream's name, if this stream has its messages under their "
        "numbers (a mirror, a backup); else the name of this one"
    )


def _read_whole(path: Path) -> tuple[bool, str]:
    """Whether the bytes before a segment's foot are those that it counts, and the digest of all its
    bytes, in one pass. CorruptionError: it has no foot.
    """
    foot, state = read_foot(path), xxhash.xxh3_128()
    with open(path, "rb") as file:
        left = foot.at
        while left and (data := file.read(min(left, _HASHED_BYTES))):
            state.update(data)
            left -= len(data)
        whole = state.hexdigest() == foot.digest
        state.update(file.read())
    return whole, state.hexdigest()
