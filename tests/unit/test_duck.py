"""DuckDB as commands use it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "shows"), [("duckdb", True), ("semel.clients.duck", False)], ids=["duckdb", "semel"]
)
def test_a_slow_query_prints_nothing(module: str, shows: bool) -> None:
    """`--json` prints one object, however long an audit takes, also where `python -c` runs it.

    DuckDB as it comes does show its progress there: where that ends, `connect` is not needed.
    """
    code = (
        f"from {module} import connect\n"
        "bar = connect().execute(\"SELECT current_setting('enable_progress_bar')\").fetchone()\n"
        "print(*bar)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{shows}\n"
