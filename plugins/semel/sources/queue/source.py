"""A queue as a source: a source partition is a segment of the pipeline's spool, and a position is
the number of a message in the segment.

Plan and stage never contact the queue: receive has acknowledged these messages, so the queue no
longer has them.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
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
    Acceptance,
    Evidence,
    ExecutorCheck,
    LedgerView,
    MatchResult,
    Partition,
    Refusal,
    RefusedError,
    Window,
)
from semel.sources.queue import probe, records
from semel.sources.queue.segment import count_whole_messages, read_foot, read_head
from semel.sources.queue.spec import UNKNOWN
from semel.sources.queue.spool import Spool
from semel.sources.sealed import claims
from semel.sources.sealed.matching import refusal, unreadable_refusal
from semel.sources.sealed.parts import PartInspection, PartListing, PartOffer, SealedPart
from semel.sources.sealed.source import SealedSource
from semel.storage import ArchivePath, StorePath, checksum, each, local_file, remedy

if TYPE_CHECKING:
    from semel.clients.objects import Object
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split

SPLIT_MESSAGES = 200_000
"""Messages that one task reads: some 200 MB."""

_CHUNK_BYTES = 1 << 20

_ONLY_COPY = (
    "The queue no longer has its messages. Restore it from a backup; or move it out of the spool "
    "and have its messages published again"
)


def opened(context: Context) -> "Segments":
    """The spool of a pipeline."""
    return Segments(context=context, spool=Spool(context.declared.spool_of(context.name)))


@dataclass(frozen=True, kw_only=True)
class Segments(SealedSource):
    """`source: {type: nats}` and all other queues. Every file in `sealed` counts as a segment."""

    context: Context
    spool: Spool

    split_size: ClassVar[int] = SPLIT_MESSAGES

    @property
    def sealed(self) -> ArchivePath:
        """The folder of the segments that can be read."""
        return self.spool.sealed

    # Keeps Q2.
    def discover(self) -> PartListing:
        """As in `Source`, after sealing the parts of dead receivers."""
        recovered = self.spool.recover(lambda _: None)
        parts, notes = [], tuple(recovered.describe())
        refused = [
            Refusal(name=str(path), reason="damaged", detail=why)
            for path, why in recovered.damaged.items()
        ]
        if isinstance(self.sealed, StorePath):
            return self._list_store()
        try:
            names = sorted(os.listdir(self.sealed))
        except (FileNotFoundError, NotADirectoryError):
            return PartListing(items=[], refusals=[self._missing()], complete=False, notes=notes)
        except OSError as error:
            why = f"{error.strerror}. Give this user access"
            refused.append(Refusal(name=str(self.sealed), reason="unreadable", detail=why))
            return PartListing(items=[], refusals=refused, complete=False, notes=notes)
        for name in names:
            try:
                name.encode()
                parts.append(self.current_part(name))
            except UnicodeEncodeError:
                why = "its name is not UTF-8. Rename it"
                refused.append(Refusal(name=ascii(name), reason="unreadable", detail=why))
            except OSError as error:
                if isinstance(error, FileNotFoundError) and not os.path.lexists(self.sealed / name):
                    continue  # Collect has removed it meanwhile.
                part = SealedPart(name=name, identity="", fingerprint="", when=None)
                refused.append(unreadable_refusal(part, error))
        complete = len(refused) == len(recovered.damaged)
        return PartListing(items=parts, refusals=refused, complete=complete, notes=notes)

    def _list_store(self) -> PartListing:
        folder = f"{self.sealed.key}/"
        try:
            pages = list(self.sealed.store.list(self.sealed.key))
            unsealed = self.spool.open.names()
        except PermissionError as error:
            why = f"{error.strerror}. {remedy(self.spool.path)}"
            refused = [Refusal(name=str(self.sealed), reason="unreadable", detail=why)]
            return PartListing(items=[], refusals=refused, complete=False)
        items = [item for page in pages for item in page if item.key.startswith(folder)]
        parts = [_stored_part(item.key.removeprefix(folder), item) for item in items]
        if not parts and not self.spool.has_begun():
            return PartListing(items=[], refusals=[self._missing()], complete=False)
        refused = [
            Refusal(name=str(self.spool.open / name), reason="damaged", detail=_NOT_SEALED)
            for name in unsealed
            if name.endswith(".part")
        ]
        return PartListing(items=parts, refusals=refused, complete=True)

    def _missing(self) -> Refusal:
        command = f"`semel receive {self.context.name}`"
        why = (
            "the spool is missing: receive has never run on this machine, the spool is on "
            f"another machine, or it is not mounted. Run {command}, mount it, or correct "
            "source.spool"
        )
        if isinstance(self.spool.path, StorePath):
            why = (
                "the spool is missing: receive has never run, or source.spool is another place. "
                f"Run {command}, or correct source.spool"
            )
        return Refusal(name=str(self.spool.path), reason="missing", detail=why)

    # Keeps Q7.
    def match(self, shown: PartListing, known: LedgerView, window: Window) -> MatchResult:
        """As in `Source`. Refuses a spool that lacks all the segments that semel has read."""
        result = super().match(shown, known, window)
        offers, others = self._with_addresses(self._recognize_returned(result.offers, known), known)
        result = replace(result, offers=offers, refusals=[*result.refusals, *others])
        # A segment is the only copy: plan must miss it even if no range was taken from it.
        begun = [offer for offer in result.offers if offer.partition is None]
        result = replace(result, new_partition_offers=[*begun, *self._damaged(result, known)])
        if not shown.complete or any(o.partition and o.partition.reached for o in result.offers):
            return result
        names, identities = ([getattr(p, k) for p in shown.items] for k in ("name", "identity"))
        for newest in known.query("sealed", "newest", names=names, identities=identities):
            # Its name and age prove nothing: collect may have run on another machine.
            if not (newest["there"] or self.spool.was_removed(newest["content"] or "-")):
                # A segment that is missing from the wrong spool is not lost.
                listed = [lost for lost in result.lost_ranges if lost.partition.name in names]
                refused = [*result.refusals, self._wrong_spool(newest["name"])]
                return replace(result, lost_ranges=listed, refusals=refused)
        return result

    def _recognize_returned(self, offers: list[PartOffer], known: LedgerView) -> list[PartOffer]:
        """The offers, with the partitions of segments that had disappeared unread. Only their names
        identify such segments, because semel never recorded their content.
        """
        lost = {refusal.name for refusal in known.refusals if refusal.reason == "gone"}
        names = [offer.name for offer in offers if offer.partition is None and offer.name in lost]
        if not names:
            return offers
        closed = [Partition(**row) for row in known.query("sealed", "closed", names=names)]
        missed = {k.name: k for k in closed if not (k.reached or k.evidence.get("content"))}
        return [
            replace(offer, partition=offer.partition or missed.get(offer.name)) for offer in offers
        ]

    # Keeps Q4.
    def _with_addresses(
        self, offers: list[PartOffer], known: LedgerView
    ) -> tuple[list[PartOffer], list[Refusal]]:
        """The offers, each with the address for its ids; and the refusals of segments without such
        an address. Offers of refused segments are empty.
        """
        newest = known.query("sealed", "address") if offers else []
        last = (newest[0]["address"] or UNKNOWN) if newest else None
        addressed, refused = [], []
        for offer in offers:
            evidence = dict(offer.evidence)
            address = segment = evidence.pop("address", None)
            if offer.partition and offer.partition.reached:  # An earlier batch has used this address.
                address = offer.partition.evidence.get("address")
            elif segment:
                address = self.context.declared.id_address(segment, last)
                if address is None:
                    why = _other_stream(segment, last)
                    refused.append(refusal(offer.part, "other stream", why))
                    offer = replace(offer, end=0, settled=False)
            evidence |= {"address": address} if address else {}
            addressed.append(replace(offer, evidence=evidence))
        return addressed, refused

    def _damaged(self, result: MatchResult, known: LedgerView) -> Iterator[PartOffer]:
        """Empty offers of segments that are newly refused as damaged. Each gets a source partition,
        so that plan misses it if it disappears.
        """
        damaged = {refusal.name for refusal in result.refusals if refusal.reason == "damaged"}
        damaged -= {partition.name for partition in known.partitions}
        for part in known.unsettled:
            if part.name in damaged:
                with suppress(OSError), self._open_unchanged(part) as path:
                    messages = count_whole_messages(path)
                    yield PartOffer(
                        name=part.name, identity=part.identity, fingerprint=part.fingerprint,
                        partition=None, seen=messages, ahead=messages, settled=False, part=part,
                        length=part.length, content=None,
                    )  # fmt: skip

    def _wrong_spool(self, name: str) -> Refusal:
        return Refusal(
            name=str(self.spool.path),
            reason="missing",
            detail=f"none of the segments that semel has read is here, and collect did not remove "
            f"{name!r}. So this spool is new, or belongs to another machine, and the right spool "
            "may have unread messages. Mount the right spool, or correct source.spool. If it is "
            "lost, run with source.on_refused: warn until a run has read something from this spool",
        )

    def current_part(self, name: str) -> SealedPart:
        if isinstance(self.sealed, StorePath):
            path = self.sealed / name
            return _stored_part(name, path.store.head(path.key)[0])
        status = os.stat(self.sealed / name)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file. Move it out of the spool")
        return _part(name, status)

    def inspect(self, part: SealedPart) -> PartInspection:
        try:
            with self._open_unchanged(part) as path:
                head, foot = read_head(path), read_foot(path)
        except CorruptionError as error:
            why = f"{error}. {_ONLY_COPY}"
            damaged = refusal(part, "damaged", why)
            return PartInspection(part=part, length=part.length, refusal=damaged)
        refused = None
        if head.pipeline != self.context.name:
            folder = Spool(self.spool.path.parent / head.pipeline).sealed
            why = f"its messages were received for pipeline {head.pipeline!r}. Move it to {folder}"
            refused = refusal(part, "foreign", why)
        return PartInspection(
            part=part, length=part.length, key=foot.digest, rows=foot.messages, refusal=refused,
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
        acceptance = super().accept(shown, known, name, same=same, start=start, is_open=is_open)
        if acceptance is not None:
            (offer,), refused = self._with_addresses([acceptance.offer], known)
            if refused:
                raise RefusedError(refused[0])
            acceptance = replace(acceptance, offer=offer)
        return acceptance

    # Keeps Q3.
    def evidence(self, offer: PartOffer, end: int) -> Evidence:
        """As in `Source`. Plan claims a segment only if its bytes match the digest in its foot."""
        if not offer.refusal:
            try:
                with self._open_unchanged(offer.part) as path:
                    intact, content = _read_whole(path)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise RefusedError(unreadable_refusal(offer.part, error)) from error
            except CorruptionError:
                intact = False
            if not intact:
                why = f"its bytes have changed since receive wrote it. {_ONLY_COPY}"
                raise RefusedError(refusal(offer.part, "damaged", why))
            offer = replace(offer, content=content)
        return super().evidence(offer, end)

    def digest(self, part: SealedPart) -> str:
        with self._open_unchanged(part) as path:
            return checksum(path)

    def map_parts(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterable[Any]:
        return each(self.sealed, function, parts)

    # Keeps Q5.
    def removal_reason(self, claim: Claim) -> str | None:
        by_collect = self.spool.was_removed(claim.evidence["content"])
        return "collect has removed it, as source.keep_spool was over" if by_collect else None

    # Keeps P19.
    @contextmanager
    def _open_unchanged(self, part: SealedPart) -> Iterator[Path]:
        """The path of a part, to read within the block. Raises FileNotFoundError if the file was
        replaced or changed.
        """
        if isinstance(self.sealed, StorePath):
            with local_file(self.sealed / part.name, part.fingerprint) as path:
                yield path
            return
        for at_end in (False, True):
            if self.current_part(part.name).fingerprint != part.fingerprint:
                raise FileNotFoundError(part.name)
            if not at_end:
                yield self.sealed / part.name

    # Keeps S6, Q3.
    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        claim = split.claim
        part = claims.prove_claim(self, claim, batch_id)
        digest.update(claim.evidence["content"].encode())
        address = claim.evidence.get("address")
        try:
            with self._open_unchanged(part) as path:
                yield from records.blocks(
                    self.context, path, split.start, split.end, address, selection
                )
        except FileNotFoundError as error:
            raise claims.changed_error(self, claim, batch_id) from error
        except CorruptionError as error:
            raise SourceError(f"{claim.name!r}: {error}. {_ONLY_COPY}", next=AGAIN) from error

    def probe(self) -> tuple[str, ExecutorCheck]:
        return probe.probe_spool(self.context, self.spool)

    def check_service(self, horizon: timedelta) -> str:
        return probe.check_service(self.context, horizon)

    # Keeps Q5.
    def archive_part(self, known: Partition) -> bool:
        """Remove a finalized segment after source.keep_spool."""
        try:
            if self.current_part(known.name).fingerprint != known.fingerprint:
                return False
            self.spool.remove(known.name, known.evidence["content"])
        except FileNotFoundError:
            return False  # Another collect has removed it, or a person has moved it.
        except OSError as error:
            raise SourceError(
                f"{known.name!r} is finalized but cannot be removed from the spool: "
                f"{error.strerror}. Let this user write to {str(self.sealed)!r}",
            ) from error
        return True


_NOT_SEALED = (
    "a receiver with a spool in a folder has not sealed it, and nothing seals it here. Copy the "
    "folder back, let a plan there seal it, and move the spool again"
)


def _stored_part(name: str, item: "Object") -> SealedPart:
    """An object as a part. Copies under other names have other identities."""
    return SealedPart(
        name=name,
        identity=f"{name}:{item.etag}",
        fingerprint=item.etag,
        length=item.size,
        when=None,
    )


def _part(name: str, status: os.stat_result) -> SealedPart:
    """A file as a part. Any write to the file changes its identity and fingerprint."""
    stamp = f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"
    return SealedPart(
        name=name,
        identity=f"{status.st_dev}:{stamp}",
        fingerprint=f"{stamp}:{status.st_ctime_ns}",
        length=status.st_size,
        when=None,
    )


def _other_stream(segment: str, last: str) -> str:
    previous = last or "a stream that an older version of semel did not record"
    return (
        f"its messages come from {segment}, but the last messages that semel read come from "
        f"{previous}. Declare source.address: the name of the old stream, if the new one has the "
        "same messages under the same numbers (a mirror, a backup); else the name of the new one"
    )


def _read_whole(path: Path) -> tuple[bool, str]:
    """Read a segment once. Returns whether the digest in its foot matches, and the digest of all
    bytes. Raises CorruptionError if it lacks a foot.
    """
    foot, state = read_foot(path), xxhash.xxh3_128()
    with open(path, "rb") as file:
        remaining = foot.at
        while remaining and (data := file.read(min(remaining, _CHUNK_BYTES))):
            state.update(data)
            remaining -= len(data)
        intact = state.hexdigest() == foot.digest
        state.update(file.read())
    return intact, state.hexdigest()
