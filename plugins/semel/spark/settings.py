"""Settings to start Spark with. Does not import Spark: the local stack needs only their text."""

SETTINGS = {
    # A lost executor fails the attempt, see SparkEngine.
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.stage.maxAttempts": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.daemon.module": "semel.spark.daemon",
}
"""Settings that each Spark needs; the last one only for speed."""

CONNECT_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE")
"""Environment variables that would give a process another Spark's session."""

LOOPBACK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}
"""Settings that hide a driver from other machines."""


def settings_for(master: str) -> dict[str, str]:
    """The settings of a master's driver; a `local` one also hides from other machines."""
    return SETTINGS | LOOPBACK if master.startswith("local") else SETTINGS
