"""The Spark Connect server on `local[*]`: its command line and its health."""

import importlib.util
import os
from pathlib import Path
from signal import SIGTERM
from urllib.parse import urlsplit

import grpc

import semel
from semel.errors import TerminalError
from semel.settings import LEDGER_VARIABLE
from semel.spark.settings import CONNECT_VARIABLES, LOOPBACK, SETTINGS
from semel_local.stack import java, layout
from semel_local.stack.leader import ChildProcess

_PROGRAM = Path(semel.__file__).with_name("spark") / "connect_server.py"

DRIVER_MEMORY_BYTES_MAX = 4 << 30
"""Heap of the server; on a small machine a third of its memory."""

MESSAGE_BYTES_MAX = 256 << 20
"""Largest message between a client and the server: manifests and packed rows of a large batch."""

CONF = {
    **SETTINGS,
    **LOOPBACK,
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    # All sessions share one Python daemon. See connect_server.py and semel.spark.daemon.
    "spark.sql.artifact.isolation.enabled": "false",
    # INFO would log whole plans.
    "spark.log.level": "WARN",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # The JVM's own ports are on loopback too, which every user of the machine can reach.
    "spark.authenticate": "true",
    "spark.connect.grpc.maxInboundMessageSize": str(MESSAGE_BYTES_MAX),
    "spark.rpc.message.maxSize": str(MESSAGE_BYTES_MAX >> 20),  # in MiB
    "spark.driver.maxResultSize": "2g",
}


def spark_home() -> Path:
    """The folder of pyspark, which contains all of Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / "jars").is_dir():
        raise TerminalError(
            "pyspark is not installed, or lacks its jars. Install the project's requirements, "
            "or set SEMEL_SPARK_REMOTE to a Spark Connect server (sc://HOST:PORT)"
        )
    return Path(spec.origin).parent


def submit() -> list[str]:
    """The beginning of a command that runs a program on its own Spark, even if the shell uses
    another one."""
    program = str(spark_home() / "bin/spark-submit")
    return ["env", *(f"--unset={name}" for name in CONNECT_VARIABLES), program]


def remote(port: int) -> str:
    """The address for clients, with the token: loopback is open to every user of the machine.

    The host is a name, because the client sends a token without TLS only to `localhost`.
    """
    return f"sc://localhost:{port}/;token={layout.secret('spark_token')}"


def connection(remote_url: str) -> dict[str, object]:
    """The fields of an Airflow connection of type `spark_connect` to this address."""
    url = urlsplit(remote_url)
    if url.scheme != "sc" or not url.hostname:
        raise TerminalError(
            f"SEMEL_SPARK_REMOTE is {remote_url.partition(';')[0]!r}; it must be sc://HOST:PORT/"
        )
    # `sc://host:port/;name=value;name=value`
    pairs = (pair.partition("=") for pair in url.path.strip("/").split(";") if pair)
    options = {name: value for name, _, value in pairs}
    fields: dict[str, object] = {
        "conn_type": "spark_connect",
        "host": url.hostname,
        "port": url.port or layout.PORTS["spark"],
    }
    if "token" in options:
        fields["password"] = options["token"]
    if "user_id" in options:
        fields["login"] = options["user_id"]
    extra = {n: v for n, v in options.items() if n == "use_ssl" or n.startswith("x-")}
    if extra:
        fields["extra"] = extra
    return fields


def part(port: int) -> ChildProcess:
    """The part, for supervisor: spark-submit in the foreground, which becomes the JVM."""
    spark = spark_home()
    work = layout.folder("spark")
    conf = CONF | {
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
    }
    command = [
        *submit(),
        *("--master", "local[*]", "--name", "semel"),
        *("--driver-memory", f"{_driver_memory_bytes() >> 20}m"),
    ]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    return ChildProcess(
        name="spark",
        command=[*command, str(_PROGRAM)],
        env={
            "SPARK_HOME": str(spark),
            "JAVA_HOME": str(java.home()),
            "SPARK_LOCAL_DIRS": os.environ.get("SPARK_LOCAL_DIRS")
            or str(layout.folder("spark", "local")),
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or layout.python(),
            # Tasks find the ledger in the stack's addresses file, which a later `up` may change.
            "SEMEL_STATE_DIR": str(layout.top()),
            LEDGER_VARIABLE: "",
            # In the environment, because every user can see command lines.
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": layout.secret("spark_token"),
        },
        directory=str(work),
        log=str(layout.folder("log") / "spark.log"),
        record=str(layout.folder("supervisor") / "spark.record"),
        user=None,
        stop_signal=SIGTERM,
        stop_seconds=15,
    )


def trouble(port: int) -> str:
    """Why it does not answer, empty if it does."""
    # Do not use a proxy from the environment for our own machine.
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=2)
        except grpc.FutureTimeoutError:
            return f"nothing answers on port {port}"
    return ""


def _driver_memory_bytes() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(DRIVER_MEMORY_BYTES_MAX, total // 3)
