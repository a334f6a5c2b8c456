"""The common part of all source declarations, and the list of kinds."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

from pydantic import Field, field_validator, model_validator

from semel.declare import ddl
from semel.declare.context import Context
from semel.declare.naming import Naming
from semel.declare.parts import (
    NO_QUOTE,
    RESERVED_PREFIX,
    Duration,
    Limits,
    Model,
    OnEmpty,
    OnRefused,
    Select,
    Text,
    Unknown,
)
from semel.declare.place import Location
from semel.declare.wording import size
from semel.declare.yaml import Problem, Problems
from semel.model.batch import Log
from semel.sources import ReceiveResult, Source

KINDS = ("files", "kafka", "objects", "pipeline", "queue")
"""A kind is a package: `spec.py` has a declaration for each `type`, `source.opened` returns its
Source, and `audit.opened` its Auditor."""


class CsvOptions(Model):
    """How CSV files are written. Each file begins with a header that names the schema's columns."""

    delimiter: str = Field(default=",", pattern=r"^[\t -~]$")
    """The one character between two fields."""
    quote: str = Field(default='"', pattern=rf"^([!-~]|{NO_QUOTE})$")
    """The one character around a field that contains delimiters. none: fields are never quoted."""
    escape: str | None = Field(default=None, pattern=r"^[!-~]$")
    """The one character before a quote within quotes, and before itself. null: quotes there are
    doubled."""
    multiline: bool = Field(default=False, strict=True)
    """Fields may hold newlines. Such a file cannot be split: one task reads it whole."""

    @model_validator(mode="after")
    def _check(self) -> "CsvOptions":
        if self.delimiter == self.quote:
            raise Problems([Problem(("quote",), "is the same character as the delimiter")])
        if self.escape in (self.delimiter, self.quote):
            why = "is the delimiter or the quote; leave it out if quotes are doubled"
            raise Problems([Problem(("escape",), why)])
        for key in ("escape", "multiline"):
            if self.quote == NO_QUOTE and getattr(self, key):
                raise Problems([Problem((key,), "does not apply without quotes; leave it out")])
        return self


class ColumnRule(Model):
    """How a column may differ from file to file, or from message to message."""

    optional: bool = Field(default=False, strict=True)
    """A file may lack the column, which is then null. In JSON and Avro, keys may be missing."""
    names: tuple[Text, ...] = ()
    """Other names that files use for the column."""


class SourceSpec(Model):
    """The common part of all source declarations: the columns, and the selection of a run.

    `unit`: the unit of positions, such as bytes. `part`: the word for a source partition, such as
    file. `complete`: the word for readable content, and `awaited` for content that is not yet
    readable. `limits`: the keys that bound a batch. `acknowledged`: finalize reports positions to
    the source. `begins_anywhere`: `semel accept` may start a part at a given position. `way`: the
    keys of the connection. `dated`: each part has one time. `streams`: the records of a part arrive
    in about the order of their time. `expires`: the cause of deleted records that a batch has read.
    `passes_by`: why a plan may skip unclaimed records. `page`: the document of this kind.
    `own_folder`: each pipeline reads its own folder within `folder()`. `folder_key`: the key of a
    prefix that must not overlap with what the pipeline writes. `receives`: receive adds
    messages before a plan. `plan_keys`: keys that affect plans, but not the content of a batch.
    """

    unit: ClassVar[str]
    part: ClassVar[str]
    complete: ClassVar[str]
    awaited: ClassVar[str]
    dated: ClassVar[bool] = True
    streams: ClassVar[bool] = False
    expires: ClassVar[str] = ""
    passes_by: ClassVar[str] = ""
    own_folder: ClassVar[bool] = False
    folder_key: ClassVar[str | None] = None
    page: ClassVar[str]
    receives: ClassVar[bool] = False
    limits: ClassVar[str]
    acknowledged: ClassVar[bool] = False
    begins_anywhere: ClassVar[bool] = True
    way: ClassVar[tuple[str, ...]] = ()
    plan_keys: ClassVar[tuple[str, ...]] = ("on_refused", "on_empty", "wait_at_most")

    type: str
    """The kind of source."""
    columns: dict[str, str] = Field(alias="schema", min_length=1)
    """The columns in their order, each with its type in Spark's DDL."""
    column_rules: dict[str, ColumnRule] = Field(default={}, alias="columns")
    """Columns that a file may lack (optional), and other names that files use for them (names)."""
    unknown: Unknown = Unknown.IGNORE
    """Keys that the schema does not name. ignore: count and report them. keep: store them in a json
    column _semel_rest. quarantine: make the record a dead letter. Only for JSON and Avro."""
    select: Select = Select.ARRIVAL
    """arrival: a run reads all unclaimed records. interval: only those of its data interval."""
    lookback: Duration = timedelta(0)
    """A run of an interval also reads unclaimed records from this long before its start."""
    on_refused: OnRefused | None = None
    """If plan refuses a part of the source. fail: the run fails, so that no green run is incomplete
    (the default for topics, and for files with select: interval if the file's time lies in the
    interval or is unknown). warn: the run reads the other parts and logs a warning (the default for
    files with select: arrival)."""
    on_empty: OnEmpty = OnEmpty.SKIP
    """If a run finds no records and has never had a batch. skip: the run succeeds. fail: it fails.
    wait: it tries again each minute, without a worker in Airflow, and fails after wait_at_most."""
    wait_at_most: Duration = timedelta(hours=12)
    """Only for on_empty: wait."""
    csv: CsvOptions = CsvOptions()
    """Only for CSV."""

    @classmethod
    def unit_of(cls, stored: Mapping[str, Any]) -> str:  # noqa: ARG003 - most kinds have one unit
        """The unit of a stored declaration."""
        return cls.unit

    @property
    def resumes(self) -> bool:
        """Whether `semel accept --same` may continue a refused part."""
        return False

    @property
    def retention(self) -> timedelta | None:
        """How long a part stays in place after it is fully finalized. Returns None if for ever."""
        return None

    @property
    def connections(self) -> tuple[str, ...]:
        """The names of its Airflow connections."""
        return ()

    @property
    def counts_bytes(self) -> bool:
        """Whether positions are bytes."""
        return self.unit == "bytes"

    def describe_amount(self, positions: int) -> str:
        """An amount of positions, for people."""
        return size(positions) if self.counts_bytes else f"{positions:,} {self.unit}"

    def receive(self, pipeline: str, until: Any, log: Log) -> ReceiveResult:
        """Receive messages into the pipeline's spool, if `receives`. `until`: the declared bounds;
        None: until SIGTERM. Raises the errors of semel.sources.queue.receive.
        """
        raise NotImplementedError

    def open(self, context: Context) -> Source:
        """Create the source, in the driver. Raises ImportError if a package is missing."""
        return import_module(f"{self.package()}.source").opened(context)

    @classmethod
    def package(cls) -> str:
        """The package of its kind."""
        return cls.__module__.rpartition(".")[0]

    @abstractmethod
    def describe(self) -> str:
        """Describe the source, in Markdown."""

    @abstractmethod
    def selection_rule(self) -> str:
        """The value that assigns a record to an interval, in Markdown."""

    def describe_limit(self, limits: Limits) -> str:
        """The maximum of one batch, in words."""
        return size(limits.bytes_per_batch_max)

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:
        """Namespaces and names by OpenLineage's rules. `claimed`: the names of the parts read."""
        return [("file", str(self.folder()))]

    @property
    def exclusive_inputs(self) -> set[str]:
        """Names of inputs whose records only one pipeline can get, such as a queue."""
        return set()

    def no_match_advice(self) -> str:
        """A possible reason for an empty listing, in words; empty if unknown."""
        return ""

    def lookback_advice(self) -> str:
        """The reason to declare `lookback`, in words; empty if it is not needed."""
        return ""

    def explain_delay(self) -> str:
        """A reason for a longer `window.delay` than late records need; empty without one."""
        return ""

    def place(self) -> Location | None:
        """Its folder or prefix. Returns None without one. Raises TerminalError like `folder`."""
        return Location.of(self.folder())

    @abstractmethod
    def reads_from(self, place: Location) -> bool:
        """Whether, by its name, the output of a sink at a location is input of this source."""

    @property
    def unparsed_columns(self) -> dict[str, str]:
        """The columns that are not parsed from a record's text, each with its origin."""
        return {}

    @property
    def has_typed_values(self) -> bool:
        """Whether values carry their own schema, as Avro does."""
        return False

    @property
    def upstream(self) -> str | None:
        """The name of the pipeline whose output it reads."""
        return None

    def id_problems(
        self, record_id: tuple[str, ...], bucket_by: str | None  # noqa: ARG002
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        """Problems of a pipeline's record_id with this source. `bucket_by`: the record_time of
        scope: bucket.
        """
        return iter(())

    def folder(self) -> Path | None:
        """The absolute input folder, symlinks resolved. Returns None without a folder.

        Raises TerminalError if it lies outside the data roots.
        """
        return None

    def folder_problem(self) -> str | None:
        """The problem with its folder on this machine. Returns None if it is usable."""
        return None

    @property
    def naming(self) -> Naming:
        """The names that files use for its columns."""
        rules = self.column_rules.items()
        return Naming(
            optional=frozenset(name for name, rule in rules if rule.optional),
            others={name: rule.names for name, rule in rules if rule.names},
        )

    def _rule_problem(self, column: str) -> str | None:  # noqa: ARG002 - each column of a file
        """Why `columns` cannot have a rule for this column. Returns None if it can."""
        return None

    @field_validator("column_rules")
    @classmethod
    def _normal_rules(cls, rules: dict[str, ColumnRule]) -> dict[str, ColumnRule]:
        """Drop the column's own name and rules without effect, so that the digest ignores them."""
        plain = {
            column: rule.model_copy(update={"names": tuple(n for n in rule.names if n != column)})
            for column, rule in rules.items()
        }
        return {column: rule for column, rule in plain.items() if rule != ColumnRule()}

    @field_validator("columns")
    @classmethod
    def _normal_types(cls, columns: dict[str, str]) -> dict[str, str]:
        problems, types, lower_names = [], {}, set()
        for name, text in columns.items():
            if not name.strip() or not name.isprintable() or "`" in name:
                problems.append(Problem((name,), "is not a column name: use printable characters"))
            if name.lower().startswith(RESERVED_PREFIX):
                problems.append(Problem((name,), "semel reserves names with this prefix"))
            if name.lower() in lower_names:
                problems.append(Problem((name,), "appears twice (case is ignored)"))
            lower_names.add(name.lower())
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

    def _problems(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Problems between keys that are valid by themselves."""
        if self.select is Select.ARRIVAL and self.lookback:
            yield ("lookback",), "does not apply with select: arrival; leave it out"
        for name, text in self.columns.items():
            word = ddl.parse(text).word
            if word in ("json", "map") and any(char in '\\"' for char in name):
                yield ("schema", name), f"a {word} column's name allows no quotes or backslashes"
        claimed = dict.fromkeys(self.columns, "a column")
        for column, rule in self.column_rules.items():
            if column not in self.columns:
                listed = ", ".join(self.columns)
                yield ("columns", column), f"is not a column; the schema has {listed}"
                continue
            if why := self._rule_problem(column):
                yield ("columns", column), f"{why}; leave it out"
            word = ddl.parse(self.columns[column]).word
            for at, name in enumerate(rule.names):
                place = "columns", column, "names", at
                if name in claimed:
                    yield place, f"{name!r} is {claimed[name]} already"
                elif name.lower().startswith(RESERVED_PREFIX):
                    yield place, "semel reserves names with this prefix"
                elif word in ("json", "map") and any(char in '\\"' for char in name):
                    yield place, f"a {word} column's name allows no quotes or backslashes"
                claimed[name] = f"a name of {column!r}"


def declarations() -> tuple[type[SourceSpec], ...]:
    """The declarations of all kinds. Imports neither Arrow nor client libraries."""
    kinds = (import_module(f"semel.sources.{kind}.spec").DECLARED for kind in KINDS)
    return tuple(declared for some in kinds for declared in some)


def declaration(named: str) -> type[SourceSpec]:
    """The declaration of a `type`, as in a stored batch."""
    return next(
        declared
        for declared in declarations()
        if named in get_args(declared.model_fields["type"].annotation)
    )
