"""The parts of a pipeline's declaration: models that check themselves by their text alone."""

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
"""Ids in one split that a Schema Registry does not know. A registry that lost its newest schemas
lacks some. More are an attack, or are not ids, and each costs a request."""

BATCH_RECORDS_MAX = 50_000_000
"""Default of limits.records_per_batch_max."""

KEEP_REPLACED_SECONDS = 3_600
"""How long the files of a replaced output stay, for readers that have them open."""

ORPHAN_SECONDS = 3_600
"""Seconds without a heartbeat after which a later plan may take over a planned batch."""

RESERVED_PREFIX = "_semel"
"""The columns that semel adds begin with this, and declared columns must not."""

NO_QUOTE = "none"
"""The value of `quote` for a file without quotes."""
REST_COLUMN = f"{RESERVED_PREFIX}_rest"
"""The column (json) for all keys that are not in the schema, with `source.unknown: keep`."""

RESERVED_NAME = "semel_collect"
"""The DAG that runs collect. A pipeline's DAG of this name would replace it."""

WINDOW_SLICES_MAX = 1_000
"""The number of windows that one moment may belong to, since each is a row of the answer."""

DAY, WEEK = 86_400, 7 * 86_400
"""Seconds of a day and a week without a change of clocks."""

_ESCAPED = re.compile("[\0-\x7f\ufffe\uffff]+")
"""The characters that `escaped` may escape: ASCII, and those that XML (a store's listing) lacks."""

GLOB = re.compile(r"[*?\[]")
"""Characters that turn a part of source.path into a pattern."""

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
    """The input of a batch: all that has arrived, or the records of the run's data interval."""

    ARRIVAL = "arrival"
    INTERVAL = "interval"


class OnRefused(StrEnum):
    """The reaction of a plan that refuses files of its run."""

    FAIL = "fail"
    WARN = "warn"


class OnEmpty(StrEnum):
    """The reaction of a run that finds nothing to take."""

    SKIP = "skip"
    FAIL = "fail"
    WAIT = "wait"


class Unknown(StrEnum):
    """The treatment of a JSON record's keys that are not in the schema."""

    IGNORE = "ignore"
    KEEP = "keep"
    QUARANTINE = "quarantine"


class RepeatScope(StrEnum):
    """Where semel searches for an id: in the whole horizon, or in the bucket of its record time."""

    HORIZON = "horizon"
    BUCKET = "bucket"


class Guarantee(StrEnum):
    """How often the output has a record: once, or as often as the source has it."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class Late(StrEnum):
    """The treatment of a record whose bucket no longer has ids."""

    QUARANTINE = "quarantine"
    ACCEPT = "accept"


NAME = r"^[a-z][a-z0-9_]{0,62}$"
"""The pattern of a pipeline's name."""


class Model(BaseModel):
    """The base of all parts: frozen, without unknown keys, and without input in errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        validate_default=True,
    )


class Dedup(Model):
    """How semel recognises repeated records."""

    scope: RepeatScope = RepeatScope.HORIZON
    """horizon: an id may repeat with any record_time. bucket: only with the same record_time."""
    horizon: Duration = timedelta(days=30)
    """How long semel keeps ids. A repeat that comes later is a new record."""
    shards: int = Field(default=4, ge=1, le=256, strict=True)
    """Parts of the id catalog for parallel work. The first batch fixes the number."""
    late: Late = Late.QUARANTINE
    """scope: bucket only: the treatment of a record whose bucket no longer has ids."""
    keep_ids: bool | None = Field(default=None, strict=True)
    """Keep each batch's ids as files, 12 bytes an id. null: with transforms or aggregate,
    which may drop ids, and for tables and topics."""

    @model_validator(mode="after")
    def _check(self) -> "Dedup":
        if not self.horizon:
            raise Problems([Problem(("horizon",), "must be longer than nothing")])
        return self


class WindowSpec(Model):
    """The windows of record_time."""

    size: Duration
    """The length of a window: a week, a day, a part of a day that divides it evenly, or a multiple
    of every."""
    every: Duration | None = None
    """The time between the starts of windows that overlap. null: windows do not overlap."""
    zone: str = "UTC"
    """The time zone of the windows: days begin at midnight, weeks on Monday."""
    delay: Duration = timedelta()
    """How long after its time a record may arrive before its window counts as complete."""

    @model_validator(mode="after")
    def _check(self) -> "WindowSpec":
        problems = []
        key = "size" if self.every is None else "every"
        if why := slice_problem(self._every):
            problems.append(Problem((key,), why))
        elif self.size % self._every or not self.size:
            problems.append(Problem(("size",), "is not a multiple of every"))
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
        """The windows as functions of time."""
        from semel.model.windows import Slices, Windows

        slices = Slices(self._seconds, self.zone)
        return Windows(slices, self.size // self._every, self.delay)


class FolderWindow(Model):
    """Windows of time as folders of the output: each row lies in the folder of its time."""

    window: Duration
    """The length of a window: a week, a day, or a part of a day that divides it evenly."""
    of: Text
    """A timestamp or date column of the output, which stays in the files."""
    name: Text
    """The folder's name (name=value): a column that is not in the files, with a unique name."""
    zone: str = "UTC"
    """The time zone of the windows: days begin at midnight, weeks on Monday."""

    @model_validator(mode="after")
    def _check(self) -> "FolderWindow":
        reasons = {"window": slice_problem(self.window), "zone": zone_problem(self.zone)}
        if problems := [Problem((key,), why) for key, why in reasons.items() if why]:
            raise Problems(problems)
        return self

    @property
    def slices(self) -> "Slices":
        """The windows as functions of time."""
        from semel.model.windows import Slices

        return Slices(int(self.window.total_seconds()), self.zone)


class Limits(Model):
    """Limits at which a batch stops."""

    bytes_per_batch_max: Size = BATCH_BYTES_MAX
    """Source bytes of one batch. With arrival the next batch takes the remaining bytes; with
    interval plan refuses. An estimate for a topic, from some of its messages."""
    records_per_batch_max: int = Field(default=BATCH_RECORDS_MAX, ge=1, strict=True)
    """Offsets of one batch of a topic. More are treated as bytes are."""
    quarantine_ratio_max: float = Field(default=0.05, ge=0, le=1, strict=True)
    """The batch fails if a larger share of its records (with csv.multiline: of its bytes) goes
    into quarantine. 1: never."""
    lines_per_record_max: int | None = Field(default=None, ge=1, strict=True)
    """csv.multiline only: the batch fails if a record has more lines."""
    late_ratio_max: float = Field(default=0.5, ge=0, le=1, strict=True)
    """scope: bucket only: the batch fails if a larger share of its records is late. 1: never."""
    unknown_schemas_max: int = Field(default=UNKNOWN_SCHEMAS_MAX, ge=0, strict=True)
    """Ids of schemas that the registry lacks, in one part of a topic (200,000 offsets). Each costs
    a request; the batch fails if there are more."""
    log_samples: bool = Field(default=True, strict=True)
    """Show the first bad record's fault. false: no text of records in logs, errors and answers."""
    orphan_after: Duration = timedelta(seconds=ORPHAN_SECONDS)
    """A later plan may take over a planned batch that has sent no heartbeat for this long."""
    keep_replaced: Duration = timedelta(seconds=KEEP_REPLACED_SECONDS)
    """Files of an output that a replay replaced stay this long for their readers."""
    keep_history: Duration | None = None
    """Collect packs the markers of batches that are finalized for longer, and shortens their rows
    in the ledger: then they cannot be replayed or compared. Without it, never."""


def path_problem(path: str) -> str | None:
    if not path.isprintable():
        return "has a control character"
    parts = PurePosixPath(path).parts
    if ".." in parts:
        return "has '..'; write the path without it"
    if any("**" in part and part != "**" for part in parts):
        return "has ** next to other characters; it must stand alone between two slashes"
    if parts and parts[-1] == "**":
        return "ends in **, which matches folders; add a file pattern such as /*.jsonl"
    return None


def escaped(text: str) -> str:
    """A text as a part of a folder's name. Only ASCII is escaped, as Spark decodes each %XX alone.
    """
    return _ESCAPED.sub(lambda match: quote(match[0], safe=""), text)


def folder_head(name: str) -> str:
    """The beginning of the name of a column's folder, before the value: `place=`."""
    return f"{escaped(name)}="


def slice_problem(length: timedelta) -> str | None:
    """The reason why a clock cannot be cut into slices of this length, if any."""
    day, week = timedelta(seconds=DAY), timedelta(seconds=WEEK)
    in_seconds = length % timedelta(seconds=1) == timedelta()
    if length in (day, week) or (in_seconds and timedelta() < length < day and not day % length):
        return None
    return "is not a week, a day, or a part that divides a day evenly"


def zone_problem(zone: str) -> str | None:
    """The reason why this is not a time zone, if any."""
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        return "is not a time zone, such as Europe/Berlin"
    return None


def twice(names: tuple[str, ...]) -> str | None:
    return next((name for name, count in Counter(map(str.lower, names)).items() if count > 1), None)
