"""Programs for the JVM, fetched by Maven once and kept."""

import fcntl
import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from semel.errors import AGAIN, TerminalError, UnavailableError

FETCH_SECONDS = 300
"""Bound of Maven's run, which takes some 10 s."""

SAID_CHARS_MAX = 1_000
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
"""Some of them come in spite of style.color=never."""


def place(pom: Path, home: Path) -> Path:
    """The folder below `home` of what this POM fetches, whether it is there or not."""
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    return home / f"{pom.stem.removesuffix('-pom')}-{digest}"


def installed(what: str) -> str:
    """Maven's program, which fetches `what`. TerminalError when there is none."""
    program = shutil.which("mvn")
    if program is None:
        raise TerminalError(
            f"Maven is not installed, which fetches {what}. On Debian 12: "
            "sudo apt-get install -y maven",
            next=AGAIN,
        )
    return program


def fetched(pom: Path, home: Path, what: str) -> Path:
    """The folder `place`, once the default goal of the POM has filled it.

    Safe to call from several processes at once. TerminalError: Maven is missing; UnavailableError:
    it could not fetch `what`.
    """
    found = place(pom, home)
    if found.is_dir():
        return found
    program = installed(what)
    home.mkdir(parents=True, exist_ok=True)
    with open(home / f"{found.name}.lock", "wb") as lock:
        # Bounded, for whoever holds it is.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.is_dir():
            with tempfile.TemporaryDirectory() as folder:
                # Maven writes beside its POM, where we may not.
                shutil.copyfile(pom, Path(folder, "pom.xml"))
                _fetch(program, Path(folder), found, what)
    return found


def _fetch(program: str, folder: Path, target: Path, what: str) -> None:
    new = target.with_name(f"{target.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    command = [program, "--batch-mode", "--quiet", "--strict-checksums", "-Dstyle.color=never"]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={new}"], cwd=folder, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=FETCH_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(
            f"Maven has not fetched {what} within {FETCH_SECONDS} s", next=AGAIN
        ) from error
    if done.returncode:
        said = _first_error(done.stdout + done.stderr)
        raise UnavailableError(f"Maven could not fetch {what}: {said}", next=AGAIN)
    new.rename(target)


def _first_error(said: str) -> str:
    """The fact among what Maven says; its other lines tell how to ask Maven for more."""
    lines = [line for line in _COLORS.sub("", said).splitlines() if line.strip()]
    first = next((line for line in lines if "[ERROR]" in line), " ".join(lines))
    return first.replace("[ERROR]", "").partition(" -> [Help")[0].strip()[:SAID_CHARS_MAX]
