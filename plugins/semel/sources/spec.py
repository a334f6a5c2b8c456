"""What the declarations of all sources have, and which kinds of source there are."""

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
"""A kind is a folder here: `spec.py` holds its declarations, one for each `type`; `source.opened`
gives its Source, `audit.opened` its Auditor."""


class CsvOptions(Model):
    """How CSV files are written. Each file begins with a header that names the schema's columns."""

    delimiter: str = Field(default=",", pattern=r"^[\t -~]$")
    """The one character between two fields."""
    quote: str = Field(default='"', pattern=rf"^([!-~]|{NO_QUOTE})$")
    """The one character around a field that holds delimiters. none: no character is a quote."""
    escape: str | None = Field(default=None, pattern=r"^[!-~]$")
    """The one character before a quote within quotes, and before itself. null: a quote there is
    doubled."""
    multiline: bool = Field(default=False, strict=True)
    """Fields may hold newlines. Such a file cannot be split: one task reads it whole."""

    @model_validator(mode="after")
    def _check(self) -> "CsvOptions":
        if self.delimiter == self.quote:
            raise Problems([Problem(("quote",), "is the same character as the delimiter")])
        if self.escape in (self.delimiter, self.quote):
            why = "is the delimiter or the quote; leave it out where quotes are doubled"
            raise Problems([Problem(("escape",), why)])
        for key in ("escape", "multiline"):
            if self.quote == NO_QUOTE and getattr(self, key):
                raise Problems([Problem((key,), "has no meaning without quotes; leave it out")])
        return self


class ColumnRule(Model):
    """How a column may differ from file to file, or from message to message."""

    optional: bool = Field(default=False, strict=True)
    """A file may lack the column, which is null there. JSON and Avro: each key may be missing."""
    names: tuple[Text, ...] = ()
    """Other names of the column, next to its own."""


class SourceSpec(Model):
    """What the declarations of all sources have: which columns, and what a run takes.

    `unit`: what positions count, and `part`: what each has positions of its own. `complete`: what a
    part has where it has something to read; `awaited`: what a part waits for that shows a record
    and has none. `limits`: the keys that bound a batch. `acknowledged`: whether the source is told
    what is finalized; `begins_anywhere`: whether accepting a refused part may begin at a position
    that a person names; `way`: the keys that say how one gets there to tell it. `dated`: whether each
    part has a time of its own. `streams`: whether the records of each part come in about the order
    of their time, apart from those of other parts. `expires`: what takes away records that were
    read. `page`: the document of its kind. `own_folder`: whether each pipeline reads a folder of its own within
    `folder()`. `receives`: whether messages are received into it before a plan. `aside`: keys that
    say what a plan does, and not what is in a batch.
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
    """The columns in their order, each with its type in the words of Spark's DDL."""
    column_rules: dict[str, ColumnRule] = Field(default={}, alias="columns")
    """Columns that a file may lack (optional), and other names that files have for one (names)."""
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
    csv: CsvOptions = CsvOptions()
    """Only for CSV."""

    @classmethod
    def unit_of(cls, stored: Mapping[str, Any]) -> str:  # noqa: ARG003 - most kinds have one unit
        """What positions count by a stored declaration."""
        return cls.unit

    @property
    def resumes(self) -> bool:
        """Whether a refused part may be accepted as the same one, which goes on."""
        return False

    @property
    def retention(self) -> timedelta | None:
        """How long a part stays where it is after all of it is finalized; None: for ever."""
        return None

    @property
    def connections(self) -> tuple[str, ...]:
        """The names of the Airflow connections that it uses."""
        return ()

    @property
    def counts_bytes(self) -> bool:
        """Whether positions are bytes, and so tell how much is read."""
        return self.unit == "bytes"

    def describe_amount(self, positions: int) -> str:
        """So much of it, for a person."""
        return size(positions) if self.counts_bytes else f"{positions:,} {self.unit}"

    def receive(self, pipeline: str, until: Any, log: Log) -> ReceiveResult:
        """Receive messages into the pipeline's spool, where `receives`. `until`: when it ends, as
        its declaration says; None: on SIGTERM. Errors: as semel.sources.queue.receive.
        """
        raise NotImplementedError

    def open(self, context: Context) -> Source:
        """The source, in the driver. ImportError: a package is not installed."""
        return import_module(f"{self.package()}.source").opened(context)

    @classmethod
    def package(cls) -> str:
        """The folder of its kind, as a package."""
        return cls.__module__.rpartition(".")[0]

    @abstractmethod
    def describe(self) -> str:
        """What it reads, in Markdown."""

    @abstractmethod
    def selection_rule(self) -> str:
        """By what a record belongs to a run's interval, in Markdown."""

    def describe_limit(self, limits: Limits) -> str:
        """How much one batch takes at most."""
        return size(limits.bytes_per_batch_max)

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:
        """Namespaces and names by OpenLineage's rules. `claimed`: the parts that batches read."""
        return [("file", str(self.folder()))]

    @property
    def exclusive_inputs(self) -> set[str]:
        """What it takes records out of, so that no other pipeline gets them: a name a way."""
        return set()

    def no_match_advice(self) -> str:
        """Why it may show nothing at all, in words; empty: it cannot tell."""
        return ""

    def lookback_advice(self) -> str:
        """Why `lookback` should be declared, in words; empty: nothing speaks for it."""
        return ""

    def explain_delay(self) -> str:
        """What `window.delay` must cover besides late records; empty if nothing."""
        return ""

    def place(self) -> Location | None:
        """The folder or prefix that it reads. None: it reads neither. TerminalError: as `folder`."""
        return Location.of(self.folder())

    @abstractmethod
    def reads_from(self, place: Location) -> bool:
        """Whether what a sink of any kind writes to a place is read by it, as far as names tell."""

    @property
    def unparsed_columns(self) -> dict[str, str]:
        """The columns that are not of a record's text, each with what fills it."""
        return {}

    @property
    def has_typed_values(self) -> bool:
        """Whether values have types of their own, by a schema that they name."""
        return False

    @property
    def upstream(self) -> str | None:
        """The pipeline whose output it reads by name."""
        return None

    def id_problems(
        self, record_id: tuple[str, ...], bucket_by: str | None  # noqa: ARG002
    ) -> Iterator[tuple[tuple[str, ...], str]]:
        """What is wrong with a pipeline's keys, as to how records are told apart. `bucket_by`: the
        record_time of scope: bucket.
        """
        return iter(())

    def folder(self) -> Path | None:
        """The absolute folder that it reads, symlinks resolved; None where it is no folder.

        TerminalError: it lies outside the data roots.
        """
        return None

    def folder_problem(self) -> str | None:
        """What is wrong with its folder as it is on this machine."""
        return None

    @property
    def naming(self) -> Naming:
        """The names that files have for its columns."""
        rules = self.column_rules.items()
        return Naming(
            optional=frozenset(name for name, rule in rules if rule.optional),
            others={name: rule.names for name, rule in rules if rule.names},
        )

    def _rule_problem(self, column: str) -> str | None:  # noqa: ARG002 - each column of a file
        """Why `columns` can say nothing of a column."""
        return None

    @field_validator("column_rules")
    @classmethod
    def _normal_rules(cls, rules: dict[str, ColumnRule]) -> dict[str, ColumnRule]:
        """The same, without the column's own name and without rules that change nothing: the digest
        does not depend on these.
        """
        plain = {
            column: rule.model_copy(update={"names": tuple(n for n in rule.names if n != column)})
            for column, rule in rules.items()
        }
        return {column: rule for column, rule in plain.items() if rule != ColumnRule()}

    @field_validator("columns")
    @classmethod
    def _normal_types(cls, columns: dict[str, str]) -> dict[str, str]:
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

    def _problems(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """What is wrong between keys that are right by themselves."""
        if self.select is Select.ARRIVAL and self.lookback:
            yield ("lookback",), "has no meaning with select: arrival; leave it out"
        for name, text in self.columns.items():
            word = ddl.parse(text).word
            if word in ("json", "map") and any(char in '\\"' for char in name):
                yield ("schema", name), f"a {word} column's name holds no quote and no backslash"
        claimed = dict.fromkeys(self.columns, "a column")
        for column, rule in self.column_rules.items():
            if column not in self.columns:
                yield ("columns", column), f"is not a column; the schema has {', '.join(self.columns)}"
                continue
            if why := self._rule_problem(column):
                yield ("columns", column), f"{why}; leave it out"
            word = ddl.parse(self.columns[column]).word
            for at, name in enumerate(rule.names):
                place = "columns", column, "names", at
                if name in claimed:
                    yield place, f"{name!r} is {claimed[name]} already"
                elif name.lower().startswith(RESERVED_PREFIX):
                    yield place, "names of this beginning are kept for semel"
                elif word in ("json", "map") and any(char in '\\"' for char in name):
                    yield place, f"a {word} column's name holds no quote and no backslash"
                claimed[name] = f"a name of {column!r}"


def declarations() -> tuple[type[SourceSpec], ...]:
    """The declarations of all kinds. No Arrow and no client library is imported for them."""
    kinds = (import_module(f"semel.sources.{kind}.spec").DECLARED for kind in KINDS)
    return tuple(declared for some in kinds for declared in some)


def declaration(named: str) -> type[SourceSpec]:
    """The one of a `type`, as a stored batch names it."""
    return next(
        declared
        for declared in declarations()
        if named in get_args(declared.model_fields["type"].annotation)
    )
