"""semel in Airflow. A DAG file needs two lines to create the DAGs of a folder of pipelines.

    from semel.airflow import dags
    dags(globals(), "pipelines/")

The functions import their modules when called, because Airflow also loads this package for its
executor.
Importing it raises MissingPackageError without Airflow, TerminalError with an older one than
AIRFLOW_MIN.
"""

import re
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from semel.errors import MissingPackageError, TerminalError

AIRFLOW_MIN = (3, 1)
"""The oldest Airflow that semel works with."""


def _find_airflow() -> str:
    """The version of Airflow's package. Only the modules of semel.airflow import Airflow itself."""
    for package in ("apache-airflow-core", "apache-airflow"):  # Airflow 2 has only the second.
        with suppress(PackageNotFoundError):
            found = version(package)
            break
    else:
        raise MissingPackageError(
            "semel.airflow: this Python has no Airflow. Install semel[airflow]",
            next="pip install 'semel[airflow]'",
        )
    if tuple(map(int, re.findall(r"\d+", found)[:2])) < AIRFLOW_MIN:
        raise TerminalError(
            f"semel.airflow: this Python has Airflow {found}, and semel needs Airflow "
            f"{'.'.join(map(str, AIRFLOW_MIN))} or newer. Upgrade it",
            next="pip install 'apache-airflow>=3.1,<4'",
        )
    return found


AIRFLOW_VERSION = _find_airflow()

COLLECT_DAG_ID = "semel_collect"
"""The default id of the DAG that collects."""


def dags(
    namespace: dict[str, Any], folder: str | Path | None = None, *, collect: str = COLLECT_DAG_ID
) -> None:
    """Put a DAG for each valid pipeline file, and one DAG that collects, into a DAG file.

    `namespace`: the DAG file's globals(). `folder`: the folder of YAML files, relative to the DAG
    file; by default SEMEL_PIPELINES_DIR or the Airflow Variable semel_pipelines_dir names it.
    `collect`: id of the DAG that collects; two folders need two ids.

    An invalid file costs only its own pipeline; `broken_dags` shows it. Raises TerminalError if no
    setting names the data folder.
    """
    from semel.airflow import factory

    namespace.update(factory.dags(_folder(namespace, folder), collect))


def broken_dags(namespace: dict[str, Any], folder: str | Path | None = None) -> None:
    """Raise SpecError with every fault of the pipelines' files. Arguments are those of `dags`.

    Call it in a separate DAG file: Airflow lists the error among its import errors, and stops all
    DAGs of a file that raises one.
    """
    from semel.airflow import factory

    factory.refuse_broken(_folder(namespace, folder))


def _folder(namespace: dict[str, Any], folder: str | Path | None) -> Path | None:
    return Path(namespace["__file__"]).resolve().parent / folder if folder else None
