"""DuckDB as commands use it."""

import duckdb
import pytest

from semel.clients import duck

SLOW = "SELECT count(*) FROM range(9000) AS a, range(9000) AS b WHERE a.range * b.range % 7 = 3"
"""A second of work. After two, DuckDB shows its progress."""


@pytest.mark.parametrize("connect", [duckdb.connect, duck.connect])
def test_a_slow_query_prints_nothing(connect, capfd: pytest.CaptureFixture[str]) -> None:
    """`--json` prints one object, however long an audit takes. DuckDB as it comes does print, also
    into a pipe: where that ends, `connect` is not needed.
    """
    with connect() as engine:
        [(bar,)] = engine.execute("SELECT current_setting('enable_progress_bar')").fetchall()
        engine.execute("SET progress_bar_time = 1")  # In milliseconds. It also turns the bar on.
        engine.execute(f"SET enable_progress_bar = {bar}")
        engine.execute(SLOW).fetchall()
    assert ("%" in capfd.readouterr().out) == (connect is duckdb.connect)
