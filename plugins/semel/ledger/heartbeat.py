"""The sign of life of a driver while its job runs, from a thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from semel import limits
from semel.errors import SemelError
from semel.ledger import Ledger, change

LEASE_SECONDS = 900
"""The duration of a commit lease, because its holder may have died."""


@contextmanager
def heartbeat(ledger: Ledger, batch_id: int) -> Iterator[None]:
    """Record signs of life while the job runs, and renew the commit lease if this batch has it.

    So no later plan treats the batch as an orphan, and no other batch commits first.
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
                # If the ledger stays unavailable, sealing reports it. If this thread ended, a later
                # plan could take over a batch that is still running.
                continue

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
