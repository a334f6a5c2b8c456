"""Where the commands find the ledger and Spark: the environment first, then the local stack."""

from collections.abc import Iterator
from contextlib import contextmanager

from semel.ledger import Ledger


@contextmanager
def open_ledger() -> Iterator[Ledger]:
    """The ledger of SEMEL_LEDGER_DSN, else of the local stack. SemelError says how to get one."""
    from semel import settings

    with Ledger(settings.ledger_dsn()) as ledger:
        yield ledger
