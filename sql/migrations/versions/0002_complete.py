"""Which plans left nothing: sql/migrations/0002_complete.sql."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0002_complete.sql").read_text(encoding="utf-8")
    )
