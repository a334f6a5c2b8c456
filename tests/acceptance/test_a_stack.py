"""`semel up` on a real stack of its own, as a user calls it."""

import subprocess

from fix_stack import PARTS, Stack


def test_two_ups_at_once_make_one_stack(stack: Stack) -> None:
    """One works and the other waits and says so; both find the same healthy processes."""
    (first_code, first, first_said), (second_code, second, second_said) = stack.ups
    assert first_code == second_code == 0, first_said + second_said
    assert first == second and first["healthy"]
    assert {part["name"] for part in first["parts"]} == PARTS
    waited = ["waiting for `semel up` (pid" in said for said in (first_said, second_said)]
    assert sorted(waited) == [False, True]
    assert "password" not in (stack.state / "stack.json").read_text()


def test_every_server_is_on_loopback_only(stack: Stack) -> None:
    """No process of the stack can be reached from another machine."""
    ours = {identity.pid for identity in stack.processes()}
    listening = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    rows = [row for row in listening.splitlines() if any(f"pid={pid}," in row for pid in ours)]
    addresses = {row.split()[3].rpartition(":")[0] for row in rows}
    assert rows and addresses <= {"127.0.0.1", "[::ffff:127.0.0.1]", "[::1]"}
