"""Spark's Python daemon, with all that stage's tasks import: its workers are forked from it, so
none of them spends its first seconds on imports.

Spark starts it (`spark.python.daemon.module`) and ends a worker after a minute without a task.
After each task a worker collects garbage: 0.1 s when that looks at all that was imported, a quarter
of a second's task. So what is there before the fork is frozen.
"""

import gc

from pyspark.daemon import manager

import semel.steps.read
import semel.steps.shard
import semel.steps.write  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
