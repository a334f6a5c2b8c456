"""A lock for executors: sql/migrations/0004_share_attempt.sql."""

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0004_share_attempt.sql").read_text(encoding="utf-8")
    )
