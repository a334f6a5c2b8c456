"""What `semel check` lets a task find out about its executor.

This module travels to executors as it stands, for they may have another semel, or none: so it
imports nothing of semel until it is called, and says of each part by itself what is wrong with it.
"""

import hashlib
import json
import os
import platform
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

ANSWER = "answer string"
"""The column that a probe gives."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The first `length` bytes of a source file, as the driver read them: a SHA-256."""

    path: str
    length: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Topics:
    """Topics of a Kafka cluster: its Airflow connection, which the task looks up, or addresses; and
    the Schema Registry of their values."""

    connection: str | None
    servers: str | None
    names: tuple[str, ...]
    registry: str | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What each task is to look at.

    `key`: an advisory lock that the driver holds in its ledger; None when the ledger is not asked.
    `token` stands in the file `driver` of each of the folders. A task takes `seconds` at least, so
    that the others come to other executors.
    """

    key: int | None
    token: str
    folders: tuple[str, ...]
    sources: tuple[str, ...]
    samples: tuple[Sample, ...]
    seconds: float
    topics: tuple[Topics, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a task found. `troubles`: what is wrong, by the part that it concerns.

    `ahead_seconds`: how much the executor's clock is surely ahead of the ledger's, negative behind
    it; None where the ledger was not reached. `made`: the files that the task wrote. `process`: the
    parent of all Python workers of one executor.
    """

    host: str
    process: int
    user: int
    python: str
    semel: str
    time_seconds: float
    ahead_seconds: float | None
    cache: str
    made: list[str]
    troubles: dict[str, str]

    @classmethod
    def of(cls, text: str) -> "Answer":
        """An answer as a task sent it."""
        return cls(**json.loads(text))


def probe(asked: Asked) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for mapInArrow: an answer, as JSON, for each number that comes in."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for _ in range(batch.num_rows):
                text = json.dumps(asdict(answer(asked)))
                yield pa.record_batch([[text]], names=[ANSWER.split()[0]])

    return task


def answer(asked: Asked) -> Answer:
    """Look at everything, whatever is wrong with a part of it."""
    began = time.monotonic()
    found: dict[str, Any] = {
        "semel": "", "ahead_seconds": None, "cache": "", "made": [],
    }  # fmt: skip
    parts = {"semel": _semel, "folders": _folders, "source": _source, "cache": _cache}
    if asked.key is not None:
        parts["ledger"] = _ledger
    if asked.topics:
        parts["topics"] = _topics
    troubles = {}
    for name, look in parts.items():
        try:
            look(asked, found)
        except Exception as error:  # noqa: BLE001 - whatever it is, that is the answer
            text = str(error).strip().splitlines()
            troubles[name] = f"{type(error).__name__}: {text[0] if text else ''}"
    time.sleep(max(0.0, asked.seconds - (time.monotonic() - began)))
    return Answer(
        host=socket.gethostname(),
        process=os.getppid(),
        user=os.geteuid(),
        python=platform.python_version(),
        time_seconds=time.time(),
        troubles=troubles,
        **found,
    )


def _semel(_: Asked, found: dict[str, Any]) -> None:
    import semel

    found["semel"] = semel.__version__


def _ledger(asked: Asked, found: dict[str, Any]) -> None:
    from semel import settings
    from semel.ledger import Ledger, row

    with Ledger(settings.ledger_dsn()) as ledger, ledger.transaction() as connection:
        before = time.time()
        seen = row(connection, "check", "look", key=asked.key)
        ahead = surely_ahead(before, float(seen["now_seconds"]), time.time())
        found["ahead_seconds"] = ahead
        if not seen["held"]:
            raise LookupError(f"{ledger} is not the driver's ledger")


def surely_ahead(before: float, then: float, after: float) -> float:
    """How much a clock is ahead at least of another one that was asked between two times of it."""
    return max(0.0, before - then) + min(0.0, after - then)


def _folders(asked: Asked, found: dict[str, Any]) -> None:
    for folder in asked.folders:
        with open(os.path.join(folder, "driver"), encoding="utf-8") as file:
            if file.read() != asked.token:
                raise LookupError(f"{folder} holds another file than the driver wrote")
        path = os.path.join(folder, f"task-{uuid.uuid4().hex}")
        with open(path, "x", encoding="utf-8") as file:
            file.write(asked.token)
        found["made"].append(path)


def _source(asked: Asked, _: dict[str, Any]) -> None:
    for folder in asked.sources:
        os.listdir(folder)
    for sample in asked.samples:
        with open(sample.path, "rb") as file:
            if hashlib.sha256(file.read(sample.length)).hexdigest() != sample.digest:
                raise LookupError(f"{sample.path} has another content than the driver sees")


def _topics(asked: Asked, _: dict[str, Any]) -> None:
    from semel.clients.kafka.cluster import Cluster
    from semel.clients.kafka.registry import Registry
    from semel.sources.kafka.tried import try_to_read

    for one in asked.topics:
        cluster = Cluster(connection=one.connection, servers=one.servers)
        try_to_read(cluster, one.names, Registry.of(one.registry))


def _cache(_: Asked, found: dict[str, Any]) -> None:
    from semel import settings

    with tempfile.TemporaryFile(dir=settings.cache_dir()):
        found["cache"] = str(settings.cache_dir())
