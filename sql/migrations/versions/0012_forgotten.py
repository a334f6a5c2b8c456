"""What is late: sql/migrations/0012_forgotten.sql."""

from pathlib import Path

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0012_forgotten.sql").read_text(encoding="utf-8")
    )
