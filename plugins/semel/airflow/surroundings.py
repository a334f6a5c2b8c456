"""What Airflow knows of the surroundings goes where semel looks: into this process's environment.

The environment's own variables win. What they leave open, Airflow's Variables say of folders, and
the connection `semel_ledger` of the ledger. A task's process, and one that parses a DAG file, is
its own, so that nothing outlives it. A server lives on: it keeps apart what it was told (`into`:
`semel.settings.airflow_variables`), and asks again.
"""

import os
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook, Connection, Variable
from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

from semel import settings
from semel.errors import TerminalError

if TYPE_CHECKING:
    from semel.pipeline.spec import Spec

LEDGER_CONNECTION = "semel_ledger"
_CONNECTION_TYPE = "postgres"  # As Airflow calls it.

FOLDERS = (
    settings.DATA_VARIABLE,
    settings.PIPELINES_VARIABLE,
    settings.TRANSFORMS_VARIABLE,
)
"""In Airflow they are Variables of the same names in lower case. Who sets SEMEL_HOME has said where
all of them are, and Airflow is not asked."""


def find_folders(into: MutableMapping[str, str] = os.environ) -> None:
    """Set the folders' variables. TerminalError when nothing says where data may lie."""
    if os.environ.get(settings.HOME_VARIABLE):
        return
    for name in FOLDERS:
        if not os.environ.get(name):
            _tell(into, name, Variable.get(name.lower(), default=None))
    # The working folder, which the command line takes, may differ from one task to the next.
    name = settings.DATA_VARIABLE
    if not (os.environ.get(name) or into.get(name)) and settings.project() is None:
        raise TerminalError(
            f"nothing says where sources and sinks lie: set the Airflow Variable {name.lower()}, "
            f"or {name} in the environment of the DAG processor and of all workers"
        )


def find_ledger(into: MutableMapping[str, str] = os.environ) -> None:
    """Set SEMEL_LEDGER_DSN by the connection `semel_ledger`, where there is one.

    TerminalError when it is none to a Postgres.
    """
    if os.environ.get(settings.LEDGER_VARIABLE):
        return
    connection = connection_of(LEDGER_CONNECTION)
    _tell(into, settings.LEDGER_VARIABLE, connection and _address(connection))


def find_connections(spec: "Spec", into: MutableMapping[str, str] = os.environ) -> None:
    """Set AIRFLOW_CONN_<NAME>, as source, sink and spark-submit read it, by each connection that a
    pipeline names.
    """
    for name in sorted({*spec.source.connections, *spec.sink.connections}):
        variable = settings.connection_variable(name)
        if not os.environ.get(variable):
            connection = connection_of(name)
            _tell(into, variable, connection and connection.get_uri())


def _tell(into: MutableMapping[str, str], variable: str, value: str | None) -> None:
    if value:
        into[variable] = value
    else:
        into.pop(variable, None)


def connection_of(name: str) -> Connection | None:
    """An Airflow connection, or None when there is none of this name."""
    try:
        return BaseHook.get_connection(name)
    except (AirflowNotFoundException, AirflowRuntimeError):
        return None


def _address(connection: Connection) -> str:
    import psycopg
    import sqlalchemy as sa
    from psycopg.conninfo import make_conninfo

    if connection.conn_type != _CONNECTION_TYPE:
        raise TerminalError(
            f"the Airflow connection {LEDGER_CONNECTION} is of type {connection.conn_type!r}; "
            f"make it one of type {_CONNECTION_TYPE}, or set {settings.LEDGER_VARIABLE}"
        )
    # What the extra field says goes to the driver: sslmode, sslrootcert.
    options = {name: str(value) for name, value in connection.extra_dejson.items()}
    try:
        make_conninfo(**options)
    except psycopg.ProgrammingError as error:
        raise TerminalError(
            f"the Airflow connection {LEDGER_CONNECTION}: its extra field has what PostgreSQL's "
            f"client does not know ({error}); remove it there"
        ) from error
    return sa.URL.create(
        "postgresql",
        username=connection.login or None,
        password=connection.password or None,
        host=connection.host or None,
        port=connection.port,
        database=connection.schema or None,
        query=options,
    ).render_as_string(hide_password=False)
