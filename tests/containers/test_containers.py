"""docker-compose.yaml, run with an engine from a fresh clone: `make test-compose`."""

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from engine import Docker, Podman
from fixtures.checkout import ROOT, copy_checkout
from fixtures.wait import wait_for

IMAGES = Path(os.environ.get("SEMEL_CONTAINERS_DIR", ROOT / ".semel" / "containers"))
"""The images that Podman keeps."""

UID = 54_321 if os.getuid() == 0 else os.getuid()
"""Of a user that no image has."""

HEALTHY_SECONDS = 900
SERVICES = ("postgres", "spark", "api-server", "scheduler", "dag-processor", "triggerer")
SAMPLE = '{"id": 1, "at": "2026-01-01T00:00:00Z"}\n{"id": 2, "at": "2026-01-01T00:00:01Z"}\n'


@pytest.fixture
def clone() -> Iterator[Path]:
    """A fresh clone, after `make .env`, that belongs to a user without a name."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        copy_checkout(clone := folder / "clone")
        if os.getuid() == 0:
            subprocess.run(["chown", "--recursive", f"{UID}:{UID}", clone], check=True)
        as_user(clone, "make .env")
        yield clone


@pytest.fixture
def engine(clone: Path) -> Iterator[Docker]:
    """The engine, with the project of the clone."""
    reasons = [docker := Docker.why_not(), docker and Podman.why_not()]
    if all(reasons):
        pytest.skip(f"no container engine: {', '.join(reasons)}")
    if docker:
        with Podman.running(clone, IMAGES) as podman:
            yield podman
        return
    yield (engine := Docker(clone))
    engine.compose("down", "--volumes")


@pytest.mark.proof
@pytest.mark.timeout(4 * 3600)
def test_a_week_in_containers(engine: Docker) -> None:
    """Two commands start the stack for any uid. The demo's weeks are exact, before and after each
    service is killed. Each command of docs/containers.md works. `down --volumes` leaves nothing.
    """
    timed("build", engine.build)
    timed("up", lambda: engine.compose("up", "--detach", "--no-build"))
    timed("healthy", lambda: [wait_healthy(engine, name, datetime.min) for name in SERVICES])
    assert_runs_as_the_user(engine)
    batch = assert_demo_is_exact(engine, week=1)
    as_user(engine.project, "mkdir data/clicks; cat > data/clicks/clicks.jsonl", SAMPLE)
    for command in documented_commands(batch):
        timed(command, lambda command=command: in_scheduler(engine, *command.split()))
    for service in SERVICES:
        timed(f"kill {service}", lambda service=service: kill_and_heal(engine, service))
    assert_demo_is_exact(engine, week=2)
    others = [path for path in engine.project.rglob("*") if path.lstat().st_uid != UID]
    assert others == []
    timed("down --volumes", lambda: engine.compose("down", "--volumes"))
    for kind in (("ps", "--all"), ("volume", "ls"), ("network", "ls")):
        assert engine.objects(*kind) == []


def as_user(folder: Path, command: str, text: str = "") -> None:
    """Run a shell's command in a folder, as the user of the clone."""
    ids = ["--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
    switch = ["setpriv", *ids] if os.getuid() == 0 else []
    subprocess.run([*switch, "sh", "-ec", command], cwd=folder, input=text, text=True, check=True)


def timed(step: str, action: Callable[[], Any]) -> Any:
    """Run a step, and print its seconds."""
    began = time.monotonic()
    result = action()
    print(f"{step}: {time.monotonic() - began:.1f} s", flush=True)
    return result


def in_scheduler(engine: Docker, *words: str) -> str:
    """Run a command as docs/containers.md says."""
    return engine.compose("exec", "-T", "scheduler", *words)


def assert_runs_as_the_user(engine: Docker) -> None:
    """The processes and the files in data/ belong to the user of .env."""
    for service in ("spark", "scheduler"):
        words = ("exec", "-T", service, "sh", "-c", "id -u; touch data/mine; stat -c %u data/mine")
        assert engine.compose(*words).split() == [str(UID), str(UID)]


def assert_demo_is_exact(engine: Docker, week: int) -> int:
    """`semel demo` lands a week, runs three pipelines, and compares with the truth. Returns the
    batch of `flights`.
    """
    demo = lambda: in_scheduler(engine, "semel", "demo", "--json")  # noqa: E731
    result = json.loads(timed(f"the demo's week {week}", demo))["answer"]
    assert result["ok"] and result["week"] == week, result
    assert result["found"] == result["truth"] and result["found"]["new"] > 5000
    assert result["by_day"]["found"] == result["by_day"]["truth"]
    assert result["by_airport"]["found"] == result["by_airport"]["truth"]
    return result["batch_id"]


def documented_commands(batch: int) -> list[str]:
    """Each command of docs/containers.md for the scheduler's container, except the demo, with a
    batch and a file of this stack.
    """
    text = (ROOT / "docs" / "containers.md").read_text(encoding="utf-8")
    commands = set(re.findall(r"docker compose exec scheduler (semel [^`\n]+)", text))
    assert len(commands) >= 9, commands
    # `semel new` asks questions on a terminal, which `exec -T` is not.
    changes = {"3..7": f"{batch}..{batch}", "*.jsonl": "clicks.jsonl --yes"}
    return [_replaced(command, changes) for command in sorted(commands - {"semel demo"})]


def _replaced(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def kill_and_heal(engine: Docker, service: str) -> None:
    """Kill the main process of a service, and wait until the engine has healed it."""
    before = engine.containers()[service]["State"]
    engine.crash(service)
    wait_healthy(engine, service, _time(before["StartedAt"]))
    for other in SERVICES:  # Some end with it, such as those of Airflow with PostgreSQL.
        wait_healthy(engine, other, datetime.min)


def wait_healthy(engine: Docker, service: str, since: datetime) -> None:
    """Wait until a service runs, was started after `since`, and its health check passes."""

    def healthy() -> bool:
        state = engine.containers()[service]["State"]
        return state["Running"] and _time(state["StartedAt"]) > since and _health(state)

    try:
        wait_for(healthy, f"{service} to be healthy", HEALTHY_SECONDS, 1)
    except AssertionError as error:
        logs = engine.compose("logs", "--tail", "40", service)
        raise AssertionError(f"{error}: {logs}") from error


def _health(state: dict[str, Any]) -> bool:
    return (state.get("Health") or state.get("Healthcheck"))["Status"] == "healthy"


def _time(text: str) -> datetime:
    """An engine's time, to the second and without its zone."""
    return datetime.fromisoformat(text[:19])
