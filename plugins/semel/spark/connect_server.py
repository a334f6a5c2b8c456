"""The program that spark-submit runs for the local stack: Spark Connect, until Spark's JVM ends.

Spark's own program isolates the files that sessions add. It gives each session a Python daemon,
which outlives the session: 47 MB and two seconds for each batch. semel's sessions add no files, so
they share one daemon (`spark.sql.artifact.isolation.enabled=false`, which that program overrides).
"""

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    SparkSession.builder.getOrCreate()  # `spark.plugins` makes it a Connect server.
    sys.stdin.read()  # Returns when the JVM, the parent process, ends.
