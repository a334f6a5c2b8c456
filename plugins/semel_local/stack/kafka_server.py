"""The stack's Kafka broker: its jars, its command line, its settings and its health.

It is a part of the stack once somebody has asked for it: one node in KRaft mode, whose jars come
from Maven Central by kafka-pom.xml, which fixes their versions. It has no login: like every server
on loopback without one, it is open to every user of the machine.

What it has acknowledged outlives SIGKILL: the page cache keeps it, as long as the machine itself
does not fail.
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
from semel.errors import AGAIN, TerminalError
from semel_local.stack import layout, maven
from semel_local.stack.layout import Echo
from semel_local.stack.leader import ChildProcess

NAME = "kafka"
"""Of the part, and of the connection that leads to it."""

VARIABLE = settings.connection_variable(NAME)

PORTS = (NAME, "kafka-controller")
"""The names in stack.json of its ports: for clients, and the one by which it speaks to itself."""

POM = Path(__file__).with_name("kafka-pom.xml")
WHAT = "the Kafka broker"

FORMAT_SECONDS = 60
"""Bound of the storage tool's run: 2 s."""

STOP_SECONDS = 15
"""Time to end by SIGTERM before it is killed."""

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAIN",
    "controller.listener.names": "CONTROLLER",
    # One node keeps all.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # 50 folders each, otherwise, that the first transaction and the first group wait for.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    # A topic that nobody has made is an error, as on most brokers.
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # Ready 4 s after SIGKILL, in place of 12.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # Records with old timestamps would vanish within a second.
    "log.retention.ms": "-1",
    # SIGKILL after records were deleted brings them back until this is over.
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "log.initial.task.delay.ms": "100",  # Nothing is flushed or cleaned before: 30 s else.
    "log.segment.delete.delay.ms": "500",
    # An open transaction is aborted soon after its time is over, in place of 10 s later.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
"""For one node on a small machine, which may be killed at any time."""


def fetch(echo: Echo) -> None:
    """Fetch its jars, unless they are there.

    TerminalError: Java or Maven is missing. UnavailableError: Maven could not fetch the jars.
    """
    java()
    if not _jars().is_dir():
        maven.installed(WHAT)
        echo("kafka: Maven fetches the broker, 44 MB")
        jars(layout.folder("kafka"))


def jars(home: Path) -> Path:
    """The folder of the broker's jars below `home`, fetched when it is not there.

    TerminalError: Maven is missing. UnavailableError: it could not fetch them.
    """
    return maven.fetched(POM, home, WHAT)


def java() -> str:
    """Java's program: JAVA_HOME's, else that on the path. TerminalError when there is none."""
    found = shutil.which(_java())
    if found is None:
        raise TerminalError(
            "Java is not installed, which runs the Kafka broker. On Debian 12: "
            "sudo apt-get install -y openjdk-17-jre-headless",
            next=AGAIN,
        )
    return found


def part() -> ChildProcess:
    """How supervisor runs it. Its ports are in its settings, so a new one is no other part."""
    return ChildProcess(
        name=NAME,
        command=command(_java(), _jars(), _folder()),
        env={},
        directory=str(_folder()),
        log=str(layout.folder("log") / "kafka.log"),
        record=str(layout.folder("supervisor") / "kafka.record"),
        user=None,
        stop_signal=SIGTERM,
        stop_seconds=STOP_SECONDS,
    )


def command(java: str, jars: Path, folder: Path) -> list[str]:
    """What runs the broker whose settings `write` has written to `folder`."""
    return [*_calling(java, jars), "-Xmx512m", "kafka.Kafka", str(_properties(folder))]


def prepare(ports: Mapping[str, int]) -> None:
    """Write its settings with these ports, and make its data folder when there is none."""
    plain, controller = (layout.address(ports[name]) for name in PORTS)
    listeners = f"PLAIN://{plain},CONTROLLER://{controller}"
    own = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.quorum.bootstrap.servers": controller,
    }
    write(_folder(), java(), _jars(), own)


def write(folder: Path, java: str, jars: Path, own: Mapping[str, str]) -> None:
    """Write a broker's settings, SETTINGS and its `own`, and make its data folder when there is
    none. Nothing half made is ever taken for one.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = folder / "data"
    known = {**SETTINGS, "log.dirs": str(data), **own}
    # As a properties file has it, where other letters than ASCII's are escaped.
    text = "".join(f"{name}={json.dumps(value)[1:-1]}\n" for name, value in known.items())
    layout.write_private(_properties(folder), text)
    if (data / "meta.properties").exists():
        return
    shutil.rmtree(data, ignore_errors=True)
    cluster = base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")
    words = ("kafka.tools.StorageTool", "format", "--standalone", "-t", cluster)
    done = subprocess.run(
        [*_calling(java, jars), *words, "-c", str(_properties(folder))],
        cwd=folder, capture_output=True, text=True, timeout=FORMAT_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise TerminalError(f"the Kafka broker's data could not be formatted: {said}")


def connection(port: int) -> str:
    """The Airflow connection to it, as JSON."""
    extra = {"bootstrap.servers": layout.address(port)}
    return json.dumps({"conn_type": "kafka", "extra": extra})


def trouble(port: int) -> str:
    """Why a broker does not answer on a port of loopback; empty when it does."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    if layout.port_is_free(port):
        return f"nothing listens on {layout.address(port)}"
    try:
        # Told here, so not by librdkafka on our standard error too.
        client = AdminClient({"bootstrap.servers": layout.address(port), "log_level": 0})
        brokers = client.list_topics(timeout=2).brokers
    except KafkaException as error:
        return error.args[0].str()
    return "" if brokers else "it is not yet ready"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def _calling(java: str, jars: Path) -> list[str]:
    return [java, "-Dorg.apache.logging.log4j.level=WARN", "-cp", f"{jars}/*"]


def _properties(folder: Path) -> Path:
    return folder / "server.properties"


def _folder() -> Path:
    return layout.folder("kafka", "broker")


def _jars() -> Path:
    return maven.place(POM, layout.folder("kafka"))
