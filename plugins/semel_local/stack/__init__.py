"""The local stack: PostgreSQL, Spark Connect and Airflow on one machine, kept up by supervisor;
and servers beside them, once somebody has asked for one: Kafka, NATS, an object store.

SEMEL_LEDGER_DSN, SEMEL_SPARK_REMOTE and Airflow's own variables point each part at an outside one
instead. The functions import what they need when called: each part's leader imports this package
and shall start fast.
"""

from collections.abc import Callable

from semel import settings
from semel.errors import TerminalError, UnavailableError
from semel_local.stack.states import Endpoints, StackState


def up(*, echo: Callable[[str], None], **asked: bool | None) -> StackState:
    """Start what does not run, wait until all is healthy. Safe to call at any time, also twice.

    `echo` is given lines of progress. `asked`: by the name of one of `servers.SERVERS`, with it or
    without; None: as it was the last time. UnavailableError when a part does not become healthy in
    time, TerminalError when something must be changed first.
    """
    from semel_local.stack import lifecycle

    return lifecycle.up(echo, asked)


def down(*, echo: Callable[[str], None]) -> None:
    """Stop everything that `up` started, in order, also what a killed supervisor left behind."""
    from semel_local.stack import lifecycle

    lifecycle.down(echo)


def status() -> StackState:
    """Ask every part how it is."""
    from semel_local.stack import lifecycle

    return lifecycle.status()


def connection() -> Endpoints:
    """All addresses. The environment's variables win over the stack's state.

    UnavailableError when one is neither in the environment nor in a stack.
    """
    from semel_local.stack import airflow_server, layout

    urls = layout.load().urls
    if "airflow" not in urls:
        raise UnavailableError(
            f"there is no local Airflow below {layout.top()}", next="semel up"
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
    """See that one of `servers.SERVERS` can be started; what it needs is fetched where it is not.

    TerminalError: what it needs is not installed. UnavailableError: it cannot be fetched.
    """
    from semel_local.stack.servers import SERVERS

    SERVERS[name].fetch(echo)


def server_address(name: str) -> str:
    """HOST:PORT of the stack's own server of a name.

    TerminalError: the connection of its name leads elsewhere, or the stack has no such server.
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

    None: the connection `warehouse` leads elsewhere.
    """
    from semel_local.stack import layout, postgres

    port = layout.load().ports.get("postgres")
    known = settings.connection(postgres.WAREHOUSE)
    if port is None or known != postgres.dsn(postgres.WAREHOUSE, port):
        return None
    return postgres.psql(postgres.WAREHOUSE, port)
