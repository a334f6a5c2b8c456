"""What the pages ask: batches by interval, and how filters do: sql/migrations/0009_pages.sql."""

from pathlib import Path

from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0009_pages.sql").read_text(encoding="utf-8")
    )
