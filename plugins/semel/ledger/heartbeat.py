"""The sign of life of a driver while its job runs, in a thread beside it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from semel import limits
from semel.errors import SemelError
from semel.ledger import Ledger, change

LEASE_SECONDS = 900
"""A commit lease ends by itself after this long: its holder may be dead."""


@contextmanager
def heartbeat(ledger: Ledger, batch_id: int) -> Iterator[None]:
    """Sign in while the job runs, and keep the commit lease if this batch holds it.

    So no later plan takes the batch for an orphan, and no rival commits before it.
    """
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(limits.HEARTBEAT_SECONDS):
            try:
                with ledger.transaction() as connection:
                    change(connection, "stage", "sign_of_life", batch_id=batch_id)
                with ledger.transaction() as connection:
                    values = {"batch_id": batch_id, "seconds": LEASE_SECONDS}
                    change(connection, "commit", "renew_lease", **values)
            except (SemelError, sa.exc.DBAPIError):
                # The ledger is away, or refuses: sealing will say so if that lasts. A heart that
                # stopped for good would let a later plan take over a batch that is at work.
                continue

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
