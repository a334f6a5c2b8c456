"""Outside parts, which the environment names: semel checks their health, but never starts them.

In the containers of docker-compose.yaml every part is outside, so the demo starts nothing there.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import sqlalchemy as sa

from semel import settings
from semel.errors import NO_STEP, TerminalError, UnavailableError, first_line
from semel.settings import LEDGER_VARIABLE, SPARK_VARIABLE
from semel_local.stack import airflow_server, layout
from semel_local.stack.states import Endpoints, Health, PartState, StackState

ANSWER_SECONDS = 5

URL_VARIABLE = "SEMEL_AIRFLOW_URL"
"""The URL of an Airflow that this stack does not start. The variable means that the ledger and
Spark are outside, too."""

PASSWORDS_VARIABLE = "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
"""A file with a JSON object: the passwords of that Airflow, by user."""


def has_all_parts() -> bool:
    """Whether every part is outside."""
    return URL_VARIABLE in os.environ


def check(choices: Mapping[str, bool | None]) -> StackState:
    """The health of the parts. `choices`: as for `semel_local.stack.up`.

    Raises TerminalError if the caller needs a server, UnavailableError if a part is not healthy.
    """
    if servers := [name for name, chosen in choices.items() if chosen]:
        raise TerminalError(
            f"{URL_VARIABLE} is set, so the parts of this stack run elsewhere, and semel cannot "
            f"add {servers[0]} to them. Nothing was started. Run this in a checkout on a machine "
            "with Python",
            next=NO_STEP,
        )
    state = stack_state()
    for part in state.parts:
        if part.trouble:
            raise UnavailableError(
                f"{part.name} is not healthy: {part.trouble}. Nothing was started. Find the cause "
                "in its log, such as `docker compose logs` on its machine, then run this again",
                next=NO_STEP,
            )
    return state


def stack_state() -> StackState:
    """The health of the ledger, Spark and Airflow's processes."""
    url = os.environ[URL_VARIABLE]
    airflow = (
        _state(f"{name} (outside)", url, trouble)
        for name, trouble in airflow_server.troubles(url, {}).items()
    )
    return StackState(parts=(*states(), *airflow))


def endpoints() -> Endpoints:
    """The addresses of all parts. Raises TerminalError if the file of passwords is missing."""
    try:
        passwords = json.loads(Path(os.environ.get(PASSWORDS_VARIABLE, "")).read_bytes())
        [(user, password), *_] = passwords.items()
    except (OSError, ValueError) as error:
        raise TerminalError(
            f"{PASSWORDS_VARIABLE} does not name a file of users and passwords ({error}). Set it "
            f"to the file of the Airflow at {URL_VARIABLE}",
            next=NO_STEP,
        ) from error
    return Endpoints(
        ledger_dsn=settings.ledger_dsn(),
        spark_remote=settings.spark_remote(),
        airflow_url=os.environ[URL_VARIABLE],
        airflow_user=user,
        airflow_password=password,
    )


def states() -> Iterator[PartState]:
    """The outside ledger and the outside Spark, if the environment names them."""
    if dsn := os.environ.get(LEDGER_VARIABLE):
        url = sa.make_url(dsn).set(drivername="postgresql")
        yield _state("ledger (outside)", url.render_as_string(), _ledger_trouble(url))
    if remote := os.environ.get(SPARK_VARIABLE):
        yield _state("spark (outside)", remote.partition("/;")[0], _spark_trouble(remote))


def _state(name: str, address: str, trouble: str) -> PartState:
    return PartState(
        name=name,
        health=Health.DOWN if trouble else Health.HEALTHY,
        pid=None,
        address=address,
        log=None,
        trouble=trouble,
    )


def _ledger_trouble(url: sa.URL) -> str:
    address = url.render_as_string(hide_password=False)
    try:
        with psycopg.connect(address, connect_timeout=ANSWER_SECONDS) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError as error:
        return first_line(error)
    return ""


def _spark_trouble(remote: str) -> str:
    url = urlsplit(remote)
    address = (url.hostname or "", url.port or layout.PORTS["spark"])
    try:
        socket.create_connection(address, timeout=ANSWER_SECONDS).close()
    except OSError as error:
        return str(error)
    return ""
