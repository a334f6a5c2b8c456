"""Provenance: the code of a batch, which is transform files, semel's version and the git commit.

Plan records the digests with the stored spec. Stage reads the files once, logs changes since then,
and runs these texts. The archive keeps each text under its digest, which the marker lists.
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
from semel.storage import ArchivePath, make_folder, new, packs, write_new

_RECORD = "code.json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIXES = (".py", ".sql")


@dataclass(frozen=True, kw_only=True)
class CodeDigests:
    """Code as the ledger and markers record it: the hex SHA-256 of its files, by file name.

    `zones`: the version of the time zone database, or None if unknown.
    """

    semel: str
    git_commit: str | None
    files: dict[str, str]
    zones: str | None = None

    @classmethod
    def from_json(cls, plain: object) -> "CodeDigests":
        """Parse the JSON value of a ledger or marker. Raises ValueError if it is malformed."""
        if not (
            isinstance(plain, dict)
            and isinstance(plain.get("semel"), str)
            and isinstance(plain.get("git_commit"), str | None)
            and isinstance(plain.get("zones"), str | None)
            and isinstance(files := plain.get("files"), dict)
            and all(Path(name).suffix in _SUFFIXES for name in files)
            and all(isinstance(d, str) and _DIGEST.fullmatch(d) for d in files.values())
        ):
            raise ValueError("its code does not have the form in docs/protocol.md")
        more = {key: plain.get(key) for key in ("git_commit", "zones")}
        return cls(semel=plain["semel"], files=files, **more)

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the code that runs: semel's version and the files, without the commit."""
        shaping = {"semel": self.semel, "files": self.files}
        return _sha256(json.dumps(shaping, sort_keys=True, separators=(",", ":")).encode())

    def text_paths(self, folder: ArchivePath) -> dict[str, ArchivePath]:
        """The path of each file's text, by file name, in the archive's folder of texts."""
        return {n: folder / f"{d}{Path(n).suffix}" for n, d in sorted(self.files.items())}


@dataclass(frozen=True, kw_only=True)
class Code:
    """The code at one moment. `texts`: each relevant file of the transforms' folder, by name."""

    semel: str
    git_commit: str | None
    texts: dict[str, bytes]
    zones: str | None

    @property
    def digests(self) -> CodeDigests:
        """This code with digests in place of the texts."""
        files = {name: _sha256(text) for name, text in sorted(self.texts.items())}
        return CodeDigests(
            semel=self.semel, git_commit=self.git_commit, files=files, zones=self.zones
        )

    def to_json(self) -> dict[str, Any]:
        """The JSON value for ledger and markers."""
        return asdict(self.digests)


def read_code(spec: Spec) -> Code:
    """Read the current code. Raises TerminalError if a transform's file is unreadable.

    It includes modules of the same folder that another of its modules imports.
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
                f"transforms: semel cannot read {path}: {error.strerror}. Put a readable file "
                "there, then run this again"
            ) from error
        if path.suffix == ".py":
            modules = (folder / f"{name}.py" for name in _imported(texts[path.name]))
            # os.path, because Path.is_file raises for a name that is too long.
            todo += [path for path in modules if os.path.isfile(path)]
    return Code(
        semel=semel.__version__, git_commit=commit_of(folder), texts=texts,
        zones=zones_version() or None,
    )  # fmt: skip


# Keeps S26.
def spec_with_code(spec: Spec) -> dict[str, Any]:
    """The stored form of a declaration, with the current code. Raises as `read_code` does."""
    return spec.to_json() | {"code": read_code(spec).to_json()}


def take_code(
    spec: Spec,
    batch: Batch,
    folder: ArchivePath,
    attempt: ArchivePath,
    log: Callable[[str], None],
) -> dict[str, bytes]:
    """Read the texts that an attempt runs, store them in the archive, and log changes since plan.

    `folder`: the archive's folder of texts. `attempt`: the attempt's folder. Raises TerminalError
    if a file is unreadable, CorruptionError if a stored text does not match its digest.
    """
    code = read_code(spec)
    for line in _changes(batch, code):
        log(line)
    _keep(folder, code)
    with new(attempt / _RECORD) as file:
        file.write(json.dumps(code.to_json(), sort_keys=True).encode())
    return code.texts


def _changes(batch: Batch, now: Code) -> Iterator[str]:
    planned = batch.spec["code"]
    when = f"batch {batch.batch_id} was planned"
    was, used = planned["files"], now.digests.files
    for name in sorted(was.keys() | used.keys()):
        path = settings.transforms_dir() / name
        if name not in was:
            yield f"{path} is in use, and was not when {when}"
        elif name not in used:
            yield f"{path} is no longer in use, and was when {when}"
        elif was[name] != used[name]:
            digests = f"SHA-256 {was[name][:12]}, now {used[name][:12]}"
            yield f"{path} changed since {when} ({digests})"
    if planned["semel"] != now.semel:
        yield f"semel is {now.semel}, and was {planned['semel']} when {when}"
    # Keeps AG7.
    if (zones := planned.get("zones")) and zones != now.zones:
        yield f"the tz database is {now.zones or 'unknown'}, and was {zones} when {when}"


def _keep(folder: ArchivePath, code: Code) -> None:
    """Write each text to a folder, unless it is there.

    Raises CorruptionError if a stored text does not match its digest.
    """
    for name, path in code.digests.text_paths(folder).items():
        make_folder(folder)
        try:
            write_new(path, code.texts[name])
        except FileExistsError:
            if path.read_bytes() != code.texts[name]:
                raise CorruptionError(
                    f"{path}: this text does not match the digest in its name. Remove it, then run "
                    "stage again"
                ) from None


def code_of_attempt(attempt: ArchivePath) -> CodeDigests | None:
    """The code of an attempt. Returns None without a valid record; finalize needs none."""
    return _parse((attempt / _RECORD).read_bytes, lambda plain: plain)


def code_of_marker(marker: ArchivePath) -> CodeDigests | None:
    """The code of a finalized batch. Returns None if a valid marker does not record it."""
    return _parse(lambda: packs.read_marker_bytes(marker), lambda plain: plain["code"])


def _parse(read: Callable[[], bytes], part: Callable[[Any], object]) -> CodeDigests | None:
    try:
        return CodeDigests.from_json(part(parse_json(read())))
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
