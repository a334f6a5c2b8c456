"""What the ledger holds and is told, in the words of the tests of single rules."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from fix_scene import sql
from semel.ledger import Ledger


def manifest(ledger: Ledger, batch_id: int) -> list[tuple[Path, Path]]:
    """Staged and final path of each file of a batch's winner, or of what is staged."""
    text = (
        "SELECT staged_path, final_path FROM semel.manifest_file JOIN semel.attempt "
        "USING (attempt_id) WHERE attempt.batch_id = :batch AND status IN ('staged', 'won')"
    )
    return [(Path(a), Path(b)) for a, b in (r.values() for r in sql(ledger, text, batch=batch_id))]


def status(ledger: Ledger, batch_id: int) -> str:
    """A batch's status."""
    [found] = sql(ledger, "SELECT status FROM semel.batch WHERE batch_id = :b", b=batch_id)
    return found["status"]


@contextmanager
def statements(told: Callable[[sa.Connection, str, dict], None]) -> Iterator[None]:
    """Tell of each statement of any ledger before it is sent."""

    def sent(connection, _cursor, text, values, *_) -> None:  # noqa: ANN001 - SQLAlchemy's own
        told(connection, text, values)

    sa.event.listen(sa.Engine, "before_cursor_execute", sent)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", sent)
