"""The stack's Kafka broker, none running: jars are fetched once, what is missing is said."""

import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.kafka.broker import skipping
from semel.errors import TerminalError, UnavailableError
from semel_local.stack import java, kafka_server

MAVEN = """#!/bin/sh
echo run >> "$COUNTED"
printf %s "$JAVA_HOME" > "${COUNTED%counted}java_home"
sleep 0.3
test -f pom.xml && touch "$PWD/written" || exit 1
if [ -e "$BROKEN" ]; then printf "$BROKEN_SAYS"; exit 1; fi
for word; do case "$word" in -DoutputDirectory=*) touch "${word#*=}/kafka.jar"; esac; done
"""
BROKEN_SAYS = r"""\033[0m[ERROR] Unknown host repo.example -> [Help 1]
[ERROR] To see the full stack trace of the errors, re-run Maven with the -e switch.
\033[0m"""


def program(folder: Path, name: str, text: str) -> Path:
    """A script that stands for a program. Returns its folder."""
    path = folder / "bin" / name
    path.parent.mkdir()
    path.write_text(text)
    path.chmod(0o755)
    return path.parent


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that stands for Maven. Returns the file that has a line for each of its runs."""
    there = program(tmp_path, "mvn", MAVEN)
    monkeypatch.setenv("PATH", f"{there}:/usr/bin:/bin")
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    monkeypatch.setenv("BROKEN", str(tmp_path / "broken"))
    monkeypatch.setenv("BROKEN_SAYS", BROKEN_SAYS)
    return tmp_path / "counted"


def test_the_jars_are_fetched_once(tmp_path: Path, maven: Path) -> None:
    """Also where several processes want them at the same time; each waits until all are there."""
    code = "import sys, pathlib; from semel_local.stack import kafka_server; "
    code += "print(*(p.name for p in kafka_server.jars(pathlib.Path(sys.argv[1])).iterdir()))"
    command = [sys.executable, "-c", code, str(tmp_path / "home")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [one.communicate(timeout=60)[0] for one in started] == ["kafka.jar\n"] * 3
    assert maven.read_text() == "run\n"
    # A wheel's folder may not be ours to write to, and Maven writes beside its POM.
    assert not kafka_server.POM.with_name("written").exists()


def test_a_fetch_that_failed_is_made_again(tmp_path: Path, maven: Path) -> None:
    """Maven's first error is told, in one line, and what it left is not taken for the jars."""
    home = tmp_path / "home"
    (tmp_path / "broken").touch()
    with pytest.raises(UnavailableError) as raised:
        kafka_server.jars(home)
    assert str(raised.value) == "Maven could not fetch the Kafka broker: Unknown host repo.example"
    (tmp_path / "broken").unlink()
    assert [path.name for path in kafka_server.jars(home).iterdir()] == ["kafka.jar"]
    assert maven.read_text() == "run\nrun\n"


@pytest.mark.parametrize("own", [True, False])
def test_maven_runs_on_the_java_of_the_machine(
    own: bool, tmp_path: Path, maven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel's Java does not trust a certificate that this machine trusts, such as a company's
    proxy has. A JAVA_HOME of the user's stays.
    """
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("JAVA_HOME", str(java.home() if own else tmp_path))
    monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path / "another"))
    kafka_server.jars(tmp_path / "home")
    assert maven.with_name("java_home").read_text() == ("" if own else str(tmp_path))


def test_without_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what to install, and the tests that want a broker are skipped with it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TerminalError, match="sudo apt-get install -y maven") as raised:
        kafka_server.jars(tmp_path)
    assert "\n" not in str(raised.value)
    with pytest.raises(pytest.skip.Exception, match="sudo apt-get install -y maven"):
        with skipping():
            kafka_server.jars(tmp_path)


def test_the_settings_are_for_java_and_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others cannot read them; a folder may have any letters; what could not be made is told."""
    stand_in = program(tmp_path, "java", "#!/bin/sh\necho bad settings; exit 1\n")
    folder = tmp_path / "brökér"
    with pytest.raises(TerminalError, match="bad settings"):
        kafka_server.write(folder, str(stand_in / "java"), tmp_path, {"a": "b\\c"})
    written = folder / "server.properties"
    assert written.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    text = written.read_text(encoding="ascii")
    assert r"/br\u00f6k\u00e9r/data" in text and "a=b\\\\c\n" in text
