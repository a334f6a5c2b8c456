"""The ledger's first schema: sql/migrations/0001_ledger.sql."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0001_ledger.sql").read_text(encoding="utf-8")
    )
