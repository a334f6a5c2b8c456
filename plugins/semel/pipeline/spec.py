"""The declaration of a pipeline.

The models check themselves by their text alone, so that any machine can read a stored spec.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from semel import settings, storage
from semel.declare import ddl
from semel.declare import yaml as spec_yaml
from semel.declare.aggregate import START, Aggregate
from semel.declare.context import Context, Counting
from semel.declare.parts import (
    NAME,
    RESERVED_NAME,
    REST_COLUMN,
    Dedup,
    Duration,
    Guarantee,
    Late,
    Limits,
    Model,
    RepeatScope,
    Text,
    Unknown,
    WindowSpec,
    twice,
)
from semel.declare.place import FOLDER, Location
from semel.declare.yaml import Problem, Problems
from semel.errors import SpecError
from semel.formats.table import sink_format
from semel.pipeline import digest
from semel.pipeline import transforms as spec_transforms
from semel.sinks import spec as sinks
from semel.sources import spec as sources
from semel.storage import ArchivePath, StorePath
from semel.storage.packs import MARKERS

if TYPE_CHECKING:
    import pyarrow as pa

SCHEDULE_WORDS = ("@hourly", "@daily", "@weekly", "@monthly", "@quarterly", "@yearly")
"""Alternatives to a cron expression."""

UPSTREAM = "upstream"
"""The schedule of a pipeline that runs after each finalized batch of its upstream pipeline."""


class Spec(Model):
    """One pipeline."""

    name: str = Field(pattern=NAME)
    """The name of the pipeline and of its DAG. Never reuse or change it: its ids belong to it."""
    description: str = ""
    """The purpose of the pipeline, which Airflow shows."""
    schedule: str | None = None
    """A cron expression in UTC, or @hourly, @daily, ...; upstream: after each batch of the upstream
    pipeline (source.type: pipeline); null: only when triggered."""
    source: Annotated[Union[sources.declarations()], Field(discriminator="type")]
    """Where records come from."""
    record_id: tuple[Text, ...] = ()
    """Columns that together identify a record. Empty: the position identifies it, and semel does
    not recognise repeats."""
    record_time: str | None = None
    """A timestamp or date column that is the same on every delivery of a record."""
    window: WindowSpec | None = None
    """The windows of record_time: semel reports the complete ones, and aggregate counts in them."""
    dedup: Dedup = Dedup()
    """How semel recognises repeated records. Needs record_id."""
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    """at_least_once: semel does not drop repeats, and does not keep ids. Needs record_id."""
    aggregate: Aggregate | None = None
    """Aggregate the records of each window. Partial rows go to the sink, and readers merge them."""
    transforms: tuple[Annotated[str, Field(pattern=spec_transforms.PATTERN)], ...] = ()
    """In order: functions DataFrame -> DataFrame (module:function), or queries (file.sql)."""
    sink: Annotated[Union[sinks.declarations()], Field(discriminator="type")]
    """Where the survivors go."""
    limits: Limits = Limits()
    """Limits at which a batch stops."""
    max_active_runs: int = Field(default=4, ge=1, le=64, strict=True)
    """DAG runs of this pipeline at the same time."""
    notify: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")], ...] = ()
    """Airflow connections through which semel notifies you of each failed task."""
    deadline: Duration | None = None
    """They also notify you of a run that is not finished this long after it was queued."""

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if name == RESERVED_NAME:
            raise ValueError(f"{name!r} is the name of the DAG for collect; choose another name")
        return name

    @field_validator("schedule")
    @classmethod
    def _schedule(cls, schedule: str | None) -> str | None:
        if schedule in (None, UPSTREAM, *SCHEDULE_WORDS):
            return schedule
        from croniter import croniter

        if len(schedule.split()) != 5 or not croniter.is_valid(schedule):
            words = ", ".join(SCHEDULE_WORDS)
            raise ValueError(
                f"{schedule!r} is neither a cron expression of five fields nor one of {words}"
            )
        return schedule

    @model_validator(mode="after")
    def _check(self) -> "Spec":
        if problems := [Problem(key, why) for key, why in self._problems()]:
            raise Problems(problems)
        return self

    def _problems(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.schedule == UPSTREAM and self.source.upstream is None:
            yield ("schedule",), f"{UPSTREAM} needs source.type: pipeline"
        columns = {name: ddl.parse(text) for name, text in self.source.columns.items()}
        schema = f"the schema has {', '.join(columns)}"
        if name := twice(self.record_id):
            yield ("record_id",), f"names {name!r} twice"
        for at, name in enumerate(self.record_id):
            if name not in columns:
                yield ("record_id", at), f"{name!r} is not a column; {schema}"
            elif not columns[name].identifies:
                yield ("record_id", at), (
                    f"{name!r} is {columns[name]}: an id column holds one exact value "
                    "(no array, map, struct, json, binary, float or double)"
                )
        if self.record_time is not None:
            if self.record_time not in columns:
                yield ("record_time",), f"{self.record_time!r} is not a column; {schema}"
            elif columns[self.record_time].word not in ("timestamp", "date"):
                kind = columns[self.record_time]
                yield ("record_time",), f"{self.record_time!r} is {kind}, not a timestamp or date"
        for key in ("record_id", "record_time"):
            named = self.record_id if key == "record_id" else (self.record_time,)
            for name in sorted(self.source.naming.optional.intersection(named)):
                yield ("source", "columns", name, "optional"), (
                    f"{name!r} is {key}, which each record needs; remove optional"
                )
        if self.window is not None and self.record_time is None:
            yield ("record_time",), "is missing: window needs it for the time of a record"
        elif self.window is not None and self.record_time in columns:
            is_date = columns[self.record_time].word == "date"
            if is_date and (self.window.every or self.window.size) % timedelta(days=1):
                yield ("window", "size" if self.window.every is None else "every"), (
                    f"is shorter than a day, but record_time {self.record_time!r} is a date "
                    "without hours; declare 1 day or 1 week"
                )
        yield from self._aggregate_problems()
        if name := twice(self.notify):
            yield ("notify",), f"names {name!r} twice"
        if self.deadline is not None and not self.notify:
            yield ("deadline",), "needs notify: the connections for the notification"
        if self.deadline is not None and not self.deadline:
            yield ("deadline",), "must be longer than nothing"
        if not self.record_id and self.dedup != Dedup():
            yield ("dedup",), "needs record_id: without it semel uses positions, which never repeat"
        yield from self._guarantee_problems()
        in_buckets = self.dedup.scope is RepeatScope.BUCKET
        bucket_by = self.record_time if in_buckets else None
        yield from self.source.id_problems(self.record_id, bucket_by)
        if in_buckets and self.record_time is None:
            yield ("record_time",), "is missing: dedup.scope: bucket needs it for the bucket"
        if self.dedup.scope is RepeatScope.HORIZON and self.dedup.late is not Late.QUARANTINE:
            yield ("dedup", "late"), "needs scope: bucket; with scope: horizon no record is late"
        for key, why in self.sink.path_problems(self.name):
            yield ("sink", *key), why
        if self.transforms and self.sink.shards > 1 and not self.sink.position_columns:
            yield ("sink", "shards"), (
                "uses a record's position, which rows lack after a transform. Declare "
                "position_columns: true, and keep both columns in the transforms"
            )
        # Only the run knows the columns after a transform.
        if self.aggregate is None and not self.transforms:
            for key, why in self.sink.column_problems(columns, schema):
                yield ("sink", *key), why
            refuses = sink_format(self.sink.format).refuses
            for name, kind in columns.items():
                if kind.word in refuses:
                    yield ("source", "schema", name), f"{kind}: {refuses[kind.word]}"

    def _aggregate_problems(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.aggregate is None:
            return
        if self.window is None:
            yield ("window",), "is missing: aggregate counts the records of each window"
        if self.limits.keep_history is not None and self.sink.in_folder:
            yield ("limits", "keep_history"), (
                "does not work with aggregate into a folder: the SQL that `semel windows --sql` "
                "prints reads all markers there, and would miss the windows of packed ones"
            )
        for key, why in self.sink.aggregate_problems((START, *self.aggregate.keys)):
            yield ("sink", *key), why
        if self.source.unknown is Unknown.KEEP and not self.transforms:
            yield ("source", "unknown"), "keep does not work with aggregate, which drops other keys"
        if not self.transforms:
            for key, why in self.aggregate.problems(self.arrow_schema()):
                yield ("aggregate", *key), why

    def _guarantee_problems(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.guarantee is Guarantee.EXACTLY_ONCE:
            return
        if not self.record_id:
            yield ("guarantee",), (
                "at_least_once needs record_id: without it semel reads each position exactly once. "
                "Remove guarantee"
            )
        if self.dedup.scope is RepeatScope.BUCKET:
            yield ("dedup", "scope"), (
                "bucket does not work with guarantee: at_least_once, which does not note the "
                "buckets that it read; declare scope: horizon"
            )
        if self.dedup.keep_ids:
            yield ("dedup", "keep_ids"), "does not work with at_least_once, which has no ids"
        if self.sink.replaces_rows:
            yield ("sink", "mode"), (
                "upsert allows one row for a key in each batch, but at_least_once does not drop "
                "repeats; declare mode: append"
            )

    @property
    def by_position(self) -> bool:
        """True if a record's position is its identity, without catalog and dedup. That is so
        without a record_id, and with at_least_once.
        """
        return not self.record_id or self.guarantee is Guarantee.AT_LEAST_ONCE

    @property
    def bucket_seconds(self) -> int:
        """The length of a bucket of record time; the pipeline's first plan fixes it."""
        return max(60, int(self.dedup.horizon.total_seconds()) // 32)

    @property
    def delay(self) -> timedelta:
        """How long after its time a record may arrive. 0 without windows."""
        return self.window.delay if self.window else timedelta()

    @property
    def keeps_ids(self) -> bool:
        """True if semel keeps each batch's ids as files, since the output may lack them."""
        declared = self.dedup.keep_ids
        return not self.by_position and (self.hides_ids if declared is None else declared)

    @property
    def hides_ids(self) -> bool:
        """True if semel cannot read the ids of a batch from its output."""
        return bool(self.transforms) or self.aggregate is not None or not self.sink.in_folder

    @property
    def exact_from(self) -> int | None:
        """The first commit that is exactly once, for a new pipeline. None with at_least_once."""
        return 1 if self.guarantee is Guarantee.EXACTLY_ONCE else None

    def exactly_once(self) -> "Spec":
        """A copy with guarantee exactly_once. Its records MUST have ids."""
        return self.model_copy(update={"guarantee": Guarantee.EXACTLY_ONCE})

    def digest(self) -> str:
        """Hex SHA-256 of all keys that shape a batch's data. Equal digests give equal batches."""
        aside = {f"source.{key}" for key in self.source.plan_keys}
        aside |= {f"sink.{key}" for key in self.sink.aside}
        return digest.digest(self._plain(exclude_defaults=True), aside)

    def to_yaml(self) -> str:
        """The declaration without defaults, and its digest, for a user to read."""
        plain = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
        return f"{text}# digest {self.digest()}\n"

    def to_json(self) -> dict[str, Any]:
        """The spec as plain JSON, defaults filled in; `from_json` reads it back.

        The schema becomes a list of pairs, because Postgres' jsonb does not keep the order of keys;
        so do the columns of an aggregation.
        """
        return self._plain()

    def _plain(self, *, exclude_defaults: bool = False) -> dict[str, Any]:
        plain = self.model_dump(mode="json", by_alias=True, exclude_defaults=exclude_defaults)
        plain["source"]["schema"] = [list(pair) for pair in self.source.columns.items()]
        if self.aggregate is not None:
            plain["aggregate"]["columns"] = [
                [name, str(function)] for name, function in self.aggregate.columns.items()
            ]
        return plain | {"parser_rules": ddl.PARSER_RULES}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> "Spec":
        """The spec from `to_json`. Raises SpecError if this version's models do not accept it."""
        source = plain["source"] | {"schema": dict(plain["source"]["schema"])}
        added = ("parser_rules", "code")
        declared = {key: value for key, value in plain.items() if key not in added}
        if aggregate := declared.get("aggregate"):
            columns = dict(aggregate["columns"])
            declared["aggregate"] = aggregate | {"columns": columns}
        try:
            return cls.model_validate(declared | {"source": source})
        except ValidationError as error:
            problems = spec_yaml.problems_of(error, cls)
            text = "; ".join(f"{spec_yaml.key_of(p.key)}: {p.why}" for p in problems)
            raise SpecError(
                f"this version of semel does not accept a stored declaration: {text}"
            ) from error

    def placed(self, now: "Spec", keys: Iterable[str] | None = None) -> "Spec":
        """A copy whose sink has the place of the sink in `now`: all `place` keys, or these `keys`.
        """
        if self.sink.type != now.sink.type:
            return self
        keys = self.sink.place if keys is None else keys
        sink = self.sink.model_copy(update={key: getattr(now.sink, key) for key in keys})
        return self.model_copy(update={"sink": sink})

    def column_types(self) -> dict[str, ddl.ColumnType]:
        """The parsed type of each column, in order. REST_COLUMN, if any, is the last."""
        kinds = {name: ddl.parse(text) for name, text in self.source.columns.items()}
        if self.source.unknown is Unknown.KEEP:
            kinds[REST_COLUMN] = ddl.parse("json")
        return kinds

    def of_source(self) -> Context:
        """The context for the source and the format of its records."""
        return self._context(self.source)

    # Keeps PG5.
    def of_sink(self) -> Context:
        """The context for the sink. After transforms or aggregate it lacks column types: a column
        may have the name of a source column and another type.
        """
        context = self._context(self.sink)
        return replace(context, columns={}) if self.transforms or self.aggregate else context

    def _context(self, declared: sources.SourceSpec | sinks.SinkSpec) -> Context:
        return Context(
            name=self.name,
            declared=declared,
            columns=self.column_types(),
            record_id=self.record_id,
            by_position=self.by_position,
            limits=self.limits,
            counting=self._counting(),
            record_time=self.record_time,
        )

    def _counting(self) -> Counting | None:
        if self.aggregate is None or self.window is None:
            return None
        return Counting(self.aggregate, self.window.windows)

    def arrow_schema(self) -> "pa.Schema":
        """The source's columns in Arrow; all may be null, because a record may lack any."""
        return self.of_source().arrow_schema()

    def source_root(self) -> Path | None:
        """The folder of the source, or None if it is not a folder. Raises as `sink_path` does."""
        return self.source.folder()

    def sink_path(self) -> Path | None:
        """The absolute folder of the output, or None if the sink is not a folder.

        Raises TerminalError if it lies outside of the data roots.
        """
        return self.sink.folder()

    def declared_archive(self) -> ArchivePath | None:
        """The absolute `sink.archive`, if it is declared. Raises as `sink_path` does."""
        declared = self.sink.archive
        if declared is None or StorePath.is_url(declared):
            return declared and storage.at(declared)
        return settings.allowed(declared, "sink.archive")

    def archive_apart(self) -> ArchivePath | None:
        """The archive, declared or by default. None: it belongs to the folder of the sink.

        Raises TerminalError as `sink_path` and `storage.archives` do.
        """
        if (archive := self.declared_archive()) is not None or self.sink_path():
            return archive
        folder = settings.data_roots()[0] / sinks.ARCHIVES / self.name
        archives = storage.archives()
        # A pipeline that had an archive before keeps it.
        kept = archives is None or (folder / MARKERS).is_dir()
        return folder if kept else archives / self.name

    def archive_location(self) -> Location:
        """The archive, next to the sink's folder by default; inside it if the sink is a mount."""
        archive = self.archive_apart()
        if archive is None:
            sink = self.sink_path()
            archive = sink.parent / sinks.ARCHIVES / sink.name
        if isinstance(archive, StorePath):
            return archive.location
        return Location(kind=FOLDER, name=str(archive))
