"""semel in Airflow. Two lines in a DAG file make the DAGs of a folder of pipelines:

    from semel.airflow import dags
    dags(globals(), "pipelines/")

The functions import what they need when called: Airflow loads this package for its executor too.
"""

from pathlib import Path
from typing import Any

COLLECT_DAG_ID = "semel_collect"
"""The DAG that collects, unless a DAG file gives it another name."""


def dags(
    namespace: dict[str, Any], folder: str | Path | None = None, *, collect: str = COLLECT_DAG_ID
) -> None:
    """Put the DAGs of all pipelines whose file is right, and one that collects, into a DAG file.

    `namespace`: the DAG file's globals(). `folder`: of the pipelines' YAML files, relative to the
    DAG file; left out, SEMEL_PIPELINES_DIR or the Airflow Variable semel_pipelines_dir names it.
    `collect`: id of the DAG that collects; of two folders, each needs its own.

    A file that is wrong takes its own pipeline down only; `broken_dags` shows it. TerminalError:
    nothing says where data may lie.
    """
    from semel.airflow import factory

    namespace.update(factory.dags(_folder(namespace, folder), collect))


def broken_dags(namespace: dict[str, Any], folder: str | Path | None = None) -> None:
    """Raise SpecError with all that is wrong with the pipelines' files; arguments as of `dags`.

    Meant for a DAG file of its own: Airflow shows it among the import errors, and stops all DAGs of
    a file that has one.
    """
    from semel.airflow import factory

    factory.refuse_broken(_folder(namespace, folder))


def _folder(namespace: dict[str, Any], folder: str | Path | None) -> Path | None:
    return Path(namespace["__file__"]).resolve().parent / folder if folder else None
