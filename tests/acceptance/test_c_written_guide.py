"""The commands of docs/guide/, typed on the live stack in the order of its pages, as they stand.

Only the pipeline's name and the folder of pipelines are the test's own.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fix_stack import COMMAND_SECONDS_MAX, Stack
from fixtures.airflow.dags import ROOT
from fixtures.commands.guide import commands, pages

# Each command is a process. test_docs_run.py runs those of the other pages in one.
pytestmark = pytest.mark.rest

NAME = "guide_orders"
NOT_HERE = {"make demo", "make down"}
"""The stack's own tests start and stop one, and test_c_week.py runs the demo."""


@pytest.fixture(scope="module", autouse=True)
def _landed(_running_stack: Stack) -> None:
    """The files of new-pipeline.md: three days of a shop, with one bad record."""
    folder = _running_stack.data / NAME
    folder.mkdir()
    for day in (2, 3, 4):
        rows = [f"{day}{n:03d},{n}.50,2026-03-0{day}T{n % 24:02d}:15:00Z" for n in range(100)]
        bad = [f"{day}999,n/a,2026-03-0{day}T12:00:00Z"] if day == 3 else []
        text = "\n".join(["order_id,amount,placed_at", *rows, *bad, ""])
        (folder / f"{NAME}_2026-03-0{day}.csv").write_text(text)


def ours(command: str) -> str:
    """The command with the test's names."""
    return re.sub(r"\borders(?=\b|_)", NAME, command).replace("dags/pipelines/", "pipelines/")


# A page goes on with what the pages before it have left.
@pytest.mark.follows("test_each_command_works")
@pytest.mark.parametrize("page", [page for page in pages() if commands(page)], ids=lambda p: p.stem)
def test_each_command_works(stack: Stack, page: Path) -> None:
    """It ends with 0 and without a trace; what `make` makes is in the Makefile."""
    for command in commands(page):
        if command.startswith("make "):
            assert command in NOT_HERE
            assert f"\n{command.removeprefix('make ')}: " in (ROOT / "Makefile").read_text()
            continue
        done = typed(stack, ours(command))
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, command


def typed(stack: Stack, command: str) -> subprocess.CompletedProcess[str]:
    """A command in the project's folder."""
    text = f'semel() {{ {shlex.quote(sys.executable)} -m semel "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-c", text], cwd=stack.folder, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=COMMAND_SECONDS_MAX,
    )  # fmt: skip


@pytest.mark.follows("test_each_command_works")
def test_what_the_guide_says_of_an_archived_file(stack: Stack) -> None:
    """After all pages each of its days is finalized, though a file was moved, and then deleted. Only
    the audit misses that one: it names the file.
    """
    folder = stack.data / NAME
    assert [path.name for path in (folder / "done").iterdir()] == [f"{NAME}_2026-03-02.csv"]
    code, answer, said = stack.call("audit", NAME)
    assert code == 0 and answer["totals"]["survivors"] == 300, said
    shutil.rmtree(folder / "done")
    code, answer, said = stack.call("days", NAME, "--from", "2026-03-02", "--to", "2026-03-04")
    assert code == 0, said
    assert [day["state"] for day in answer["days"]] == ["finalized"] * 3
    done = typed(stack, f"semel gaps {NAME}")
    assert done.returncode == 0
    assert done.stdout == f"{NAME}: all that the source holds is finalized\n"
    done = typed(stack, f"semel audit {NAME}")
    assert done.returncode == 1 and f"{NAME}_2026-03-02.csv', byte 0: batch" in done.stdout
