"""The stack's NATS server with JetStream: its command line, settings and health.

`semel up --nats` adds it to the stack: one program, from a wheel. It works without a login. Like
every such server on loopback, it is open to every user of the machine.

Acknowledged messages survive SIGKILL in the page cache, unless the machine itself fails.
"""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from signal import SIGTERM

from semel import settings
from semel_local.stack import layout
from semel_local.stack.layout import Echo
from semel_local.stack.leader import ChildProcess

NAME = "nats"
"""The name of the part, and of the connection that leads to it."""

VARIABLE = settings.connection_variable(NAME)

PORTS = (NAME,)
"""The name of its port in stack.json."""

WHAT = "the NATS server"

STOP_SECONDS = 15
"""Time to end after SIGTERM, before SIGKILL."""

ANSWER_SECONDS = 2
"""Time to greet a client."""

GREETING_BYTES_MAX = 1 << 16


def fetch(echo: Echo) -> None:  # noqa: ARG001 - there is nothing to fetch
    """Does nothing: a package of this environment has the program."""


def part() -> ChildProcess:
    """The part, for supervisor. Its port is in its settings, so a new port is not a new part."""
    return ChildProcess(
        name=NAME,
        command=[str(_program()), "-c", str(_settings())],
        env={},
        directory=str(_folder()),
        log=str(layout.folder("log") / "nats.log"),
        record=str(layout.folder("supervisor") / "nats.record"),
        user=None,
        stop_signal=SIGTERM,
        stop_seconds=STOP_SECONDS,
    )


def prepare(ports: Mapping[str, int]) -> None:
    """Write its settings with this port."""
    store = json.dumps(str(_folder() / "data"), ensure_ascii=False)
    text = f"listen: {layout.address(ports[NAME])}\njetstream {{ store_dir: {store} }}\n"
    layout.write_private(_settings(), text)


def connection(port: int) -> str:
    """The Airflow connection to it, as JSON."""
    return json.dumps({"conn_type": "nats", "host": "127.0.0.1", "port": port})


def trouble(port: int) -> str:
    """Why a NATS server does not answer on a port of loopback, empty if it does. The greeting shows
    whether it has JetStream."""
    if layout.port_is_free(port):
        return f"nothing listens on {layout.address(port)}"
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as client:
            with client.makefile("rb") as answers:
                greeting = answers.readline(GREETING_BYTES_MAX)
    except OSError as error:
        return str(error)
    return "" if b'"jetstream":true' in greeting else "it is not a NATS server with JetStream"


def _program() -> Path:
    return Path(layout.python()).with_name("nats-server")


def _settings() -> Path:
    return _folder() / "nats.conf"


def _folder() -> Path:
    return layout.folder("nats")
