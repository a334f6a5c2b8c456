"""The stack's servers, which pipelines read and write. `semel up --NAME` adds one to the stack.

Each module has NAME (of the part, of its connection, and of its field in `layout.SavedState`), WHAT
(for messages), VARIABLE (of the connection) and PORTS (in stack.json, first the one for clients).
- `fetch(echo)` fetches all that the server needs.
- `part()` describes it for supervisor, without a port, so that a new port is not a new part.
- `prepare(ports)` writes its settings, before each start.
- `connection(port)` returns the Airflow connection to it, as JSON.
- `trouble(port)` returns why it does not answer, empty if it does.
"""

from types import ModuleType

from semel_local.stack import kafka_server, nats_server, object_server

SERVERS: dict[str, ModuleType] = {
    server.NAME: server for server in (kafka_server, nats_server, object_server)
}
"""The modules of the servers, by name."""
