"""What semel tells others of itself arrives here: servers of StatsD, HTTP and mail on loopback."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message

from fix_postgres import free_port

QUIET_SECONDS = 0.3
"""Loopback has nothing more on its way after this long without a datagram."""


class StatsdServer:
    """Takes StatsD's datagrams. Nobody has to run for them to be kept: the socket has room."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]

    @property
    def settings(self) -> dict[str, str]:
        """Airflow's configuration that sends its metrics here."""
        return {
            "AIRFLOW__METRICS__STATSD_ON": "True",
            "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
            "AIRFLOW__METRICS__STATSD_PORT": str(self.port),
        }

    def arrived(self) -> list[tuple[str, float, str]]:
        """Name, value and kind (c, g, ms) of semel's metrics that came since the last call."""
        self.socket.settimeout(QUIET_SECONDS)
        found = []
        while True:
            try:
                text = self.socket.recv(65536).decode()
            except TimeoutError:
                return found
            name, _, rest = text.removeprefix("airflow.").partition(":")
            value, _, kind = rest.partition("|")
            if name.startswith("semel."):
                found.append((name, float(value), kind))


class HttpServer:
    """Takes what is posted as JSON. `bodies`: (path, headers, body), in their order."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, str], Any]] = []
        self.status = 200
        ours = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: N802 - so does http.server call it
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                ours.bodies.append((self.path, dict(self.headers), body))
                self.send_response(ours.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    @contextmanager
    def running(self) -> Iterator["HttpServer"]:
        """Serve within the block."""
        thread = threading.Thread(target=self.server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join()


class _Kept(Message):
    def __init__(self, mails: list[Any]) -> None:
        super().__init__()
        self.mails = mails

    def handle_message(self, message: Any) -> None:
        self.mails.append(message)


class MailServer:
    """Takes mails. `mails`: as Python's email package has them; X-RcptTo names who gets one."""

    def __init__(self) -> None:
        self.mails: list[Any] = []
        self.port = free_port()
        self.controller = Controller(_Kept(self.mails), hostname="127.0.0.1", port=self.port)

    @property
    def connection(self) -> dict[str, Any]:
        """The Airflow connection to it."""
        extra = {"from_email": "semel@x.test", "to": "ops@x.test"}
        extra |= {"disable_ssl": True, "disable_tls": True}
        return {"conn_type": "smtp", "host": "127.0.0.1", "port": self.port, "extra": extra}

    @contextmanager
    def running(self) -> Iterator["MailServer"]:
        """Serve within the block."""
        self.controller.start()
        try:
            yield self
        finally:
            self.controller.stop()


@pytest.fixture
def statsd() -> Iterator[StatsdServer]:
    """A StatsD server."""
    made = StatsdServer()
    with made.socket:
        yield made


@pytest.fixture
def web() -> Iterator[HttpServer]:
    """An HTTP server."""
    with HttpServer().running() as made:
        yield made


@pytest.fixture
def mail() -> Iterator[MailServer]:
    """A mail server."""
    with MailServer().running() as made:
        yield made
