"""Provenance: the code behind a batch, as transform files, semel's version and the git commit.

Plan records what it finds, beside the stored spec. Stage reads the files once, reports what has
changed since, and runs what it read. The texts go to the archive, named by their digests, and the
marker refers to them.
"""

import ast
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import semel
from semel import settings
from semel.archive.commit_of import commit_of
from semel.errors import CorruptionError, TerminalError
from semel.model.batch import Batch
from semel.model.plain import parse_json
from semel.model.windows import zones_version
from semel.pipeline.spec import Spec
from semel.pipeline.transforms import file_of
from semel.storage import Sealed, make_folder, write_new

_RECORD = "code.json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIXES = (".py", ".sql")


@dataclass(frozen=True, kw_only=True)
class CodeDigests:
    """Code as the ledger and markers name it: the hex SHA-256 of its files, by file name. `zones`:
    the version of the time zone database. None: not known.
    """

    semel: str
    git_commit: str | None
    files: dict[str, str]
    zones: str | None = None

    @classmethod
    def from_json(cls, plain: object) -> "CodeDigests":
        """Parse and check it. ValueError: it is something else."""
        if not (
            isinstance(plain, dict)
            and isinstance(plain.get("semel"), str)
            and isinstance(plain.get("git_commit"), str | None)
            and isinstance(plain.get("zones"), str | None)
            and isinstance(files := plain.get("files"), dict)
            and all(Path(name).suffix in _SUFFIXES for name in files)
            and all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in files.values())
        ):
            raise ValueError("its code is not what docs/protocol.md says")
        more = {key: plain.get(key) for key in ("git_commit", "zones")}
        return cls(semel=plain["semel"], files=files, **more)

    @property
    def digest(self) -> str:
        """Hex SHA-256 of what runs: semel's version and the files, without the commit."""
        shaping = {"semel": self.semel, "files": self.files}
        return _sha256(json.dumps(shaping, sort_keys=True, separators=(",", ":")).encode())

    def kept(self, folder: Path) -> dict[str, Path]:
        """The path of each file's text, by name, below the archive's folder of texts."""
        return {n: folder / f"{d}{Path(n).suffix}" for n, d in sorted(self.files.items())}


@dataclass(frozen=True, kw_only=True)
class Code:
    """The code at one moment. `texts`: each relevant file of the transforms' folder, by name."""

    semel: str
    git_commit: str | None
    texts: dict[str, bytes]
    zones: str | None

    @property
    def named(self) -> CodeDigests:
        """The same with digests in place of the texts."""
        files = {name: _sha256(text) for name, text in sorted(self.texts.items())}
        return CodeDigests(
            semel=self.semel, git_commit=self.git_commit, files=files, zones=self.zones
        )

    def to_json(self) -> dict[str, Any]:
        """The form that the ledger and markers hold."""
        return asdict(self.named)


def look(spec: Spec) -> Code:
    """Read the current code. TerminalError: a transform's file cannot be read.

    Modules of the same folder count if another module's text imports them.
    """
    folder = settings.transforms_dir()
    texts: dict[str, bytes] = {}
    todo = [file_of(name) for name in spec.transforms]
    while todo:
        path = todo.pop()
        if path.name in texts:
            continue
        try:
            texts[path.name] = path.read_bytes()
        except OSError as error:
            raise TerminalError(
                f"transforms: {path} cannot be read: {error.strerror}; put it there, then run "
                "this again"
            ) from error
        if path.suffix == ".py":
            beside = (folder / f"{name}.py" for name in _imported(texts[path.name]))
            # os.path, because Path.is_file raises for a name that is too long.
            todo += [path for path in beside if os.path.isfile(path)]
    return Code(
        semel=semel.__version__, git_commit=commit_of(folder), texts=texts,
        zones=zones_version() or None,
    )  # fmt: skip


# Keeps S26.
def stored(spec: Spec) -> dict[str, Any]:
    """What a batch stores: its declaration and the current code. TerminalError as in `look`."""
    return spec.to_json() | {"code": look(spec).to_json()}


def take(
    spec: Spec, batch: Batch, kept: Path, attempt: Path, log: Callable[[str], None]
) -> dict[str, bytes]:
    """Read the texts that an attempt runs, once; keep them, and log what changed since the plan.

    `kept`: the folder of texts; `attempt`: its own folder. TerminalError: a file cannot be read.
    CorruptionError: a different text has the digest of one as its name.
    """
    found = look(spec)
    for line in _changes(batch, found):
        log(line)
    _keep(kept, found)
    with Sealed(attempt / _RECORD) as file:
        file.write(json.dumps(found.to_json(), sort_keys=True).encode())
    return found.texts


def _changes(batch: Batch, now: Code) -> Iterator[str]:
    planned = batch.spec["code"]
    when = f"batch {batch.batch_id} was planned"
    was, found = planned["files"], now.named.files
    for name in sorted(was.keys() | found.keys()):
        path = settings.transforms_dir() / name
        if name not in was:
            yield f"{path} is used, and was not when {when}"
        elif name not in found:
            yield f"{path} is used no more, and was when {when}"
        elif was[name] != found[name]:
            digests = f"SHA-256 {was[name][:12]}, now {found[name][:12]}"
            yield f"{path} changed since {when} ({digests})"
    if planned["semel"] != now.semel:
        yield f"semel is {now.semel}, and was {planned['semel']} when {when}"
    # Keeps AG7.
    if (zones := planned.get("zones")) and zones != now.zones:
        yield f"the tz database is {now.zones or 'of no version'}, and was {zones} when {when}"


def _keep(folder: Path, code: Code) -> None:
    """Write the texts below a folder, each once.

    CorruptionError: a different text has the digest of one as its name.
    """
    for name, path in code.named.kept(folder).items():
        make_folder(folder)
        try:
            write_new(path, code.texts[name])
        except FileExistsError:
            if path.read_bytes() != code.texts[name]:
                raise CorruptionError(
                    f"{path} does not hold the text that its name says; remove it, then run stage "
                    "again"
                ) from None


def of_attempt(attempt: Path) -> CodeDigests | None:
    """The code of an attempt. None: its folder does not say; finalize goes on without it."""
    return _read(attempt / _RECORD, lambda plain: plain)


def of_marker(marker: Path) -> CodeDigests | None:
    """The code of a finalized batch. None: its marker does not say, or is damaged or gone."""
    return _read(marker, lambda plain: plain["code"])


def _read(path: Path, part: Callable[[Any], object]) -> CodeDigests | None:
    try:
        return CodeDigests.from_json(part(parse_json(path.read_bytes())))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _imported(text: bytes) -> set[str]:
    """The top-level names of the modules that a module's text imports."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        return set()  # Loading it reports the error.
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom) and not n.level]
    return {name.partition(".")[0] for name in names} - {""}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
