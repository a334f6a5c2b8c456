"""What Spark is started with. No import of Spark: the local stack builds a command line of it."""

SETTINGS = {
    # A lost executor fails the attempt, see SparkEngine.
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.maxAttempts": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.daemon.module": "semel.spark.daemon",
}
"""What each Spark needs; the last one only to be fast."""

CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
"""With one of these in its environment a process gets a session of another Spark."""

LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
"""With these no other machine sees a driver."""


def settings_for(master: str) -> dict[str, str]:
    """For a master's driver; one whose executors are in its own process stays unseen."""
    return SETTINGS | LOOPBACK if master.startswith("local") else SETTINGS
