"""Run the tests of ledger, catalog and Postgres sink on an older PostgreSQL than the wheel's.

It is the oldest from 14 on that this machine has where Debian puts them. Where it has none, that of
Debian or Ubuntu is fetched into .semel/ without being installed, so nobody need be root. Where that
does not work either, one line says what to install. SEMEL_TEST_POSTGRES names another one.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = Path("/usr/lib")
FETCHED = ROOT / ".semel" / "test-postgresql"

TESTS = (
    "tests/integration/test_catalog.py",
    "tests/integration/test_constraints.py",
    "tests/integration/test_contract_sinks.py",
    "tests/integration/test_migrate.py",
    "tests/integration/test_postgres.py",
    "tests/integration/test_replay_postgres.py",
    "tests/integration/test_sink_postgres.py",
    "tests/integration/test_sink_postgres_check.py",
    "tests/integration/test_sink_postgres_replay.py",
    "tests/integration/test_sink_postgres_values.py",
    "tests/integration/test_upgrade.py",
    "tests/chaos/test_sink_postgres_faults.py",
    "tests/chaos/test_sink_postgres_replay_faults.py",
)
"""What talks to PostgreSQL in ways of its own. All other tests pass there too, and take longer."""

_VERSIONS = range(14, 18)
_FETCH_SECONDS = 300
_LACKING = (
    "SKIPPED: the tests on an older PostgreSQL, as none is here and none could be fetched. On "
    "Debian 12: sudo apt-get install -y postgresql-15; elsewhere name a folder with initdb and "
    "pg_ctl of version 14 to 17 in SEMEL_TEST_POSTGRES"
)


def main() -> int:
    """Returns pytest's exit code; without a server 0, or 1 where nothing may be skipped."""
    found = os.environ.get("SEMEL_TEST_POSTGRES") or there(INSTALLED) or there(FETCHED)
    found = found or fetched(FETCHED)
    if not found:
        print(_LACKING, file=sys.stderr)
        return 1 if os.environ.get("SEMEL_NO_SKIPS") else 0
    print(f"The ledger's and the Postgres sink's tests on {found}:", flush=True)
    # With those that only a server with ICU can run.
    options = ["-n", "auto", "-m", "not soak", "-k", "not topic"]
    command = [sys.executable, "-m", "pytest", *options, *TESTS]
    environment = {**os.environ, "SEMEL_TEST_POSTGRES": str(found)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def there(lib: Path) -> Path | None:
    """The folder of programs of the oldest version below a folder like /usr/lib."""
    folders = (lib / "postgresql" / str(version) / "bin" for version in _VERSIONS)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def fetched(lib: Path) -> Path | None:
    """Fetch what Debian's package `postgresql` would install, so that it lies below `lib`."""
    new = lib.with_name(f"{lib.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        for update in (False, True):
            if update and os.geteuid() == 0:
                _run(["apt-get", "update", "-qq"], new)
            simulated = ["apt-get", "-s", "--no-install-recommends", "install", "postgresql"]
            if names := packages(_run(simulated, new)):
                break
        else:
            raise FileNotFoundError("apt-get would install no server that could be unpacked here")
        _run(["apt-get", "download", "-qq", *names], new)
        for package in new.glob("*.deb"):
            _run(["dpkg", "-x", str(package), "unpacked"], new)
        for compiler in new.rglob("llvmjit.so"):
            compiler.unlink()  # It needs 100 MB more; without it nothing is compiled.
        shutil.rmtree(lib, ignore_errors=True)
        (new / "unpacked/usr").rename(lib.parent / lib.name)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        print(f"fetching PostgreSQL: {said[0] if said else error}", file=sys.stderr)
        return None
    finally:
        shutil.rmtree(new)
    return there(lib / "lib")


def packages(simulated: str) -> list[str]:
    """The packages that apt-get would install newly, but for what a server runs without."""
    names = re.findall(r"^Inst (\S+) \(", simulated, re.MULTILINE)
    return [
        name
        for name in names
        if re.fullmatch(r"postgresql-\d+|lib.*", name) and not name.startswith("libllvm")
    ]


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=True,
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
