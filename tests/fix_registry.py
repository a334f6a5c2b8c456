"""A Schema Registry for tests: Apicurio's, which speaks Confluent's REST API; kept in memory.

One for each worker, started when the first test asks for it. Maven fetches it once, as the broker.
"""

import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_kafka import FETCHED, JAVA, skipping
from fix_postgres import free_port
from semel.stack import kafka, maven

POM = Path(__file__).with_name("registry-pom.xml")

START_SECONDS = 120
"""Bound of its start, which takes 8 s, and longer on a busy machine."""


@pytest.fixture(scope="session")
def registry() -> Iterator[str]:
    """The URL of an empty registry; as Confluent's, but that it takes any change of a schema."""
    with skipping():
        program = maven.fetched(POM, FETCHED, "the Schema Registry")
    [jar] = program.glob("*-runner.jar")
    folder, port = Path(tempfile.mkdtemp(prefix="semel-registry-")), free_port()
    options = [*JAVA.split(), "-Xmx512m", f"-Djava.io.tmpdir={folder}"]
    command = [kafka.java(), *options, "-jar", str(jar)]
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
