"""The parts of a pipeline's declaration: models that check what their own text alone can tell."""

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from semel import limits
from semel.formats.table import SOURCES, source_format
from semel.spec import ddl
from semel.spec.durations import format_duration, parse_duration, parse_size
from semel.spec.yaml import Problem, Problems

RESERVED_PREFIX = "_semel"
"""Columns that semel adds begin with this; no declared column may."""

REST_COLUMN = f"{RESERVED_PREFIX}_rest"
"""The column (json) of all keys that the schema does not name, with `source.unknown: keep`."""

RESERVED_NAME = "semel_collect"
"""The DAG that collects is called so; a pipeline's DAG of that name would take its place."""

GLOB = re.compile(r"[*?\[]")
"""The characters that make a part of source.path a pattern."""

Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["30 days", "6 hours", "90 s", "P3D"]}),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["8 GiB", "500 MB", 1048576]}),
]
Text = Annotated[str, Field(min_length=1)]


class Select(StrEnum):
    """What one batch takes: all that has arrived, or what belongs to the run's data interval."""

    ARRIVAL = "arrival"
    INTERVAL = "interval"


class OnRefused(StrEnum):
    """What a plan does when it refuses files that belong to its run."""

    FAIL = "fail"
    WARN = "warn"


class OnEmpty(StrEnum):
    """What a run does when there is nothing to take."""

    SKIP = "skip"
    FAIL = "fail"
    WAIT = "wait"


class Unknown(StrEnum):
    """What becomes of keys of a JSON record that the schema does not name."""

    IGNORE = "ignore"
    KEEP = "keep"
    QUARANTINE = "quarantine"


class Scope(StrEnum):
    """Where a repeated id is looked for: in the whole horizon, or in its record time's bucket."""

    HORIZON = "horizon"
    BUCKET = "bucket"


class Late(StrEnum):
    """What becomes of a record whose bucket has been collected."""

    QUARANTINE = "quarantine"
    ACCEPT = "accept"


class Model(BaseModel):
    """What all parts share: frozen, no unknown keys, and no input echoed in errors."""

    renamed: ClassVar[dict[str, str]] = {}
    """Keys of earlier versions, each with its name today. Stored specs still have them."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
        use_attribute_docstrings=True,
    )


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


class FilesSource(Model):
    """Files that grow at their end, or appear."""

    # "Allowed lateness" says another thing: how long a window waits for its records.
    renamed: ClassVar[dict[str, str]] = {"lateness": "lookback"}

    type: Literal["files"]
    """The kind of source."""
    path: Text
    """The files: relative to the first data root, or absolute. May hold *, ?, [...] and **."""
    format: Literal[tuple(SOURCES)]  # type: ignore[valid-type]
    """jsonl: one JSON object a line. csv: a header, then one record a line."""
    columns: dict[str, str] = Field(alias="schema", min_length=1)
    """The columns in their order, each with its type in the words of Spark's DDL."""
    unknown: Unknown = Unknown.IGNORE
    """Keys that the schema does not name. ignore: passed over, counted and told. keep: as one json
    column _semel_rest. quarantine: their record is set aside. Only for format: jsonl."""
    select: Select = Select.ARRIVAL
    """arrival: what has arrived and is unclaimed. interval: what the run's data interval holds."""
    interval_from: str | None = None
    """Where a file's time is read: a strptime pattern of its whole name, or "mtime"."""
    lookback: Duration = timedelta(0)
    """An interval's batch also takes what is unclaimed this far before its start."""
    closed_after: Duration | None = None
    """A last line without newline, and a multiline CSV file, is taken once the file is this old."""
    on_refused: OnRefused | None = None
    """When files are refused. fail: the run fails, so that no run is green and not complete (the
    default with select: interval, for files of its interval or of an unknown time). warn: it takes
    the others and says so (the default with select: arrival)."""
    on_empty: OnEmpty = OnEmpty.SKIP
    """When a run finds nothing to take, and never had a batch. skip: it ends well. fail: it fails.
    wait: it looks again each minute, without a worker in Airflow, and fails after wait_at_most."""
    wait_at_most: Duration = timedelta(hours=12)
    """Only for on_empty: wait."""
    csv: Csv = Csv()
    """Only for format: csv."""

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
    def _check(self) -> "FilesSource":
        if problems := [Problem(key, why) for key, why in self._problems()]:
            raise Problems(problems)
        return self

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        if self.select is Select.INTERVAL and self.interval_from is None:
            yield ("interval_from",), (
                "is missing: select: interval needs a pattern of the file names "
                '("flights-%Y-%m-%d.jsonl") or "mtime"'
            )
        if self.select is Select.ARRIVAL:
            if self.interval_from is not None:
                yield ("interval_from",), "has no meaning with select: arrival; leave it out"
            if self.lookback:
                yield ("lookback",), "has no meaning with select: arrival; leave it out"
        if self.interval_from not in (None, "mtime") and not _reads_dates(self.interval_from):
            yield ("interval_from",), (
                f"{self.interval_from!r} is not a strptime pattern of a file name with a date: "
                'write one like "flights-%Y-%m-%d.jsonl", or "mtime"'
            )
        for name, text in self.columns.items():
            word = ddl.parse(text).word
            if word in ("json", "map") and any(char in '\\"' for char in name):
                yield ("schema", name), f"a {word} column's name holds no quote and no backslash"
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


class Dedup(Model):
    """How repeated records are recognised."""

    scope: Scope = Scope.HORIZON
    """horizon: an id may come back with any time. bucket: always with the same record_time."""
    horizon: Duration = timedelta(days=30)
    """How long ids are kept: a repeat that comes later is a new record."""
    shards: int = Field(default=4, ge=1, le=256, strict=True)
    """Parts of the id catalog that are worked on in parallel. Fixed at the first batch."""
    late: Late = Late.QUARANTINE
    """scope: bucket only: what becomes of a record whose bucket has been collected."""
    keep_ids: bool | None = Field(default=None, strict=True)
    """Keep each batch's ids as files, 12 bytes an id. null: with transforms, which may drop ids."""

    @model_validator(mode="after")
    def _check(self) -> "Dedup":
        if not self.horizon:
            raise Problems([Problem(("horizon",), "must be longer than nothing")])
        return self


class Limits(Model):
    """Bounds beyond which a batch stops instead of going on."""

    bytes_per_batch_max: Size = limits.BATCH_BYTES_MAX
    """Source bytes of one batch. arrival leaves the rest to the next; interval is refused."""
    quarantine_ratio_max: float = Field(default=0.05, ge=0, le=1, strict=True)
    """The batch fails when a larger share of its records is quarantined (1: never)."""
    log_samples: bool = Field(default=True, strict=True)
    """Show the first bad record's fault. false: no text of records in logs, errors and answers."""
    orphan_after: Duration = timedelta(seconds=limits.ORPHAN_SECONDS)
    """A planned batch without a sign of life for so long may be taken over by a later plan."""
    keep_replaced: Duration = timedelta(seconds=limits.KEEP_REPLACED_SECONDS)
    """Files that a replay replaced stay for so long, for who is reading them."""


def path_problem(path: str) -> str | None:
    if not path.isprintable():
        return "holds a control character"
    parts = PurePosixPath(path).parts
    if ".." in parts:
        return "holds '..': write the path that is meant"
    if any("**" in part and part != "**" for part in parts):
        return "holds ** beside other characters: it stands alone between two slashes"
    if parts and parts[-1] == "**":
        return "ends in **, which matches folders; add a file pattern such as /*.jsonl"
    return None


def _reads_dates(pattern: str) -> bool:
    """Whether file names written with this pattern give their dates back."""
    if "/" in pattern or "%Y" not in pattern:
        return False
    sample = datetime(2013, 1, 1)
    try:
        return datetime.strptime(sample.strftime(pattern), pattern).replace(tzinfo=None) == sample
    except (ValueError, re.error):  # strptime makes a regex of it, and says so of "%Y%Y".
        return False


def twice(names: tuple[str, ...]) -> str | None:
    return next((name for name, count in Counter(map(str.lower, names)).items() if count > 1), None)
