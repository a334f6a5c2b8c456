"""The parts of a pipeline's declaration: models that check what their own text alone can tell."""

import re
from collections import Counter
from datetime import timedelta
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from semel.declare.durations import format_duration, parse_duration, parse_size
from semel.declare.yaml import Problem, Problems

if TYPE_CHECKING:
    from semel.model.windows import Slices, Windows

BATCH_BYTES_MAX = 8 << 30
"""Default of limits.bytes_per_batch_max."""

UNKNOWN_SCHEMAS_MAX = 100
"""Ids that a Schema Registry does not know, in one split: a registry that lost its newest schemas
lacks some; more are an attack, or no ids, and each is a request."""

BATCH_RECORDS_MAX = 50_000_000
"""Default of limits.records_per_batch_max."""

KEEP_REPLACED_SECONDS = 3_600
"""How long the files of an output stay that a replay replaced: somebody may be reading them."""

ORPHAN_SECONDS = 3_600
"""A planned batch without a sign of life for this long may be taken over by a later plan."""

RESERVED_PREFIX = "_semel"
"""Columns that semel adds begin with this; no declared column may."""

NO_QUOTE = "none"
"""As `quote`: no character is one."""
REST_COLUMN = f"{RESERVED_PREFIX}_rest"
"""The column (json) of all keys that the schema does not name, with `source.unknown: keep`."""

RESERVED_NAME = "semel_collect"
"""The DAG that collects is called so; a pipeline's DAG of that name would take its place."""

WINDOW_SLICES_MAX = 1_000
"""Windows that one moment may be part of: each of them is a row of the answer."""

DAY, WEEK = 86_400, 7 * 86_400
"""Seconds of both, where no clock is changed."""

_ESCAPED = re.compile("[\0-\x7f\ufffe\uffff]+")
"""ASCII, of which some is escaped; and what the XML of a store's listing does not have."""

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


class RepeatScope(StrEnum):
    """Where a repeated id is looked for: in the whole horizon, or in its record time's bucket."""

    HORIZON = "horizon"
    BUCKET = "bucket"


class Guarantee(StrEnum):
    """How often a record is in the output: once, or as often as its source has it."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class Late(StrEnum):
    """What becomes of a record of a bucket whose ids were forgotten."""

    QUARANTINE = "quarantine"
    ACCEPT = "accept"


NAME = r"^[a-z][a-z0-9_]{0,62}$"
"""What a pipeline's name looks like."""


class Model(BaseModel):
    """What all parts share: frozen, no unknown keys, and no input echoed in errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
        use_attribute_docstrings=True,
    )


class Dedup(Model):
    """How repeated records are recognised."""

    scope: RepeatScope = RepeatScope.HORIZON
    """horizon: an id may come back with any time. bucket: always with the same record_time."""
    horizon: Duration = timedelta(days=30)
    """How long ids are kept: a repeat that comes later is a new record."""
    shards: int = Field(default=4, ge=1, le=256, strict=True)
    """Parts of the id catalog that are worked on in parallel. Fixed at the first batch."""
    late: Late = Late.QUARANTINE
    """scope: bucket only: what becomes of a record of a bucket whose ids were forgotten."""
    keep_ids: bool | None = Field(default=None, strict=True)
    """Keep each batch's ids as files, 12 bytes an id. null: with transforms or
    aggregate, which may drop ids, and for tables and topics."""

    @model_validator(mode="after")
    def _check(self) -> "Dedup":
        if not self.horizon:
            raise Problems([Problem(("horizon",), "must be longer than nothing")])
        return self


class WindowSpec(Model):
    """The windows of record_time that its records are counted in."""

    size: Duration
    """How long a window is: a part of a day that divides it, a day, a week; or a multiple of
    every."""
    every: Duration | None = None
    """How often a window begins, for windows that overlap. null: where the last one ends."""
    zone: str = "UTC"
    """The time zone whose clock it goes by: days from midnight, weeks from Monday."""
    delay: Duration = timedelta()
    """How much later than its time a record may come, before its window counts as complete."""

    @model_validator(mode="after")
    def _check(self) -> "WindowSpec":
        problems = []
        key = "size" if self.every is None else "every"
        if why := slice_problem(self._every):
            problems.append(Problem((key,), why))
        elif self.size % self._every or not self.size:
            problems.append(Problem(("size",), "is no multiple of every"))
        elif self.size // self._every > WINDOW_SLICES_MAX:
            most = f"more than {WINDOW_SLICES_MAX} windows would overlap"
            problems.append(Problem(("size",), most))
        if why := zone_problem(self.zone):
            problems.append(Problem(("zone",), why))
        if problems:
            raise Problems(problems)
        return self

    @property
    def _every(self) -> timedelta:
        return self.every or self.size

    @property
    def _seconds(self) -> int:
        return int(self._every.total_seconds())

    @property
    def windows(self) -> "Windows":
        """What it means for moments."""
        from semel.model.windows import Slices, Windows

        slices = Slices(self._seconds, self.zone)
        return Windows(slices, self.size // self._every, self.delay)


class FolderWindow(Model):
    """Windows of time that are folders of the output: a row lies in that of its time."""

    window: Duration
    """How long one is: a part of a day that divides it, a day, a week."""
    of: Text
    """A timestamp or date column of the output, which stays in the files."""
    name: Text
    """The folder's name (name=value): a column that is only there, and has another name than all
    others."""
    zone: str = "UTC"
    """The time zone whose clock it goes by: days from midnight, weeks from Monday."""

    @model_validator(mode="after")
    def _check(self) -> "FolderWindow":
        found = {"window": slice_problem(self.window), "zone": zone_problem(self.zone)}
        if problems := [Problem((key,), why) for key, why in found.items() if why]:
            raise Problems(problems)
        return self

    @property
    def slices(self) -> "Slices":
        """What it means for moments."""
        from semel.model.windows import Slices

        return Slices(int(self.window.total_seconds()), self.zone)


class Limits(Model):
    """Bounds beyond which a batch stops instead of going on."""

    bytes_per_batch_max: Size = BATCH_BYTES_MAX
    """Source bytes of one batch. arrival leaves the rest to the next; interval is refused. Of a
    topic, about: by the size of some of its messages."""
    records_per_batch_max: int = Field(default=BATCH_RECORDS_MAX, ge=1, strict=True)
    """Offsets of one batch, of topics; the rest as above."""
    quarantine_ratio_max: float = Field(default=0.05, ge=0, le=1, strict=True)
    """The batch fails when a larger share of its records is quarantined, or with csv.multiline of
    its bytes (1: never)."""
    lines_per_record_max: int | None = Field(default=None, ge=1, strict=True)
    """csv.multiline only: the batch fails when a record has more lines."""
    late_ratio_max: float = Field(default=0.5, ge=0, le=1, strict=True)
    """scope: bucket only: the batch fails when a larger share of its records is late (1: never)."""
    unknown_schemas_max: int = Field(default=UNKNOWN_SCHEMAS_MAX, ge=0, strict=True)
    """Schemas that the registry lacks, of which one part of a topic (200,000 offsets) may have
    values. Each is a request to it; the batch fails where there are more."""
    log_samples: bool = Field(default=True, strict=True)
    """Show the first bad record's fault. false: no text of records in logs, errors and answers."""
    orphan_after: Duration = timedelta(seconds=ORPHAN_SECONDS)
    """A planned batch without a sign of life for so long may be taken over by a later plan."""
    keep_replaced: Duration = timedelta(seconds=KEEP_REPLACED_SECONDS)
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


def escaped(text: str) -> str:
    """A text as a part of a folder's name. All but ASCII stays, for Spark decodes each %XX alone.
    """
    return _ESCAPED.sub(lambda found: quote(found[0], safe=""), text)


def folder_head(name: str) -> str:
    """How the name of a column's folder begins, before the value: `place=`."""
    return f"{escaped(name)}="


def slice_problem(length: timedelta) -> str | None:
    """Why no clock can be cut into slices of this length."""
    day, week = timedelta(seconds=DAY), timedelta(seconds=WEEK)
    whole = length % timedelta(seconds=1) == timedelta()
    if length in (day, week) or (whole and timedelta() < length < day and not day % length):
        return None
    return "is neither a week nor a day nor a part that divides a day, so begins nowhere"


def zone_problem(zone: str) -> str | None:
    """Why this is no time zone."""
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return "is no time zone; write one such as Europe/Berlin"
    return None


def twice(names: tuple[str, ...]) -> str | None:
    return next((name for name, count in Counter(map(str.lower, names)).items() if count > 1), None)
