"""The server of the pages lives long: what it keeps of looks and of what Airflow told it."""

from threading import Event
from types import SimpleNamespace

import pytest

from fixtures.wait import wait_for
from semel import settings
from semel.airflow import surroundings
from semel.airflow.page import queries as module
from semel.airflow.page.queries import PAGE_QUERIES, QueryCache
from semel.errors import SourceError
from semel.sinks.postgres.spec import PostgresSinkSpec
from semel.sources.files.spec import FilesSourceSpec


def test_failed_looks_that_nobody_asks_for_again_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks fail after their pages gave up, and nobody loads those pages again: others go on."""
    monkeypatch.setattr(module, "_LIFETIME_FACTOR", 0.0)
    looks, fail = QueryCache(0.01, threads=PAGE_QUERIES), Event()

    def failing() -> str:
        assert fail.wait(30)
        raise SourceError("gone")

    assert [looks.get(f"p{n}", failing) for n in range(PAGE_QUERIES)] == (
        [None] * PAGE_QUERIES
    )
    assert looks.get("q", lambda: "seen") is None, "all have begun, and none has ended"
    fail.set()
    assert wait_for(lambda: looks.get("q", lambda: "seen"), "the look") == "seen"


def test_a_failed_look_is_told_to_the_page_that_comes_later() -> None:
    """A look that failed after its page gave up is told by the next one, as long as it is kept."""
    looks, fail = QueryCache(0.05), Event()

    def failing() -> str:
        assert fail.wait(30)
        raise SourceError("gone")

    assert looks.get("p", failing) is None
    fail.set()
    with pytest.raises(SourceError, match="gone"):
        for _ in range(200):
            looks.get("p", lambda: None)


def test_a_connection_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server goes by what Airflow says now, also that a connection is no more; a task's process
    has it in its environment, which wins everywhere.
    """
    known: dict[str, SimpleNamespace] = {}
    monkeypatch.setattr(surroundings, "connection_of", known.get)
    monkeypatch.setattr(settings, "airflow_variables", {})
    monkeypatch.delenv("AIRFLOW_CONN_SHOP", raising=False)
    monkeypatch.setenv("SEMEL_STATE_DIR", "/nowhere")
    sink = PostgresSinkSpec.model_construct(connection="shop")
    spec = SimpleNamespace(source=FilesSourceSpec.model_construct(), sink=sink)
    for address in ("postgres://one/a", "postgres://two/b", None):
        known["shop"] = address and SimpleNamespace(get_uri=lambda it=address: it)
        surroundings.find_connections(spec, settings.airflow_variables)
        assert settings.connection("shop") == address
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgres://mine/c")
    known["shop"] = SimpleNamespace(get_uri=lambda: "postgres://two/b")
    surroundings.find_connections(spec, settings.airflow_variables)
    assert settings.connection("shop") == "postgres://mine/c" and settings.airflow_variables == {}
