"""Copy settings from Airflow into this process's environment, from which semel reads them.

Variables of the environment win. Otherwise the folders come from Airflow's Variables, and the
ledger's address from the connection `semel_ledger`. The process of a task or of a DAG file ends
soon, and its environment with it. A server lives on: it copies them into a separate mapping
(`into`: `semel.settings.airflow_variables`), and reads them again after a while.
"""

import os
from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook, Connection, Variable
from airflow.sdk.exceptions import AirflowRuntimeError

from semel import settings
from semel.airflow.compat import AirflowNotFoundException
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
"""In Airflow they are Variables of the same names in lower case. SEMEL_HOME sets all three, and
then semel does not read Airflow's Variables."""


def find_folders(into: MutableMapping[str, str] = os.environ) -> None:
    """Set the folders' variables. Raises TerminalError if nothing sets the folder of the data."""
    if os.environ.get(settings.HOME_VARIABLE):
        return
    for name in FOLDERS:
        if not os.environ.get(name):
            _set_or_remove(into, name, Variable.get(name.lower(), default=None))
    # The command line falls back to the working folder; tasks may have different ones.
    name = settings.DATA_VARIABLE
    if not (os.environ.get(name) or into.get(name)) and settings.project() is None:
        raise TerminalError(
            f"semel does not know the folder of sources and sinks. Set the Airflow Variable "
            f"{name.lower()}, or {name} in the environment of the DAG processor and of all workers"
        )


def find_ledger(into: MutableMapping[str, str] = os.environ) -> None:
    """Set SEMEL_LEDGER_DSN from the connection `semel_ledger`, if Airflow has it.

    Raises TerminalError if that connection is not for PostgreSQL.
    """
    if os.environ.get(settings.LEDGER_VARIABLE):
        return
    connection = connection_of(LEDGER_CONNECTION)
    _set_or_remove(into, settings.LEDGER_VARIABLE, connection and _address(connection))


def find_connections(spec: "Spec", into: MutableMapping[str, str] = os.environ) -> None:
    """Set AIRFLOW_CONN_<NAME> for each connection that a pipeline names, and for that of archives:
    source, sink and spark-submit read it.
    """
    names = {*spec.source.connections, *spec.sink.connections, settings.archives_connection()}
    for name in sorted(filter(None, names)):
        variable = settings.connection_variable(name)
        if not os.environ.get(variable):
            connection = connection_of(name)
            _set_or_remove(into, variable, connection and connection.get_uri())


def _set_or_remove(into: MutableMapping[str, str], variable: str, value: str | None) -> None:
    if value:
        into[variable] = value
    else:
        into.pop(variable, None)


def connection_of(name: str) -> Connection | None:
    """The connection of this name in Airflow. Returns None if it does not exist."""
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
    # The extra field has options of the driver: sslmode, sslrootcert.
    options = {name: str(value) for name, value in connection.extra_dejson.items()}
    try:
        make_conninfo(**options)
    except psycopg.ProgrammingError as error:
        raise TerminalError(
            f"the Airflow connection {LEDGER_CONNECTION}: its extra field has an option that "
            f"PostgreSQL's client does not know ({error}); remove it there"
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
