"""`semel up | status | down` on a real stack of its own, as a user calls them."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.stack import layout, process
from semel.stack.leader import Record

PARTS = {"postgres", "spark", "api-server", "scheduler", "dag-processor", "triggerer"}
COMMAND_SECONDS = 300
RECOVERY_SECONDS = 120


class Local:
    """A stack with a state folder of its own, handled by the command line alone."""

    def __init__(self, state: Path) -> None:
        self.state = state
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SEMEL_", "AIRFLOW"))}
        self.env = kept | {"SEMEL_STATE_DIR": str(state)}

    def begin(self, *words: str) -> subprocess.Popen[str]:
        code = "import sys; from semel.cli import main; sys.exit(main())"
        command = [layout.python(), "-c", code, *words, "--json"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.env, stdout=pipe, stderr=pipe, text=True)

    def call(self, *words: str) -> tuple[int, dict, str]:
        return result_of(self.begin(*words))

    def records(self) -> dict[str, Record]:
        found = {name: Record.read(self.state / "supervisor" / f"{name}.record") for name in PARTS}
        return {name: record for name, record in found.items() if record}

    def supervisor(self) -> int:
        return int((self.state / "supervisor" / "supervisord.pid").read_text())

    def processes(self) -> set[process.Identity]:
        """All of the stack: supervisor and the tree below it."""
        pids = [self.supervisor(), *process.descendants(self.supervisor())]
        return set(filter(None, map(process.identify, pids)))


def result_of(command: subprocess.Popen[str]) -> tuple[int, dict, str]:
    out, err = command.communicate(timeout=COMMAND_SECONDS)
    assert out.count("\n") == 1, err
    return command.returncode, json.loads(out), err


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    # Not pytest's folder: as root Postgres runs as another user, who could not enter it.
    folder = Path(tempfile.mkdtemp(prefix="semel-up-"))
    folder.chmod(0o755)
    made = Local(folder / "state")
    try:
        yield made
    finally:
        made.call("down")
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def both_ups(local: Local) -> list[tuple[int, dict, str]]:
    """What two `semel up` at once answered; the stack runs from here on."""
    return [result_of(command) for command in [local.begin("up"), local.begin("up")]]


def test_two_ups_at_once_make_one_stack(both_ups, local):
    """One works and the other waits and says so; both find the same healthy processes."""
    (first_code, first, first_said), (second_code, second, second_said) = both_ups
    assert first_code == second_code == 0, first_said + second_said
    assert first == second and first["healthy"]
    assert {part["name"] for part in first["parts"]} == PARTS
    waited = ["waiting for `semel up` (pid" in said for said in (first_said, second_said)]
    assert sorted(waited) == [False, True]
    assert "password" not in (local.state / "stack.json").read_text()


def test_every_server_is_on_loopback_only(both_ups, local):
    """No process of the stack can be reached from another machine."""
    ours = {identity.pid for identity in local.processes()}
    listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    rows = [row for row in listening.splitlines() if any(f"pid={pid}," in row for pid in ours)]
    addresses = {row.split()[3].rpartition(":")[0] for row in rows}
    assert rows and addresses <= {"127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"}


def test_up_again_leaves_what_runs_alone(both_ups, local):
    """A second `semel up` starts nothing anew."""
    code, again, _ = local.call("up")
    assert code == 0
    assert again["parts"] == both_ups[0][1]["parts"]


def test_every_part_comes_back_after_sigkill(both_ups, local):
    """Each killed part is restarted and healthy, and nothing of the former one lives beside it."""
    before = local.records()
    former = {name: [process.identify(pid) for pid in before[name].left()] for name in PARTS}
    for name, record in before.items():
        # Of two parts the leader is killed, of the others the main process.
        victim = record.leader if name in ("spark", "scheduler") else record.main
        os.kill(victim.pid, signal.SIGKILL)

    deadline = time.monotonic() + RECOVERY_SECONDS
    code, state, _ = local.call("status")
    while code != 0 and time.monotonic() < deadline:
        time.sleep(1)
        code, state, _ = local.call("status")
    assert code == 0, state
    after = local.records()
    assert not [name for name in PARTS if after[name].main == before[name].main]
    alive = {n: [i for i in found if i and process.alive(i)] for n, found in former.items()}
    assert not [name for name in PARTS if alive[name]], alive


def test_down_leaves_no_process_after_a_killed_supervisor(both_ups, local):
    """`semel down` ends everything, also when supervisor itself was killed, and status says so."""
    running = local.processes()
    os.kill(local.supervisor(), signal.SIGKILL)
    code, state, _ = local.call("status")
    assert code == 1 and {part["health"] for part in state["parts"]} == {"down"}
    code, _, said = local.call("down")
    assert code == 0 and "a killed supervisor had left behind" in said
    assert not [identity for identity in running if process.alive(identity)]
    assert local.call("status")[0] == 1
