"""The stack's NATS server with JetStream: its command line, its settings and its health.

It is a part of the stack once somebody has asked for it: one program, from a wheel. It has no
login: like every server on loopback without one, it is open to every user of the machine.

What it has acknowledged outlives SIGKILL: the page cache keeps it, as long as the machine itself
does not fail.
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
"""Of the part, and of the connection that leads to it."""

VARIABLE = settings.connection_variable(NAME)

PORTS = (NAME,)
"""The name in stack.json of its port."""

WHAT = "the NATS server"

STOP_SECONDS = 15
"""Time to end by SIGTERM before it is killed."""

ANSWER_SECONDS = 2
"""How long it may take to greet a client."""

GREETING_BYTES_MAX = 1 << 16


def fetch(echo: Echo) -> None:  # noqa: ARG001 - there is nothing to fetch
    """Nothing: a package has its program."""


def part() -> ChildProcess:
    """How supervisor runs it. Its port is in its settings, so a new one is no other part."""
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
    """Why a NATS server does not answer on a port of loopback; empty when it does. It greets each
    client with what it is.
    """
    if layout.port_is_free(port):
        return f"nothing listens on {layout.address(port)}"
    try:
        with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS) as asked:
            with asked.makefile("rb") as answers:
                greeting = answers.readline(GREETING_BYTES_MAX)
    except OSError as error:
        return str(error)
    return "" if b'"jetstream":true' in greeting else "it is no NATS server with JetStream"


def _program() -> Path:
    return Path(layout.python()).with_name("nats-server")


def _settings() -> Path:
    return _folder() / "nats.conf"


def _folder() -> Path:
    return layout.folder("nats")
