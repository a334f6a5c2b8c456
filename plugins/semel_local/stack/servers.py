"""The servers of the stack that pipelines read and write: each is a part of it once asked for.

Each module has NAME (of the part, of the connection that leads to it, and of its field in
`layout.Saved`), WHAT (in messages), VARIABLE (of the connection), PORTS (their names in stack.json,
first the one for clients), and
- `fetch(echo)`: see that all is there that it needs;
- `part()`: how supervisor runs it. No port is in it, so a new port is no other part;
- `prepare(ports)`: write its settings, before each start;
- `connection(port)`: the Airflow connection to it, as JSON;
- `trouble(port)`: why it does not answer; empty when it does.
"""

from types import ModuleType

from semel_local.stack import kafka_server, nats_server, object_server

SERVERS: dict[str, ModuleType] = {
    server.NAME: server for server in (kafka_server, nats_server, object_server)
}
"""By name."""
