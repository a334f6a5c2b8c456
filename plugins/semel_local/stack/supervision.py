"""supervisord: its configuration, and the calls over its Unix socket."""

import hashlib
import os
import shutil
import subprocess
import tempfile
import xmlrpc.client
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path
from signal import SIGTERM

import psutil
from supervisor.xmlrpc import Faults, SupervisorTransport

from semel import __version__
from semel.errors import TerminalError, UnavailableError
from semel_local.stack import layout, process
from semel_local.stack.leader import ChildProcess, end_recorded

SOCKET_PATH_MAX = 90
"""Longest path of a socket: the system allows 107, and supervisor appends its pid."""

START_SECONDS = 20
"""Limit for supervisord's own start."""

SHUT_DOWN_SECONDS = 120
"""Limit for supervisord's end, which stops or kills every part."""

KILL_MARGIN_SECONDS = 15
"""supervisord waits this much longer for a leader than the leader waits for its part."""

LOG_BYTES_MAX = 20 << 20
"""supervisord rotates a log at this size, and keeps two older ones."""

RUNNING, STARTING, BACKOFF = "RUNNING", "STARTING", "BACKOFF"


@dataclass(frozen=True, kw_only=True)
class Program:
    """supervisord's view of a part."""

    name: str
    state: str
    pid: int


def make_socket_path() -> Path:
    """Supervisor's socket: the recorded one, else one in the state folder, or in /tmp if its path
    is long.

    Creates and records that folder, so only a start may call it.
    """
    recorded = layout.load().socket
    if recorded and Path(recorded).parent.is_dir():
        return Path(recorded)
    path = layout.folder("supervisor") / "supervisor.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        path = Path(tempfile.mkdtemp(prefix="semel-", dir="/tmp")) / "supervisor.sock"
    layout.update(socket=str(path))
    return path


def configuration(parts: Iterable[ChildProcess], socket: Path) -> str:
    """supervisord.conf for these parts. They start only by name, never by themselves."""
    folder = layout.folder("supervisor")
    lines = [
        "[supervisord]",
        f"logfile={_value(layout.folder('log') / 'supervisord.log')}",
        f"logfile_maxbytes={LOG_BYTES_MAX}",
        "logfile_backups=2",
        f"pidfile={_value(folder / 'supervisord.pid')}",
        f"childlogdir={_value(folder)}",
        f"umask={_umask():03o}",
        "nocleanup=true",
        *(["user=root"] if os.geteuid() == 0 else []),
        "[unix_http_server]",
        f"file={_value(socket)}",
        "chmod=0600",
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface",
    ]
    for order, part in enumerate(parts):
        command = [layout.python(), "-m", "semel_local.stack.leader", str(_part_file(part))]
        lines += [
            f"[program:{part.name}]",
            "command=" + " ".join(f'"{_value(word)}"' for word in command),
            f"priority={order}",
            "autostart=false",
            "autorestart=true",
            "startsecs=3",
            "startretries=10",
            "stopsignal=TERM",
            # Each leader has its own process group, and ends all processes below it.
            "stopasgroup=false",
            "killasgroup=true",
            f"stopwaitsecs={part.stop_seconds + KILL_MARGIN_SECONDS:.0f}",
            "redirect_stderr=true",
            f"stdout_logfile={_value(part.log)}",
            f"stdout_logfile_maxbytes={LOG_BYTES_MAX}",
            "stdout_logfile_backups=2",
        ]
    return "\n".join(lines) + "\n"


def digest(parts: Iterable[ChildProcess]) -> str:
    """Identifies the settings: with another digest, the running stack differs from the wanted one.

    Leaves out variables that differ from shell to shell without an effect.
    """
    shell = ("PATH", "no_proxy", "NO_PROXY")
    texts = [__version__]
    for part in parts:
        env = {name: value for name, value in part.env.items() if name not in shell}
        texts.append(replace(part, env=env).to_json())
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def start(parts: list[ChildProcess]) -> None:
    """Write the configuration, and start supervisord as a daemon, without parts."""
    path = layout.folder("supervisor") / "supervisord.conf"
    layout.write_private(path, configuration(parts, make_socket_path()))
    for part in parts:
        layout.write_private(_part_file(part), part.to_json())
    command = [layout.python(), "-m", "supervisor.supervisord", "-c", str(path)]
    try:
        subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=START_SECONDS, cwd="/"
        )
    except subprocess.CalledProcessError as error:
        raise TerminalError(
            f"supervisord does not start: {(error.stderr or error.stdout).strip()[-1000:]}. "
            f"See {path}",
            next="semel up",
        ) from error
    if not process.wait_until(lambda: running() is not None, START_SECONDS):
        raise UnavailableError(
            f"supervisord did not answer within {START_SECONDS} s. "
            f"See {layout.folder('log') / 'supervisord.log'}",
            next="semel up",
        )
    layout.update(digest=digest(parts))


def running() -> process.ProcessIdentity | None:
    """supervisord's process. Returns None if it does not answer."""
    try:
        return process.identify(int(str(_call("getPID"))))
    except (OSError, HTTPException):
        return None


def programs() -> dict[str, Program]:
    """The parts of supervisord, by name; empty if it does not answer."""
    try:
        rows = _call("getAllProcessInfo")
    except (OSError, HTTPException):
        return {}
    return {
        row["name"]: Program(
            name=row["name"],
            state=row["statename"],
            pid=row["pid"],
        )
        for row in rows
    }


def start_part(name: str) -> None:
    """Start a part, unless it runs or is starting."""
    if programs()[name].state not in (RUNNING, STARTING, BACKOFF):
        _call_unless("startProcess", Faults.ALREADY_STARTED, name, False)


def stop_parts(names: Iterable[str]) -> None:
    """Stop some parts at once, and wait until all have ended. Each stop is bounded."""
    programs_before = programs()
    going = [name for name in names if name in programs_before]
    for name in going:
        _call_unless("stopProcess", Faults.NOT_RUNNING, name, False)
    seconds = max((_stop_seconds(name) for name in going), default=0.0)
    ended = ("STOPPED", "EXITED", "FATAL", "UNKNOWN")

    def all_ended() -> bool:
        now = programs()
        return all(now[name].state in ended for name in going if name in now)

    if not process.wait_until(all_ended, seconds):
        states = {name: program.state for name, program in programs().items() if name in going}
        raise UnavailableError(f"these parts do not stop: {states}", next="semel down")


def shut_down() -> None:
    """End supervisord and its leftovers."""
    daemon = running() or _silent_daemon()
    if daemon:
        # It stops its parts, within their limits.
        process.send([daemon.pid], SIGTERM)
        if not process.wait_until(lambda: not process.alive(daemon), SHUT_DOWN_SECONDS):
            process.kill(lambda: [daemon.pid] if process.alive(daemon) else [])
    for name in ("supervisor.sock", "supervisord.pid"):
        (layout.folder("supervisor") / name).unlink(missing_ok=True)
    recorded = layout.load().socket
    if recorded and Path(recorded).parent != layout.folder("supervisor"):
        shutil.rmtree(Path(recorded).parent, ignore_errors=True)
    layout.update(socket="", digest="")


def _silent_daemon() -> process.ProcessIdentity | None:
    """Our supervisord if it lives but does not answer, because its socket was removed."""
    folder = layout.folder("supervisor")
    try:
        pid = int((folder / "supervisord.pid").read_text())
        words = psutil.Process(pid).cmdline()
    except (FileNotFoundError, psutil.NoSuchProcess, ValueError):
        return None
    ours = str(folder / "supervisord.conf") in words
    return process.identify(pid) if ours else None


def end_leftovers(names: Iterable[str]) -> int:
    """End the leftovers of a killed supervisord at once. Returns how many processes lived."""
    folder = layout.folder("supervisor")

    def end(name: str) -> int:
        return end_recorded(folder / f"{name}.record", _stop_seconds(name))

    with ThreadPoolExecutor() as threads:
        return sum(threads.map(end, names))


def _stop_seconds(name: str) -> float:
    path = layout.folder("supervisor") / f"{name}.json"
    seconds = ChildProcess.read(path).stop_seconds if path.exists() else 0.0
    return seconds + KILL_MARGIN_SECONDS


def _part_file(part: ChildProcess) -> Path:
    return layout.folder("supervisor") / f"{part.name}.json"


def _value(text: object) -> str:
    # supervisor expands %(name)s in values.
    return str(text).replace("%", "%%")


def _umask() -> int:
    now = os.umask(0o022)
    os.umask(now)
    return now


def _call(method: str, *arguments: object) -> object:
    socket = layout.load().socket
    if not socket:
        raise ConnectionError("no supervisord was started")
    transport = SupervisorTransport(None, None, f"unix://{socket}")
    with xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport) as server:
        return getattr(server.supervisor, method)(*arguments)


def _call_unless(method: str, fault: int, *arguments: object) -> None:
    """Call supervisord; ignores `fault`, which means that the state is reached already."""
    try:
        _call(method, *arguments)
    except xmlrpc.client.Fault as error:
        if error.faultCode != fault:
            raise
