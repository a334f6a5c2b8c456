"""The local stack: PostgreSQL, Spark Connect and Airflow on one machine, kept up by supervisor.

SEMEL_LEDGER_DSN, SEMEL_SPARK_REMOTE and Airflow's own variables point each part at an outside one
instead. The functions import what they need when called: each part's leader imports this package
and shall start fast.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from semel.errors import UnavailableError

LEDGER_VARIABLE = "SEMEL_LEDGER_DSN"
SPARK_VARIABLE = "SEMEL_SPARK_REMOTE"


class Health(StrEnum):
    """What `semel status` says about a part."""

    HEALTHY = "healthy"
    STARTING = "starting"
    """It runs, or supervisor restarts it, and it does not answer yet."""
    DOWN = "down"


@dataclass(frozen=True, kw_only=True)
class PartState:
    """One part: how it is, where it answers, where its log is."""

    name: str
    health: Health
    pid: int | None
    """Of its main process; None when it does not run or is an outside one."""
    address: str
    log: Path | None
    """None for an outside part."""
    trouble: str
    """Why it is not healthy; empty when it is."""


@dataclass(frozen=True, kw_only=True)
class StackState:
    """All parts of the stack."""

    parts: tuple[PartState, ...]

    @property
    def healthy(self) -> bool:
        """Whether every part is."""
        return all(part.health is Health.HEALTHY for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Where the parts answer, with passwords: not to be logged."""

    ledger_dsn: str
    spark_remote: str
    airflow_url: str
    airflow_user: str | None
    """None when the user has arranged Airflow's logins in another way."""
    airflow_password: str | None

    def __repr__(self) -> str:
        return f"Endpoints(airflow_url={self.airflow_url!r})"


def up(*, echo: Callable[[str], None]) -> StackState:
    """Start what does not run, wait until all is healthy. Safe to call at any time, also twice.

    `echo` is given lines of progress. UnavailableError when a part does not become healthy in
    time, TerminalError when something must be changed first.
    """
    from semel.stack import lifecycle

    return lifecycle.up(echo)


def down(*, echo: Callable[[str], None]) -> None:
    """Stop everything that `up` started, in order, also what a killed supervisor left behind."""
    from semel.stack import lifecycle

    lifecycle.down(echo)


def status() -> StackState:
    """Ask every part how it is."""
    from semel.stack import lifecycle

    return lifecycle.status()


def ledger_dsn() -> str:
    """The ledger's address: SEMEL_LEDGER_DSN, else the stack's. UnavailableError without either."""
    from semel.stack import postgres

    return os.environ.get(LEDGER_VARIABLE) or postgres.dsn("semel", _port("postgres"))


def spark_remote() -> str:
    """The Spark Connect server's address: SEMEL_SPARK_REMOTE, else the stack's.

    UnavailableError without either.
    """
    from semel.stack import spark_server

    return os.environ.get(SPARK_VARIABLE) or spark_server.remote(_port("spark"))


def connection() -> Endpoints:
    """All addresses. The environment's variables win over the stack's state.

    UnavailableError when one is neither in the environment nor in a stack.
    """
    from semel.stack import airflow_server, layout

    _port("airflow")
    user, password = airflow_server.login() or (None, None)
    return Endpoints(
        ledger_dsn=ledger_dsn(),
        spark_remote=spark_remote(),
        airflow_url=layout.load().urls["airflow"],
        airflow_user=user,
        airflow_password=password,
    )


def _port(name: str) -> int:
    from semel.stack import layout

    saved = layout.load()
    if name not in saved.urls:
        variable = {"postgres": LEDGER_VARIABLE, "spark": SPARK_VARIABLE}.get(name)
        other = f", or set {variable}" if variable else ""
        raise UnavailableError(
            f"there is no local {name} below {layout.top()}; run `semel up`{other}"
        )
    return saved.ports[name]
