"""What spark-submit runs for the local stack: Spark Connect, for as long as Spark's JVM lives.

Spark's own program for it keeps the files that sessions add apart, and for that gives each session
a Python daemon, which outlives it: 47 MB and two seconds for each batch. Nobody adds files here, so
with `spark.sql.artifact.isolation.enabled=false` all share one; that program would overrule it.
"""

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    SparkSession.builder.getOrCreate()  # `spark.plugins` makes it a Connect server.
    sys.stdin.read()  # It ends with the JVM, whose child this is.
