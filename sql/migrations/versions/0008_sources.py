"""What a source partition is, for every source: sql/migrations/0008_sources.sql."""

from pathlib import Path

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0008_sources.sql").read_text(encoding="utf-8")
    )
