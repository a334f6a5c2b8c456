"""The places of the ledger, Spark, databases, the project's folders and the data folders.

Environment variables name them; otherwise a file that the local stack wrote into its state folder.
This module neither starts nor imports the stack.
"""

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from semel.errors import NO_STEP, TerminalError, UnavailableError

LEDGER_VARIABLE = "SEMEL_LEDGER_DSN"
SPARK_VARIABLE = "SEMEL_SPARK_REMOTE"
CACHE_VARIABLE = "SEMEL_CACHE_DIR"
HOME_VARIABLE = "SEMEL_HOME"
PIPELINES_VARIABLE = "SEMEL_PIPELINES_DIR"
TRANSFORMS_VARIABLE = "SEMEL_TRANSFORMS_DIR"
DATA_VARIABLE = "SEMEL_DATA_ROOTS"
ARCHIVES_VARIABLE = "SEMEL_ARCHIVES"
ARCHIVES_CONNECTION_VARIABLE = "SEMEL_ARCHIVES_CONNECTION"
AIRFLOW_VARIABLE = "AIRFLOW__API__BASE_URL"

airflow_variables: dict[str, str] = {}
"""Variables that a server reads from Airflow; they may change, unlike its environment's."""


def ledger_dsn() -> str:
    """The ledger's address: SEMEL_LEDGER_DSN, else the stack's. UnavailableError without either."""
    return _address(LEDGER_VARIABLE)


def spark_remote() -> str:
    """The Spark Connect server's address: SEMEL_SPARK_REMOTE, else the stack's.

    Raises UnavailableError without either.
    """
    return _address(SPARK_VARIABLE)


def connection_variable(name: str) -> str:
    """The variable of the Airflow connection `name`; it also works without Airflow."""
    return f"AIRFLOW_CONN_{name.upper()}"


def connection(name: str) -> str | None:
    """An Airflow connection as a URI or JSON: its variable, else the stack's.

    Returns None without either. Raises TerminalError if the stack's file is damaged.
    """
    return _setting(connection_variable(name))


def local_airflow() -> str | None:
    """The URL of the local stack's Airflow, or None without a local stack. That Airflow's command
    line needs the environment of the stack.
    """
    return _stack_settings().get(AIRFLOW_VARIABLE)


def addresses_file() -> Path:
    """The file of the local stack's addresses, by variable. It has passwords: mode 0600."""
    return state_dir() / "addresses.json"


def _address(variable: str) -> str:
    if address := _setting(variable):
        return address
    raise UnavailableError(
        f"{variable} is not set, and there is no local stack in {state_dir()}. Set {variable}, or "
        "start the local stack",
        next=_start_command(),
    )


def _setting(variable: str) -> str | None:
    return _variable(variable) or _stack_settings().get(variable)


def _stack_settings() -> dict[str, str]:
    """The addresses that the local stack wrote, by variable; empty without a stack."""
    path = addresses_file()
    try:
        addresses = json.loads(path.read_text(encoding="utf-8"))
        return {**addresses}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise TerminalError(
            f"{path} is damaged ({error}). Remove it and start the local stack",
            next=_start_command(),
        ) from error


def _start_command() -> str:
    """The command that starts the local stack, if its package is installed."""
    from importlib.metadata import entry_points

    return "semel up" if entry_points(group="semel.commands", name="up") else NO_STEP


def _variable(variable: str) -> str | None:
    return os.environ.get(variable) or airflow_variables.get(variable)


def project() -> Path | None:
    """The project's top folder: SEMEL_HOME, else the checkout that contains this file.

    Returns None if semel is an installed package and SEMEL_HOME is not set.
    """
    if named := os.environ.get(HOME_VARIABLE):
        return Path(named)
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "pyproject.toml").is_file() else None


def home() -> Path:
    """The project's top folder: SEMEL_HOME, else the checkout, else the working folder."""
    return project() or Path.cwd()


def state_dir() -> Path:
    """The local stack's state, logs and secrets: SEMEL_STATE_DIR, else .semel/ in the project."""
    return Path(os.environ.get("SEMEL_STATE_DIR") or home() / ".semel")


def sql_dir() -> Path:
    """The folder of schema.sql, migrations/ and queries/: in a checkout a link to its sql/."""
    return Path(__file__).resolve().parent / "sql"


def pipelines_dir() -> Path:
    """The folder of the pipelines' YAML files (SEMEL_PIPELINES_DIR, else dags/pipelines)."""
    return Path(_variable(PIPELINES_VARIABLE) or home() / "dags" / "pipelines")


def transforms_dir() -> Path:
    """The only folder from which semel loads transforms (SEMEL_TRANSFORMS_DIR, else spark_jobs)."""
    return Path(_variable(TRANSFORMS_VARIABLE) or home() / "spark_jobs")


def data_roots() -> list[Path]:
    """Folders that pipelines may read and write (SEMEL_DATA_ROOTS, `:`-separated, else data/).

    Relative paths in a pipeline's YAML start from the first one.
    """
    named = _variable(DATA_VARIABLE)
    roots = named.split(os.pathsep) if named else [str(home() / "data")]
    return [Path(root).resolve() for root in roots if root]


def archives() -> str | None:
    """The URL below which pipelines have their archives (SEMEL_ARCHIVES); None: in folders."""
    return _setting(ARCHIVES_VARIABLE)


def archives_connection() -> str | None:
    """The Airflow connection to the store of archives (SEMEL_ARCHIVES_CONNECTION). None: the
    machine's own credentials.
    """
    return _setting(ARCHIVES_CONNECTION_VARIABLE)


_resolved: ContextVar[dict[str, Path] | None] = ContextVar("resolved", default=None)


@contextmanager
def resolving_once() -> Iterator[None]:
    """A block in which `allowed` resolves each path once; a symlink costs some 20 system calls."""
    resolved = _resolved.get()
    token = _resolved.set({} if resolved is None else resolved)
    try:
        yield
    finally:
        _resolved.reset(token)


def allowed(path: str | os.PathLike, key: str) -> Path:
    """The absolute form of a declared path. Raises TerminalError if it leaves the data roots.

    `key`: the YAML key in the error (`source.path`).
    """
    resolved = _resolved.get()
    if resolved is None:
        return _resolve_allowed(path, key)
    text = os.fspath(path)
    if text not in resolved:
        resolved[text] = _resolve_allowed(path, key)
    return resolved[text]


def _resolve_allowed(path: str | os.PathLike, key: str) -> Path:
    roots = data_roots()
    resolved = Path(os.path.realpath(roots[0] / path))
    if not any(resolved.is_relative_to(root) for root in roots):
        folders = os.pathsep.join(map(str, roots))
        raise TerminalError(
            f"{key}: {str(path)!r} lies outside the allowed folders {folders}. "
            f"Move it there, or add its folder to {DATA_VARIABLE}"
        )
    return resolved


def cache_dir() -> Path:
    """The folder for filters of id runs; semel creates it with mode 0700.

    SEMEL_CACHE_DIR, else cache/ in a state folder of this user, else one below the system's
    temporary folder. Raises TerminalError if semel cannot create it, or others could write to it.
    """
    user = os.geteuid()
    if named := os.environ.get(CACHE_VARIABLE):
        path = Path(os.path.realpath(named))
    elif os.path.isdir(state_dir()) and os.stat(state_dir()).st_uid == user:
        path = state_dir().resolve() / "cache"
    else:
        path = Path(tempfile.gettempdir()).resolve() / f"semel-{user}"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        stats = path.lstat()
    except OSError as error:
        raise TerminalError(
            f"semel cannot create the cache folder {path} ({error}). Set {CACHE_VARIABLE} to a "
            "folder of this user"
        ) from error
    # In a folder that others may write to, they could plant a link or a filter that hides ids.
    if not stat.S_ISDIR(stats.st_mode) or stats.st_uid != user or stats.st_mode & 0o022:
        raise TerminalError(
            f"the cache folder {path} must be a folder that only user {user} can write to; its "
            f"owner is {stats.st_uid}, its mode {stat.S_IMODE(stats.st_mode):o}. Remove it, or set "
            f"{CACHE_VARIABLE} to another folder"
        )
    return path
