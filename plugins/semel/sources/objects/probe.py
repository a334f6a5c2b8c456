"""Whether objects can be read: for `semel check`, in the driver and in tasks."""

from semel.clients.objects import Store
from semel.declare.context import Context
from semel.sources import ExecutorCheck
from semel.sources.objects.listing import ObjectParts

_REMEDY = (
    "install semel[objects] there, let it reach the store, and export the connection's variable "
    "where source.connection names one"
)


def probe(context: Context, found: ObjectParts) -> tuple[str, ExecutorCheck]:
    """As `Source.probe`. Executors are to list the store, and to read its newest object."""
    declared, newest = context.declared, found[-1:]
    told = f"{len(found)} objects of {context.name} in {declared.url}"
    values = declared.url, declared.connection, [(part.name, part.etag) for part in newest]
    right = f"{declared.url}{', and its newest object' if newest else ''}"
    return told, ExecutorCheck("source", __name__, values, right, _REMEDY)


def look(url: str, connection: str | None, newest: list[tuple[str, str]]) -> None:
    """In a task: fail unless the store is listed, and the newest object read."""
    store = Store(url, connection)
    next(store.list(), None)
    for key, etag in newest:
        store.read(key, etag, 0, 1)
