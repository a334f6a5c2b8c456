"""Checks that objects can be read: for `semel check`, in the driver and in tasks."""

from semel.clients.objects import Store
from semel.declare.context import Context
from semel.sources import ExecutorCheck
from semel.sources.objects.listing import ObjectParts

_REMEDY = (
    "install semel[objects] on the executors, and give them access to the store; with "
    "source.connection, export the connection's variable there"
)

ARCHIVES_REMEDY = (
    "install semel[objects] on the executors, and give them access to the store; with "
    "SEMEL_ARCHIVES_CONNECTION, export the variable of that connection there"
)


def probe(context: Context, parts: ObjectParts) -> tuple[str, ExecutorCheck]:
    """As `Source.probe`. Executors list the store, and read its newest object."""
    declared, newest = context.declared, [(part.name, part.etag) for part in parts[-1:]]
    summary = f"{len(parts)} objects of {context.name} in {declared.url}"
    return store_check(summary, declared.url, declared.connection, newest)


def store_check(
    summary: str,
    url: str,
    connection: str | None,
    newest: list[tuple[str, str]],
    remedy: str = _REMEDY,
) -> tuple[str, ExecutorCheck]:
    """The summary, and a check of a prefix and its newest objects, each with its etag."""
    right = f"{url}{', and its newest object' if newest else ''}"
    return summary, ExecutorCheck("source", __name__, (url, connection, newest), right, remedy)


def check_access(url: str, connection: str | None, newest: list[tuple[str, str]]) -> None:
    """In a task: fail if the store cannot be listed, or its newest object cannot be read."""
    store = Store(url, connection)
    next(store.list(), None)
    for key, etag in newest:
        store.read(key, etag, 0, 1)
