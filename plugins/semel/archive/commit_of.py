"""Read the git commit of a checkout from its files, so that git need not be installed."""

import re
from pathlib import Path

_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_BRANCH = re.compile(r"ref: (refs/[^\s~^:?*\[\\]+)")
_TEXT_CHARS_MAX = 4096


def commit_of(folder: Path) -> str | None:
    """The commit checked out at a folder or above it. Returns None if semel cannot read one.

    The files may differ from that commit; this does not check.
    """
    folder = folder.resolve()
    try:
        for git in (path / ".git" for path in (folder, *folder.parents)):
            if git.is_dir():
                return _commit(git)
            if git.is_file():  # In a worktree or a submodule, this file has the folder's path.
                return _commit((git.parent / _text(git).removeprefix("gitdir: ")).resolve())
    except (OSError, UnicodeDecodeError):
        pass
    return None


def _commit(git: Path) -> str | None:
    head = _text(git / "HEAD")
    branch = _BRANCH.fullmatch(head)
    if not branch:
        return head if _HASH.fullmatch(head) else None
    name = branch[1]
    if ".." in name:
        return None
    shared = git / "commondir"  # A worktree shares its first checkout's branches.
    common = (git / _text(shared)).resolve() if shared.is_file() else git
    try:
        commit = _text(common / name)
    except OSError:
        commit = _packed(common / "packed-refs", name)
    return commit if _HASH.fullmatch(commit) else None


def _packed(path: Path, name: str) -> str:
    with path.open(encoding="utf-8") as file:
        return next((line[: -len(name) - 2] for line in file if line.endswith(f" {name}\n")), "")


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(_TEXT_CHARS_MAX).strip()
