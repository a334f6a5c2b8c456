"""What is told of the local stack: how each part is, and where it answers."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


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
