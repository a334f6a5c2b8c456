"""A sink's address, and the archive apart from it: sql/migrations/0007_sinks.sql."""

from pathlib import Path

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0007_sinks.sql").read_text(encoding="utf-8")
    )
