"""What the stack keeps on disk: folders, secrets, ports, and the lock that makes `up` exclusive."""

import base64
import fcntl
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from semel import settings
from semel.errors import RetryableError, TerminalError

_saving = threading.Lock()
_reserved: dict[int, int] = {}
"""The file descriptors that keep ports, by port: open until this process ends."""

Echo = Callable[[str], None]

PORTS = {
    "postgres": 55432, "spark": 15002, "airflow": 8080, "kafka": 9092, "kafka-controller": 9093,
    "nats": 4222, "store": 7070,
}  # fmt: skip
"""Ports tried first."""

PORTS_TRIED_MAX = 100
"""Ports looked at, upwards from the first one, before giving up."""

LOCK_WAIT_SECONDS = 600
"""How long a second `semel up` or `down` waits: longer than a first start takes."""

SECRETS = (
    "postgres_password",  # of the superuser `postgres`
    "ledger_password",  # of the role `semel`
    "airflow_db_password",  # of the role `airflow`
    "warehouse_password",  # of the role `warehouse`
    "airflow_admin_password",  # of the UI's user `admin`
    "airflow_jwt_secret",
    "airflow_api_secret_key",
    "airflow_fernet_key",
    "spark_token",
    "store_password",  # of the object store's user `semel`
)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """stack.json: what the next command must know. It holds no secret."""

    ports: dict[str, int] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    postgres_home: str = ""
    """Folder of the data and, where needed, a copy of the binaries; empty: none chosen yet."""
    socket: str = ""
    """Supervisor's socket; empty: none chosen yet."""
    digest: str = ""
    """Of the settings that supervisor was started with."""
    kafka: bool = False
    """Whether this server belongs to the stack: it was asked for, and not left out since."""
    nats: bool = False
    """As `kafka`."""
    store: bool = False
    """As `kafka`."""
    airflow_migrated: str = ""
    """Airflow's version and metadata database at its last migration."""


def top() -> Path:
    """The state folder, absolute: daemons do not keep our working folder."""
    return settings.state_dir().resolve()


def python() -> str:
    """This environment's Python under one name, however this process was called."""
    found = Path(sys.prefix, "bin", "python")
    return str(found) if found.exists() else sys.executable


def folder(*names: str) -> Path:
    """A folder of the stack below the state folder, made with mode 0700.

    The state folder and postgres/ alone are 0755: Postgres runs as another user when we are root.
    """
    top().mkdir(mode=0o755, parents=True, exist_ok=True)
    path = top()
    for name in names:
        path = path / name
        path.mkdir(mode=0o755 if names == ("postgres",) else 0o700, exist_ok=True)
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def secret(name: str) -> str:
    """One of SECRETS, made at its first use and kept in a file of mode 0600."""
    path = secret_file(name)
    if not path.exists():
        # Fernet wants exactly 32 bytes; 64 are enough for every key and password.
        if name == "airflow_fernet_key":
            made = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
        else:
            made = secrets.token_hex(12 if name == "airflow_admin_password" else 64)
        write_private(path, made)
    return path.read_text(encoding="ascii")


def secret_file(name: str) -> Path:
    """Where one of SECRETS is kept."""
    if name not in SECRETS:
        raise ValueError(f"no secret is named {name}")
    return folder("secrets") / name


def load() -> Saved:
    """stack.json, or an empty one when there is no stack yet."""
    path = top() / "stack.json"
    try:
        return Saved(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Saved()
    except (ValueError, TypeError) as error:
        raise TerminalError(
            f"{path} is not what semel wrote ({error}); end the stack's processes and remove it"
        ) from error


def save(saved: Saved) -> None:
    """Write stack.json whole or not at all."""
    text = json.dumps(asdict(saved), indent=1, sort_keys=True) + "\n"
    folder()
    write_private(top() / "stack.json", text)


def update(**changes: object) -> Saved:
    """Change some fields of stack.json. Returns all of it."""
    with _saving:
        saved = replace(load(), **changes)
        save(saved)
        return saved


def address(port: int) -> str:
    """HOST:PORT of a server of the stack, where clients find it."""
    return f"127.0.0.1:{port}"


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback interface."""
    with socket.socket() as probe:
        # As servers do: a connection in TIME_WAIT must not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def reserve_port(port: int) -> bool:
    """Keep a port from the other stacks of this machine until this process ends.

    Between the choice of a port and its server's start lie seconds, in which two stacks could
    choose the same one. Whoever has the abstract Unix socket of its number has the port. False:
    another process has it.
    """
    if port in _reserved:
        return True
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0semel-port-{port}")
    except OSError:
        holder.close()
        return False
    _reserved[port] = holder.detach()
    return True


def choose_port(name: str, first: int, taken: set[int], echo: Echo) -> int:
    """`first` when it is free, else the next free one above, which is then printed.

    `taken`: ports given to other parts. TerminalError when none of PORTS_TRIED_MAX is free.
    """
    last = min(first + PORTS_TRIED_MAX, 65_536)
    for port in range(first, last):
        if port not in taken and port_is_free(port) and reserve_port(port):
            if port != first:
                echo(f"{name}: port {first} is taken, using {port}")
            return port
    raise TerminalError(
        f"{name}: no free port from {first} to {last - 1}; "
        "stop what listens there (`ss -ltnp` names it)",
        next="semel up",
    )


@contextmanager
def exclusive(what: str, echo: Echo) -> Iterator[None]:
    """Hold the stack's lock; a second holder waits and is told for whom.

    RetryableError when the lock was not had within LOCK_WAIT_SECONDS.
    """
    path = folder() / "lock"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "r+") as file:
        _acquire(file.fileno(), path, echo)
        file.truncate()
        file.write(f"`semel {what}` (pid {os.getpid()})")
        file.flush()
        try:
            yield
        finally:
            os.ftruncate(file.fileno(), 0)


def _acquire(descriptor: int, path: Path, echo: Echo) -> None:
    deadline, told = time.monotonic() + LOCK_WAIT_SECONDS, ""
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = path.read_text(encoding="utf-8") or "another semel command"
        if holder != told:
            echo(f"waiting for {holder}, which is at work on this stack")
            told = holder
        if time.monotonic() > deadline:
            raise RetryableError(
                f"{holder} has held {path} for {LOCK_WAIT_SECONDS} s; "
                "wait for it or end it, then run this again"
            )
        time.sleep(0.3)
