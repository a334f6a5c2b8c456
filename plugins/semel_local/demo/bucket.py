"""The demo's bucket: what puts objects into it, and compacts and reads the table that is in it.

obstore, deltalake and DuckDB as anybody uses them, nothing of semel's.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import obstore
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from semel.clients.sql import query
from semel.errors import TerminalError, UnavailableError
from semel_local.stack.object_server import BUCKET, REGION, USER

EXTENSIONS = ("httpfs", "delta")
"""Of DuckDB, each in a package of its own."""


class Bucket:
    """The demo's bucket on a server, by its HOST:PORT. UnavailableError: it does not answer."""

    def __init__(self, server: str, password: str) -> None:
        self._server, self._password = server, password
        self._keys = {
            "endpoint": f"http://{server}", "access_key_id": USER, "secret_access_key": password,
            "region": REGION,
        }  # fmt: skip
        self._store = S3Store(BUCKET, **self._keys, client_options={"allow_http": True})

    def put(self, key: str, content: bytes) -> None:
        """Put an object, or leave the one that is there. TerminalError: that is another one."""
        try:
            obstore.put(self._store, key, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            if bytes(obstore.get(self._store, key).bytes()) != content:
                raise TerminalError(
                    f"s3://{BUCKET}/{key} is there and is not the demo's object; `make reset` "
                    "forgets the demo and its bucket"
                ) from None
        except BaseError as error:
            raise _away(error) from error

    def compact(self, table: str) -> int:
        """Let somebody merge the table's small files. Returns how many it had before."""
        keys = {f"aws_{name}": value for name, value in self._keys.items()}
        try:
            found = DeltaTable(table, storage_options=keys | {"aws_allow_http": "true"})
            return found.optimize.compact()["numFilesRemoved"]
        except (DeltaError, OSError) as error:
            raise _away(error) from error

    def rows(self, table: str) -> pa.Table:
        """The table's rows, as DuckDB reads them. TerminalError: its extensions are missing."""
        try:
            with reader(self._server, USER, self._password) as connection:
                found = connection.execute(query("demo", "lake").text, {"table": table})
                return found.to_arrow_table()
        except duckdb.Error as error:
            raise _away(error) from error


def reader(server: str, user: str, password: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB that reads Delta tables, also in a store by its HOST:PORT.

    TerminalError: its extensions are missing.
    """
    connection = duckdb.connect()
    for name in EXTENSIONS:
        connection.load_extension(str(_extension(name)))
    keys = {"server": server, "user": user, "password": password, "region": REGION}
    connection.execute(query("demo", "secret").text, keys)
    return connection


def _extension(name: str) -> Path:
    spec = find_spec(f"duckdb_extension_{name}")
    version = f"v{duckdb.__version__}"
    return Path(spec.origin).parent / "extensions" / version / f"{name}.duckdb_extension"


def _away(error: Any) -> UnavailableError:
    return UnavailableError(f"the demo's object store: {error}", next="semel status")
