"""What `semel check` lets a task find out about its executor.

This module travels to executors as it stands, for they may have another semel, or none: so it
imports nothing of semel until it is called, and says of each part by itself what is wrong with it.
"""

import importlib
import json
import os
import platform
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

ANSWER = "answer string"
"""The column that a probe gives."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What each task is to look at.

    `key`: an advisory lock that the driver holds in its ledger; None when the ledger is not asked.
    `token` stands in the file `driver` of each of the folders. `looks`: of each source the part
    that it concerns, the module whose `look` is called, and with what (plain values). A task takes
    `seconds` at least, so that the others come to other executors.
    """

    key: int | None
    token: str
    folders: tuple[str, ...]
    looks: tuple[tuple[str, str, tuple[Any, ...]], ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What a task found. `troubles`: what is wrong, by the part that it concerns.

    `ahead_seconds`: how much the executor's clock is surely ahead of the ledger's, negative behind
    it; None where the ledger was not reached. `made`: the files that the task wrote. `process`: the
    parent of all Python workers of one executor. `zones`: the version of its time zone database.
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
    zones: str = ""

    @classmethod
    def of(cls, text: str) -> "ProbeResult":
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


def answer(asked: Asked) -> ProbeResult:
    """Look at everything, whatever is wrong with a part of it."""
    began = time.monotonic()
    found: dict[str, Any] = {
        "semel": "", "ahead_seconds": None, "cache": "", "made": [], "zones": "",
    }  # fmt: skip
    parts = [("semel", _semel), ("zones", _zones), ("folders", _folders), ("cache", _cache), ("ledger", _ledger)]
    parts += [(part, partial(_look, module, values)) for part, module, values in asked.looks]
    troubles: dict[str, str] = {}
    for name, look in parts:
        try:
            look(asked, found)
        except Exception as error:  # noqa: BLE001 - whatever it is, that is the answer
            text = str(error).strip().splitlines()
            troubles.setdefault(name, f"{type(error).__name__}: {text[0] if text else ''}")
    time.sleep(max(0.0, asked.seconds - (time.monotonic() - began)))
    return ProbeResult(
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


def _zones(_: Asked, found: dict[str, Any]) -> None:
    from semel.model.windows import zones_version

    found["zones"] = zones_version()


def _ledger(asked: Asked, found: dict[str, Any]) -> None:
    if asked.key is None:
        return
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


def _look(module: str, values: tuple[Any, ...], *_: object) -> None:
    importlib.import_module(module).look(*values)


def _cache(_: Asked, found: dict[str, Any]) -> None:
    from semel import settings

    with tempfile.TemporaryFile(dir=settings.cache_dir()):
        found["cache"] = str(settings.cache_dir())
