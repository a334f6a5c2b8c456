"""The stack's Kafka broker: its jars, its command line and its health.

It is a part of the stack once somebody has asked for it. It has no login: like every server on
loopback without one, it is open to every user of the machine.
"""

import json
import os
from pathlib import Path
from signal import SIGTERM

from semel import settings
from semel.stack import kafka, layout, maven
from semel.stack.kafka import CONTROLLER, Broker, Listener
from semel.stack.layout import Echo
from semel.stack.leader import Part

CONNECTION = "kafka"
"""The connection that leads to it."""

VARIABLE = settings.connection_variable(CONNECTION)

PORTS = {"kafka": Listener.PLAIN, "kafka-controller": CONTROLLER}
"""The ports' names in stack.json, and the broker's own."""


def fetch(echo: Echo) -> None:
    """See that all is installed that it needs; its jars are fetched where they are not there yet.

    TerminalError: Java, Maven or confluent-kafka is missing. UnavailableError: Maven could not
    fetch the jars.
    """
    kafka.need_client()
    kafka.java()
    if not _jars().is_dir():
        maven.installed(kafka.WHAT)
        echo("kafka: Maven fetches the broker, 44 MB")
        kafka.jars(layout.folder("kafka"))


def part() -> Part:
    """How supervisor runs it. Its ports are in its settings, so a new one is no other part."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    return Part(
        name="kafka",
        command=kafka.command(java, _jars(), kafka.properties(_folder())),
        env={},
        directory=str(_folder()),
        log=str(layout.folder("log") / "kafka.log"),
        record=str(layout.folder("supervisor") / "kafka.record"),
        user=None,
        stop_signal=SIGTERM,
        stop_seconds=kafka.STOP_SECONDS,
    )


def prepare(ports: dict[str, int]) -> None:
    """Write its settings with these ports, and make its data folder when there is none."""
    own = {listener: ports[name] for name, listener in PORTS.items()}
    Broker(_folder(), jars=_jars(), ports=own).prepare()


def address(port: int) -> str:
    """HOST:PORT, where clients find it."""
    return f"127.0.0.1:{port}"


def connection(port: int) -> str:
    """The Airflow connection to it, as JSON."""
    extra = {"bootstrap.servers": address(port)}
    return json.dumps({"conn_type": "kafka", "extra": extra})


def trouble(port: int) -> str:
    """Why it does not answer; empty when it does."""
    return kafka.trouble(port)


def _folder() -> Path:
    return layout.folder("kafka", "broker")


def _jars() -> Path:
    return maven.place(kafka.POM, layout.folder("kafka"))
