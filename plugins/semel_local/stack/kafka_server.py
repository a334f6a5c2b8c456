"""The stack's Kafka broker: its jars, command line, settings and health.

`semel up --kafka` adds it to the stack: one node in KRaft mode. Maven Central has its jars, and
kafka-pom.xml fixes their versions. It works without a login. Like every such server on loopback, it
is open to every user of the machine.

Acknowledged messages survive SIGKILL in the page cache, unless the machine itself fails.
"""

import base64
import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from signal import SIGTERM

from semel import settings
from semel.errors import TerminalError
from semel_local.stack import java, layout, maven
from semel_local.stack.layout import Echo
from semel_local.stack.leader import ChildProcess

NAME = "kafka"
"""The name of the part, and of the connection that leads to it."""

VARIABLE = settings.connection_variable(NAME)

PORTS = (NAME, "kafka-controller")
"""The names of its ports in stack.json: one for clients, and one for its own controller."""

POM = Path(__file__).with_name("kafka-pom.xml")
WHAT = "the Kafka broker"

FORMAT_SECONDS = 60
"""Limit for the storage tool, which takes 2 s."""

STOP_SECONDS = 15
"""Time to end after SIGTERM, before SIGKILL."""

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAIN",
    "controller.listener.names": "CONTROLLER",
    # One node has all replicas.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # By default 50 folders each, which delay the first transaction and the first group.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # A missing topic is an error, as on most brokers.
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # Ready 4 s after SIGKILL, instead of 12 s.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # By default, records with old timestamps expire within a second.
    "log.retention.ms": "-1",
    # Deleted records return if SIGKILL comes within this time.
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "log.initial.task.delay.ms": "100",  # First flush and cleaning, by default after 30 s.
    "log.segment.delete.delay.ms": "500",
    # Aborts an open transaction soon after its timeout, instead of 10 s later.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""Settings for one node on a small machine, which may be killed at any time."""


def fetch(echo: Echo) -> None:
    """Fetch its jars, unless they exist.

    Raises TerminalError if Maven is missing or JAVA_HOME is wrong, UnavailableError if Maven cannot
    fetch the jars.
    """
    java.program()
    if not _jars().is_dir():
        maven.program_path(WHAT)
        echo("kafka: Maven fetches the broker, 44 MB")
        jars(layout.folder("kafka"))


def jars(home: Path) -> Path:
    """Fetch the broker's jars, unless they exist below `home`. Returns their folder.

    Raises TerminalError if Maven is missing, UnavailableError if it cannot fetch the jars.
    """
    return maven.fetch(POM, home, WHAT)


def part() -> ChildProcess:
    """The part, for supervisor. Its ports are in its settings, so a new port is not a new part."""
    return ChildProcess(
        name=NAME,
        command=command(java.program(), _jars(), _folder()),
        env={},
        directory=str(_folder()),
        log=str(layout.folder("log") / "kafka.log"),
        record=str(layout.folder("supervisor") / "kafka.record"),
        user=None,
        stop_signal=SIGTERM,
        stop_seconds=STOP_SECONDS,
    )


def command(program: str, jars: Path, folder: Path) -> list[str]:
    """The command that runs the broker with the settings that `write` has written to `folder`."""
    return [*_calling(program, jars), "-Xmx512m", "kafka.Kafka", str(_properties(folder))]


def prepare(ports: Mapping[str, int]) -> None:
    """Write its settings with these ports, and create its data folder if it is missing."""
    plain, controller = (layout.address(ports[name]) for name in PORTS)
    listeners = f"PLAIN://{plain},CONTROLLER://{controller}"
    addresses = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.bootstrap.servers": controller,
    }
    write(_folder(), java.program(), _jars(), addresses)


def write(folder: Path, program: str, jars: Path, more: Mapping[str, str]) -> None:
    """Write a broker's settings: SETTINGS and `more`. Create its data folder if it is missing.

    A half-made data folder never counts as one.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = folder / "data"
    properties = {**SETTINGS, "log.dirs": str(data), **more}
    # Properties files escape letters outside of ASCII.
    text = "".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in properties.items())
    layout.write_private(_properties(folder), text)
    if (data / "meta.properties").exists():
        return
    shutil.rmtree(data, ignore_errors=True)
    cluster = base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")
    words = ("kafka.tools.StorageTool", "format", "--standalone", "-t", cluster)
    result = subprocess.run(
        [*_calling(program, jars), *words, "-c", str(_properties(folder))],
        cwd=folder, capture_output=True, text=True, timeout=FORMAT_SECONDS, check=False,
    )  # fmt: skip
    if result.returncode:
        reason = (result.stdout + result.stderr).strip()[-2000:]
        raise TerminalError(f"the Kafka broker's data could not be formatted: {reason}")


def connection(port: int) -> str:
    """The Airflow connection to it, as JSON."""
    extra = {"bootstrap.servers": layout.address(port)}
    return json.dumps({"conn_type": "kafka", "extra": extra})


def trouble(port: int) -> str:
    """Why a broker does not answer on a port of loopback, empty if it does."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    if layout.port_is_free(port):
        return f"nothing listens on {layout.address(port)}"
    try:
        # The return value has the error, so librdkafka need not print it too.
        client = AdminClient({"bootstrap.servers": layout.address(port), "log_level": 0})
        brokers = client.list_topics(timeout=2).brokers
    except KafkaException as error:
        return error.args[0].str()
    return "" if brokers else "it is not yet ready"


def _calling(program: str, jars: Path) -> list[str]:
    return [program, "-Dorg.apache.logging.log4j.level=WARN", "-cp", f"{jars}/*"]


def _properties(folder: Path) -> Path:
    return folder / "server.properties"


def _folder() -> Path:
    return layout.folder("kafka", "broker")


def _jars() -> Path:
    return maven.jar_folder(POM, layout.folder("kafka"))
