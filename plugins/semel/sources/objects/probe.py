"""Checks that objects can be read: for `semel check`, in the driver and in tasks."""

from semel.clients.objects import Store
from semel.declare.context import Context
from semel.sources import ExecutorCheck
from semel.sources.objects.listing import ObjectParts

_REMEDY = (
    "install semel[objects] on the executors, and give them access to the store; with "
    "source.connection, export the connection's variable there"
)


def probe(context: Context, parts: ObjectParts) -> tuple[str, ExecutorCheck]:
    """As `Source.probe`. Executors list the store, and read its newest object."""
    declared, newest = context.declared, parts[-1:]
    summary = f"{len(parts)} objects of {context.name} in {declared.url}"
    values = declared.url, declared.connection, [(part.name, part.etag) for part in newest]
    right = f"{declared.url}{', and its newest object' if newest else ''}"
    return summary, ExecutorCheck("source", __name__, values, right, _REMEDY)


def check_access(url: str, connection: str | None, newest: list[tuple[str, str]]) -> None:
    """In a task: fail if the store cannot be listed, or its newest object cannot be read."""
    store = Store(url, connection)
    next(store.list(), None)
    for key, etag in newest:
        store.read(key, etag, 0, 1)
