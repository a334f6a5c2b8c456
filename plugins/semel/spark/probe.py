"""A task of `semel check` that tests its executor.

Spark ships this module by value, because executors may have another version of semel or lack it.
So it imports semel only within its functions, and reports the fault of each part separately.
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
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import metadata
from typing import Any

ANSWER = "answer string"
"""The column that a probe returns."""

PACKAGES = (
    "numpy", "pandas", "polars", "polars-hash", "psycopg", "pyarrow", "pydantic", "sqlalchemy",
    "xxhash",
)  # fmt: skip
"""The distributions that tasks import."""


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """The parts that each task tests.

    `key`: an advisory lock that the driver holds in its ledger; None to skip the ledger. `token`:
    the content of the file `driver` in each folder. `calls`: for each source its part, the module
    whose `look` to call, and the arguments (plain values). `seconds`: a task's minimum duration, so
    that Spark sends other tasks to other executors.
    """

    key: int | None
    token: str
    folders: tuple[str, ...]
    calls: tuple[tuple[str, str, tuple[Any, ...]], ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """A task's result. `troubles`: the faults, by part.

    `ahead_seconds`: how far the executor's clock is at least ahead of the ledger's (negative if it
    is slow); None if the ledger did not answer. `made`: the files that the task wrote. `process`:
    the parent of the executor's Python workers. `zones`: the version of its time zone database.
    `spark`: the version of its pyspark.
    `place`: the folder that semel was imported from. `packages`: the versions of PACKAGES.
    `ledger`: the user and database that the ledger named; empty if it did not answer.
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
    spark: str = ""
    place: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    ledger: str = ""

    @classmethod
    def of(cls, text: str) -> "ProbeResult":
        """Parse a task's result."""
        return cls(**json.loads(text))


def probe(request: ProbeRequest) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function for mapInArrow that returns a result, as JSON, for each input row."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for _ in range(batch.num_rows):
                text = json.dumps(asdict(answer(request)))
                yield pa.record_batch([[text]], names=[ANSWER.split()[0]])

    return task


def answer(request: ProbeRequest) -> ProbeResult:
    """Test every part, even after another part has failed."""
    import pyspark

    began = time.monotonic()
    values: dict[str, Any] = {
        "semel": "", "ahead_seconds": None, "cache": "", "made": [], "zones": "",
        "place": "", "ledger": "", "spark": pyspark.__version__,
    }  # fmt: skip
    tests = {
        "semel": _semel, "zones": _zones, "folders": _folders, "cache": _cache, "ledger": _ledger
    }  # fmt: skip
    calls = [(part, partial(_call_look, *call)) for part, *call in request.calls]
    troubles: dict[str, str] = {}
    for name, test in (*tests.items(), *calls):
        try:
            test(request, values)
        except Exception as error:  # noqa: BLE001 - any error is a result
            text = str(error).strip().splitlines()
            troubles.setdefault(name, f"{type(error).__name__}: {text[0] if text else ''}")
    time.sleep(max(0.0, request.seconds - (time.monotonic() - began)))
    return ProbeResult(
        host=socket.gethostname(),
        process=os.getppid(),
        user=os.geteuid(),
        python=platform.python_version(),
        time_seconds=time.time(),
        troubles=troubles,
        packages=package_versions(),
        **values,
    )


def package_versions() -> dict[str, str]:
    """The version of each of PACKAGES; empty if it is not installed."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = ""
    return installed


def _semel(_: ProbeRequest, values: dict[str, Any]) -> None:
    import semel

    values["semel"] = semel.__version__
    values["place"] = os.path.dirname(semel.__file__)


def _zones(_: ProbeRequest, values: dict[str, Any]) -> None:
    from semel.model.windows import zones_version

    values["zones"] = zones_version()


def _ledger(request: ProbeRequest, values: dict[str, Any]) -> None:
    if request.key is None:
        return
    from semel import settings
    from semel.ledger import Ledger, row

    with Ledger(settings.ledger_dsn()) as ledger, ledger.transaction() as connection:
        sent = time.time()
        answer = row(connection, "check", "look", key=request.key)
        values["ahead_seconds"] = seconds_ahead(sent, float(answer["now_seconds"]), time.time())
        values["ledger"] = f"{answer['user_name']}@{answer['database']}"
        if not answer["held"]:
            raise LookupError(f"{ledger} is not the driver's ledger")


def seconds_ahead(sent: float, remote: float, received: float) -> float:
    """Minimum lead of the local clock over a remote one; negative if it is slow. `sent` and
    `received` are local times around the remote clock's answer."""
    return max(0.0, sent - remote) + min(0.0, received - remote)


def _folders(request: ProbeRequest, values: dict[str, Any]) -> None:
    for folder in request.folders:
        with open(os.path.join(folder, "driver"), encoding="utf-8") as file:
            if file.read() != request.token:
                raise LookupError(f"{folder} is not the driver's folder: its file differs")
        path = os.path.join(folder, f"task-{uuid.uuid4().hex}")
        with open(path, "x", encoding="utf-8") as file:
            file.write(request.token)
        values["made"].append(path)


def _call_look(module: str, values: tuple[Any, ...], *_: object) -> None:
    importlib.import_module(module).check_access(*values)


def _cache(_: ProbeRequest, values: dict[str, Any]) -> None:
    from semel import settings

    with tempfile.TemporaryFile(dir=settings.cache_dir()):
        values["cache"] = str(settings.cache_dir())
