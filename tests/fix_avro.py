"""A topic of Avro values as a test's source, whose schemas are in a real Schema Registry.

The registry is Apicurio's, which speaks Confluent's REST API, kept in memory: one for each worker,
started when the first test asks for it. Maven fetches it once, as the broker.
"""

import io
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from fix_kafka import FETCHED, JAVA, Kafka, skipping
from fix_pipelines import Workbench, events
from fix_postgres import free_port
from fix_topics import Topic
from semel.pipeline import Spec
from semel.stack import kafka as stack_kafka
from semel.stack import maven

POM = Path(__file__).with_name("registry-pom.xml")

START_SECONDS = 120
"""Bound of the registry's start, which takes 4 s, and longer on a busy machine."""

FIELDS = (
    ("id", "string"),
    ("n", "long"),
    ("at", {"type": "long", "logicalType": "timestamp-micros"}),
)


def record(*fields: tuple[str, Any], name: str = "Event") -> dict[str, Any]:
    """A schema of a record."""
    made = [{"name": field, "type": kind} for field, kind in fields]
    return {"type": "record", "name": name, "fields": made}


EVENT = record(*FIELDS)
"""The schema of `events`."""


def written(schema: Any, row: Any, number: int) -> bytes:
    """A value in Confluent's wire format, by a schema that has this id."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


class AvroTopic(Topic):
    """A topic, pipelines that read its values as Avro, and the registry of its schemas."""

    def __init__(self, bench: Workbench, kafka: Kafka, url: str) -> None:
        super().__init__(bench, kafka)
        self.url = url
        self.client = SchemaRegistryClient({"url": url})

    def spec(self, **changes: object) -> Spec:
        source = {"value": "avro", "registry": self.url} | changes.pop("source", {})
        return super().spec(source=source, **changes)

    def register(self, schema: Any, refers: Mapping[str, str] = {}, name: str = "") -> int:
        """Put a schema into the registry. Returns its id. `refers`: names and their subjects."""
        found = [SchemaReference(called, subject, 1) for called, subject in refers.items()]
        made = Schema(json.dumps(schema), "AVRO", found)
        return self.client.register_schema(f"{self.name}-{name or 'value'}", made)

    def write(self, rows: Iterable[Any], schema: Any = EVENT) -> int:
        """Register a schema, and produce rows by it. Returns its id."""
        number = self.register(schema)
        self.put([written(schema, row, number) for row in rows])
        return number

    def append(self, start: int, stop: int, **_: object) -> None:
        """Produce `events(start, stop)`."""
        self.write(map(typed, events(start, stop)))


def connection(url: str, password: str) -> str:
    """The Airflow connection of a registry."""
    fields = {"conn_type": "http", "host": url, "login": "semel", "password": password}
    return json.dumps(fields)


def typed(event: dict[str, Any]) -> dict[str, Any]:
    """An event as a producer has it."""
    return event | {"at": datetime.fromisoformat(event["at"])}


@dataclass
class Answers:
    """A server that answers each request alike, at `url`, and what it was asked."""

    url: str = ""
    status: int = 404
    body: bytes = b'{"error_code": 40403, "message": "Schema 7 not found"}'
    seconds: float = 0
    asked: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def answering(context: ssl.SSLContext | None = None) -> Iterator[Answers]:
    """What stands where a registry is declared: at first one that has no schema at all."""
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.asked.append({"path": self.path, **self.headers})
            time.sleep(answers.seconds)
            self.send_response(answers.status)
            self.send_header("Content-Length", str(len(answers.body)))
            self.end_headers()
            self.wfile.write(answers.body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https" if context else "http"
        answers.url = f"{scheme}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield answers
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="session")
def registry() -> Iterator[str]:
    """The URL of an empty registry; as Confluent's, but that it takes any change of a schema."""
    with skipping():
        program = maven.fetched(POM, FETCHED, "the Schema Registry")
    [jar] = program.glob("*-runner.jar")
    folder, port = Path(tempfile.mkdtemp(prefix="semel-registry-")), free_port()
    options = [*JAVA.split(), "-Xmx512m", f"-Djava.io.tmpdir={folder}"]
    command = [stack_kafka.java(), *options, "-jar", str(jar)]
    address = {"QUARKUS_HTTP_HOST": "127.0.0.1", "QUARKUS_HTTP_PORT": str(port)}
    with open(folder / "log", "wb") as log:
        started = subprocess.Popen(
            command, cwd=folder, env=os.environ | address, stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        _wait(started, url, folder / "log")
        yield url
    finally:
        started.terminate()
        started.wait(30)
        shutil.rmtree(folder)


def _wait(started: subprocess.Popen, url: str, log: Path) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + START_SECONDS
    while started.poll() is None and time.monotonic() < deadline:
        try:
            direct.open(f"{url}/subjects", timeout=5).close()
            return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.2)
    pytest.fail(f"the Schema Registry did not start: {log.read_text()[-2000:]}")


@pytest.fixture
def avro(bench: Workbench, kafka: Kafka, registry: str) -> Iterator[AvroTopic]:
    made = AvroTopic(bench, kafka, registry)
    with made.client:
        yield made
