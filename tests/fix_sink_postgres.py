"""A database that rows go to, and batches that have committed, by hand: staged files and `Won`."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
import xxhash

from fix_postgres import database
from semel.manifest import Kind, ManifestFile
from semel.sinks import Won
from semel.sinks.files import PartWriter
from semel.sinks.postgres import PostgresSink
from semel.sinks.postgres.target import PostgresTarget


@dataclass
class Warehouse:
    """A database of this test's own, that is no ledger; and a folder for staged files."""

    dsn: str
    folder: Path
    _made: int = field(default=0)

    def sink(self, table: str = "flights", **declared: Any) -> PostgresSink:
        declared = {"dsn": self.dsn, "create": True, **declared}
        return PostgresSink(PostgresTarget(table=table, **declared))

    def run(self, statement: str, *values: object) -> list[tuple]:
        """Run a statement as a user would; returns its rows."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            found = connection.execute(statement, values or None)
            return found.fetchall() if found.description else []

    def role(self) -> "Role":
        """A user without any right, who is gone with the server."""
        name, password = f"semel_role_{secrets.token_hex(4)}", secrets.token_hex(8)
        self.run(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        url = sa.make_url(self.dsn).set(username=name, password=password)
        return Role(name=name, dsn=url.render_as_string(hide_password=False))

    def won(self, *tables: pa.Table, batch_id: int = 1, commit_seq: int | None = None) -> Won:
        """A committed batch whose files hold these tables, a file each."""
        files = []
        for table in tables:
            self._made += 1
            writer = PartWriter(str(self.folder), tag=f"t{self._made}")
            writer.write(table)
            files += [
                ManifestFile(
                    kind=Kind.DATA,
                    staged_path=file.path,
                    final_path=f"somewhere#{self._made}",
                    records=file.records,
                    bytes=file.bytes,
                    checksum=file.checksum,
                )
                for file in writer.close()
            ]
        return Won(
            pipeline="flights",
            batch_id=batch_id,
            fence=1,
            commit_seq=commit_seq or batch_id,
            files=tuple(files),
            schema=tables[0].schema,
            digest=xxhash.xxh3_128_hexdigest("".join(file.checksum for file in files).encode()),
        )

    def finalize(self, won: Won, sink: PostgresSink) -> None:
        """What finalize does: look, and publish what is missing."""
        absent = [f for f, p in zip(won.files, sink.look(won), strict=True) if p == "absent"]
        sink.publish(won, absent)


@dataclass(frozen=True, kw_only=True)
class Role:
    """A user of the warehouse, and how that one connects."""

    name: str
    dsn: str


@pytest.fixture
def warehouse(postgres: str, tmp_path: Path) -> Iterator[Warehouse]:
    with database(postgres) as dsn:
        yield Warehouse(dsn=dsn, folder=tmp_path)
