"""The local stack: PostgreSQL, Spark Connect and Airflow on one machine, which supervisor keeps up.
`semel up --kafka` (or nats, store) adds a server: Kafka, NATS, an object store.

SEMEL_LEDGER_DSN, SEMEL_SPARK_REMOTE and Airflow's own variables replace a part by an outside one.
Functions import what they need when called, because each part's leader imports this package and
must start fast.
"""

from collections.abc import Callable

from semel import settings
from semel.errors import TerminalError, UnavailableError
from semel_local.stack.states import Endpoints, StackState


def up(*, echo: Callable[[str], None], **choices: bool | None) -> StackState:
    """Start what does not run, and wait until all is healthy. Safe to call at any time, also twice.

    `echo` receives lines of progress. `choices`: whether to run each of `servers.SERVERS`, by name;
    None keeps the last choice. Raises UnavailableError if a part does not become healthy in time,
    and TerminalError if the user must change something first. Starts nothing if every part is
    outside.
    """
    from semel_local.stack import outside

    if outside.has_all_parts():
        return outside.check(choices)
    from semel_local.stack import lifecycle

    return lifecycle.up(echo, choices)


def down(*, echo: Callable[[str], None]) -> None:
    """Stop everything that `up` started, in order, including leftovers of a killed supervisor."""
    from semel_local.stack import lifecycle

    lifecycle.down(echo)


def status() -> StackState:
    """Query the health of every part."""
    from semel_local.stack import outside

    if outside.has_all_parts():
        return outside.stack_state()
    from semel_local.stack import lifecycle

    return lifecycle.status()


def connection() -> Endpoints:
    """All addresses. The environment's variables override the stack's state.

    Raises UnavailableError for an address that neither has.
    """
    from semel_local.stack import airflow_server, layout, outside

    if outside.has_all_parts():
        return outside.endpoints()
    urls = layout.load().urls
    if "airflow" not in urls:
        raise UnavailableError(
            f"no local Airflow has been started in {layout.top()}", next="semel up"
        )
    user, password = airflow_server.login() or (None, None)
    return Endpoints(
        ledger_dsn=settings.ledger_dsn(),
        spark_remote=settings.spark_remote(),
        airflow_url=urls["airflow"],
        airflow_user=user,
        airflow_password=password,
    )


def fetch_server(name: str, *, echo: Callable[[str], None]) -> None:
    """Fetch what one of `servers.SERVERS` needs, unless it is there.

    Raises TerminalError if a program is not installed, UnavailableError if the download fails.
    """
    from semel_local.stack.servers import SERVERS

    SERVERS[name].fetch(echo)


def server_address(name: str) -> str:
    """HOST:PORT of one of the stack's servers.

    Raises TerminalError if the connection of its name leads elsewhere, or if it is not in the
    stack.
    """
    from semel_local.stack import layout
    from semel_local.stack.servers import SERVERS

    server, saved = SERVERS[name], layout.load()
    ours = server.connection(saved.ports[name]) if getattr(saved, name) else None
    if ours is None or settings.connection(name) != ours:
        raise TerminalError(
            f"the connection {name!r} does not lead to {server.WHAT} of the local stack; unset "
            f"{server.VARIABLE}",
            next=f"semel up --{server.NAME}",
        )
    return layout.address(saved.ports[name])


def warehouse_psql() -> str | None:
    """A shell command that opens psql in the stack's database for the user's tables.

    Returns None if the connection `warehouse` leads elsewhere.
    """
    from semel_local.stack import layout, postgres

    port = layout.load().ports.get("postgres")
    address = settings.connection(postgres.WAREHOUSE)
    if port is None or address != postgres.dsn(postgres.WAREHOUSE, port):
        return None
    return postgres.psql(postgres.WAREHOUSE, port)
