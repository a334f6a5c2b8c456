"""A Kafka broker on loopback, for tests and the local stack: one node in KRaft mode, no Docker.

Its jars come from Maven Central by kafka-pom.xml, which fixes their versions. What it has
acknowledged outlives SIGKILL: the page cache keeps it, as long as the machine itself does not fail.
"""

import base64
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from semel.errors import AGAIN, TerminalError, UnavailableError
from semel.stack import layout, maven, process

POM = Path(__file__).with_name("kafka-pom.xml")
WHAT = "the Kafka broker"

FORMAT_SECONDS = 60
"""Bound of the storage tool's run: 2 s."""

START_SECONDS = 90
"""Bound of a start: 3 s, and 4 after SIGKILL; a busy machine takes longer."""

STOP_SECONDS = 15
"""Time to end by SIGTERM before it is killed."""

FIRST_PORTS = range(20_000, 30_000)
"""Ports are looked for from a random one of these on.

They lie below those that the system gives to clients: a killed broker gets its own again.
"""

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

_taken: set[int] = set()
"""Ports of this process's brokers: a killed one needs its own again."""


CONTROLLER = "CONTROLLER"
"""The name of its other port, by which the node speaks to itself."""


class Listener(StrEnum):
    """The ways to connect. Each has a port of its own; PLAIN is always there."""

    PLAIN = "PLAIN"
    """Neither password nor TLS: for the broker itself, and for whoever administers it."""
    SCRAM = "SCRAM"
    """A user's name and password, by SCRAM-SHA-256 or -512."""
    SCRAM_TLS = "SCRAM_TLS"
    """The same within TLS."""
    TLS = "TLS"
    MTLS = "MTLS"
    """TLS, and the client shows a certificate too."""

    @property
    def protocol(self) -> str:
        """What Kafka calls it: a client's `security.protocol`."""
        return _PROTOCOLS[self]


_PROTOCOLS = {
    Listener.PLAIN: "PLAINTEXT",
    Listener.SCRAM: "SASL_PLAINTEXT",
    Listener.SCRAM_TLS: "SASL_SSL",
    Listener.TLS: "SSL",
    Listener.MTLS: "SSL",
}


@dataclass(frozen=True, kw_only=True)
class Tls:
    """PEM files of the TLS listeners."""

    own: Path
    """The broker's private key (PKCS 8, without a password) and its certificate."""
    authority: Path
    """The certificate that a client's must be signed by."""


def jars(home: Path) -> Path:
    """The folder of the broker's jars below `home`, fetched when it is not there: 44 MB.

    TerminalError: Maven is missing. UnavailableError: it could not fetch them.
    """
    return maven.fetched(POM, home, WHAT)


def java() -> str:
    """Java's program: JAVA_HOME's, else that on the path. TerminalError when there is none."""
    named = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(named, "bin", "java")) if named else "java")
    if found is None:
        raise TerminalError(
            "Java is not installed, which runs the Kafka broker. On Debian 12: "
            "sudo apt-get install -y openjdk-17-jre-headless",
            next=AGAIN,
        )
    return found


def need_client() -> None:
    """TerminalError when Python's client of Kafka is not installed."""
    if importlib.util.find_spec("confluent_kafka") is None:
        raise TerminalError(
            "confluent-kafka is not installed", next="pip install 'semel[local,kafka]'"
        )


def properties(folder: Path) -> Path:
    """The file of a broker's settings, in its folder."""
    return folder / "server.properties"


def command(java: str, jars: Path, properties: Path) -> list[str]:
    """What runs a broker by these settings."""
    return [*_calling(java, jars), "-Xmx512m", "kafka.Kafka", str(properties)]


def _calling(java: str, jars: Path) -> list[str]:
    return [java, "-Dorg.apache.logging.log4j.level=WARN", "-cp", f"{jars}/*"]


def trouble(port: int) -> str:
    """Why a broker does not answer on a port of loopback; empty when it does."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    if layout.port_is_free(port):
        return f"nothing listens on 127.0.0.1:{port}"
    try:
        # Told here, so not by librdkafka on our standard error too.
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        brokers = client.list_topics(timeout=2).brokers
    except KafkaException as error:
        return error.args[0].str()
    return "" if brokers else "it is not yet ready"


class Broker:
    """One broker, with its data, settings and log in a folder of its own.

    It is not started yet. `authorizer`: a user may do what an ACL says; who comes by the listener
    PLAIN may do everything. `settings`: Kafka's own, which go before SETTINGS. `ports`: of its
    listeners and its controller, by name; free ones are chosen where they are left out.
    """

    def __init__(
        self,
        folder: Path,
        *,
        jars: Path,
        listeners: Iterable[Listener] = (),
        tls: Tls | None = None,
        authorizer: bool = False,
        settings: Mapping[str, str] | None = None,
        ports: Mapping[str, int] | None = None,
    ) -> None:
        need_client()
        self.folder = folder.resolve()
        self._java, self._jars = java(), jars
        names = (Listener.PLAIN, *listeners, CONTROLLER)
        self._ports = dict(ports) if ports else {name: _port() for name in names}
        self._settings = {
            **SETTINGS,
            **self._listening(),
            **(_tls(tls) if tls else {}),
            **(_AUTHORIZER if authorizer else {}),
            "log.dirs": str(self.folder / "data"),
            **(settings or {}),
        }
        self._process: subprocess.Popen | None = None

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of the listener PLAIN."""
        return self.address(Listener.PLAIN)

    def address(self, listener: Listener) -> str:
        """HOST:PORT of one of its listeners."""
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def pid(self) -> int | None:
        """Its process, None when it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start it, on the data that it has, and wait until it answers. It may run already.

        UnavailableError when it does not answer in time.
        """
        if self.pid:
            return
        self.prepare()
        with open(self.folder / "broker.log", "ab") as log:
            # In a session of its own: Ctrl-C in a terminal is for us, and we end it.
            self._process = subprocess.Popen(
                command(self._java, self._jars, self._properties),
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while trouble := self.trouble():
            if self.pid is None or time.monotonic() > deadline:
                self.kill()
                raise UnavailableError(
                    f"the Kafka broker did not start ({trouble}); its log is "
                    f"{self.folder / 'broker.log'} and ends with: {self._last_words()}",
                    next=AGAIN,
                )
            time.sleep(process.POLL_SECONDS)

    def trouble(self) -> str:
        """Why it does not answer; empty when it does."""
        return trouble(self._ports[Listener.PLAIN]) if self.pid else "it does not run"

    def kill(self) -> None:
        """SIGKILL: it gets no chance to write anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order. Its data stay, so that `start` goes on with them."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)  # Nothing happens to one that has ended.
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(process.KILL_WAIT_SECONDS)
        self._process = None

    @property
    def _properties(self) -> Path:
        return properties(self.folder)

    def prepare(self) -> None:
        """Write its settings, and make the data folder when there is none.

        Nothing half made is ever taken for one.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = "".join(f"{name}={_escaped(value)}\n" for name, value in self._settings.items())
        layout.write_private(self._properties, text)
        data = self.folder / "data"
        if (data / "meta.properties").exists():
            return
        shutil.rmtree(data, ignore_errors=True)
        cluster = base64.urlsafe_b64encode(b"\0" + secrets.token_bytes(15)).decode().rstrip("=")
        words = ("kafka.tools.StorageTool", "format", "--standalone", "-t", cluster)
        done = subprocess.run(
            [*_calling(self._java, self._jars), *words, "-c", str(self._properties)],
            cwd=self.folder, capture_output=True, text=True, timeout=FORMAT_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-2000:]
            raise TerminalError(f"the Kafka broker's data could not be formatted: {said}")

    def _last_words(self) -> str:
        text = (self.folder / "broker.log").read_text(encoding="utf-8", errors="replace")
        return text[-2000:].strip()

    def _listening(self) -> dict[str, str]:
        addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()}
        protocols = {**_PROTOCOLS, CONTROLLER: "PLAINTEXT"}
        settings = {
            "listeners": ",".join(addresses.values()),
            "advertised.listeners": ",".join(addresses.values()),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in protocols.items()
            ),
            "controller.quorum.bootstrap.servers": addresses[CONTROLLER].partition("//")[2],
        }
        for name in self._ports:
            below = f"listener.name.{name.lower()}"
            if _PROTOCOLS.get(name, "").startswith("SASL"):
                settings[f"{below}.sasl.enabled.mechanisms"] = ",".join(_SCRAM)
                for mechanism in _SCRAM:
                    settings[f"{below}.{mechanism.lower()}.sasl.jaas.config"] = _LOGIN
            if name == Listener.MTLS:
                settings[f"{below}.ssl.client.auth"] = "required"
        return settings


_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required;"

_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


def _tls(tls: Tls) -> dict[str, str]:
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tls.own.resolve()),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tls.authority.resolve()),
    }


def _escaped(value: str) -> str:
    """A value as a properties file has it, where other letters than ASCII's are escaped."""
    return json.dumps(value)[1:-1]


def _port() -> int:
    first = secrets.choice(FIRST_PORTS)
    port = layout.choose_port("kafka", first, _taken, lambda _: None)
    _taken.add(port)
    return port
