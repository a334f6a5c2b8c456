"""Where a pipeline's output is, with the markers of its batches: in a folder or in a store."""

import errno
import io
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, NamedTuple

from semel.clients.objects.access import StoreLocation
from semel.errors import TerminalError
from semel.sinks.spec import archive_of
from semel.sources import ExecutorCheck
from semel.sources.files import probe
from semel.sources.pipeline.published import Output, OutputFile, parse_output, unreadable_marker
from semel.sources.pipeline.spec import PipelineSourceSpec
from semel.storage import packs, temporary_file
from semel.storage.packs import MARKERS

if TYPE_CHECKING:
    from semel.clients.objects import Object, Store


class WrittenMeanwhileError(Exception):
    """A file was written to while it was read."""


class MarkerVersion(NamedTuple):
    """A marker as a listing shows it. `fingerprint` changes with each write. `written`: the time of
    the last write, comparable within one place.
    """

    fingerprint: str
    written: float


def marker_name(part: str) -> str:
    """The name of a batch's marker, by the name of the part: `flights/b00000017`."""
    return f"{part.rpartition('/')[2]}.json"


class OutputPlace(ABC):
    """The output of a pipeline and its markers. Tasks get it, and it has no secrets.

    A name is that of a marker: `b00000017.json`.
    """

    @staticmethod
    def of(declared: PipelineSourceSpec) -> "OutputPlace":
        """The declared place. Raises TerminalError if it lies outside the data roots, or there are
        two archives.
        """
        if declared.url is not None:
            prefix = StoreLocation.of(declared.url)
            return StoredOutput(url=str(prefix), connection=declared.connection)
        sink = declared.folder()
        return FolderOutput(sink=sink, archive=declared.markers() or archive_of(sink))

    @abstractmethod
    def list_markers(self) -> dict[str, MarkerVersion | OSError]:
        """The markers by name, in the order of their batches; or why one cannot be read. Raises
        FileNotFoundError if there is no place of markers.
        """

    @abstractmethod
    def version(self, name: str) -> MarkerVersion:
        """The present version of a marker. Raises OSError if it does not exist."""

    @abstractmethod
    def read_marker(self, name: str) -> tuple[bytes, str]:
        """The bytes of a marker, and their fingerprint. Raises OSError."""

    @abstractmethod
    def address(self, below: object) -> str:
        """The path or URL of a file below the sink."""

    @abstractmethod
    def marker_address(self, name: str) -> str:
        """The path or URL of a marker."""

    @abstractmethod
    def open(self, file: OutputFile) -> AbstractContextManager[IO[bytes]]:
        """A block with a file that is open for reading. Raises OSError, and at the end of the block
        WrittenMeanwhileError.
        """

    @abstractmethod
    def local_copy(self, file: OutputFile) -> AbstractContextManager[Path]:
        """A block with a local path of a file: its own, or that of a copy. Raises OSError."""

    @abstractmethod
    def missing(self, pipeline: str) -> tuple[str, str]:
        """The place of the markers, and why it may not exist."""

    @abstractmethod
    def probe(
        self, summary: str, newest: str, file: OutputFile | None
    ) -> tuple[str, ExecutorCheck]:
        """As `Source.probe`. `newest`: the name of a marker, or "". `file`: one that it lists."""

    def output(self, name: str) -> Output:
        """The output that a marker states now. Raises CorruptionError if it cannot be read."""
        try:
            text, _ = self.read_marker(name)
        except OSError as error:
            raise unreadable_marker(self.marker_address(name), str(error)) from error
        return parse_output(self.marker_address(name), name, text)

    keeps_replaced: ClassVar[bool]
    """Whether the markers that replays have replaced can be read there."""

    keys: ClassVar[str]
    """The keys of the declaration that name it."""

    def replaced_outputs(self, newest: Output, name: str) -> Iterator[Output]:  # noqa: ARG002
        """The outputs that replays have replaced, oldest first. Raises CorruptionError."""
        return iter(())


@dataclass(frozen=True, kw_only=True)
class FolderOutput(OutputPlace):
    """The folders of a pipeline's output and of its archive."""

    sink: Path
    archive: Path

    keeps_replaced: ClassVar[bool] = True
    keys: ClassVar[str] = "source.path and source.archive"

    def __str__(self) -> str:
        return str(self.sink)

    def list_markers(self) -> dict[str, MarkerVersion | OSError]:
        try:
            names = os.listdir(self.archive / MARKERS)
        except NotADirectoryError as error:
            raise FileNotFoundError(*error.args) from error
        found = {name: self._version_or_error(name) for name in _in_order(names)}
        # After the folder, because collect writes a pack before it removes the markers.
        packed = packs.packed(self.archive).items()
        every = {packs.marker_name(number): _packed_version(pack) for number, pack in packed}
        every |= found
        return {name: every[name] for name in _in_order(every)}

    def _version_or_error(self, name: str) -> MarkerVersion | OSError:
        try:
            return self.version(name)
        except OSError as error:
            return error

    def version(self, name: str) -> MarkerVersion:
        path = self.archive / MARKERS / name
        try:
            status = os.stat(path)
        except FileNotFoundError:
            if pack := packs.pack_of(path):
                return _packed_version(pack)
            raise
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return MarkerVersion(_stamp(status), status.st_mtime_ns)

    def read_marker(self, name: str) -> tuple[bytes, str]:
        text = packs.read_marker_bytes(self.archive / MARKERS / name)
        return text, self.version(name).fingerprint

    def replaced_outputs(self, newest: Output, name: str) -> Iterator[Output]:
        for generation in range(1, newest.generation):
            stem = name.removesuffix(".json")
            path = self.archive / "replaced" / f"{stem}-g{generation:04d}.json"
            try:
                text = path.read_bytes()
            except OSError as error:
                raise unreadable_marker(str(path), str(error)) from error
            yield parse_output(str(path), path.name, text)

    def address(self, below: object) -> str:
        return str(self.sink / str(below))

    def marker_address(self, name: str) -> str:
        return str(self.archive / MARKERS / name)

    @contextmanager
    def open(self, file: OutputFile) -> Iterator[IO[bytes]]:
        path = self.sink / file.path
        stamp = _stamp(path.stat())
        with open(path, "rb") as opened:
            yield opened
        if _stamp(path.stat()) != stamp:
            raise WrittenMeanwhileError

    def local_copy(self, file: OutputFile) -> AbstractContextManager[Path]:
        return nullcontext(self.sink / file.path)

    def missing(self, pipeline: str) -> tuple[str, str]:
        return str(self.archive / MARKERS), (
            f"this folder does not exist: {pipeline} has not finalized a batch yet, or the folder "
            f"is not mounted. Run `semel run {pipeline}`, mount it, or correct {self.keys}"
        )

    def probe(
        self, summary: str, newest: str, file: OutputFile | None
    ) -> tuple[str, ExecutorCheck]:
        samples = [self.marker_address(newest)] if newest else []
        samples += [self.address(file.path)] if file else []
        return probe.folder_check(summary, self.sink, samples)


def _stamp(status: os.stat_result) -> str:
    """A value that changes with each write."""
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def _packed_version(pack: str) -> MarkerVersion:
    """The version of a marker in a pack, whose name has a hash. It counts as older than those in no
    pack.
    """
    return MarkerVersion(pack, 0)


@dataclass(frozen=True, kw_only=True)
class StoredOutput(OutputPlace):
    """The prefix of a sink of objects. Its copies of the markers suffice: another pipeline needs no
    access to the archive.
    """

    url: str
    connection: str | None

    keeps_replaced: ClassVar[bool] = False
    keys: ClassVar[str] = "source.url"

    def __str__(self) -> str:
        return self.url

    def _store(self) -> "Store":
        from semel.clients.objects import Store

        return Store(self.url, self.connection)

    # Keeps R1.
    def list_markers(self) -> dict[str, MarkerVersion | OSError]:
        try:
            pages = list(self._store().list(_copies()))
        except PermissionError as error:
            raise TerminalError(
                f"{self.url}: {error.filename}: {error.strerror}. Give semel s3:ListBucket and "
                "s3:GetObject, or the same rights of another service"
            ) from None
        folder = f"{_copies()}/"
        items = (item for page in pages for item in page)
        found = {item.key.removeprefix(folder): _version_of(item) for item in items}
        if not found:
            raise FileNotFoundError(errno.ENOENT, "it has no markers", self.url)
        return {name: found[name] for name in _in_order(found)}

    def version(self, name: str) -> MarkerVersion:
        return _version_of(self._store().head(f"{_copies()}/{name}")[0])

    def read_marker(self, name: str) -> tuple[bytes, str]:
        text, item, _ = self._store().get(f"{_copies()}/{name}")
        return text, _version_of(item).fingerprint

    def address(self, below: object) -> str:
        return f"{self.url}/{below}"

    def marker_address(self, name: str) -> str:
        return self.address(f"{_copies()}/{name}")

    def open(self, file: OutputFile) -> AbstractContextManager[IO[bytes]]:
        # One request: pyarrow would send one for each column of a row group.
        opened = io.BytesIO(self._store().get(str(file.path))[0])
        opened.name = self.address(file.path)  # type: ignore[attr-defined] - for error messages
        return nullcontext(opened)

    def local_copy(self, file: OutputFile) -> AbstractContextManager[Path]:
        return temporary_file(self.address(file.path), self._store().get(str(file.path))[0])

    def missing(self, pipeline: str) -> tuple[str, str]:
        return self.address(_copies()), (
            f"nothing is below this prefix: {pipeline} has not finalized a batch yet, or its "
            f"output is elsewhere. Run `semel run {pipeline}`, or correct {self.keys}"
        )

    def probe(
        self, summary: str, newest: str, file: OutputFile | None  # noqa: ARG002
    ) -> tuple[str, ExecutorCheck]:
        from semel.sources.objects.probe import store_check

        samples = []
        if newest:
            key = f"{_copies()}/{newest}"
            samples = [(key, self._store().head(key)[0].etag)]
        return store_check(summary, self.url, self.connection, samples)


def _copies() -> str:
    """The folder of the copies of markers, below a sink's prefix."""
    from semel.sinks.objects import notes  # Needs the extra semel[objects].

    return notes.MARKERS


def _version_of(item: "Object") -> MarkerVersion:
    return MarkerVersion(f"{item.etag}:{item.size}", item.modified.timestamp())


def _in_order(names: Iterable[str]) -> list[str]:
    """The names of markers among these, in the order of their batches."""
    matches = filter(None, map(packs.MARKER.fullmatch, names))
    return [match[0] for match in sorted(matches, key=lambda match: int(match[1]))]
