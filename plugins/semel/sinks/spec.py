"""The sinks that a pipeline may declare: a folder of files, a table of PostgreSQL, a topic."""

import re
from pathlib import Path
from string import Formatter
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from semel import settings
from semel.declare.parts import GLOB, Model, Size, Text, path_problem, twice
from semel.declare.yaml import Problem, Problems
from semel.formats.table import SINKS

FILE_NAME_BYTES_MAX = 200
"""Longest final file name without its extension; file systems allow 255 bytes."""

KAFKA_TRANSACTION_BYTES = 512 << 20
"""Default of sink.transaction_bytes: what a slow link (5 MB/s) sends in the time below."""

ARCHIVES = "_semel"
"""The name of the folder of archives, beside a sink or inside of it."""

CONTROL = "_semel_"
"""How the name of a control topic begins; the topic's name follows."""


class Declared(Model):
    """What the declarations of all sinks have.

    `place`: the keys that say where the rows are, and how one gets there.
    """

    place: ClassVar[tuple[str, ...]] = ()

    type: str
    """The kind of sink."""

    def folder(self) -> Path | None:
        """The absolute folder of the output; None where it is no folder.

        TerminalError: it lies outside the data roots.
        """
        return None

    def stem(self, pipeline: str, *, batch: int, part: int, fence: int) -> str:
        """The final name of a file, without extension; unique for (batch, part)."""
        return self.file_name.format(pipeline=pipeline, batch=batch, part=part, fence=fence)


class FilesSink(Declared):
    """A folder of files that are only ever added, whole batches at a time."""

    type: Literal["files"]
    """The kind of sink."""
    path: Text
    """The folder: relative to the first data root, or absolute. One pipeline, one folder."""
    archive: Text | None = None
    """The folder of markers and all else that is kept; null: `_semel/` beside the sink's folder."""
    format: Literal[tuple(SINKS)]  # type: ignore[valid-type]
    """The format of the files."""
    partition_by: tuple[Text, ...] = ()
    """Columns that become folders (column=value), outermost first."""
    file_name: str = "{pipeline}-b{batch:08d}-{part:05d}"
    """A file's name without extension, from {pipeline}, {batch}, {part} and {fence}."""
    position_columns: bool = Field(default=False, strict=True)
    """Add each record's source file and byte position to the output, as _semel columns."""

    def folder(self) -> Path:
        """Its path."""
        return settings.allowed(self.path, "sink.path")

    @field_validator("file_name")
    @classmethod
    def _file_name(cls, template: str) -> str:
        if why := _template_problem(template):
            raise ValueError(f"{template!r} {why}")
        return template

    @field_validator("path", "archive")
    @classmethod
    def _path(cls, path: str | None) -> str | None:
        return _folder(path)

    @field_validator("partition_by")
    @classmethod
    def _partition_by(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if name := twice(names):
            raise ValueError(f"names {name!r} twice")
        if name := next((name for name in names if name[0] in "._"), None):
            raise ValueError(f"{name!r} begins with '.' or '_': readers take that for hidden files")
        return names


class Service(Declared):
    """A sink that is no folder: tasks write Parquet files, whose rows it takes."""

    format: ClassVar[str] = "parquet"
    partition_by: ClassVar[tuple[str, ...]] = ()
    file_name: ClassVar[str] = "{pipeline}-b{batch:08d}-{part:05d}"


class PostgresSink(Service):
    """A table of some PostgreSQL: the rows of a batch land there in one transaction."""

    type: Literal["postgres"]
    """The kind of sink."""
    connection: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The Airflow connection; on the command line the variable AIRFLOW_CONN_<CONNECTION>."""
    table: Text
    """The table, as `table` (in the schema public) or `schema.table`."""
    mode: Literal["append", "upsert"] = "append"
    """append: rows are added. upsert: a row replaces the one that has its key."""
    key: tuple[Text, ...] = ()
    """The columns of the key, for mode: upsert."""
    create: bool = Field(default=False, strict=True)
    """Make the table, and the key's unique index, where they are missing."""
    archive: Text | None = None
    """The folder of markers and all else that is kept; null: `_semel/<pipeline>/` with the data."""
    position_columns: bool = Field(default=False, strict=True)
    """Add each record's source file and byte position to the output, as _semel columns."""

    place: ClassVar[tuple[str, ...]] = ("connection", "table")

    @property
    def columns_named(self) -> tuple[tuple[tuple[str | int, ...], str], ...]:
        """The columns of the key, each with its place in the declaration."""
        return tuple((("key", at), name) for at, name in enumerate(self.key))

    @field_validator("archive")
    @classmethod
    def _archive(cls, path: str | None) -> str | None:
        return _folder(path)

    @model_validator(mode="after")
    def _check(self) -> "PostgresSink":
        if self.mode == "upsert" and not self.key:
            why = "is missing: mode: upsert replaces the row of a key"
            raise Problems([Problem(("key",), why)])
        if self.mode == "append" and self.key:
            raise Problems([Problem(("key",), "has no meaning with mode: append")])
        if name := twice(self.key):
            raise Problems([Problem(("key",), f"names {name!r} twice")])
        return self


class KafkaSink(Service):
    """A topic of a Kafka cluster: each row is a message, and a batch is one transaction."""

    type: Literal["kafka"]
    """The kind of sink."""
    connection: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The Airflow connection; on the command line the variable AIRFLOW_CONN_<CONNECTION>."""
    bootstrap_servers: str | None = Field(default=None, pattern=r"^[^\s,]+:\d+(,[^\s,]+:\d+)*$")
    """The cluster's addresses, as host:port,host:port, where it needs no login and no TLS."""
    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,242}$")
    """The topic. One topic, one pipeline."""
    key: Text | tuple[Text, ...] | None = None
    """A column: the message's key is its text. A list of columns: a JSON object; null: no key."""
    value: Literal["json"] = "json"
    """The message's value: a JSON object of all columns."""
    headers: dict[Text, Text] = Field(default_factory=dict)
    """Headers by their names, each with the column whose text it is."""
    create: bool = Field(default=False, strict=True)
    """Make the topic where it is missing, with the cluster's own settings."""
    transaction_bytes: Size = KAFKA_TRANSACTION_BYTES
    """Bytes of messages in one transaction: a larger batch becomes visible in several."""
    archive: Text | None = None
    """The folder of markers and all else that is kept; null: `_semel/<pipeline>/` with the data."""
    position_columns: bool = Field(default=False, strict=True)
    """Add each record's source file and byte position to the output, as _semel columns."""

    place: ClassVar[tuple[str, ...]] = (
        "connection", "bootstrap_servers", "topic", "transaction_bytes"
    )  # fmt: skip

    @property
    def columns_named(self) -> tuple[tuple[tuple[str | int, ...], str], ...]:
        """The columns that key and headers take, each with its place in the declaration."""
        keys = [self.key] if isinstance(self.key, str) else self.key or ()
        places = [("key",)] if isinstance(self.key, str) else [("key", n) for n in range(len(keys))]
        own = [(("headers", name), column) for name, column in self.headers.items()]
        return (*zip(places, keys, strict=True), *own)

    @field_validator("archive")
    @classmethod
    def _archive(cls, path: str | None) -> str | None:
        return _folder(path)

    @field_validator("key", mode="before")
    @classmethod
    def _key(cls, key: object) -> object:
        listed = isinstance(key, list | tuple) and all(isinstance(name, str) for name in key)
        if not (key is None or isinstance(key, str) or listed):
            raise ValueError(f"must be a column, or a list of columns, not {key!r}")
        return key

    @field_validator("topic")
    @classmethod
    def _topic(cls, name: str) -> str:
        if name in (".", "..") or name.startswith(CONTROL):
            raise ValueError(f"{name!r} is a name that Kafka, or semel, keeps for itself")
        return name

    @model_validator(mode="after")
    def _check(self) -> "KafkaSink":
        if (self.connection is None) == (self.bootstrap_servers is None):
            why = "declare either connection or bootstrap_servers"
            raise Problems([Problem(("connection",), why)])
        if isinstance(self.key, tuple) and (not self.key or twice(self.key)):
            why = f"names {twice(self.key)!r} twice" if self.key else "is empty; leave it out"
            raise Problems([Problem(("key",), why)])
        return self


Sink = Annotated[FilesSink | PostgresSink | KafkaSink, Field(discriminator="type")]


def _folder(path: str | None) -> str | None:
    """The declared path of one folder. ValueError: it is none."""
    if path is None:
        return None
    if why := path_problem(path):
        raise ValueError(f"{path!r} {why}")
    if GLOB.search(path):
        raise ValueError(f"{path!r} holds *, ? or [: it is one folder")
    return path


# Keeps L1.
def _template_problem(template: str) -> str | None:
    """What is wrong with sink.file_name. Two (batch, part) must never give one name."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        return f"is not a template: {error}"
    literals = "".join(literal for literal, *_ in parts)
    if not re.fullmatch(r"[A-Za-z0-9._-]*", literals, re.ASCII):
        return "may hold letters, digits, '.', '_', '-' and fields, and no slashes"
    if template[:1] in (".", "_", "-"):
        return "begins with '.', '_' or '-': readers such as Spark take that for a hidden file"
    apart, seen = True, []
    for literal, field, spec, conversion in parts:
        apart = apart or bool(re.search(r"[^0-9]", literal))
        if field is None:
            continue
        if field not in ("pipeline", "batch", "part", "fence"):
            return f"has the unknown field {{{field}}}; known: pipeline, batch, part, fence"
        if conversion or not re.fullmatch(r"(0[0-9]{1,2}d)?" if field != "pipeline" else "", spec):
            return f"formats {{{field}}} in another way than {{batch:08d}}"
        if field != "pipeline" and not apart:
            return f"has a number right before {{{field}}}: 1 and 12 would read like 11 and 2"
        apart = field == "pipeline"
        seen.append(field)
    if missing := {"batch", "part"} - set(seen):
        return f"lacks {{{sorted(missing)[0]}}}: two files would have one name"
    longest = template.format(pipeline="p" * 63, batch=1 << 62, part=1 << 31, fence=1 << 31)
    if len(longest) > FILE_NAME_BYTES_MAX:
        return f"can grow longer than {FILE_NAME_BYTES_MAX} bytes"
    return None
