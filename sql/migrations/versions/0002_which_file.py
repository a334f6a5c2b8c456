"""What recognises a file, partitions whose file is gone, and losses: 0002_which_file.sql."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0002_which_file.sql").read_text(encoding="utf-8")
    )
