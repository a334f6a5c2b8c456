"""Staging in Spark, and `semel check` and `semel explain` there. Needs the extra `semel[spark]`."""

from importlib.util import find_spec

from semel.errors import MissingPackageError


def _require_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise MissingPackageError(
            "semel.spark: this Python has no pyspark. Nothing was started. Install semel[spark]",
            next="pip install 'semel[spark]'",
        )


_require_pyspark()
