"""A proxy before Postgres that counts what a client sends, and can cut a COMMIT or its reply.

A number is a fact, where a time is not.
A round trip begins whenever the client speaks after the server did. So it counts what is on the
wire, whatever a driver puts together or sends by itself.
"""

import contextlib
import select
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import pytest
import sqlalchemy as sa

from semel.ledger import Ledger

_STATEMENTS = (b"Q", b"E")
_COMMIT = b"COMMIT\0"
_ENDS = (b"Q\0\0\0\x0bCOMMIT\0", b"Q\0\0\0\x0dROLLBACK\0")


@dataclass(frozen=True, kw_only=True)
class Sent:
    """What went over the wire. `statements`: messages that run some; BEGIN and COMMIT are such."""

    round_trips: int = 0
    statements: int = 0
    transactions: int = 0

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def __sub__(self, other: "Sent") -> "Sent":
        return Sent(**{name: value - getattr(other, name) for name, value in vars(self).items()})


class _Client:
    """One connection: whose turn it is, and what of a message has not come yet."""

    def __init__(self) -> None:
        self.listening = True
        self._greeted = False
        self._rest = b""

    def count(self, data: bytes) -> Sent:
        trips, self.listening = int(self.listening), False
        data, statements, transactions = self._rest + data, 0, 0
        while True:
            head = 1 if self._greeted else 0
            size = head + int.from_bytes(data[head : head + 4], "big")
            if len(data) < head + 4 or len(data) < size:
                break
            message, data = data[:size], data[size:]
            # Without a type: asking for TLS or GSS, which is 8 bytes, and then the greeting.
            self._greeted = self._greeted or size > 8
            statements += head and message[:1] in _STATEMENTS
            transactions += message in _ENDS
        self._rest = data
        return Sent(round_trips=trips, statements=statements, transactions=transactions)


class Wire:
    """Forwards every connection to the server of a database until told to cut.

    `sent`: what all clients have sent so far; `cuts`: how many COMMITs were cut. As a context
    manager it ends with its block, and all connections with it.
    """

    def __init__(self, dsn: str) -> None:
        url = sa.make_url(dsn)
        self._server = url.host, url.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.dsn = self.behind(dsn)
        self.cuts = 0
        self._what: str | None = None
        self._counting = threading.Lock()
        self._sent = Sent()
        self._clients: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            with contextlib.suppress(OSError):  # closed already
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def behind(self, dsn: str) -> str:
        """How a database of that server is reached through here."""
        port = self._listener.getsockname()[1]
        url = sa.make_url(dsn).set(host="127.0.0.1", port=port)
        return url.render_as_string(hide_password=False)

    @property
    def sent(self) -> Sent:
        with self._counting:
            return self._sent

    def cut(self, what: Literal["reply", "request"] | None) -> None:
        """The next COMMIT that any client sends ends its connection on both sides.

        "reply": it reaches the server, whose reply is waited for and thrown away. "request": it
        does not reach the server. None takes it back.
        """
        self._what = what

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=run, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._clients.append(client)
            self._start(self._forward, client)

    def _forward(self, client: socket.socket) -> None:
        counted = _Client()
        with client, socket.create_connection(self._server) as server:
            while True:
                for side in select.select([client, server], [], [])[0]:
                    data = side.recv(1 << 16)
                    if not data:
                        return
                    if side is server:
                        counted.listening = True
                        client.sendall(data)
                        continue
                    with self._counting:
                        self._sent += counted.count(data)
                    cut = self._what if _COMMIT in data else None
                    if cut != "request":
                        server.sendall(data)
                    if cut:
                        self._what = None
                        if cut == "reply":
                            server.recv(1 << 16)  # It has committed once it answers.
                        self.cuts += 1
                        return


@pytest.fixture
def wire(ledger_dsn: str) -> Iterator[Wire]:
    """Before the server of this test's ledger."""
    with Wire(ledger_dsn) as made:
        yield made


@pytest.fixture
def ledger_behind(wire: Wire) -> Iterator[Ledger]:
    """The same ledger as `ledger`, through the wire."""
    with Ledger(wire.dsn) as ledger:
        yield ledger
