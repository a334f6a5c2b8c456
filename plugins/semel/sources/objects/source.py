"""Objects of a store as a source. A source partition is an object with its key and etag; a position
is a byte, or a row of Parquet.

Each request names the etag, so semel reads only the version that was planned. The driver and tasks
use the same client; each process looks up the connection by itself.
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
    Acceptance,
    Evidence,
    ExecutorCheck,
    LedgerView,
    MatchResult,
    Partition,
    RefusedError,
    Window,
)
from semel.sources.objects import matching, probe
from semel.sources.objects.content import ObjectContent, open_unpacked, packing
from semel.sources.objects.listing import (
    KeyScope,
    ObjectListing,
    ObjectPart,
    list_objects,
    object_part,
)
from semel.sources.objects.times import outermost_folders
from semel.sources.sealed import claims, parquet
from semel.sources.sealed.matching import refusal
from semel.sources.sealed.parts import PartInspection, PartOffer
from semel.sources.sealed.source import NamedSource

if TYPE_CHECKING:
    from semel.formats.records import Block
    from semel.formats.selection import Selection
    from semel.model.split import Split

SPLIT_BYTES = 64 << 20
"""Bytes that one task reads, as with files."""

REQUESTS_AT_ONCE = 16
"""One request takes about 20 ms, mostly on the network."""

_SLASH = "its key ends with a slash, so semel cannot read it. Rename or remove it"


def opened(context: Context) -> "ObjectsSource":
    """The objects below the declared prefix."""
    import obstore  # noqa: F401 - if it is missing, fail before any request

    return ObjectsSource(context=context)


@dataclass(frozen=True, kw_only=True)
class ObjectsSource(NamedSource):
    """`source: {type: objects}`. `scope`: the keys that `discover` lists."""

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
        """Whether an object consists of lines without a header."""
        return not self._of_rows and not formats.has_header(self.context)

    def _store(self) -> Store:
        return self.context.declared.open_store()

    # Keeps OB4.
    def narrow(self, window: Window, rows: Callable[..., list[Any]]) -> "ObjectsSource":
        declared = self.context.declared
        if window is not None:
            folders = declared.times.folders(*window)
            if folders is not None:
                refused = {r["name"].rpartition("/")[0] for r in rows("objects", "refused")}
                folders = outermost_folders({*folders, *refused})
            return replace(self, scope=KeyScope(folders=folders))
        if declared.ordered:
            (row,) = rows("objects", "begin")
            return replace(self, scope=KeyScope(start_after=row["name"]))
        return self

    def discover(self) -> ObjectListing:
        return list_objects(self.context, self._store(), self.scope)

    def match(self, listing: ObjectListing, ledger: LedgerView, window: Window) -> MatchResult:
        return matching.match(self, listing, ledger, window, self._inspect_all)

    def accept(
        self, listing: ObjectListing, ledger: LedgerView, name: str,  # noqa: ARG002
        *, same: bool, start: int, is_open: bool,
    ) -> Acceptance | None:  # fmt: skip
        return matching.accept_object(
            self, ledger, name, self._inspect_all, same=same, start=start, is_open=is_open
        )

    def _inspect_all(self, parts: list[ObjectPart]) -> Iterable[PartInspection]:
        if self._of_lines and not any(part.doubtful for part in parts):
            return map(self.inspect, parts)  # There may be very many: avoid requests.
        return self.map_parts(self.inspect, parts)

    # Keeps P14, P19.
    def inspect(self, part: ObjectPart) -> PartInspection:
        readable = PartInspection(
            part=part, length=part.length, key=part.fingerprint, rows=part.length
        )
        if self._of_lines and not part.doubtful:
            return readable  # Stage judges each of its lines.
        file = self._file(part.name, part.etag, part.length)
        try:
            if self._of_lines:
                self._store().head(part.name)
                return readable
            if not self._of_rows:
                with open_unpacked(file) as content:
                    formats.header_in(self.context, content)
                return readable
            inspection = parquet.inspect_footer(self.context, part, file, file.read_at)
            if inspection is None:
                raise parquet.UnreadablePartError(
                    "damaged", "its Parquet footer is missing. Replace the object"
                )
            return inspection
        except parquet.UnreadablePartError as error:
            why = error.args
        except FileNotFoundError:
            if not self._store().ends_in_slash(part.name):
                raise
            why = "slash", _SLASH
        except SourceError as error:
            why = "header", str(error)
        except (OSError, EOFError, zlib.error) as error:
            why = "damaged", f"its compressed content is damaged ({error}). Replace the object"
            if getattr(error, "errno", None) is not None:
                why = "unreadable", error.strerror
        return PartInspection(part=part, length=part.length, refusal=refusal(part, *why))

    def _file(self, key: str, etag: str, size: int) -> ObjectFile:
        return ObjectFile(self._store(), key, etag, size)

    def digest(self, part: ObjectPart) -> str:
        return part.fingerprint

    # Keeps OB15.
    def current_part(self, name: str) -> ObjectPart:
        store = self._store()
        try:
            return object_part(store.head(name)[0])
        except FileNotFoundError:
            if not store.ends_in_slash(name):
                raise
            raise ChangedError(
                f"{name!r} cannot be read: {_SLASH}. Nothing of the batch was read. Plan again: it "
                f"refuses {name!r}, and takes the other objects"
            ) from None

    # Keeps OB15.
    def evidence(self, offer: PartOffer, end: int) -> Evidence:
        if offer.partition is not None:  # A batch may have failed because of its key.
            try:
                self.current_part(offer.name)
            except ChangedError:
                raise RefusedError(refusal(offer.part, "slash", _SLASH)) from None
            except PermissionError:
                pass  # Stage reports it, with the claim.
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
                f"pipeline {self.context.name}: {offer.name!r} has {end} bytes, and must be read "
                "in one batch; limits.bytes_per_batch_max is "
                f"{self.context.limits.bytes_per_batch_max}. Raise it"
            )
        if offer.all_or_nothing or (room <= 0 and not first):
            return start
        content = ObjectContent(self._file(offer.name, offer.part.etag, offer.length))
        last_end = content.record_end(start, start + room)
        if last_end == start and first:  # One record exceeds the limit: plan takes it alone.
            last_end = content.next_record_end(start, end)
        return last_end

    # Keeps S6.
    def find(self, claimed: Collection[Claim], batch_id: int) -> list[Claim]:
        """Prove the claims under their keys, which are the only names of objects."""
        self.check(claimed, batch_id)
        return list(claimed)

    def inspect_claimed(
        self, claimed: Collection[Claim], batch_id: int
    ) -> Iterable[PartInspection]:
        # Lines without a header fit any declaration: avoid requests.
        return [] if self._of_lines else super().inspect_claimed(claimed, batch_id)

    def map_parts(self, function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterable[Any]:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            return list(threads.map(function, parts))

    def is_whole_key(self, key: str) -> bool:
        """Whether an object is read at once, as one range."""
        return not self._of_rows and (packing(key) is not None or formats.is_whole(self.context))

    def is_whole(self, claim: Claim) -> bool:
        return self.is_whole_key(claim.name)

    def read(
        self, split: "Split", batch_id: int, digest: Any, selection: "Selection | None" = None
    ) -> "Iterator[Block]":
        claim = split.claim
        with self._open_claimed(claim, batch_id) as file:
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
            etag = split.claim.evidence["etag"]
            with open_unpacked(self._file(file.name, etag, file.size)) as head:
                columns = formats.header_in(self.context, head)
        # A compressed object is read from start to end; positions count its decompressed bytes.
        packed = packing(file.name) is not None
        file.prefetch_end = file.size if packed else split.end
        with open_unpacked(file) as content:
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
    def _open_claimed(self, claim: Claim, batch_id: int) -> Iterator[ObjectFile]:
        """Open the object of a claim for the block. Errors as in `check`."""
        try:
            yield self._file(claim.name, claim.evidence["etag"], claim.evidence["bytes"])
        except FileNotFoundError as error:
            if error.errno == errno.ESTALE:
                raise claims.changed_error(self, claim, batch_id) from error
            raise claims.unreadable_error(self, claim, batch_id, error) from error
        except OSError as error:
            raise claims.unreadable_error(self, claim, batch_id, error) from error

    def can_join(self, claim: Claim) -> bool:
        """True for lines without a header in an object that is not compressed."""
        return self._of_lines and not self.is_whole(claim)

    def read_text(self, split: "Split", batch_id: int) -> bytes:
        with self._open_claimed(split.claim, batch_id) as file:
            return file.read_at(split.start, split.end - split.start)

    def records_max(self, split: "Split", batch_id: int) -> int | None:
        """As in `Source`; None for lines, because only a read counts them."""
        return super().records_max(split, batch_id) if self._of_rows else None

    def time_of(self, partition: Partition) -> datetime | None:
        declared = self.context.declared
        if declared.interval_from in (None, "mtime"):
            return None
        return declared.times.time_of(partition.name, datetime.min)

    def probe(self) -> tuple[str, ExecutorCheck]:
        return probe.probe(self.context, self.discover().items)
