"""The demo's bucket: puts objects, and compacts and reads the Delta table in the bucket.

This uses obstore, deltalake and DuckDB directly, without semel's code.
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

from semel.clients.duck import connect
from semel.clients.sql import query
from semel.errors import TerminalError, UnavailableError
from semel_local.stack.object_server import BUCKET, REGION, USER

EXTENSIONS = ("httpfs", "delta")
"""Extensions of DuckDB, each from its own package."""


class Bucket:
    """The demo's bucket on a server (HOST:PORT). Raises UnavailableError if it does not answer."""

    def __init__(self, server: str, password: str) -> None:
        self._server, self._password = server, password
        self._keys = {
            "endpoint": f"http://{server}", "access_key_id": USER, "secret_access_key": password,
            "region": REGION,
        }  # fmt: skip
        self._store = S3Store(BUCKET, **self._keys, client_options={"allow_http": True})

    def put(self, key: str, content: bytes) -> None:
        """Put an object, unless it exists. Raises TerminalError if its content differs."""
        try:
            obstore.put(self._store, key, content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            if bytes(obstore.get(self._store, key).bytes()) != content:
                raise TerminalError(
                    f"s3://{BUCKET}/{key} exists, but not with the demo's content. To delete the "
                    "demo and its bucket, run `make reset`"
                ) from None
        except BaseError as error:
            raise _unavailable(error) from error

    def compact(self, table: str) -> int:
        """Merge the table's small files, as its owner would. Returns the number of merged files."""
        keys = {f"aws_{name}": value for name, value in self._keys.items()}
        try:
            delta = DeltaTable(table, storage_options=keys | {"aws_allow_http": "true"})
            return delta.optimize.compact()["numFilesRemoved"]
        except (DeltaError, OSError) as error:
            raise _unavailable(error) from error

    def rows(self, table: str) -> pa.Table:
        """The table's rows, read by DuckDB."""
        try:
            with reader(self._server, USER, self._password) as connection:
                result = connection.execute(query("demo", "lake").text, {"table": table})
                return result.to_arrow_table()
        except duckdb.Error as error:
            raise _unavailable(error) from error


def reader(server: str, user: str, password: str) -> duckdb.DuckDBPyConnection:
    """A DuckDB that reads Delta tables, in folders and in the store at `server` (HOST:PORT)."""
    connection = connect()
    for name in EXTENSIONS:
        connection.load_extension(str(_extension(name)))
    keys = {"server": server, "user": user, "password": password, "region": REGION}
    connection.execute(query("demo", "secret").text, keys)
    return connection


def _extension(name: str) -> Path:
    spec = find_spec(f"duckdb_extension_{name}")
    version = f"v{duckdb.__version__}"
    return Path(spec.origin).parent / "extensions" / version / f"{name}.duckdb_extension"


def _unavailable(error: Any) -> UnavailableError:
    return UnavailableError(f"the demo's object store: {error}", next="semel status")
