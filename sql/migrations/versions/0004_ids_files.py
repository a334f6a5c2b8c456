"""Files of ids in a manifest: sql/migrations/0004_ids_files.sql."""

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.get_bind().exec_driver_sql(
        (Path(__file__).parents[1] / "0004_ids_files.sql").read_text(encoding="utf-8")
    )
