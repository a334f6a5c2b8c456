"""What decides how the next batch writes: sql/migrations/0005_duplicates_spread.sql."""

from pathlib import Path

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0005_duplicates_spread.sql").read_text(encoding="utf-8")
    )
