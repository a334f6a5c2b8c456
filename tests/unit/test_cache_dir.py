"""Where an executor keeps its cache: a folder of its own user's, or none at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from semel import settings
from semel.errors import TerminalError

REMEDY = f"(S|s)et {settings.CACHE_VARIABLE} to (another folder|a folder of this user)"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is declared: no state folder, a temporary folder that is empty."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv(settings.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path


def test_the_named_one_then_the_stacks_then_a_temporary_one(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made where it is asked for, and for this user alone."""
    own = place / "tmp" / f"semel-{os.geteuid()}"
    assert settings.cache_dir() == own
    (place / "state").mkdir()
    assert settings.cache_dir() == place / "state" / "cache"
    monkeypatch.setenv(settings.CACHE_VARIABLE, str(place / "a" / "b"))
    assert settings.cache_dir() == place / "a" / "b"
    for made in (own, place / "state" / "cache", place / "a" / "b"):
        assert made.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_state_folder_of_another_user_is_left_alone(place: Path) -> None:
    """An executor of another user that shares the project's folder takes a folder of its own."""
    (place / "state").mkdir()
    os.chown(place / "state", 65534, 65534)
    assert settings.cache_dir() == place / "tmp" / f"semel-{os.geteuid()}"
    assert list((place / "state").iterdir()) == []


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def link(path: Path) -> None:
    """Whoever clears a cache there would remove this user's files."""
    precious = path.parent.parent / "precious"
    precious.mkdir(mode=0o700)
    path.symlink_to(precious)


def of_another(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)


def a_file(path: Path) -> None:
    path.touch()


@pytest.mark.parametrize("planted", [open_to_all, link, of_another, a_file])
def test_what_others_planted_is_refused(place: Path, planted: Callable[[Path], None]) -> None:
    """In a folder that all may write to: said with the folder, and taken once it is away."""
    if planted is of_another and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    path = place / "tmp" / f"semel-{os.geteuid()}"
    planted(path)
    with pytest.raises(TerminalError, match=rf"the cache folder {path} .*\. .*{REMEDY}"):
        settings.cache_dir()
    path.rename(place / "away")
    assert settings.cache_dir() == path


def test_a_folder_that_cannot_be_made_is_said(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a file, for instance; named elsewhere, it is made."""
    (place / "file").touch()
    monkeypatch.setenv(settings.CACHE_VARIABLE, str(place / "file" / "cache"))
    with pytest.raises(TerminalError, match=rf"cannot create .*\. {REMEDY}"):
        settings.cache_dir()
    monkeypatch.setenv(settings.CACHE_VARIABLE, str(place / "cache"))
    assert settings.cache_dir() == place / "cache"
