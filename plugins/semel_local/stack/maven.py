"""Programs for the JVM, which Maven fetches once."""

import fcntl
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from semel.errors import AGAIN, TerminalError, UnavailableError
from semel_local.stack import java

FETCH_SECONDS = 300
"""Limit for Maven's run, which takes some 10 s."""

REASON_CHARS_MAX = 1_000
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""Maven writes some colors in spite of style.color=never."""


def jar_folder(pom: Path, home: Path) -> Path:
    """The folder below `home` for this POM's files. It need not exist."""
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    return home / f"{pom.stem.removesuffix('-pom')}-{digest}"


def program_path(what: str) -> str:
    """The path of Maven, which fetches `what`. Raises TerminalError without Maven."""
    program = shutil.which("mvn")
    if program is None:
        raise TerminalError(
            f"Maven is not installed; semel needs it to fetch {what}. On Debian 12: "
            "sudo apt-get install -y maven",
            next=AGAIN,
        )
    return program


def fetch(pom: Path, home: Path, what: str) -> Path:
    """Fetch this POM's files by its default goal, unless they exist. Returns their folder.

    Several processes may call it at once. Raises TerminalError if Maven is missing,
    UnavailableError if it cannot fetch `what`.
    """
    jars = jar_folder(pom, home)
    if jars.is_dir():
        return jars
    program = program_path(what)
    home.mkdir(parents=True, exist_ok=True)
    with open(home / f"{jars.name}.lock", "wb") as lock:
        # The wait is bounded, as a download is.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            with tempfile.TemporaryDirectory() as folder:
                # Maven writes next to its POM, where we may not.
                shutil.copyfile(pom, Path(folder, "pom.xml"))
                _fetch(program, Path(folder), jars, what)
    return jars


def _fetch(program: str, folder: Path, target: Path, what: str) -> None:
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    command = [program, "--batch-mode", "--quiet", "--strict-checksums", "-Dstyle.color=never"]
    try:
        result = subprocess.run(
            [*command, f"-DoutputDirectory={new}"], cwd=folder,
            env=java.environment_of_machine(), capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=FETCH_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"Maven has not fetched {what} within {FETCH_SECONDS} s", next=AGAIN
        ) from error
    if result.returncode:
        reason = _first_error(result.stdout + result.stderr)
        raise UnavailableError(f"Maven could not fetch {what}: {reason}", next=AGAIN)
    new.rename(target)


def _first_error(output: str) -> str:
    """The first error in Maven's output; other lines only explain how to get more output."""
    lines = [line for line in _COLORS.sub("", output).splitlines() if line.strip()]
    first = next((line for line in lines if "[ERROR]" in line), " ".join(lines))
    return first.replace("[ERROR]", "").partition(" -> [Help")[0].strip()[:REASON_CHARS_MAX]
