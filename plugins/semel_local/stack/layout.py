"""The files of the stack: folders, secrets, ports, and the lock that makes `up` exclusive."""

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
"""The file descriptors that reserve ports, by port. They stay open until this process ends."""

Echo = Callable[[str], None]

PORTS = {
    "postgres": 55432, "spark": 15002, "airflow": 8080, "kafka": 9092, "kafka-controller": 9093,
    "nats": 4222, "store": 7070,
}  # fmt: skip
"""Ports that the stack tries first."""

PORTS_TRIED_MAX = 100
"""Ports that the stack tries, upwards from the first one, before it gives up."""

LOCK_WAIT_SECONDS = 600
"""Time that a second `semel up` or `down` waits: longer than a first start takes."""

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
class SavedState:
    """stack.json: facts for the next command, without secrets."""

    ports: dict[str, int] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    postgres_home: str = ""
    """Folder of the data and, if needed, of a copy of the binaries; empty until it is chosen."""
    socket: str = ""
    """Supervisor's socket; empty until it is chosen."""
    digest: str = ""
    """The digest of supervisor's settings at its start."""
    kafka: bool = False
    """Whether the stack has this server: the last choice of the user."""
    nats: bool = False
    """As `kafka`."""
    store: bool = False
    """As `kafka`."""
    airflow_migrated: str = ""
    """Airflow's version and metadata database at its last migration."""


def top() -> Path:
    """The state folder, absolute: daemons have another working folder."""
    return settings.state_dir().resolve()


def python() -> str:
    """This environment's Python by one name, however this process was started."""
    program = Path(sys.prefix, "bin", "python")
    return str(program) if program.exists() else sys.executable


def folder(*names: str) -> Path:
    """A folder of the stack below the state folder, created with mode 0700.

    Only the state folder and postgres/ have 0755: if we are root, PostgreSQL runs as another user.
    """
    top().mkdir(mode=0o755, parents=True, exist_ok=True)
    path = top()
    for name in names:
        path = path / name
        path.mkdir(mode=0o755 if names == ("postgres",) else 0o700, exist_ok=True)
    return path


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, atomically."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def secret(name: str) -> str:
    """One of SECRETS. The first use creates it, in a file of mode 0600."""
    path = secret_file(name)
    if not path.exists():
        # Fernet needs exactly 32 bytes; 64 are enough for any key or password.
        if name == "airflow_fernet_key":
            value = base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
        else:
            value = secrets.token_hex(12 if name == "airflow_admin_password" else 64)
        write_private(path, value)
    return path.read_text(encoding="ascii")


def secret_file(name: str) -> Path:
    """The file of one of SECRETS."""
    if name not in SECRETS:
        raise ValueError(f"no secret is named {name}")
    return folder("secrets") / name


def load() -> SavedState:
    """stack.json, or an empty one before the first start."""
    path = top() / "stack.json"
    try:
        return SavedState(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return SavedState()
    except (ValueError, TypeError) as error:
        raise TerminalError(
            f"{path} is not as semel wrote it ({error}). End the stack's processes and remove it"
        ) from error


def save(saved: SavedState) -> None:
    """Write stack.json, atomically."""
    text = json.dumps(asdict(saved), indent=1, sort_keys=True) + "\n"
    folder()
    write_private(top() / "stack.json", text)


def update(**changes: object) -> SavedState:
    """Change some fields of stack.json. Returns all fields."""
    with _saving:
        saved = replace(load(), **changes)
        save(saved)
        return saved


def address(port: int) -> str:
    """HOST:PORT of a server of the stack, for clients."""
    return f"127.0.0.1:{port}"


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback interface."""
    with socket.socket() as probe:
        # As servers do, so that a connection in TIME_WAIT does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def reserve_port(port: int) -> bool:
    """Reserve a port against other stacks of this machine, until this process ends.

    Seconds pass between the choice of a port and its server's start, in which two stacks could
    choose the same one. The process that binds the abstract Unix socket with a port's number owns
    the port. Returns False if another process owns it.
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


def choose_port(name: str, first: int, used: set[int], echo: Echo) -> int:
    """`first` if it is free, else the next free port above, which `echo` then reports.

    `used`: ports of other parts. Raises TerminalError if none of PORTS_TRIED_MAX is free.
    """
    last = min(first + PORTS_TRIED_MAX, 65_536)
    for port in range(first, last):
        if port not in used and port_is_free(port) and reserve_port(port):
            if port != first:
                echo(f"{name}: port {first} is taken, using {port}")
            return port
    raise TerminalError(
        f"{name}: no free port from {first} to {last - 1}. "
        "Stop a program that listens there (`ss -ltnp` lists them)",
        next="semel up",
    )


@contextmanager
def exclusive(command: str, echo: Echo) -> Iterator[None]:
    """Acquire the stack's lock. A second command waits, and reports the command that has it.

    Raises RetryableError after LOCK_WAIT_SECONDS.
    """
    path = folder() / "lock"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR, 0o600), "r+") as file:
        _acquire(file.fileno(), path, echo)
        file.truncate()
        file.write(f"`semel {command}` (pid {os.getpid()})")
        file.flush()
        try:
            yield
        finally:
            os.ftruncate(file.fileno(), 0)


def _acquire(descriptor: int, path: Path, echo: Echo) -> None:
    deadline, reported = time.monotonic() + LOCK_WAIT_SECONDS, ""
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = path.read_text(encoding="utf-8") or "another semel command"
        if holder != reported:
            echo(f"waiting for {holder}, which is at work on this stack")
            reported = holder
        if time.monotonic() > deadline:
            raise RetryableError(
                f"{holder} has held {path} for {LOCK_WAIT_SECONDS} s. "
                "Wait for it or end it, then run this again"
            )
        time.sleep(0.3)
