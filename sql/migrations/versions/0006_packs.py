"""Packs of old markers: sql/migrations/0006_packs.sql."""

from pathlib import Path

from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0006_packs.sql").read_text(encoding="utf-8")
    )
