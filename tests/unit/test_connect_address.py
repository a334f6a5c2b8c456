"""The address of a Spark Connect server, made of an Airflow connection, as pyspark reads it."""

from types import SimpleNamespace
from typing import Any

import pytest

from semel.errors import RetryableError

pytestmark = pytest.mark.usefixtures("airflow")


def connection(**fields: Any) -> Any:
    nothing = {"conn_id": "semel_spark", "port": None, "login": None, "password": None}
    return SimpleNamespace(**{"extra_dejson": {}, **nothing, **fields})


def read(**fields: Any) -> Any:
    """What pyspark makes of the address."""
    from pyspark.sql.connect.client.core import DefaultChannelBuilder

    from semel.airflow.spark import connect_address

    return DefaultChannelBuilder(connect_address(connection(**fields)))


@pytest.mark.parametrize("token", ["plain", "a/b+c==", "a;b=c&d %2F#?", "ü"])
def test_a_token_arrives_as_it_is(token: str) -> None:
    """No character of a token ends the address, or becomes an option."""
    built = read(host="spark", port=443, password=token, extra_dejson={"use_ssl": True})
    assert (built.token, built.endpoint, built.use_ssl) == (token, "spark:443", True)
    assert list(built.metadata()) == []


def test_headers_and_user() -> None:
    """Options that begin with x- are headers, with names in lower case, as gRPC wants them; others
    are not. A host may have its scheme.
    """
    extra = {"X-Databricks-Cluster-Id": "1128/a", "x-other": 7, "use_ssl": "false", "note": "x"}
    built = read(host="sc://spark", login="me@example.com", extra_dejson=extra)
    assert sorted(built.metadata()) == [("x-databricks-cluster-id", "1128/a"), ("x-other", "7")]
    assert (built.userId, built.use_ssl, built.token) == ("me@example.com", False, None)
    assert built.endpoint == "spark:15002"


def test_a_token_that_a_command_prints() -> None:
    """Its output without the line's end, in the place of the password; a command that fails is
    said with its last line, and a command that does not exist with its name.
    """
    command = {"token_command": "printf 'new\\n'"}
    assert read(host="spark", password="old", extra_dejson=command).token == "new"
    for text, said in (
        ("sh -c 'echo first >&2; echo expired login >&2; exit 3'", r"\(expired login\)"),
        ("no-such-program", "no-such-program"),
        ("sh -c 'unclosed", "No closing quotation"),
    ):
        with pytest.raises(RetryableError, match=f"semel_spark: its token_command failed .*{said}"):
            read(host="spark", extra_dejson={"token_command": text})
