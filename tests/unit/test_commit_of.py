"""The git commit of a folder, as git itself says it, without asking git."""

import subprocess
from pathlib import Path

import pytest

from semel.archive.commit_of import commit_of


def git(folder: Path, *arguments: str) -> str:
    """Run git, with nothing of this user's own settings."""
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, timeout=60
    )
    return done.stdout.decode().strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one commit, on the branch feature/x."""
    folder = tmp_path / "project"
    (folder / "jobs" / "deep").mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=feature/x")
    git(folder, "commit", "--quiet", "--allow-empty", "--message=one")
    return folder


def test_it_is_what_git_says(checkout: Path) -> None:
    """On a branch, also packed; detached; in a worktree; from a folder below."""
    assert commit_of(checkout / "jobs" / "deep") == git(checkout, "rev-parse", "HEAD")
    git(checkout, "branch", "other/feature/x")
    git(checkout, "commit", "--quiet", "--allow-empty", "--message=two")
    git(checkout, "pack-refs", "--all")
    assert not (checkout / ".git" / "refs" / "heads" / "feature" / "x").exists()
    second = git(checkout, "rev-parse", "HEAD")
    assert commit_of(checkout) == second
    git(checkout, "checkout", "--quiet", "--detach", "HEAD~1")
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD") != second
    git(checkout, "worktree", "add", "--quiet", "../beside", "feature/x")
    assert commit_of(checkout.parent / "beside") == second
    git(checkout.parent / "beside", "commit", "--quiet", "--allow-empty", "--message=three")
    third = git(checkout, "rev-parse", "feature/x")
    assert commit_of(checkout.parent / "beside") == third != second


@pytest.mark.parametrize(
    "head",
    ["", "\n", "ref: refs/heads/gone", "ref: refs/../../../secret", "ref: ../../secret", "abc",
     "ref: refs/heads/.invalid", "x" * 100_000],
)  # fmt: skip
def test_what_is_no_commit_is_none(checkout: Path, head: str) -> None:
    """No branch leads out of `.git`, and what is no hash is none, whatever HEAD says."""
    (checkout.parent / "secret").write_text("5" * 40 + "\n")
    (checkout / ".git" / "HEAD").write_text(head)
    assert commit_of(checkout / "jobs") is None


def test_bytes_and_missing_folders_are_none(tmp_path: Path, checkout: Path) -> None:
    """No checkout, a `.git` that is a file of something else, or bytes in HEAD: no commit."""
    assert commit_of(tmp_path / "project" / "gone") == commit_of(checkout)
    (checkout / ".git" / "HEAD").write_bytes(b"\xff\xfe\x00")
    assert commit_of(checkout) is None
    other = tmp_path / "other"
    other.mkdir()
    (other / ".git").write_text("not what git writes")
    assert commit_of(other) is None
