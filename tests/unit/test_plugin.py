"""What Airflow finds of semel's plugin in an environment that `make` installed."""

import subprocess
import sys
from pathlib import Path

FIND = """
from importlib.metadata import distributions
for found in distributions():
    for point in found.entry_points.select(group="airflow.plugins"):
        print(point.name)
"""


def test_airflow_finds_the_plugin_once(tmp_path: Path) -> None:
    """A second one is `1 Plugin Import Error` on Airflow's home page: the editable install left
    its egg-info beside the library, which is on the path as the dist-info is."""
    done = subprocess.run(
        [sys.executable, "-c", FIND], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split().count("semel") == 1
