"""The stack's state on disk: ports, secrets, the lock."""

import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from semel.errors import TerminalError
from semel.stack import layout


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


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
        "import sys; from semel.stack import layout; "
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
        deadline = time.monotonic() + 10
        while not said and time.monotonic() < deadline:
            time.sleep(0.02)
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
