"""Which process runs which test: what shares a server that takes long to start runs in one of them.

pytest-xdist's own `--dist loadgroup` does this by a suffix of the node id, which pytest 9.2 leaves
out. Here each worker writes its groups down, and the scheduler reads them.
"""

import atexit
import gc
import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from leftovers import VARIABLE
from semel_local.stack import java

WORKERS_MAX = 4
"""Each has a Postgres, and a Spark or a broker once it needs one: some 2 GiB."""

SERVERS = {
    "_running_stack": "stack",
    "own_airflow": "stack",
    "spark": "spark",
    "cluster": "spark",
    "pages_server": "pages",
    "broker": "broker",
    "registry": "broker",
    "sqs_server": "queues",
    "pubsub_server": "queues",
}
"""A test's group by its fixtures; the first that it has decides."""

NEEDS_BROKER = pytest.mark.server("broker")
NEEDS_SPARK = pytest.mark.server("spark")
"""For a case that asks for a server's fixture while it runs."""


def pytest_xdist_auto_num_workers() -> int:
    """What `-n auto` means: tests wait for other processes, so one more than there are cores."""
    return min((os.cpu_count() or 1) + 1, WORKERS_MAX)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Load the fixtures where tests run, which is not in the process that hands them out.

    Spark runs on the Java of the local stack, as for a newcomer without another Java.
    From here to the end of the collection Python does not look for garbage: there is none.
    """
    gc.disable()
    os.environ.setdefault("JAVA_HOME", str(java.home()))
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("fixtures.all")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What was collected stays to the end: nobody needs to look for garbage in it later either."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # nanobind counts what is left, and complains.


def group_of(item: pytest.Item) -> str | None:
    if marker := item.get_closest_marker("server"):
        return marker.args[0]
    if item.nodeid.startswith("tests/tidy/"):
        return "tidy"  # They parse the whole project, once in a process.
    return next((group for name, group in SERVERS.items() if name in item.fixturenames), None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    worker = getattr(session.config, "workerinput", {}).get("workerid")
    if worker == "gw0":  # They collect the same.
        found = {item.nodeid: group for item in session.items if (group := group_of(item))}
        _file().write_text(json.dumps(found))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return ByServer(config, log)


class ByServer(LoadScopeScheduling):
    """One test after the other, to whoever is free; a group to one worker, the largest first."""

    _groups: dict[str, str] | None = None

    def _split_scope(self, nodeid: str) -> str:
        if self._groups is None:
            self._groups = json.loads(_file().read_text())
        return self._groups.get(nodeid, nodeid)


def _file() -> Path:
    return Path(os.environ[VARIABLE]) / "groups.json"
