"""Topics as a source: sql/migrations/0011_topics.sql."""

from pathlib import Path

from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0011_topics.sql").read_text(encoding="utf-8")
    )
