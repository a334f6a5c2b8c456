"""The Spark versions that semel runs on, and all of their differences.

How it works: opening a session compares the driver's pyspark with Spark. Only the minor version
counts: vendors patch Spark and extend its version, as in 4.0.2-amzn-0.

No other module of semel tests Spark's version. This one imports nothing that an unsupported pyspark
lacks.
"""

import re
from concurrent.futures import wait
from importlib.metadata import PackageNotFoundError, distribution
from inspect import signature
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from semel.errors import NO_STEP, TerminalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST = (4, 0)
"""The oldest Spark that semel runs on."""

NEWEST = (4, 3)
"""The newest Spark that semel was tried with. A later 4.x runs too."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(.*)", re.DOTALL)


def check_driver() -> None:
    """Raises TerminalError if semel does not support this process's pyspark, or if the packages
    pyspark and pyspark-client have put two versions into one folder.
    """
    _check_supported("this Python's pyspark", pyspark.__version__)
    packages = {}
    for name in ("pyspark", "pyspark-client"):
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue
        if str(package.locate_file("pyspark")) in pyspark.__path__:
            packages[name] = package.version
    if len({minor(version) for version in packages.values()}) > 1:
        both = " and ".join(f"{name} {version}" for name, version in packages.items())
        raise TerminalError(
            f"this Python has {both}, which write to one folder: its files are of two versions. "
            "Nothing was done. Install one version of both",
            next=NO_STEP,
        )


def check_session(session: "SparkSession", *, connect: bool) -> str:
    """Compare a session's Spark with this process's pyspark. Returns Spark's version.

    Raises TerminalError if semel does not support that Spark, or the two do not fit. Over Connect
    a driver's pyspark may be older than Spark, which Spark promises to serve; never newer.
    """
    version = session.version
    _check_supported("Spark", version)
    own, its = minor(pyspark.__version__), minor(version)
    if own > its or (own < its and not connect):
        raise TerminalError(
            f"this Python has pyspark {pyspark.__version__}, and Spark has version {version}. "
            f"Nothing was done. Install pyspark {_text(its)} here",
            next=NO_STEP,
        )
    return version


def note(version: str) -> str:
    """A remark on a Spark version that semel was not tried with. Empty for others."""
    match = _VERSION.fullmatch(version)
    if match and match[4]:
        return f"Spark {version} is a vendor's build; semel treats it as {match[1]}.{match[2]}"
    if minor(version) > NEWEST:
        return f"Spark {version} is newer than {_text(NEWEST)}, the newest that semel has tried"
    return ""


def same_minor(one: str, other: str) -> bool:
    """True if two versions have one major and minor number."""
    return minor(one) == minor(other)


def minor(version: str) -> tuple[int, int]:
    """The major and minor number of a version; (0, 0) for other texts."""
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's columns as Arrow's. Spark 4.2 and later take the zone of times; 4.0 uses UTC."""
    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def await_releases(session: "SparkSession", seconds: float) -> None:
    """Wait until a Connect server has released the results of a session's queries: after the
    session's end it refuses these calls. In Spark 4.0 and 4.1 `seconds` is not used: their client
    has no list of the calls, and only ends their threads, as it does again when the session stops.
    """
    calls = getattr(session.client, "_release_futures", None)
    if calls is not None:
        wait(calls, seconds)
        return
    from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator

    ExecutePlanResponseReattachableIterator.shutdown()


def _check_supported(name: str, version: str) -> None:
    if not OLDEST <= minor(version) < (OLDEST[0] + 1, 0):
        raise TerminalError(
            f"{name} has version {version}: semel needs Spark {_text(OLDEST)} to {_text(NEWEST)}, "
            f"or a later {OLDEST[0]}.x. Nothing was done. Install one of these",
            next=NO_STEP,
        )


def _text(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))
