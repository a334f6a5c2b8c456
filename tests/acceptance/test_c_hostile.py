"""The running stack as another user of the machine sees it: no secret, and no way in."""

import stat
from copy import copy
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from airflow_rest import Airflow
from fix_stack import Begun, CommandLines, Stack
from fixtures.batches.account import quiet
from semel import pipeline
from semel.archive import layout
from semel.errors import TerminalError
from semel.spark.check import check
from semel.spark.session import open_engine
from semel_local import stack as semel_stack
from semel_local.stack import layout as stack_layout

TEXT_BYTES_MAX = 32 << 20


def secrets_of(stack: Stack) -> dict[str, bytes]:
    """What nobody else may see, by its name."""
    return {path.name: path.read_bytes() for path in (stack.state / "secrets").iterdir()
            if path.suffix != ".json"}  # fmt: skip


def shown(secrets: dict[str, bytes], text: bytes) -> list[str]:
    """The names of the secrets that a text holds."""
    return [name for name, secret in secrets.items() if secret in text]


def test_no_secret_is_shown_by_a_run(stack: Stack, begun: Begun) -> None:
    """Not on any command line, nor in a marker, a task's log, or what a command prints."""
    secrets = secrets_of(stack)
    assert set(secrets) == set(stack_layout.SECRETS)
    with CommandLines() as lines:
        answers = [stack.call(*words) for words in (["status"], ["batches"])]
    assert any(b"connect_server.py" in line for line in begun.lines)
    for line in begun.lines | lines.seen:
        assert not shown(secrets, line), line[:200]
    tasks = stack.airflow.tasks("shop", begun.shop)
    logs = [stack.airflow.log("shop", begun.shop, task) for task in tasks]
    assert all(logs) and not shown(secrets, str(logs).encode())
    assert not shown(secrets, str(answers).encode())
    markers = layout.archive_folder(pipeline.find("shop")) / "markers"
    assert not [m for m in markers.iterdir() if shown(secrets, m.read_bytes())]


def test_no_secret_is_in_a_log_or_open_to_others(stack: Stack) -> None:
    """A file that holds a secret, and the supervisor's socket, are their owner's alone.

    No log holds a secret.
    """
    secrets, sockets = secrets_of(stack), []
    for path in stack.state.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISSOCK(mode):
            sockets.append(path)
            assert not mode & 0o077, path
        elif stat.S_ISREG(mode) and path.stat().st_size < TEXT_BYTES_MAX:
            found = shown(secrets, path.read_bytes())
            assert not found or not mode & 0o077, f"{path} holds {found}"
            logged = "log" in path.relative_to(stack.state).parts
            assert not found or not logged, f"{path} holds {found}"
    assert sockets == [Path(stack_layout.load().socket)]


def test_the_state_is_closed_to_others(stack: Stack) -> None:
    """Only the state folder itself and the one that Postgres' own user has to enter are open."""
    opened = {path.name for path in stack.state.iterdir() if path.is_dir()
              and path.stat().st_mode & 0o077}  # fmt: skip
    assert opened <= {"postgres"}


def test_the_ways_in_ask_for_a_secret(stack: Stack) -> None:
    """Postgres, Spark Connect and Airflow refuse who has none: loopback is every user's."""
    ends = semel_stack.connection()
    for password in ("", "semel", "postgres"):
        url = sa.make_url(ends.ledger_dsn).set(password=password)
        with (
            pytest.raises(psycopg.OperationalError, match="password"),
            psycopg.connect(url.render_as_string(hide_password=False)),
        ):
            pass
    plain = ends.spark_remote.partition(";")[0]
    for remote in (plain, f"{plain};token=semel"):
        with pytest.raises(TerminalError, match="rejects the token"), open_engine(remote):
            pass
        (found,) = [one for one in check([], remote, quiet).checks if not one.ok]
        assert "Renew that token" in found.detail and found.remedy.startswith("do that, then run")
    with pytest.raises(AssertionError, match=": 401 "):
        Airflow(replace(ends, airflow_password="semel"))
    stranger = copy(stack.airflow)
    for token in ("", "semel"):
        stranger.token = token
        with pytest.raises(AssertionError, match=": 40[13] "):
            stranger.dags()
