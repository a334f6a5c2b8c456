"""semel's wheel in an environment outside of the checkout, as somebody has it who installs it."""

import hashlib
import os
import subprocess
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from fixtures.checkout import ROOT, copy_checkout
from fixtures.environment import python_with, run_uv

COMMAND_SECONDS_MAX = 300


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An environment that has semel from its wheel, and all that semel needs."""

    bin: Path

    @property
    def python(self) -> str:
        """Its Python."""
        return str(self.bin / "python")

    def environment(self, **variables: str) -> dict[str, str]:
        """Variables for its processes: none of semel's or Airflow's but these."""
        ours = ("SEMEL_", "AIRFLOW", "PYTHON", "PYSPARK", "SPARK_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        # Spark's scripts lie in the environment of the tests.
        path = [str(self.bin), sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
        return {**inherited, "PATH": os.pathsep.join(path), **variables}

    def call(self, *words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs in a folder, to its end."""
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]], cwd=folder, env=self.environment(**variables),
            capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX,
        )  # fmt: skip


@pytest.fixture(scope="session")
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """The wheels of semel and of its local stack, built from tracked files, and installed.

    The other packages are those of the tests' own environment, which takes a second in place of
    minutes; its semel is not seen, for a `.pth` file there is not read. SEMEL_TEST_INSTALLED names
    the bin folder of another environment with the wheel, such as one with another Airflow.
    """
    if given := os.environ.get("SEMEL_TEST_INSTALLED"):
        return Installed(bin=Path(given))
    folder = tmp_path_factory.mktemp("wheel")
    wheels = request.getfixturevalue("wheels")
    return _environment(folder / "venv", wheels, sysconfig.get_path("purelib"))


@pytest.fixture(scope="session")
def without_semel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the packages that `pip install semel` brings, less semel's
    own.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = ROOT / "constraints.txt"
    pins = tmp_path_factory.mktemp("core") / "pins.txt"
    digest = hashlib.sha256(versions.read_bytes()).hexdigest()
    pins.write_text("\n".join([*project["dependencies"], f"-c {versions}  # {digest}"]))
    return python_with("core", pins)


@pytest.fixture(scope="session")
def core(
    wheels: list[Path], without_semel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """An environment after `pip install semel`: its wheel, and neither Airflow nor pyspark."""
    [others] = without_semel.parents[1].glob("lib/python*/site-packages")
    only = [path for path in wheels if path.name.startswith("semel-")]
    return _environment(tmp_path_factory.mktemp("core") / "venv", only, str(others))


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The wheels of semel and of its local stack."""
    folder = tmp_path_factory.mktemp("wheels")
    copy_checkout(folder / "source")
    local = folder / "source" / "plugins" / "semel_local"
    for source in (folder / "source", local):
        run_uv("setuptools", "build", "--quiet", "--out-dir", str(folder / "dist"), str(source))
    return sorted((folder / "dist").glob("*.whl"))


def _environment(venv: Path, wheels: list[Path], others: str) -> Installed:
    """Install wheels into a new environment, which has all packages of the folder `others` too."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python, files = str(venv / "bin" / "python"), map(str, wheels)
    words = "--quiet", "--offline", "--no-deps", "--python", python, *files
    run_uv("semel", "pip", "install", *words)
    [site] = (venv / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(others + "\n")
    return Installed(bin=venv / "bin")
