"""A proxy before Postgres that can cut a COMMIT, or let it through and cut its reply."""

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from typing import Literal

import pytest
import sqlalchemy as sa

from semel.ledger import Ledger

_COMMIT = b"COMMIT\0"


class Proxy:
    """Forwards every connection to the server until told to cut.

    `cut("reply")`: the next COMMIT that any client sends reaches the server, whose reply is waited
    for and thrown away; then that connection is closed on both sides. `cut("request")`: it does not
    reach the server. `cut(None)` takes it back.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._what: str | None = None
        self.cuts = 0
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self, what: Literal["reply", "request"] | None) -> None:
        self._what = what

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            with contextlib.suppress(OSError):  # closed already
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._clients.append(client)
            thread = threading.Thread(target=self._forward, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _forward(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            while True:
                ready, _, _ = select.select([client, server], [], [], 60)
                for side in ready:
                    data = side.recv(1 << 16)
                    if not data:
                        return
                    cut = self._what if side is client and _COMMIT in data else None
                    if cut != "request":
                        (server if side is client else client).sendall(data)
                    if cut:
                        self._what = None
                        if cut == "reply":
                            server.recv(1 << 16)  # It has committed once it answers.
                        self.cuts += 1
                        return


@pytest.fixture
def proxy(ledger_dsn: str) -> Iterator[Proxy]:
    url = sa.make_url(ledger_dsn)
    made = Proxy(url.host, url.port)
    yield made
    made.close()


@pytest.fixture
def ledger_behind(proxy: Proxy, ledger_dsn: str) -> Iterator[Ledger]:
    """The same ledger as `ledger`, through the proxy."""
    url = sa.make_url(ledger_dsn).set(host="127.0.0.1", port=proxy.port)
    with Ledger(url.render_as_string(hide_password=False)) as ledger:
        yield ledger
