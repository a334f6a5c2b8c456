"""The state of the local stack: health and addresses of its parts."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Health(StrEnum):
    """The health of a part, as `semel status` prints it."""

    HEALTHY = "healthy"
    STARTING = "starting"
    """It runs, or supervisor restarts it, but it does not answer yet."""
    DOWN = "down"


@dataclass(frozen=True, kw_only=True)
class PartState:
    """One part: its health, address and log."""

    name: str
    health: Health
    pid: int | None
    """The id of its main process. None if it does not run or is an outside part."""
    address: str
    log: Path | None
    """None for an outside part."""
    trouble: str
    """Why it is not healthy, empty if it is."""


@dataclass(frozen=True, kw_only=True)
class StackState:
    """All parts of the stack."""

    parts: tuple[PartState, ...]

    @property
    def healthy(self) -> bool:
        """Whether every part is healthy."""
        return all(part.health is Health.HEALTHY for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class Endpoints:
    """Addresses of the parts, with passwords: MUST NOT be logged."""

    ledger_dsn: str
    spark_remote: str
    airflow_url: str
    airflow_user: str | None
    """None if the user has configured other logins for Airflow."""
    airflow_password: str | None

    def __repr__(self) -> str:
        return f"Endpoints(airflow_url={self.airflow_url!r})"
