"""A topic of Avro values as a test's source, whose schemas are in a real Schema Registry."""

import io
import json
import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from fix_kafka import Kafka
from fix_pipelines import Workbench, events
from fix_topics import Topic
from semel.spec.pipeline import Spec

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


@pytest.fixture
def avro(bench: Workbench, kafka: Kafka, registry: str) -> Iterator[AvroTopic]:
    made = AvroTopic(bench, kafka, registry)
    with made.client:
        yield made
