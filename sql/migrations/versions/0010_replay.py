"""Replays, and the generations of a batch: sql/migrations/0010_replay.sql."""

from pathlib import Path

from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0010_replay.sql").read_text(encoding="utf-8")
    )
