"""Objects of a store as a sink: a staged file gets its final key by one put that creates.

Purpose: make a committed batch's files visible below a prefix, each once.
How it works: a put is refused where an object is, so no key ever has two contents, whoever puts and
however often. After each put, and after each error, HEAD tells what is there: size, and a checksum
and the manifest's digest that were stored with it. First of all a batch's number is claimed by a
note, which is put in the same way; last comes a copy of its marker (`notes`).
What it does not do: stage or keep the archive in the store; both are folders, as of any sink.
Known limitation: a store is only as right as its conditional puts; `check` tries them.
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import pyarrow as pa
import xxhash

from semel import failpoints
from semel.clients.objects import Store
from semel.clients.objects.probe import prove
from semel.declare.context import Context
from semel.errors import CorruptionError, TerminalError, first_line
from semel.formats.output import rows_of
from semel.formats.table import sink_format
from semel.model.manifest import Kind, MarkedFile, StagedFile
from semel.sinks import (
    CommittedBatch,
    MiscountError,
    Notes,
    NotesQuery,
    Presence,
    RemoteSink,
    ReplacedOutput,
)
from semel.sinks.names import OutputNames
from semel.sinks.objects import notes as noted
from semel.sinks.objects.notes import CHECKSUM, DIGEST, OWN
from semel.sinks.objects.spec import KEY_BYTES_MAX

if TYPE_CHECKING:
    from semel.model.manifest import ManifestFile, Published

PUTS_AT_ONCE = 8
"""Files that are put at once, and HEADs that are asked."""

HELD_BYTES = 512 << 20
"""Bytes of files that are held at once: larger ones are put one by one."""

_CHUNK_BYTES = 8 << 20
_Item, _Found = TypeVar("_Item"), TypeVar("_Found")


def opened(context: Context, address: str | None, looks: object) -> "ObjectsSink":  # noqa: ARG001
    """The prefix, which is not asked yet."""
    return ObjectsSink(context)


class ObjectsSink(RemoteSink):
    """Files go below a prefix. See `semel.sinks.Sink` for when each method is called."""

    replaceable = True
    erasable = False

    def __init__(self, context: Context) -> None:
        self._context, self._declared = context, context.declared
        self.address = str(self._declared.prefix)
        self._listed: list[str] | None = None

    def __repr__(self) -> str:
        return f"ObjectsSink({self.address})"

    def __enter__(self) -> Self:
        self._listed = None
        return self

    @cached_property
    def _store(self) -> Store:
        return Store(self.address, self._declared.connection)

    def check(self, schema: pa.Schema | None, staged: Path) -> None:  # noqa: ARG002 - the seam's
        self.describe(schema)

    def describe(self, schema: pa.Schema | None) -> str:  # noqa: ARG002 - files hold what they hold
        with self._allowed():
            prove(self._store, replaces=True)
        return (
            f"objects below {self.address}: a second put of one key is refused, and so is one in "
            "the place of what has changed"
        )

    def check_replace(self, old: ReplacedOutput) -> tuple[str, ...]:  # noqa: ARG002 - the seam's
        """Objects of a replay have keys of their own: the marker tells which ones count."""
        return ()

    # Keeps OB9.
    def check_staged(self, schema: pa.Schema, files: Sequence[StagedFile]) -> None:  # noqa: ARG002
        """TerminalError: a key would be longer than a store takes."""
        above = f"{self._declared.prefix.prefix}/"
        for file in files:
            if file.kind is not Kind.DATA:
                continue
            longest = self._path(1 << 62, 1 << 31, 1 << 31, file)
            if len(f"{above}{longest}".encode()) > KEY_BYTES_MAX:
                raise TerminalError(
                    f"the key of a file in {file.folder!r} below {self.address} would be longer "
                    f"than {KEY_BYTES_MAX} bytes; shorten sink.url, or choose columns with shorter "
                    "values in sink.partition_by"
                )

    def _path(self, batch_id: int, fence: int, part: int, file: StagedFile) -> str:
        return self._declared.path_of(self._context.name, batch_id, fence, part, file)

    def target(self, batch_id: int, fence: int, part: int, file: StagedFile) -> str:
        """The address, and behind a # the key below it."""
        return f"{self.address}#{self._path(batch_id, fence, part, file)}"

    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        return self._all(partial(self._presence, won), won.files)

    # Keeps OB6.
    def _presence(self, won: CommittedBatch, file: "ManifestFile") -> Presence:
        try:
            found, about = self._store.head(_key(file))
        except FileNotFoundError:
            return Presence.ABSENT
        same = found.size == file.bytes and about == about | _about(won, file)
        return Presence.RIGHT if same else Presence.WRONG

    def publish(self, won: CommittedBatch, missing: "Sequence[ManifestFile]") -> None:
        if won.files:
            with self._allowed():
                noted.claim(self._store, won)
        held = HELD_BYTES // max((file.bytes for file in missing), default=1)
        self._all(partial(self._put, won), missing, at_once=min(PUTS_AT_ONCE, max(1, held)))

    # Keeps OB5.
    def _put(self, won: CommittedBatch, file: "ManifestFile") -> None:
        """Put a file where none is. What is there then, the next look tells."""
        failpoints.point("sink.before_put")
        try:
            data = Path(file.staged_path).read_bytes()
        except FileNotFoundError:
            return  # A twin was faster, and all is final.
        if xxhash.xxh3_128_hexdigest(data) != file.checksum:
            raise CorruptionError(
                f"batch {won.batch_id}: {file.staged_path} is not what its manifest says, and was "
                "not put; restore it from a backup: the batch has committed"
            )
        self._store.create(_key(file), data, _about(won, file))
        failpoints.point("sink.after_put")

    def copy_marker(self, won: CommittedBatch, marker: Path) -> None:
        failpoints.point("sink.before_copy")
        with self._allowed():
            noted.copy(self._store, won, marker)
        failpoints.point("sink.after_copy")

    def forget(self, batches: Sequence[int]) -> str:
        keys = ", ".join(noted.note_key(number) for number in batches)
        return f"Remove the objects below {self.address} that are of them, and {keys}"

    def notes(self, newest: NotesQuery | None = None) -> Notes:
        with self._allowed():
            return noted.read(self._store, newest, self._all)

    # Keeps OB8.
    def remove_files(self, old: "Published") -> int:
        """Delete them. TerminalError: another object is under such a key."""
        freed = self._all(self._removed, old.of_kind(Kind.DATA))
        return sum(freed)

    def _removed(self, file: MarkedFile) -> int:
        try:
            found, about = self._store.head(file.path)
        except FileNotFoundError:
            return 0
        if (found.size, about.get(CHECKSUM)) != (file.bytes, file.checksum):
            raise TerminalError(
                f"{self.address}/{file.path} is not the object that was put there, and was left; "
                "ask who has put it, and remove it"
            )
        self._store.remove(file.path)
        return file.bytes

    def count_strays(self, known: Collection[int]) -> dict[int, int]:
        """What objects of no batch that is noted hold, by the batch that their names say."""
        wanted = {*known, *(note.batch_id for note in self.notes().found)}
        found: dict[int, int] = {}
        with tempfile.TemporaryDirectory(prefix="semel-") as folder:
            for key, number in self._named():
                if number not in wanted and (path := self._fetched(key, Path(folder))):
                    count = sink_format(path.suffix[1:]).code().rows(path)
                    found[number] = found.get(number, 0) + count
        return found

    # Keeps OB10.
    def rows(self, marker: "Published", *, strays: bool = False) -> Iterator[pa.Table]:
        files, lacking = marker.of_kind(Kind.DATA), []
        listed = {file.path for file in files}
        with tempfile.TemporaryDirectory(prefix="semel-") as folder:
            here = replace(marker, sink=Path(folder))  # type: ignore[type-var]
            for file in files:
                path = self._fetched(file.path, Path(folder), file)
                if path is None:
                    lacking.append(file.path)
                    continue
                yield from self._read(here, file)
                path.unlink()
            for key, number in self._named() if strays else ():
                if number == marker.made_by and key not in listed:
                    yield from self._astray(here, key)
        if strays:
            with self._allowed():
                noted.check_copy(self._store, marker)
        if lacking:
            raise MiscountError(
                f"{self.address} lacks {lacking[0]!r}, and {len(lacking)} of the {len(files)} "
                f"objects of batch {marker.made_by}: somebody has deleted them"
            )

    def _astray(self, here: "Published", key: str) -> Iterator[pa.Table]:
        """The rows of an object that no marker lists."""
        if path := self._fetched(key, here.sink):
            size = path.stat().st_size
            file = MarkedFile(kind=Kind.DATA, path=key, records=0, bytes=size, checksum="")
            yield from self._read(here, file)

    def _read(self, here: "Published", file: MarkedFile) -> Iterator[pa.Table]:
        try:
            yield from rows_of(here, file)
        except (pa.ArrowException, OSError) as error:
            why = first_line(error)
            raise CorruptionError(f"{self.address}/{file.path} cannot be read: {why}") from error

    def _fetched(self, key: str, folder: Path, file: MarkedFile | None = None) -> Path | None:
        """An object as a file below a folder; None: there is none.

        CorruptionError: it is another one than `file`.
        """
        path, digest = folder / key, xxhash.xxh3_128()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._allowed(), open(path, "wb") as copy:
                found, _ = self._store.head(key)
                for data in self._store.chunks(key, found.etag, 0, found.size, _CHUNK_BYTES):
                    digest.update(data)
                    copy.write(data)
        except FileNotFoundError:
            return None
        if file is not None and digest.hexdigest() != file.checksum:
            raise CorruptionError(
                f"{self.address}/{key} is another object than the one that was put there; ask who "
                "has put it, remove it, and replay the batch"
            )
        return path

    def _named(self) -> Iterator[tuple[str, int]]:
        """All keys of files below the prefix, listed once in a block, and the batch in each."""
        if self._listed is None:
            with self._allowed():
                pages = list(self._store.list())
            self._listed = [found.key for page in pages for found in page]
        names = OutputNames(self._declared, self._context.name)
        for key in self._listed:
            number = names.batch_of(key.rpartition("/")[2])
            if number is not None and not key.startswith(f"{OWN}/"):
                yield key, number

    def _all(
        self, do: Callable[[_Item], _Found], items: Iterable[_Item], at_once: int = PUTS_AT_ONCE
    ) -> list[_Found]:
        """What each gives, some at once."""
        with self._allowed(), ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(do, items))

    @contextmanager
    def _allowed(self) -> Iterator[None]:
        """A right that is missing, as a TerminalError."""
        try:
            yield
        except PermissionError as error:
            raise TerminalError(
                f"{self.address}: {error.filename}: {error.strerror}. semel needs s3:ListBucket "
                "(without it a key that is absent looks forbidden), s3:GetObject, s3:PutObject and "
                "s3:DeleteObject, or what the service calls so"
            ) from None


def _key(file: "ManifestFile") -> str:
    return file.final_path.rpartition("#")[2]


def _about(won: CommittedBatch, file: "ManifestFile") -> dict[str, str]:
    """What is stored with an object, by which HEAD knows it."""
    return {CHECKSUM: file.checksum, DIGEST: won.digest}
