"""Where things are: the ledger, Spark, databases, the project's folders, the data folders.

The environment's variables say it; what they leave open, the local stack has written down in its
state folder. Nothing here starts or imports it.
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
AIRFLOW_VARIABLE = "AIRFLOW__API__BASE_URL"

told: dict[str, str] = {}
"""Variables that Airflow tells a server for a while; they may change, unlike its environment's."""


def ledger_dsn() -> str:
    """The ledger's address: SEMEL_LEDGER_DSN, else the stack's. UnavailableError without either."""
    return _address(LEDGER_VARIABLE)


def spark_remote() -> str:
    """The Spark Connect server's address: SEMEL_SPARK_REMOTE, else the stack's.

    UnavailableError without either.
    """
    return _address(SPARK_VARIABLE)


def connection_variable(name: str) -> str:
    """The variable that holds the Airflow connection `name`, where there is no Airflow too."""
    return f"AIRFLOW_CONN_{name.upper()}"


def connection(name: str) -> str | None:
    """An Airflow connection as a URI or JSON: its variable, else the stack's; None without either.

    TerminalError when what the stack has written down cannot be read.
    """
    return _known(connection_variable(name))


def local_airflow() -> str | None:
    """The URL of the local stack's Airflow, whose command line needs the environment of the stack.
    None: there is no local stack.
    """
    return _written().get(AIRFLOW_VARIABLE)


def addresses_file() -> Path:
    """Where the local stack writes its addresses, by variable. They hold passwords: mode 0600."""
    return state_dir() / "addresses.json"


def _address(variable: str) -> str:
    if found := _known(variable):
        return found
    raise UnavailableError(
        f"{variable} is not set, and no local stack is known below {state_dir()}; set {variable}, "
        "or start it",
        next=_start(),
    )


def _known(variable: str) -> str | None:
    return _said(variable) or _written().get(variable)


def _written() -> dict[str, str]:
    """What the local stack has written down, by variable; nothing without one."""
    path = addresses_file()
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {**found}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        raise TerminalError(
            f"{path} is not what semel wrote ({error}); remove it and start the local stack",
            next=_start(),
        ) from error


def _start() -> str:
    """The command that starts the local stack, if its package is installed."""
    from importlib.metadata import entry_points

    return "semel up" if entry_points(group="semel.commands", name="up") else NO_STEP


def _said(variable: str) -> str | None:
    return os.environ.get(variable) or told.get(variable)


def project() -> Path | None:
    """The project's top folder as SEMEL_HOME names it, else the checkout that this file lies in.

    None: semel was installed as a package, and nobody has said.
    """
    if named := os.environ.get(HOME_VARIABLE):
        return Path(named)
    above = Path(__file__).resolve().parents[2]
    return above if (above / "pyproject.toml").is_file() else None


def home() -> Path:
    """The project's top folder: SEMEL_HOME, else the checkout, else the working folder."""
    return project() or Path.cwd()


def state_dir() -> Path:
    """State, logs and secrets of the local stack (SEMEL_STATE_DIR, else .semel/ in the project)."""
    return Path(os.environ.get("SEMEL_STATE_DIR") or home() / ".semel")


def sql_dir() -> Path:
    """schema.sql, migrations/ and queries/: a link to the checkout's sql/, a folder in a wheel."""
    return Path(__file__).resolve().parent / "sql"


def pipelines_dir() -> Path:
    """The folder of the pipelines' YAML files (SEMEL_PIPELINES_DIR, else dags/pipelines)."""
    return Path(_said(PIPELINES_VARIABLE) or home() / "dags" / "pipelines")


def transforms_dir() -> Path:
    """The only folder that transforms are taken from (SEMEL_TRANSFORMS_DIR, else spark_jobs)."""
    return Path(_said(TRANSFORMS_VARIABLE) or home() / "spark_jobs")


def data_roots() -> list[Path]:
    """Folders that pipelines may read and write (SEMEL_DATA_ROOTS, `:`-separated, else data/).

    The first one is what relative paths in a pipeline's YAML start from.
    """
    named = _said(DATA_VARIABLE)
    roots = named.split(os.pathsep) if named else [str(home() / "data")]
    return [Path(root).resolve() for root in roots if root]


_resolved: ContextVar[dict[str, Path] | None] = ContextVar("resolved", default=None)


@contextmanager
def resolving_once() -> Iterator[None]:
    """Within it, `allowed` resolves each path once: symlinks cost some 20 system calls each."""
    resolved = _resolved.get()
    token = _resolved.set({} if resolved is None else resolved)
    try:
        yield
    finally:
        _resolved.reset(token)


def allowed(path: str | os.PathLike, key: str) -> Path:
    """The absolute form of a declared path. TerminalError when it leaves the data roots.

    `key` is the declaration that the error names (`source.path`).
    """
    resolved = _resolved.get()
    if resolved is None:
        return _allowed(path, key)
    text = os.fspath(path)
    if text not in resolved:
        resolved[text] = _allowed(path, key)
    return resolved[text]


def _allowed(path: str | os.PathLike, key: str) -> Path:
    roots = data_roots()
    resolved = Path(os.path.realpath(roots[0] / path))
    if not any(resolved.is_relative_to(root) for root in roots):
        shown = os.pathsep.join(map(str, roots))
        raise TerminalError(
            f"{key}: {str(path)!r} lies outside the allowed folders {shown}; "
            f"move it there, or name its folder in {DATA_VARIABLE}"
        )
    return resolved


def cache_dir() -> Path:
    """Where this process keeps filters of id runs. It is made when it is not there, mode 0700.

    SEMEL_CACHE_DIR, else cache/ in a state folder of this user's, else one below the system's
    temporary folder. TerminalError when it cannot be made, or others could write to it.
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
        found = path.lstat()
    except OSError as error:
        raise TerminalError(
            f"the cache folder {path} cannot be made ({error}); name one of this user's in "
            f"{CACHE_VARIABLE}"
        ) from error
    # Others could plant a link in a folder that all may write to, or a filter that knows no id.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        raise TerminalError(
            f"the cache folder {path} is not this user's alone (owner {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):o}; this user is {user}); remove it, or name another in "
            f"{CACHE_VARIABLE}"
        )
    return path
