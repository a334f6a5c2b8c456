"""The sources that a pipeline may declare: files that grow, or the topics of a Kafka cluster."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from semel.declare import ddl
from semel.declare.parts import (
    RESERVED_PREFIX,
    Duration,
    Model,
    OnEmpty,
    OnRefused,
    Select,
    Text,
    Unknown,
    path_problem,
    twice,
)
from semel.declare.yaml import Problem, Problems
from semel.formats.table import SOURCES, source_format

_MARK, _NO_DOT = "[A-Za-z0-9._-]", "[A-Za-z0-9_-]"
TOPIC = rf"^({_NO_DOT}{_MARK}?|\.{_NO_DOT}|{_MARK}{{3,249}})$"
"""What Kafka takes as a topic's name: all of these but `.` and `..`."""


REGISTRY = r"^([A-Za-z_][A-Za-z0-9_]*|https?://[^\s/?#@,]+(/[^\s?#@,]*)?)$"
"""The name of a connection, or a URL without a login: that belongs into a connection."""


class Csv(Model):
    """How CSV files are written. Each file begins with a header that names the schema's columns."""

    delimiter: str = Field(default=",", pattern=r"^[\t -~]$")
    """The one character between two fields."""
    quote: str = Field(default='"', pattern=r"^[!-~]$")
    """The one character around a field that holds delimiters."""
    multiline: bool = Field(default=False, strict=True)
    """Fields may hold newlines. Such a file cannot be split: one task reads it whole."""

    @model_validator(mode="after")
    def _check(self) -> "Csv":
        if self.delimiter == self.quote:
            raise Problems([Problem(("quote",), "is the same character as the delimiter")])
        return self


class Records(Model):
    """What the declarations of all sources have: which columns, and what a run takes.

    `unit`: what positions count, and `part`: what each has positions of its own. `limits`: the keys
    that bound a batch. `acknowledged`: whether the source is told what is finalized; `place`: the
    keys that say how one gets there to tell it. `dated`: whether it is known of each part of which
    time it is.
    """

    unit: ClassVar[str]
    part: ClassVar[str]
    dated: ClassVar[bool] = True
    limits: ClassVar[str]
    acknowledged: ClassVar[bool] = False
    place: ClassVar[tuple[str, ...]] = ()

    type: str
    """The kind of source."""
    columns: dict[str, str] = Field(alias="schema", min_length=1)
    """The columns in their order, each with its type in the words of Spark's DDL."""
    unknown: Unknown = Unknown.IGNORE
    """Keys that the schema does not name. ignore: passed over, counted and told. keep: as one json
    column _semel_rest. quarantine: their record is set aside. Only for JSON and Avro."""
    select: Select = Select.ARRIVAL
    """arrival: what has arrived and is unclaimed. interval: what the run's data interval holds."""
    lookback: Duration = timedelta(0)
    """An interval's batch also takes what is unclaimed this far before its start."""
    on_refused: OnRefused | None = None
    """When something of the source is refused. fail: the run fails, so that no run is green and not
    complete (the default for topics, and for files with select: interval, there for those of its
    interval or of an unknown time). warn: it takes the others and says so (the default for files
    with select: arrival)."""
    on_empty: OnEmpty = OnEmpty.SKIP
    """When a run finds nothing to take, and never had a batch. skip: it ends well. fail: it fails.
    wait: it looks again each minute, without a worker in Airflow, and fails after wait_at_most."""
    wait_at_most: Duration = timedelta(hours=12)
    """Only for on_empty: wait."""
    csv: Csv = Csv()
    """Only for CSV."""

    @field_validator("columns")
    @classmethod
    def _types(cls, columns: dict[str, str]) -> dict[str, str]:
        problems, types, seen = [], {}, set()
        for name, text in columns.items():
            if not name.strip() or not name.isprintable() or "`" in name:
                problems.append(Problem((name,), "is not a column name: use printable characters"))
            if name.lower().startswith(RESERVED_PREFIX):
                problems.append(Problem((name,), "names of this beginning are kept for semel"))
            if name.lower() in seen:
                problems.append(Problem((name,), "is there twice (upper and lower case are alike)"))
            seen.add(name.lower())
            try:
                types[name] = str(ddl.parse(text))
            except ValueError as error:
                problems.append(Problem((name,), str(error)))
        if problems:
            raise Problems(problems)
        return types

    @model_validator(mode="after")
    def _check(self) -> Self:
        if problems := [Problem(key, why) for key, why in self._problems()]:
            raise Problems(problems)
        return self

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """What is wrong between keys that are right by themselves."""
        if self.select is Select.ARRIVAL and self.lookback:
            yield ("lookback",), "has no meaning with select: arrival; leave it out"
        for name, text in self.columns.items():
            word = ddl.parse(text).word
            if word in ("json", "map") and any(char in '\\"' for char in name):
                yield ("schema", name), f"a {word} column's name holds no quote and no backslash"


class FilesSource(Records):
    """Files that grow at their end, or appear."""

    unit: ClassVar[str] = "bytes"
    part: ClassVar[str] = "file"
    limits: ClassVar[str] = "limits.bytes_per_batch_max"

    # "Allowed lateness" says another thing: how long a window waits for its records.
    renamed: ClassVar[dict[str, str]] = {"lateness": "lookback"}

    type: Literal["files"]
    """The kind of source."""
    path: Text
    """The files: relative to the first data root, or absolute. May hold *, ?, [...] and **."""
    format: Literal[tuple(SOURCES)]  # type: ignore[valid-type]
    """jsonl: one JSON object a line. csv: a header, then one record a line."""
    interval_from: str | None = None
    """Where a file's time is read: a strptime pattern of its whole name, or "mtime"."""
    closed_after: Duration | None = None
    """A last line without newline, and a multiline CSV file, is taken once the file is this old."""

    @property
    def on_refused_or_default(self) -> OnRefused:
        """What is declared, or what is right for the selection."""
        by_interval = self.select is Select.INTERVAL
        return self.on_refused or (OnRefused.FAIL if by_interval else OnRefused.WARN)

    @field_validator("path")
    @classmethod
    def _path(cls, path: str) -> str:
        if why := path_problem(path):
            raise ValueError(f"{path!r} {why}")
        if path.endswith("/") or not PurePosixPath(path).name:
            raise ValueError(f"{path!r} is a folder; add a pattern such as *.jsonl")
        return path

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        yield from super()._problems()
        if self.select is Select.INTERVAL and self.interval_from is None:
            yield ("interval_from",), (
                "is missing: select: interval needs a pattern of the file names "
                '("flights-%Y-%m-%d.jsonl") or "mtime"'
            )
        if self.select is Select.ARRIVAL and self.interval_from is not None:
            yield ("interval_from",), "has no meaning with select: arrival; leave it out"
        if self.interval_from not in (None, "mtime") and not _reads_dates(self.interval_from):
            yield ("interval_from",), (
                f"{self.interval_from!r} is not a strptime pattern of a file name with a date: "
                'write one like "flights-%Y-%m-%d.jsonl", or "mtime"'
            )
        form = source_format(self.format)
        for name, text in self.columns.items():
            if why := form.refuses.get(ddl.parse(text).word):
                yield ("schema", name), f"{text}: {why}"
        if form.header and self.unknown is not Unknown.IGNORE:
            yield ("unknown",), (
                f"{self.unknown} has no meaning with format: {self.format}: a file whose header "
                "does not name exactly the schema's columns is refused; leave it out"
            )
        if self.format != "csv" and self.csv != Csv():
            yield ("csv",), f"has no meaning with format: {self.format}; leave it out"


ALL_HEADERS = "*"
"""In place of a header's name: all of them, as one column."""

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
"""The type of a column of all headers: what Spark's own Kafka source gives."""

_HEADERS = str(ddl.parse(HEADERS_TYPE))


class KafkaSource(Records):
    """The messages of topics of a Kafka cluster."""

    unit: ClassVar[str] = "offsets"
    part: ClassVar[str] = "partition"
    dated: ClassVar[bool] = False  # The records of one partition are of all times.
    limits: ClassVar[str] = "limits.records_per_batch_max or limits.bytes_per_batch_max"
    place: ClassVar[tuple[str, ...]] = ("connection", "bootstrap_servers")

    type: Literal["kafka"]
    """The kind of source."""
    connection: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The Airflow connection (of type kafka); on the command line and for Spark's executors the
    variable AIRFLOW_CONN_<CONNECTION>. This or bootstrap_servers."""
    bootstrap_servers: str | None = Field(default=None, pattern=r"^[^\s,]+:\d+(,[^\s,]+:\d+)*$")
    """The cluster's addresses, as host:port,host:port, where it needs no login and no TLS."""
    topics: tuple[Annotated[str, Field(pattern=TOPIC)], ...] = ()
    """The topics, by name. This or pattern."""
    pattern: Text | None = None
    """All topics whose whole name matches this regular expression, new ones too."""
    value: Literal["json", "avro", "csv", "bytes"]
    """What a message's value is. json: one object. avro: a record, whose schema is in the registry
    under the id that is before it. csv: the fields of one record, in the schema's order. bytes: one
    binary column."""
    registry: str | None = Field(default=None, pattern=REGISTRY)
    """Only for value: avro. The Schema Registry: an Airflow connection (of type http), or the URL
    of one that needs neither login nor TLS of its own."""
    key: str | None = None
    """The column, string or binary, that takes a message's key."""
    timestamp: str | None = None
    """The column (timestamp) that takes a message's timestamp."""
    headers: dict[str, Text] = {}
    """Columns, string or binary, each with the header that it takes (the last one of that name).
    "*" is all of them, for a column array<struct<key:string,value:binary>>."""
    tombstones: Literal["count", "keep"] = "count"
    """Messages without a value. count: they are passed over, and told. keep: each is a record with
    nothing in the columns of its value."""
    consumer_group: Text | None = None
    """Finalized offsets are committed to this group, for tools that show lag. semel never reads
    them."""

    @field_validator("registry", mode="before")
    @classmethod
    def _registry(cls, found: object) -> object:
        # Its own words: who puts a login into the URL is not to read it in a log.
        if isinstance(found, str) and not re.fullmatch(REGISTRY, found):
            raise ValueError(
                "is neither the name of an Airflow connection nor a URL such as "
                "http://schemas:8081; a login belongs in a connection, and so do several URLs"
            )
        return found

    @property
    def acknowledged(self) -> bool:
        """Whether the source is told what is finalized."""
        return self.consumer_group is not None

    @property
    def format(self) -> str:
        """The format of a value, as files have it; Avro is read as the JSON that means the same."""
        return {"json": "jsonl", "avro": "jsonl"}.get(self.value, self.value)

    @property
    def on_refused_or_default(self) -> OnRefused:
        """What is declared: by default a run fails when records are gone."""
        return self.on_refused or OnRefused.FAIL

    @property
    def connections(self) -> tuple[str, ...]:
        """The Airflow connections that it names."""
        registry = None if "://" in (self.registry or "") else self.registry
        return tuple(name for name in (self.connection, registry) if name)

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns that are not of a message's value."""
        return tuple(name for name in (self.key, self.timestamp, *self.headers) if name)

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        yield from super()._problems()
        if (self.connection is None) == (self.bootstrap_servers is None):
            yield ("connection",), "declare either connection or bootstrap_servers"
        if bool(self.topics) == (self.pattern is not None):
            yield ("topics",), "declare either topics or pattern"
        if name := twice(self.topics):
            yield ("topics",), f"names {name!r} twice"
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            yield ("pattern",), f"is no regular expression ({error})"
        yield from self._beside_problems()
        own = [name for name in self.columns if name not in self.beside]
        if not own:
            yield ("schema",), "has no column for the message's value"
        if self.value == "bytes" and [self.columns[name] for name in own] != ["binary"]:
            yield ("schema",), "value: bytes fills one column, of type binary"
        if self.value == "csv":
            refuses = source_format("csv").refuses
            for name in own:
                if why := refuses.get(ddl.parse(self.columns[name]).word):
                    yield ("schema", name), f"{self.columns[name]}: {why}"
            if self.csv.multiline:
                yield ("csv", "multiline"), "has no meaning here: a message is one record"
        elif self.csv != Csv():
            yield ("csv",), f"has no meaning with value: {self.value}; leave it out"
        if self.value not in ("json", "avro") and self.unknown is not Unknown.IGNORE:
            yield ("unknown",), f"has no meaning with value: {self.value}; leave it out"
        if self.value == "avro" and self.registry is None:
            yield ("registry",), "is missing: value: avro needs a connection or the URL of one"
        if self.value != "avro" and self.registry is not None:
            yield ("registry",), f"has no meaning with value: {self.value}; leave it out"

    def _beside_problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """What is wrong with the columns that are not of the value."""
        if name := twice(self.beside):
            yield ("schema", name), "is filled by two of key, timestamp and headers"
        text = ("string", "binary")
        wanted = {
            ("key",): (self.key, text),
            ("timestamp",): (self.timestamp, ("timestamp",)),
            **{
                ("headers", column): (column, (_HEADERS,) if header == ALL_HEADERS else text)
                for column, header in self.headers.items()
            },
        }
        for key, (name, types) in wanted.items():
            if name is None:
                continue
            if name not in self.columns:
                yield key, f"{name!r} is not a column; the schema has {', '.join(self.columns)}"
            elif self.columns[name] not in types:
                yield key, f"{name!r} is {self.columns[name]}, and not {' or '.join(types)}"


Source = Annotated[FilesSource | KafkaSource, Field(discriminator="type")]


def _reads_dates(pattern: str) -> bool:
    """Whether file names written with this pattern give their dates back."""
    if "/" in pattern or "%Y" not in pattern:
        return False
    sample = datetime(2013, 1, 1)
    try:
        return datetime.strptime(sample.strftime(pattern), pattern).replace(tzinfo=None) == sample
    except (ValueError, re.error):  # strptime makes a regex of it, and says so of "%Y%Y".
        return False


