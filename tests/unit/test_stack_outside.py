"""A stack whose parts all run elsewhere, such as in the containers of docker-compose.yaml."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from semel import settings
from semel.errors import TerminalError, UnavailableError
from semel_local import commands, stack
from semel_local.stack import airflow_server, outside


class HealthPage(BaseHTTPRequestHandler):
    """Airflow's page of its health."""

    parts = dict.fromkeys(airflow_server.HEALTH_NAMES.values(), {"status": "healthy"})

    def do_GET(self) -> None:  # noqa: N802 - the base class chose the name
        assert self.path == "/api/v2/monitor/health"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.parts).encode())

    def log_message(self, *_words: object) -> None:
        """Print nothing."""


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[HealthPage]]:
    """An Airflow that the environment names, with nothing of a local stack."""
    # A container has no supervisor, which this module imports.
    monkeypatch.delattr(stack, "lifecycle", raising=False)
    monkeypatch.setitem(sys.modules, "semel_local.stack.lifecycle", None)
    passwords = tmp_path / "passwords.json"
    passwords.write_text('{"admin": "hidden"}')
    with HTTPServer(("127.0.0.1", 0), HealthPage) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        monkeypatch.setenv(outside.URL_VARIABLE, f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv(outside.PASSWORDS_VARIABLE, str(passwords))
        monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path / "state"))
        monkeypatch.setenv("SEMEL_LEDGER_DSN", "postgresql://ledger/semel")
        monkeypatch.setenv("SEMEL_SPARK_REMOTE", "sc://spark:15002")
        yield HealthPage
        server.shutdown()
        thread.join()


def test_up_starts_nothing(airflow: type[HealthPage], monkeypatch: pytest.MonkeyPatch) -> None:
    """`up` reports the health of the parts. It writes no state, and prints no progress."""
    monkeypatch.delenv("SEMEL_LEDGER_DSN")
    monkeypatch.delenv("SEMEL_SPARK_REMOTE")
    lines: list[str] = []
    state = stack.up(echo=lines.append)
    assert state.healthy and state == stack.status()
    assert [part.name for part in state.parts] == [
        f"{name} (outside)" for name in airflow_server.COMMANDS
    ]
    assert lines == [] and not settings.state_dir().exists()


def test_status_prints_columns(
    airflow: type[HealthPage],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A space follows the longest name, and each part's health is in one column."""
    for name in ("SEMEL_LEDGER_DSN", "SEMEL_SPARK_REMOTE"):
        monkeypatch.delenv(name)
    commands.status()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(airflow_server.COMMANDS)
    [_column] = {line.index(" healthy ") for line in lines}


def test_a_part_that_is_down(
    airflow: type[HealthPage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` raises UnavailableError with the part and the reason; `status` reports both."""
    for name in ("SEMEL_LEDGER_DSN", "SEMEL_SPARK_REMOTE"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(airflow, "parts", airflow.parts | {"scheduler": {"status": "unhealthy"}})
    with pytest.raises(UnavailableError, match="scheduler .outside. is not healthy: Airflow repor"):
        stack.up(echo=print)
    assert not stack.status().healthy


def test_a_server_cannot_be_added(airflow: type[HealthPage]) -> None:
    """`up --kafka` is an error at once, because nothing here could start a broker."""
    with pytest.raises(TerminalError, match="semel cannot add kafka to them. Nothing was started"):
        stack.up(echo=print, kafka=True, nats=None)


def test_its_addresses(airflow: type[HealthPage], monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo finds the ledger, Spark, and Airflow's user; a missing file of passwords is named."""
    ends = stack.connection()
    assert (ends.ledger_dsn, ends.spark_remote) == ("postgresql://ledger/semel", "sc://spark:15002")
    assert (ends.airflow_user, ends.airflow_password) == ("admin", "hidden")
    monkeypatch.delenv(outside.PASSWORDS_VARIABLE)
    with pytest.raises(TerminalError, match="PASSWORDS_FILE does not name a file of users"):
        stack.connection()
