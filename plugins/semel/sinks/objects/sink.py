"""Objects of a store as a sink: one creating put publishes a staged file under its final key.

Purpose: make a committed batch's files visible below a prefix, each once.
How it works: the store refuses a put if the key exists, so a key never has two contents, however
many attempts put it. After each put and each error, HEAD returns the object's size, checksum and
manifest digest. Before the first object, a note claims the batch's number by the same kind of put;
after the last one follows a copy of its marker (`notes`).
Limits: staging and archive stay folders, not objects. The sink relies on the store's conditional
puts; `check` tests them.
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
from semel.clients.objects.probe import check_conditional_puts
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
from semel.sinks.objects import notes as batch_notes
from semel.sinks.objects.notes import DIGEST, SEMEL_FOLDER
from semel.storage import CHECKSUM, ArchivePath, at

if TYPE_CHECKING:
    from semel.model.manifest import ManifestFile, Published

PUTS_AT_ONCE = 8
"""Concurrent puts, and concurrent HEADs."""

BYTES_AT_ONCE = 512 << 20
"""Bytes of files in memory at once. Larger files are put one by one."""

_CHUNK_BYTES = 8 << 20
_Item, _Result = TypeVar("_Item"), TypeVar("_Result")


def open_sink(context: Context, address: str | None, files: object) -> "ObjectsSink":  # noqa: ARG001
    """The prefix. Sends no request yet."""
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

    def check(self, schema: pa.Schema | None, staged: ArchivePath) -> None:  # noqa: ARG002 - the seam's
        self.describe(schema)

    def describe(self, schema: pa.Schema | None) -> str:  # noqa: ARG002 - files hold what they hold
        with self._explain_denial():
            check_conditional_puts(self._store, replaces=True)
        return (
            f"objects below {self.address}: a second put of one key is refused, and so is a "
            "replacement of a changed object"
        )

    def check_replace(self, old: ReplacedOutput) -> tuple[str, ...]:  # noqa: ARG002 - the seam's
        """Accepts every replay: its objects have other keys, and the marker lists them."""
        return ()

    def _path(self, batch_id: int, fence: int, part: int, file: StagedFile) -> str:
        return self._declared.path_of(self._context.name, batch_id, fence, part, file)

    def target(self, batch_id: int, fence: int, part: int, file: StagedFile) -> str:
        """The address and, after a #, the key below it."""
        return f"{self.address}#{self._path(batch_id, fence, part, file)}"

    def query_presence(self, won: CommittedBatch) -> Sequence[Presence]:
        return self._map(partial(self._presence, won), won.files)

    # Keeps OB6.
    def _presence(self, won: CommittedBatch, file: "ManifestFile") -> Presence:
        try:
            head, about = self._store.head(_key(file))
        except FileNotFoundError:
            return Presence.ABSENT
        same = head.size == file.bytes and about == about | _metadata(won, file)
        return Presence.RIGHT if same else Presence.WRONG

    def publish(self, won: CommittedBatch, missing: "Sequence[ManifestFile]") -> None:
        if missing:  # Else its number is claimed.
            with self._explain_denial():
                batch_notes.claim_number(self._store, won)
        in_memory = BYTES_AT_ONCE // max((file.bytes for file in missing), default=1)
        self._map(partial(self._put, won), missing, at_once=min(PUTS_AT_ONCE, max(1, in_memory)))

    # Keeps OB5.
    def _put(self, won: CommittedBatch, file: "ManifestFile") -> None:
        """Put a file if its key is free. The next `query_presence` checks the object."""
        failpoints.point("sink.before_put")
        try:
            data = at(file.staged_path).read_bytes()
        except FileNotFoundError:
            return  # Another attempt has finished the batch.
        if xxhash.xxh3_128_hexdigest(data) != file.checksum:
            raise CorruptionError(
                f"batch {won.batch_id}: {file.staged_path} differs from its manifest. It was not "
                "put. The batch is committed, so restore the file from a backup"
            )
        self._store.create(_key(file), data, _metadata(won, file))
        failpoints.point("sink.after_put")

    def copy_marker(self, won: CommittedBatch, marker: ArchivePath) -> None:
        failpoints.point("sink.before_copy")
        with self._explain_denial():
            batch_notes.put_marker_copy(self._store, won, marker)
        failpoints.point("sink.after_copy")

    def describe_removal(self, batches: Sequence[int]) -> str:
        keys = ", ".join(batch_notes.note_key(number) for number in batches)
        return f"Remove the objects of these batches below {self.address}, and {keys}"

    def notes(self, newest: NotesQuery | None = None) -> Notes:
        with self._explain_denial():
            return batch_notes.read_notes(self._store, newest, self._map)

    # Keeps OB8.
    def remove_files(self, old: "Published") -> int:
        """Delete the objects. Raises TerminalError if a key has another object."""
        return sum(self._map(self._remove_object, old.of_kind(Kind.DATA)))

    def _remove_object(self, file: MarkedFile) -> int:
        try:
            head, about = self._store.head(file.path)
        except FileNotFoundError:
            return 0
        if (head.size, about.get(CHECKSUM)) != (file.bytes, file.checksum):
            raise TerminalError(
                f"{self.address}/{file.path} is not the object that semel put there. It was not "
                "deleted. Find out who put it, and remove it"
            )
        self._store.remove(file.path)
        return file.bytes

    def count_strays(self, batches: Collection[int]) -> dict[int, int]:
        """See `Sink.count_strays`. Skips batches with a note; an object's name gives its batch."""
        noted = {*batches, *(note.batch_id for note in self.notes().batch_notes)}
        strays: dict[int, int] = {}
        with tempfile.TemporaryDirectory(prefix="semel-") as folder:
            for key, number in self._list_output():
                if number not in noted and (path := self._download(key, Path(folder))):
                    count = sink_format(path.suffix[1:]).code().count_rows(path)
                    strays[number] = strays.get(number, 0) + count
        return strays

    # Keeps OB10.
    def rows(self, marker: "Published", *, strays: bool = False) -> Iterator[pa.Table]:
        files, lacking = marker.of_kind(Kind.DATA), []
        listed = {file.path for file in files}
        with tempfile.TemporaryDirectory(prefix="semel-") as folder:
            here = replace(marker, sink=Path(folder))  # type: ignore[type-var]
            for file in files:
                path = self._download(file.path, Path(folder), file)
                if path is None:
                    lacking.append(file.path)
                    continue
                yield from self._read(here, file)
                path.unlink()
            for key, number in self._list_output() if strays else ():
                if number == marker.writer_id and key not in listed:
                    yield from self._stray_rows(here, key)
        if strays:
            with self._explain_denial():
                batch_notes.check_copy(self._store, marker)
        if lacking:
            raise MiscountError(
                f"{self.address} lacks {lacking[0]!r}, and {len(lacking)} of the {len(files)} "
                f"objects of batch {marker.writer_id}. Somebody has deleted them"
            )

    def _stray_rows(self, here: "Published", key: str) -> Iterator[pa.Table]:
        """The rows of an object that no marker lists."""
        if path := self._download(key, here.sink):
            size = path.stat().st_size
            file = MarkedFile(kind=Kind.DATA, path=key, records=0, bytes=size, checksum="")
            yield from self._read(here, file)

    def _read(self, here: "Published", file: MarkedFile) -> Iterator[pa.Table]:
        try:
            yield from rows_of(here, file)
        except (pa.ArrowException, OSError) as error:
            why = first_line(error)
            raise CorruptionError(f"{self.address}/{file.path} cannot be read: {why}") from error

    def _download(self, key: str, folder: Path, file: MarkedFile | None = None) -> Path | None:
        """Download an object into a folder. Returns None if it does not exist.

        Raises CorruptionError if its checksum differs from that of `file`.
        """
        path, digest = folder / key, xxhash.xxh3_128()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._explain_denial(), open(path, "wb") as copy:
                head, _ = self._store.head(key)
                for data in self._store.chunks(key, head.etag, 0, head.size, _CHUNK_BYTES):
                    digest.update(data)
                    copy.write(data)
        except FileNotFoundError:
            return None
        if file is not None and digest.hexdigest() != file.checksum:
            raise CorruptionError(
                f"{self.address}/{key} is not the object that semel put there. Find out who put "
                "it, remove it, and replay the batch"
            )
        return path

    def _list_output(self) -> Iterator[tuple[str, int]]:
        """The keys of output files below the prefix, each with its batch. Within a `with` block,
        semel lists the prefix once.
        """
        if self._listed is None:
            with self._explain_denial():
                pages = list(self._store.list())
            self._listed = [item.key for page in pages for item in page]
        names = OutputNames(self._declared, self._context.name)
        for key in self._listed:
            number = names.batch_of(key.rpartition("/")[2])
            if number is not None and not key.startswith(f"{SEMEL_FOLDER}/"):
                yield key, number

    def _map(
        self, do: Callable[[_Item], _Result], items: Iterable[_Item], at_once: int = PUTS_AT_ONCE
    ) -> list[_Result]:
        """The results of `do` for all items, `at_once` at a time."""
        with self._explain_denial(), ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(do, items))

    @contextmanager
    def _explain_denial(self) -> Iterator[None]:
        """Translate a PermissionError into a TerminalError that names the missing rights."""
        try:
            yield
        except PermissionError as error:
            raise TerminalError(
                f"{self.address}: {error.filename}: {error.strerror}. Give semel s3:ListBucket "
                "(without it, S3 answers 403 for a missing key), s3:GetObject, s3:PutObject and "
                "s3:DeleteObject, or the same rights of another service"
            ) from None


def _key(file: "ManifestFile") -> str:
    return file.final_path.rpartition("#")[2]


def _metadata(won: CommittedBatch, file: "ManifestFile") -> dict[str, str]:
    """The metadata of an object, with which HEAD identifies it."""
    return {CHECKSUM: file.checksum, DIGEST: won.digest}
