"""What is missing on a user's machine skips tests with a line; in CI it is a failure."""

import re
import subprocess
import sys
from pathlib import Path

import old_postgres
import pytest
from no_skips import VARIABLE

TESTS = Path(old_postgres.__file__).parent

SKIPS = """
import pytest

@pytest.fixture
def broker():
    pytest.skip("no broker: apt-get install redis-server")

def test_with_a_fixture(broker): ...

def test_with_the_same(broker): ...

def test_by_itself():
    pytest.skip("no mount")

@pytest.mark.skipif(True, reason="only root can")
def test_by_a_mark(): ...

@pytest.mark.xfail(reason="is known", strict=True)
def test_that_is_expected_to_fail():
    raise AssertionError

def test_that_passes(): ...
"""

SKIPS_WHOLE = 'import pytest\n\npytest.importorskip("no_such_module")\n'


@pytest.mark.parametrize("strict", [False, True])
def test_a_skip_is_a_failure_where_nothing_may_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """Of a fixture, a test, a mark or a module; what is expected to fail is left alone. Elsewhere
    one line says what is missing, however many tests lack it."""
    (tmp_path / "test_some.py").write_text(SKIPS)
    (tmp_path / "test_whole.py").write_text(SKIPS_WHOLE)
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv(VARIABLE, "1" if strict else "")
    options = ["-p", "no_skips", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    command = [sys.executable, "-m", "pytest", *options, "-q", "-rA", "--rootdir", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    if strict:
        assert done.returncode == 1
        assert "1 failed, 1 passed, 1 xfailed, 4 errors" in done.stdout, done.stdout
        for why in ("no broker: apt-get install redis-server", "no mount", "only root can",
                    "no_such_module"):  # fmt: skip
            assert re.search(f"{why}.*is set, and a skipped", done.stdout), done.stdout
    else:
        assert done.returncode == 0
        assert "1 passed, 5 skipped, 1 xfailed" in done.stdout, done.stdout
        told = re.findall(r"^SKIPPED \[(\d+)\] .*: (.*)$", done.stdout, re.M)
        assert ("2", "apt-get install redis-server") in told and len(told) == 4, done.stdout


@pytest.mark.parametrize("strict", [False, True])
def test_no_older_postgres(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    strict: bool,
) -> None:
    """Where none can be fetched, one line says what to install; in CI that is a failure."""
    monkeypatch.setattr(old_postgres, "INSTALLED", tmp_path)
    monkeypatch.setattr(old_postgres, "FETCHED", tmp_path / "state" / "postgresql")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SEMEL_TEST_POSTGRES", raising=False)
    monkeypatch.setenv(VARIABLE, "1" if strict else "")
    assert old_postgres.main() == (1 if strict else 0)
    said = capsys.readouterr().err.splitlines()
    assert "apt-get" in said[0]
    assert "sudo apt-get install -y postgresql-15" in said[1] and len(said) == 2
    assert not (tmp_path / "state" / "postgresql.new").exists()


def test_the_oldest_postgres_is_taken(tmp_path: Path) -> None:
    """Of those that semel knows: 13 is too old, and a folder without programs is none."""
    for version in ("9.6", "13", "16", "15", "17"):
        (tmp_path / "postgresql" / version / "bin").mkdir(parents=True)
        if version != "15":
            (tmp_path / "postgresql" / version / "bin" / "initdb").touch()
    assert old_postgres.there(tmp_path) == tmp_path / "postgresql" / "16" / "bin"
    assert old_postgres.there(tmp_path / "postgresql") is None


@pytest.mark.parametrize("test", old_postgres.TESTS)
def test_what_an_older_postgres_runs_is_there(test: str) -> None:
    """A test that was renamed is not lost, where no older server is either."""
    file, _, name = test.partition("::")
    assert file in old_postgres.FILES
    assert f"\ndef {name.partition('[')[0]}(" in (TESTS.parent / file).read_text()


def test_what_is_fetched_of_a_server() -> None:
    """The server and the libraries that are not there yet; the compiler is left out."""
    simulated = """
NOTE: This is only a simulation!
Inst libllvm14 (1:14.0.6-12 Debian:12 [amd64])
Inst libpq5 (15.20-0+deb12u1 Debian-Security:12 [amd64])
Inst libxml2 [2.9.14-1] (2.9.14-2 Debian:12 [amd64])
Inst postgresql-client-15 (15.20-0+deb12u1 Debian-Security:12 [amd64])
Inst postgresql-common (248+deb12u2 Debian-Security:12 [all])
Inst postgresql-15 (15.20-0+deb12u1 Debian-Security:12 [amd64])
Inst postgresql (15+248+deb12u2 Debian-Security:12 [all])
Conf libpq5 (15.20-0+deb12u1 Debian-Security:12 [amd64])
"""
    assert old_postgres.packages(simulated) == ["libpq5", "postgresql-15"]


def test_ci_skips_nothing() -> None:
    """It runs what a newcomer does, and with the same seed what that left out; and `make test` runs
    the tests on an older PostgreSQL."""
    root = TESTS.parent
    ci = (root / ".ci" / "run").read_text()
    assert f"\nexport {VARIABLE}=1 SEMEL_SEED=" in ci
    assert ci.endswith("\nmake test\nexec make rest\n")
    assert "\n\t@.venv/bin/python tests/old_postgres.py\n" in (root / "Makefile").read_text()
