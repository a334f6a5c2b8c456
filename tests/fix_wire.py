"""A proxy before Postgres that counts what a client sends: a number is a fact, where a time is not.

A round trip begins whenever the client speaks after the server did. So it counts what is on the
wire, whatever a driver puts together or sends by itself.
"""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

_STATEMENTS = (b"Q", b"E")
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
    """Forwards connections to a server. `sent`: what all of them have sent so far."""

    def __init__(self, dsn: str) -> None:
        url = sa.make_url(dsn)
        self._server = url.host, url.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.dsn = url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        self._counting = threading.Lock()
        self._sent = Sent()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def sent(self) -> Sent:
        with self._counting:
            return self._sent

    def close(self) -> None:
        """Take no new connections; those that are there end with their clients."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        counted = _Client()
        with client, socket.create_connection(self._server) as server:
            while True:
                for side in select.select([client, server], [], [])[0]:
                    data = side.recv(1 << 16)
                    if not data:
                        return
                    if side is client:
                        with self._counting:
                            self._sent += counted.count(data)
                    else:
                        counted.listening = True
                    (server if side is client else client).sendall(data)


@contextmanager
def wire(dsn: str) -> Iterator[Wire]:
    """A counting proxy before the server of a ledger, for the length of a block."""
    made = Wire(dsn)
    try:
        yield made
    finally:
        made.close()
