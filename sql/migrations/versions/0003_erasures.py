"""Erasures: sql/migrations/0003_erasures.sql."""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0003_erasures.sql").read_text(encoding="utf-8")
    )
