"""Outside parts, which the environment names: semel checks their health, but never starts them."""

import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import sqlalchemy as sa

from semel.errors import first_line
from semel.settings import LEDGER_VARIABLE, SPARK_VARIABLE
from semel_local.stack import layout
from semel_local.stack.states import Health, PartState

ANSWER_SECONDS = 5


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
