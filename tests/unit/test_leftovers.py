"""What a run of tests leaves on the user's machine: nothing."""

import os
import sys
from pathlib import Path

from leftovers import VARIABLE


def test_airflow_writes_to_the_run_alone() -> None:
    """Airflow makes its home when it is imported. It is one of this run, and not the user's."""
    home = Path(os.environ.get("AIRFLOW_HOME", "~/airflow"))
    assert home.parent == Path(os.environ[VARIABLE])
    imported = sys.modules.get("airflow.configuration")
    assert imported is None or imported.AIRFLOW_HOME == str(home)
