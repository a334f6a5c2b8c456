"""Files as a sink: Arrow tables become Parquet or JSON Lines files, in Hive-style folders if asked.

Called in a write task. A file is closed and fsynced before it is named in a report; nothing here
gives a file its final name (finalize does).
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semel import limits
from semel.errors import LimitError, TerminalError
from semel.manifest import Kind, StagedFile
from semel.storage import Sealed

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


class PartWriter:
    """Collects the rows of one task and writes one file per folder, several when they grow large.

    `folder` is the attempt's data folder; more than `held_bytes_max` is never held for one of its
    own. ValueErrors of pyarrow pass through: a column that cannot
    be written is the transform's defect.
    """

    def __init__(
        self,
        folder: str,
        *,
        tag: str,
        kind: Kind = Kind.DATA,
        format: str = "parquet",
        partition_by: tuple[str, ...] = (),
        held_bytes_max: int = limits.OUTPUT_FILE_BYTES,
    ) -> None:
        self._folder = Path(folder)
        self._tag = tag
        self._kind = kind
        self._format = format
        self._keys = list(partition_by)
        self._held_bytes_max = held_bytes_max
        self._held: dict[str, list[pa.Table]] = defaultdict(list)
        self._bytes: Counter[str] = Counter()
        self._of_split: set[str] = set()
        self._files: list[StagedFile] = []

    def write(self, table: pa.Table) -> None:
        for folder, part in self._parts(table):
            self._of_split.add(folder)
            self._held[folder].append(part)
            self._bytes[folder] += part.nbytes
            if self._bytes[folder] > self._held_bytes_max:
                self._flush(folder)
        if len(self._of_split) > limits.PARTITION_FILES_PER_SPLIT_MAX:
            raise LimitError(
                f"sink.partition_by {self._keys} has more than "
                f"{limits.PARTITION_FILES_PER_SPLIT_MAX} values in one split; choose columns with "
                "fewer values"
            )

    def end_split(self) -> None:
        """What comes next is of another split. Its folders are counted anew."""
        self._of_split.clear()
        many = len(self._held) > limits.PARTITION_FILES_PER_SPLIT_MAX
        if many or self._bytes.total() > self._held_bytes_max:
            self.close()

    def close(self) -> tuple[StagedFile, ...]:
        """Write what is held, in the order of the folders. Returns all files."""
        for folder in sorted(self._held):
            self._flush(folder)
        return tuple(self._files)

    def _parts(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if not table.num_rows:
            return
        if not self._keys:
            yield "", table
            return
        names = [_folder_values(table.column(key)) for key in self._keys]
        labels = pc.binary_join_element_wise(*names, "/")
        rest = table.drop_columns(self._keys)
        encoded = pc.dictionary_encode(labels)
        for code, label in enumerate(encoded.dictionary.to_pylist()):
            folder = "/".join(
                f"{quote(key, safe='')}={value}"
                for key, value in zip(self._keys, label.split("/"), strict=True)
            )
            if any(len(name) > limits.FILE_NAME_BYTES_MAX for name in folder.split("/")):
                raise LimitError(
                    f"sink.partition_by {self._keys}: a record's folder is longer than "
                    f"{limits.FILE_NAME_BYTES_MAX} bytes; choose columns with shorter values"
                )
            yield folder, rest.filter(pc.equal(encoded.indices, code))

    def _flush(self, folder: str) -> None:
        held = self._held.pop(folder, [])
        del self._bytes[folder]
        if not held:
            return
        table = pa.concat_tables(held)
        path = self._folder / f"{self._tag}-{uuid.uuid4().hex}"
        self._files.append(write_table(path, table, self._kind, folder, self._format))


def write_table(path: Path, table: pa.Table, kind: Kind, folder: str, format: str) -> StagedFile:
    """Write a table as one new file, durably, and say what it is.

    TerminalError: it holds a number that the format does not.
    """
    with Sealed(path) as file:
        if format == "parquet":
            pq.write_table(
                table,
                file,
                compression="zstd",
                compression_level=1,
                dictionary_pagesize_limit=limits.DICTIONARY_BYTES_MAX,
            )
        else:
            names = table.column_names
            ready = [_in_json(name, table.column(name).combine_chunks()) for name in names]
            pl.from_arrow(pa.table(ready, names=names)).write_ndjson(file)
    return StagedFile(
        kind=kind,
        path=str(path),
        folder=folder,
        suffix=f".{format}",
        records=table.num_rows,
        bytes=file.size,
        checksum=file.checksum,
    )


# Keeps S22.
def _in_json(name: str, array: pa.Array) -> pa.Array:
    """A column as JSON can hold it: bytes as base64.

    JSON has no NaN and no infinity; what writes it makes them null without a word.
    """
    kind = array.type
    if pa.types.is_floating(kind) and pc.all(pc.is_finite(array)).as_py() is False:
        raise TerminalError(
            f"the output's column {name!r} holds NaN or an infinity, which JSON Lines does not "
            "have; make it null in the last transform's select (nanvl), or write Parquet"
        )
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pl.from_arrow(array).bin.encode("base64").to_arrow().cast(pa.string())
    if pa.types.is_struct(kind):
        inner = [_in_json(name, part) for part in array.flatten()]
        return pa.StructArray.from_arrays(inner, kind.names, mask=array.is_null())
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise TerminalError(
                f"the output's column {name!r} holds maps whose keys are {kind.key_type}, and JSON "
                "has text alone; cast them in the last transform's select, or write Parquet"
            )
        entries = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        pairs, sizes = pc.list_flatten(entries), _sizes(entries)
        values = _in_json(name, pairs.field(1))
        bounds = pa.array(np.concatenate(([0], np.cumsum(sizes))), pa.int32())
        return pa.MapArray.from_arrays(bounds, pairs.field(0), values, mask=array.is_null())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = array.cast(pa.large_list(kind.value_type))
        # Only what no null hides: so offsets are made anew.
        values = _in_json(name, pc.list_flatten(lists))
        bounds = pa.array(np.concatenate(([0], np.cumsum(_sizes(lists)))), pa.int64())
        return pa.LargeListArray.from_arrays(bounds, values, mask=array.is_null())
    return array


def _sizes(lists: pa.Array) -> np.ndarray:
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy()


def _folder_values(column: pa.ChunkedArray) -> pa.Array:
    """A column's values as they stand in folder names: escaped, null as Hive writes it."""
    encoded = pa.concat_arrays(column.cast(pa.string()).chunks).dictionary_encode()
    values = (quote(value, safe="") for value in encoded.dictionary.to_pylist())
    # A text that reads like null's folder is escaped, so that it is not taken for null.
    names = pa.array(
        [v.replace("_", "%5F", 1) if v == NULL_FOLDER else v for v in values], pa.string()
    )
    return pc.fill_null(names.take(encoded.indices), NULL_FOLDER)
