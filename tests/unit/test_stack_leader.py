"""A part's leader: nothing of the part outlives it, and nobody else is touched."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from semel_local.stack import process
from semel_local.stack.leader import ChildProcess, Record, end_recorded

# A main process with a child in a process group of its own, as Airflow's tasks are.
BRANCHING = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
time.sleep(60)
"""
CHILD = """
import os, sys, time
os.setpgid(0, 0)
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(60)
"""


# The leader's own program, but that it asks what a former one left for less than ten seconds.
LEAD = """
import sys
from pathlib import Path
from semel_local.stack import leader
leader.START_GRACE_SECONDS = 0.5
sys.exit(leader.lead(leader.ChildProcess.read(Path(sys.argv[1]))))
"""


def until(found, seconds: float = 20.0):
    assert process.wait_until(lambda: bool(found()), seconds), "timed out"
    return found()


class Led:
    """One leader with its part, its child and their record."""

    def __init__(self, folder: Path) -> None:
        self.child_file = folder / "child"
        self.record_file = folder / "part.record"
        self.part = ChildProcess(
            name="part",
            command=[sys.executable, "-c", BRANCHING, CHILD, str(self.child_file)],
            env={},
            directory=str(folder),
            log=str(folder / "log"),
            record=str(self.record_file),
            user=None,
            stop_signal=signal.SIGTERM,
            stop_seconds=5,
        )
        self.leaders: list[subprocess.Popen] = []

    def lead(self) -> subprocess.Popen:
        path = self.record_file.with_name("part.json")
        path.write_text(self.part.to_json())
        self.leaders.append(subprocess.Popen([sys.executable, "-c", LEAD, str(path)]))
        return self.leaders[-1]

    def start(self) -> Record:
        self.child_file.unlink(missing_ok=True)
        self.lead()
        until(self.child_file.exists)
        return Record.read(self.record_file)

    @property
    def child(self) -> process.ProcessIdentity:
        return process.identify(int(self.child_file.read_text()))

    def close(self) -> None:
        end_recorded(self.record_file, 5)
        for leader in self.leaders:
            leader.kill()
            leader.wait(timeout=10)


@pytest.fixture
def led(tmp_path):
    found = Led(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("how", ["stopped", "killed", "recorded"])
def test_nothing_of_a_part_outlives_it(led, how):
    """Neither its main process nor one that had left its group: whether the part is stopped, its
    main process is killed, or `semel down` finds it by its record alone, as a killed supervisor
    left it.
    """
    record, child = led.start(), led.child
    if how == "stopped":
        led.leaders[0].terminate()
    elif how == "killed":
        os.kill(record.main.pid, signal.SIGKILL)
    else:
        assert end_recorded(led.record_file, 10) == 3
    code = led.leaders[0].wait(timeout=15)
    assert how != "killed" or code == 128 + signal.SIGKILL
    assert not process.alive(record.main) and not process.alive(child)
    assert not led.record_file.exists()


def test_a_part_without_its_record_ends(led):
    """A disk that is full for a moment: nobody would find the part again, which has the port of each
    that is started after it.
    """
    led.record_file.with_suffix(".new").mkdir()
    assert led.lead().wait(timeout=15) == 1
    left = psutil.process_iter(["cmdline"])
    assert not [one for one in left if str(led.child_file) in (one.info["cmdline"] or ())]


def test_restart_after_a_killed_leader_ends_the_former_part_first(led):
    """A part whose leader was killed never runs beside the restarted one."""
    record, child = led.start(), led.child
    os.kill(record.leader.pid, signal.SIGKILL)
    led.leaders[0].wait(timeout=10)
    assert process.alive(record.main) and process.alive(child)
    again = led.start()
    assert again.main != record.main
    assert not process.alive(record.main) and not process.alive(child)


def test_stubborn_part_is_killed_after_its_time(led):
    """A part that ignores its stop signal ends nevertheless, within its bound."""
    deaf = "import signal; signal.signal(15, signal.SIG_IGN)\n" + BRANCHING
    led.part = replace(led.part, stop_seconds=0.5)
    led.part.command[2] = deaf
    record = led.start()
    began = time.monotonic()
    led.leaders[0].terminate()
    led.leaders[0].wait(timeout=15)
    assert time.monotonic() - began < 10
    assert not process.alive(record.main)


@pytest.mark.parametrize("change", [{"started_ticks": 1}, {"boot": "another"}])
def test_a_stranger_with_a_recorded_pid_is_left_alone(tmp_path, change):
    """A pid that another process has got since is nobody's to end."""
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        now = process.identify(stranger.pid)
        stale = replace(now, **change)
        path = tmp_path / "part.record"
        Record(leader=stale, main=stale, stop_signal=signal.SIGTERM).write(path)
        assert end_recorded(path, 1) == 0
        assert process.alive(now)
    finally:
        stranger.kill()
        stranger.wait()


def test_zombie_counts_as_ended():
    """A process that has ended and was not reaped does not keep `semel down` waiting."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.identify(child.pid) is None
    child.wait()


@pytest.mark.parametrize("clock", [1_700_000_000, 1_800_000_000])
def test_a_process_stays_itself_when_the_clock_is_set(tmp_path, monkeypatch, clock):
    """What tells a pid from its reuse is the start in ticks, which no clock moves."""
    (tmp_path / "stat").write_text(f"cpu 1 2 3\nbtime {clock}\n")
    (tmp_path / "4711").mkdir()
    fields = " ".join(["1"] * 18 + ["1234567"] + ["0"] * 30)
    (tmp_path / "4711" / "stat").write_text(f"4711 (a) Z 1 (b) S {fields}\n")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert process.identify(4711).started_ticks == 1234567


def test_a_child_that_ends_as_its_leader_looks_hides_nobody():
    """A leader goes on looking while it has a child: one look may miss what is below."""
    code = """
import subprocess, sys
from semel_local.stack import leader, process
child = subprocess.Popen(["sleep", "60"])
seen = process.descendants
blind = [[]]
process.descendants = lambda pid: blind.pop() if blind else seen(pid)
leader._end_orphans()
sys.exit(child.poll() is None)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0
