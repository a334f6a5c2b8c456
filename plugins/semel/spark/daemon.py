"""Spark's Python daemon, with all that stage's tasks import: its workers are forked from it, so
none of them spends its first seconds on imports.

Spark starts it (`spark.python.daemon.module`) and ends a worker after a minute without a task.
"""

from pyspark.daemon import manager

import semel.steps.read
import semel.steps.shard
import semel.steps.write  # noqa: F401

if __name__ == "__main__":
    manager()
