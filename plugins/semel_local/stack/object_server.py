"""The stack's object store, with the S3 protocol: its bucket, command line and health.

`semel up --store` adds it to the stack: versitygw, one program, which Go builds once. Objects are
files below `.semel/store/data`. Acknowledged objects survive SIGKILL.
"""

import json
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from signal import SIGTERM

from semel import settings
from semel_local.stack import golang, layout
from semel_local.stack.layout import Echo
from semel_local.stack.leader import ChildProcess

NAME = "store"
"""The name of the part, and of the connection that leads to it."""

VARIABLE = settings.connection_variable(NAME)

PORTS = (NAME,)
"""The name of its port in stack.json."""

WHAT = "the object store"

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

BUCKET = "lake"
"""The bucket that `prepare` creates. A bucket is a folder of the data."""

USER, REGION = "semel", "us-east-1"

STOP_SECONDS = 15
"""Time to end after SIGTERM, before SIGKILL."""

ANSWER_SECONDS = 2
"""Time to answer a query of its health."""

_HEALTH = "/health"


def fetch(echo: Echo) -> None:
    """Build its program, unless it exists.

    Raises TerminalError if Go is missing, UnavailableError if Go cannot build it.
    """
    if not _program().exists():
        echo("store: Go builds versitygw, an S3 server, once: some two minutes")
        golang.build(MODULE, layout.folder(NAME))


def part() -> ChildProcess:
    """The part, for supervisor. Its port is in a file, so a new port is not a new part."""
    run = 'exec "$0" --port "$(cat "$1")" --health "$2" posix --sidecar "$4" "$3"'
    arguments = (_program(), _address(), _HEALTH, _folder("data"), _folder("attributes"))
    return ChildProcess(
        name=NAME,
        command=["/bin/sh", "-c", run, *map(str, arguments)],
        env={"ROOT_ACCESS_KEY": USER, "ROOT_SECRET_KEY": layout.secret("store_password")},
        directory=str(layout.folder(NAME)),
        log=str(layout.folder("log") / "store.log"),
        record=str(layout.folder("supervisor") / "store.record"),
        user=None,
        stop_signal=SIGTERM,
        stop_seconds=STOP_SECONDS,
    )


def prepare(ports: Mapping[str, int]) -> None:
    """Write its port, and create its bucket."""
    layout.write_private(_address(), layout.address(ports[NAME]))
    (_folder("data") / BUCKET).mkdir(exist_ok=True)


def connection(port: int) -> str:
    """The Airflow connection to it, as JSON."""
    extra = {"region_name": REGION, "endpoint_url": f"http://{layout.address(port)}"}
    password = layout.secret("store_password")
    return json.dumps({"conn_type": "aws", "login": USER, "password": password, "extra": extra})


def trouble(port: int) -> str:
    """Why it does not answer on a port of loopback, empty if it does."""
    if layout.port_is_free(port):
        return f"nothing listens on {layout.address(port)}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{layout.address(port)}{_HEALTH}", timeout=ANSWER_SECONDS):
            return ""
    except (OSError, ValueError) as error:
        return str(error)


def _program() -> Path:
    return golang.program_path(MODULE, layout.folder(NAME))


def _address() -> Path:
    return layout.folder(NAME) / "address"


def _folder(name: str) -> Path:
    return layout.folder(NAME, name)
