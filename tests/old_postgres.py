"""Run tests of ledger, catalog and Postgres sink on an older PostgreSQL than the wheel's.

    python tests/old_postgres.py          # what servers of several versions may do otherwise
    python tests/old_postgres.py --all

It is the oldest from 14 on that this machine has where Debian puts them. Where it has none, that of
Debian or Ubuntu is fetched into .semel/ without being installed, so nobody need be root. Where that
does not work either, one line says what to install. SEMEL_TEST_POSTGRES names another one.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALLED = Path("/usr/lib")
FETCHED = ROOT / ".semel" / "test-postgresql"

FILES = (
    "tests/integration/ledger/test_catalog.py",
    "tests/integration/ledger/test_constraints.py",
    "tests/integration/ledger/test_executor_role.py",
    "tests/integration/sinks/test_contract_sinks.py",
    "tests/integration/sources/test_late.py",
    "tests/integration/ledger/test_migrate.py",
    "tests/integration/sinks/test_postgres.py",
    "tests/integration/replays/test_replay_postgres.py",
    "tests/integration/sinks/test_sink_postgres.py",
    "tests/integration/sinks/test_sink_postgres_check.py",
    "tests/integration/sinks/test_sink_postgres_replay.py",
    "tests/integration/sinks/test_sink_postgres_values.py",
    "tests/chaos/test_sink_postgres_faults.py",
)
"""What talks to PostgreSQL in ways of its own. All other tests pass there too, and take longer."""

_SINK = "tests/integration/sinks/test_sink_postgres"
TESTS = (
    # The ledger: its DDL, what its constraints and ranges hold, pages of TOAST, locks of DROP.
    "tests/integration/ledger/test_migrate.py::test_schema_is_the_sum_of_the_migrations",
    "tests/integration/ledger/test_migrate.py::test_a_migration_that_fails_leaves_nothing",
    "tests/integration/ledger/test_constraints.py::test_a_claim_is_bounded['empty'::int8range]",
    "tests/integration/ledger/test_constraints.py::test_a_position_is_claimed_once[span]",
    "tests/integration/ledger/test_constraints.py::test_a_commit_waits_for_the_disk",
    "tests/integration/ledger/test_catalog.py::test_a_chunk_is_a_page",
    "tests/integration/ledger/test_catalog.py::test_a_segment_is_dropped_when_nobody_can_need_it",
    # A batch in each mode, COPY of each type, ON CONFLICT, a replay.
    "tests/integration/sinks/test_contract_sinks.py::test_rows_are_what_a_batch_published[append]",
    "tests/integration/sinks/test_contract_sinks.py::test_rows_are_what_a_batch_published[upsert]",
    "tests/integration/sinks/test_postgres.py::test_records_are_in_the_table_once",
    "tests/integration/sinks/test_postgres.py::test_the_later_commit_wins_in_any_order_of_finalize",
    "tests/integration/replays/test_replay_postgres.py::test_rows_are_replaced",
    f"{_SINK}.py::test_every_type_lands_and_comes_back",
    f"{_SINK}.py::test_nobody_changes_a_column_meanwhile",
    # What the server's own catalogs tell of a table: columns, keys, ICU, rights, publications.
    f"{_SINK}_check.py::test_what_an_output_may_lack",
    f"{_SINK}_check.py::test_a_deferrable_key",
    f"{_SINK}_check.py::test_a_key_whose_collation_takes_unequal_texts_for_equal",
    f"{_SINK}_check.py::test_rights",
    f"{_SINK}_replay.py::test_what_would_keep_rows_is_refused[replicated]",
    f"{_SINK}_replay.py::test_a_partitioned_table",
    # What it refuses, and how it spells a CHECK.
    f"{_SINK}_values.py::test_what_is_found_is_what_the_server_refuses[jsonb]",
    f"{_SINK}_values.py::test_a_check_means_the_same_here[t IN ('x', 'it''s')]",
    # Crashes, progress of COPY, time limits, a standby.
    "tests/chaos/test_sink_postgres_faults.py::test_the_server_crashes",
    "tests/chaos/test_sink_postgres_faults.py::test_a_finalizer_dies_in_the_middle_of_its_rows",
    "tests/chaos/test_sink_postgres_faults.py::test_a_large_batch_of_a_hasty_user"
    "[transaction_timeout]",
    "tests/chaos/test_sink_postgres_faults.py::test_a_standby",
)
"""Of these files, what depends on the server's version. One that is gone fails the run."""

_VERSIONS = range(14, 18)
_FETCH_SECONDS = 300
_LACKING = (
    "SKIPPED: the tests on an older PostgreSQL, as none is here and none could be fetched. On "
    "Debian 12: sudo apt-get install -y postgresql-15; elsewhere name a folder with initdb and "
    "pg_ctl of version 14 to 17 in SEMEL_TEST_POSTGRES"
)


def main(*, whole: bool = False) -> int:
    """Returns pytest's exit code; without a server 0, or 1 where nothing may be skipped."""
    found = os.environ.get("SEMEL_TEST_POSTGRES") or there(INSTALLED) or there(FETCHED)
    found = found or fetched(FETCHED)
    if not found:
        print(_LACKING, file=sys.stderr)
        return 1 if os.environ.get("SEMEL_NO_SKIPS") else 0
    print(f"The ledger's and the Postgres sink's tests on {found}:", flush=True)
    # With those that only a server with ICU can run. A few are done before a worker has begun.
    several = ["-n", "auto", "-m", "not soak and not proof", "-k", "not topic", *FILES]
    chosen = several if whole else ["-m", "", *TESTS]
    command = [sys.executable, "-m", "pytest", *chosen]
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all tests of these parts")
    sys.exit(main(whole=parser.parse_args().all))
