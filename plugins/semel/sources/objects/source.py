"""Objects of a store as a source: a source partition is an object, known by its key and etag, and a
position a byte of it, or a row of Parquet.

What is read is the version that was planned: each request names its etag. Tasks read it as the
driver does, by the same client; the connection is looked up in the process that uses it.
"""

import errno
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from semel.clients.objects import Store
from semel.clients.objects.file import ObjectFile
from semel.declare.context import Context
from semel.errors import ChangedError, LimitError, SourceError
from semel.formats import declared as formats
from semel.formats.table import source_format
from semel.model.batch import Claim
from semel.sources import (
    Evidence,
    LedgerView,
    ExecutorCheck,
    MatchResult,
    Partition,
    RefusedError,
    Window,
    Acceptance,
)
from semel.sources.objects import matching, probe
from semel.sources.objects.content import ObjectContent, packing, unpacked
from semel.sources.objects.listing import (
    ObjectListing,
    ObjectPart,
    KeyScope,
    list_objects,
    part_of,
)
from semel.sources.objects.times import outermost
from semel.sources.sealed import claims, parquet
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import Looked, PartOffer
from semel.sources.sealed.source import NamedSource

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split

SPLIT_BYTES = 64 << 20
"""Bytes that one task reads, as of files."""

REQUESTS_AT_ONCE = 16
"""Each takes some 20 ms on the way to a store and back."""

_SLASH = "its key ends with a slash, by which the client reads nothing; rename it, or remove it"


def opened(context: Context) -> "Objects":
    """The objects below the declared prefix."""
    import obstore  # noqa: F401 - who has none is told before anything is asked

    return Objects(context=context)


@dataclass(frozen=True, kw_only=True)
class Objects(NamedSource):
    """`source: {type: objects}`. `scope`: what `discover` lists."""

    context: Context
    scope: KeyScope = field(default_factory=KeyScope)

    @property
    def split_size(self) -> int:  # type: ignore[override]
        return NamedSource.split_size if self._of_rows else SPLIT_BYTES

    @property
    def _of_rows(self) -> bool:
        return source_format(self.context.declared.format).sealed

    @property
    def _of_lines(self) -> bool:
        """Whether all of an object is lines that stand alone, whatever they are."""
        return not self._of_rows and not formats.has_header(self.context)

    def _store(self) -> Store:
        return self.context.declared.opened_store()

    # Keeps OB4.
    def narrow(self, window: Window, rows: Callable[..., list[Any]]) -> "Objects":
        declared = self.context.declared
        if window is not None:
            folders = declared.times.folders(*window)
            if folders is not None:
                refused = {r["name"].rpartition("/")[0] for r in rows("objects", "refused")}
                folders = outermost({*folders, *refused})
            return replace(self, scope=KeyScope(folders=folders))
        if declared.ordered:
            (found,) = rows("objects", "begin")
            return replace(self, scope=KeyScope(after=found["name"]))
        return self

    def discover(self) -> ObjectListing:
        return list_objects(self.context, self._store(), self.scope)

    def match(self, shown: ObjectListing, known: LedgerView, window: Window) -> MatchResult:
        return matching.match(self, shown, known, window, self._look_at)

    def accept(
        self, shown: ObjectListing, known: LedgerView, name: str, *, same: bool, start: int,  # noqa: ARG002
        is_open: bool,
    ) -> Acceptance | None:  # fmt: skip
        return matching.word(
            self, known, name, self._look_at, same=same, start=start, is_open=is_open
        )

    def _look_at(self, parts: list[ObjectPart]) -> Iterable[Looked]:
        if self._of_lines and not any(part.doubtful for part in parts):
            return map(self.look, parts)  # Nothing is asked: there may be very many.
        return self.each(self.look, parts)

    # Keeps P14, P19.
    def look(self, part: ObjectPart) -> Looked:
        found = Looked(part=part, length=part.length, key=part.fingerprint, rows=part.length)
        if self._of_lines and not part.doubtful:
            return found  # All of it is lines, whatever they are.
        file = self._file(part.name, part.etag, part.length)
        try:
            if self._of_lines:
                self._store().head(part.name)
                return found
            if not self._of_rows:
                with unpacked(file) as content:
                    formats.header_in(self.context, content)
                return found
            looked = parquet.looked(self.context, part, file, file.at)
            if looked is None:
                raise parquet.UnreadablePartError("damaged", "it has no footer; replace the object")
            return looked
        except parquet.UnreadablePartError as error:
            why = error.args
        except FileNotFoundError:
            if not self._store().ends_in_slash(part.name):
                raise
            why = "slash", _SLASH
        except SourceError as error:
            why = "header", str(error)
        except (OSError, EOFError, zlib.error) as error:
            why = "damaged", f"its packed stream is damaged ({error}); replace the object"
            if getattr(error, "errno", None) is not None:
                why = "unreadable", error.strerror
        return Looked(part=part, length=part.length, refused=refusal(part, *why))

    def _file(self, key: str, etag: str, size: int) -> ObjectFile:
        return ObjectFile(self._store(), key, etag, size)

    def digest(self, part: ObjectPart) -> str:
        return part.fingerprint

    # Keeps OB15.
    def now(self, name: str) -> ObjectPart:
        store = self._store()
        try:
            return part_of(store.head(name)[0])
        except FileNotFoundError:
            if not store.ends_in_slash(name):
                raise
            raise ChangedError(
                f"{name!r} cannot be read: {_SLASH}. Nothing of the batch was read. Plan again: it "
                f"refuses {name!r}, and takes the others"
            ) from None

    # Keeps OB15.
    def evidence(self, offer: PartOffer, end: int) -> Evidence:
        if offer.partition is not None:  # A batch that had claimed it may have failed by its key.
            try:
                self.now(offer.name)
            except ChangedError:
                raise RefusedError(refusal(offer.part, "slash", _SLASH)) from None
            except PermissionError:
                pass  # Stage says so, with the claim.
        return super().evidence(offer, end)

    def capacity(self, offers: Sequence[PartOffer]) -> int:
        return (
            super().capacity(offers) if self._of_rows else self.context.limits.bytes_per_batch_max
        )

    # Keeps P6.
    def last_record_end(
        self, offer: PartOffer, start: int, end: int, room: int, *, first: bool
    ) -> int:
        if self._of_rows:
            return super().last_record_end(offer, start, end, room, first=first)
        if end - start <= room:
            return end
        if offer.all_or_nothing and first:
            raise LimitError(
                f"pipeline {self.context.name}: {offer.name!r} has {end} bytes and is read whole; "
                f"limits.bytes_per_batch_max is {self.context.limits.bytes_per_batch_max}: raise it"
            )
        if offer.all_or_nothing or (room <= 0 and not first):
            return start
        content = ObjectContent(self._file(offer.name, offer.part.etag, offer.length))
        found = content.record_end(start, start + room)
        if found == start and first:  # One record is longer than the limit: it is taken alone.
            found = content.next_record_end(start, end)
        return found

    # Keeps S6.
    def find(self, found: Collection[Claim], batch_id: int) -> list[Claim]:
        """Under their keys, or nowhere."""
        self.check(found, batch_id)
        return list(found)

    def look_again(self, found: Collection[Claim], batch_id: int) -> Iterable[Looked]:
        # No object of lines is requested for that.
        return [] if self._of_lines else super().look_again(found, batch_id)

    def each(self, look: Callable[[Any], Any], asked: Iterable[Any]) -> Iterable[Any]:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            return list(threads.map(look, asked))

    def is_whole_key(self, key: str) -> bool:
        """Whether an object is read once, as one range."""
        return not self._of_rows and (packing(key) is not None or formats.is_whole(self.context))

    def is_whole(self, claim: Claim) -> bool:
        return self.is_whole_key(claim.name)

    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        claim = split.claim
        with self._claimed(claim, batch_id) as file:
            if self._of_rows:
                yield from self._rows(split, file, digest, selection)
            else:
                yield from self._records(split, file, digest, selection)

    def _rows(
        self, split: "Split", file: ObjectFile, digest: Any, selection: "Selection | None"
    ) -> "Iterator[Block]":
        from semel.formats.parquet import blocks

        digest.update(split.claim.evidence["content"].encode())
        yield from blocks(
            file,  # type: ignore[arg-type]
            length=file.size,
            claimed=(split.claim.start, split.claim.end),
            owned=(split.start, split.end),
            columns=self.context.columns,
            exact=self.context.record_id,
            selection=selection,
            naming=self.context.naming,
        )

    def _records(
        self, split: "Split", file: ObjectFile, digest: Any, selection: "Selection | None"
    ) -> "Iterator[Block]":
        from semel.formats.records import read_split

        columns = None
        if formats.has_header(self.context):
            with unpacked(self._file(file.name, split.claim.evidence["etag"], file.size)) as head:
                columns = formats.header_in(self.context, head)
        # What is packed is read from its first byte to its last; records have positions in there.
        packed = packing(file.name) is not None
        file.until = file.size if packed else split.end
        with unpacked(file) as content:
            yield from read_split(
                content,
                start=0 if packed else split.start,
                end=None if packed else split.end,
                range_start=0 if packed else split.claim.start,
                range_end=None if packed else split.claim.end,
                schema=self.context.arrow_schema(),
                format=formats.format_of(self.context),
                columns=columns,
                digest=digest,
                exact=self.context.record_id,
                selection=selection,
            )

    # Keeps OB2.
    @contextmanager
    def _claimed(self, claim: Claim, batch_id: int) -> Iterator[ObjectFile]:
        """The object of a claim, to be read in the block. Errors as of `check`."""
        try:
            yield self._file(claim.name, claim.evidence["etag"], claim.evidence["bytes"])
        except FileNotFoundError as error:
            if error.errno == errno.ESTALE:
                raise claims.changed(self, claim, batch_id) from error
            raise claims.unreadable(self, claim, batch_id, error) from error
        except OSError as error:
            raise claims.unreadable(self, claim, batch_id, error) from error

    def can_join(self, claim: Claim) -> bool:
        """A format whose lines stand alone, in an object that is not packed."""
        return self._of_lines and not self.is_whole(claim)

    def read_text(self, split: "Split", batch_id: int) -> bytes:
        with self._claimed(split.claim, batch_id) as file:
            return file.at(split.start, split.end - split.start)

    def records_max(self, split: "Split", batch_id: int) -> int | None:
        """Of rows; lines are counted by nobody but who reads them."""
        return super().records_max(split, batch_id) if self._of_rows else None

    def time_of(self, known: Partition) -> datetime | None:
        declared = self.context.declared
        if declared.interval_from in (None, "mtime"):
            return None
        return declared.times.of(known.name, datetime.min)

    def probe(self) -> tuple[str, ExecutorCheck]:
        return probe.probe(self.context, self.discover().items)
