"""A pipeline drafted from sample files, and its trial: semel's own parser reads the samples."""

import itertools
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date, timedelta
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel import settings
from semel.declare.parts import GLOB, RESERVED_PREFIX, Limits
from semel.declare.wording import FILES_NAMED_MAX, KEYS_NAMED_MAX
from semel.errors import NO_STEP, SourceError, TerminalError
from semel.formats.csv import CsvFormat
from semel.formats.declared import format_of
from semel.formats.jsonl import JsonLines
from semel.formats.jsontext import keys_of
from semel.formats.records import printable
from semel.infer import names
from semel.infer.dialect import InferredDialect, column_problem, dialect_of, not_utf8, parts_of
from semel.infer.identity import ProposedId, identity, record_time
from semel.infer.parse import blocks
from semel.infer.sample import SampledFile, Samples, display_path
from semel.infer.types import Guess, type_of, widest
from semel.infer.write import spec_of
from semel.pipeline.opening import open_source
from semel.sources import quoted

NEW_KEYS_MAX = 200
"""Keys of JSON records that become columns. Further keys are data, and go into one column."""

RATIO_MAX: float = Limits().quarantine_ratio_max
"""The largest share of bad records in a trial, because a larger one stops a batch."""

_MISSING, _ENCODING = "id_missing", "encoding"


@dataclass(frozen=True, kw_only=True)
class PipelineDraft:
    """An unfinished declaration, with a field for each key that a person may change."""

    name: str
    dialect: InferredDialect
    """The dialect of the source."""
    dialects: tuple[InferredDialect, ...]
    """The dialect of each nonempty sample, with its own header."""
    path: str
    guesses: dict[str, Guess]
    other_keys: dict[str, int]
    """Keys that do not become columns, with the number of records that have each."""
    identity: ProposedId
    record_id: tuple[str, ...]
    record_time: str | None
    dates: names.Dates | None
    open_ends: tuple[Path, ...]
    """Samples whose last record lacks a line end."""
    optional: tuple[str, ...]
    """Columns that some samples lack."""
    sink: str

    @property
    def waits(self) -> bool:
        """True if semel must wait for `closed_after` before it reads a file to its end."""
        return bool(self.open_ends) or self.dialect.csv.multiline

    def document(self) -> dict[str, Any]:
        """The declaration as plain data, with the keys in the order of the file."""
        source: dict[str, Any] = {"type": "files", "path": self.path}
        source["format"] = self.dialect.format
        csv, default = asdict(self.dialect.csv), asdict(CsvFormat())
        if csv != default:
            source["csv"] = {key: value for key, value in csv.items() if value != default[key]}
        if self.other_keys:
            source["unknown"] = "keep"
        if self.dates is not None:
            source |= {"select": "interval", "interval_from": self.dates.pattern}
        if self.waits:
            source["closed_after"] = "1 minute"
        source["schema"] = {name: guess.type for name, guess in self.guesses.items()}
        if self.optional:
            source["columns"] = {name: {"optional": True} for name in self.optional}
        document: dict[str, Any] = {"name": self.name}
        if self.dates is not None and self.dates.schedule:
            document["schedule"] = self.dates.schedule
        document["source"] = source
        if self.record_id:
            document["record_id"] = list(self.record_id)
        if self.record_time is not None:
            document["record_time"] = self.record_time
        return document | {"sink": {"type": "files", "path": self.sink, "format": "parquet"}}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The result of reading the samples with semel's parser.

    `reasons`: quarantined records by reason. `example`: the first one, with its file and fault.
    """

    records: int
    reasons: dict[str, int]
    example: str | None

    @property
    def quarantined(self) -> int:
        """The number of quarantined records."""
        return sum(self.reasons.values())

    @property
    def reason_counts(self) -> str:
        """The reasons with their counts, as a text: `type_mismatch 2, late 1`."""
        return ", ".join(f"{reason} {count:,}" for reason, count in self.reasons.items())

    @property
    def fits(self) -> bool:
        """True if a batch of such records would not exceed `quarantine_ratio_max`."""
        return self.quarantined <= RATIO_MAX * self.records


def draft(name: str, samples: Samples) -> PipelineDraft:
    """The draft that the samples suggest. Raises SourceError if semel cannot read the samples.

    Raises TerminalError if the samples are in a folder that cannot be a source.
    """
    files = samples.nonempty_files
    dialects = [dialect_of(file) for file in files]
    _check_alike(name, files, dialects)
    path = _source_path(name, samples)
    # If one file has escapes, or fields with line ends, others may have them too.
    dialect = max(dialects, key=lambda each: each.csv.multiline)
    escape = next((each.csv.escape for each in dialects if each.csv.escape), None)
    dialect = replace(dialect, csv=replace(dialect.csv, escape=escape))
    if dialect.format == "csv":
        other_keys, texts = {}, _columns_of_csv(files, dialects)
    else:
        other_keys, texts = _columns_of_json(files)
    guesses = {
        name: type_of(dialect.format, name, column, RATIO_MAX)
        for name, column in zip(texts.column_names, texts.columns, strict=True)
    }
    texts = _fitting(texts, guesses)
    optional = tuple(
        name for name in _widest(dialects).columns
        if any(name not in each.columns for each in dialects)
    )  # fmt: skip
    required = {name: guess for name, guess in guesses.items() if name not in optional}
    proposed = identity(texts, required) if texts.num_rows else ProposedId()
    return PipelineDraft(
        name=name,
        dialect=dialect,
        dialects=tuple(replace(each, csv=dialect.csv) for each in dialects),
        path=path,
        guesses=guesses,
        other_keys=other_keys,
        identity=proposed,
        record_id=proposed.record_id,
        record_time=record_time(required),
        dates=names.dates_in(sorted({path.name for path in samples.paths})),
        open_ends=tuple(file.path for file in files if file.open_end),
        optional=optional,
        sink=f"out/{name}",
    )


def trial(draft: PipelineDraft, samples: Samples) -> Trial:
    """Read the samples with the drafted spec. Raises SpecError if a person's answer makes the
    declaration invalid.
    """
    spec = spec_of(draft.document())
    form, schema = format_of(spec.of_source()), spec.arrow_schema()
    records, reasons, example = 0, Counter[str](), None
    for file, dialect in zip(samples.nonempty_files, draft.dialects, strict=True):
        for part in parts_of(file, dialect):
            columns = list(dialect.columns)
            for block in blocks(part, schema, form, columns, spec.record_id):
                missing = _without_id(block.table, spec.record_id)
                records += block.table.num_rows + len(block.faults)
                faults = Counter(str(reason) for reason, _ in block.faults.values())
                reasons += faults + Counter({_MISSING: missing})
                if block.faults and example is None:
                    at = min(block.faults)
                    reason, why = block.faults[at]
                    example = f"{display_path(Path(file.path.name))}: {reason} ({printable(why)})"
    return Trial(records=records, reasons=dict(reasons), example=example)


def widen_to_fit(draft: PipelineDraft, samples: Samples) -> tuple[PipelineDraft, Trial]:
    """Widen columns until a batch of such records fits. Returns the draft and its trial.

    Raises SourceError if the records are bad in another way, such as the number of their fields.
    """
    while True:
        result = trial(draft, samples)
        if not result.records:
            raise SourceError("the samples do not contain records. Name files that do")
        if result.fits:
            return draft, result
        worst = max(draft.guesses, key=lambda name: draft.guesses[name].exceptions)
        guess = draft.guesses[worst]
        if not guess.exceptions:
            hints = filter(None, map(not_utf8, samples.files))
            hint = next(hints, None) if _ENCODING in result.reasons else None
            raise SourceError(
                f"semel cannot read {result.quarantined:,} of {result.records:,} records of the "
                f"samples ({result.reason_counts}), such as: {result.example}. "
                f"{hint or 'Correct the files'}"
            )
        guesses = draft.guesses | {worst: widest(guess, draft.dialect.format)}
        draft = replace(
            draft,
            guesses=guesses,
            record_id=tuple(name for name in draft.record_id if name != worst),
            record_time=None if draft.record_time == worst else draft.record_time,
        )


@dataclass(frozen=True, kw_only=True)
class SourceFinding:
    """The files that the drafted source finds now, and those that it refuses.

    `reason`: why it refuses the first. `days`: with `select: interval`, the first day of the files'
    times and the day after the last one.
    """

    files: int
    refused: int
    reason: str | None
    days: tuple[date, date] | None


def find_files(draft: PipelineDraft, samples: Samples) -> SourceFinding:
    """List the drafted source. Raises SourceError if it refuses a sample or does not find it."""
    listing = open_source(spec_of(draft.document())).discover()
    names_found = {item.name for item in listing.items}
    refused = {item.name: f"{item.reason}: {item.detail}" for item in listing.refusals}
    for path in samples.paths:
        if str(path) not in names_found:
            why = refused.get(str(path)) or f"{draft.path!r} does not find it"
            raise SourceError(f"{display_path(path)}: {why}")
    times = [item.when for item in listing.items if item.when is not None]
    days = (min(times).date(), max(times).date() + timedelta(days=1)) if times else None
    first = next((f"{name!r}: {why}" for name, why in refused.items()), None)
    return SourceFinding(files=len(names_found), refused=len(refused), reason=first, days=days)


def _without_id(table: pa.Table, record_id: tuple[str, ...]) -> int:
    missing = pa.scalar(False)
    for name in record_id:
        missing = pc.or_(missing, table.column(name).is_null())
    return pc.sum(missing).as_py() or 0 if record_id and table.num_rows else 0


def _check_alike(name: str, files: list[SampledFile], dialects: list[InferredDialect]) -> None:
    """Raises SourceError if the samples do not belong to one source. Its next step drafts a
    pipeline from the widest sample and all samples that go with it.
    """
    first = _widest(dialects)
    path = files[dialects.index(first)].path
    for sample, dialect in zip(files, dialects, strict=True):
        if not _is_part(dialect, first):
            why = (
                f"is {_kind_of(dialect)}, but {display_path(path)} is {_kind_of(first)}. Draft a "
                "pipeline for each kind"
            )
        elif _marks(dialect) != _marks(first):
            why = (
                f"has the delimiter {dialect.csv.delimiter!r} and the quote {dialect.csv.quote!r}, "
                f"but {display_path(path)} has {first.csv.delimiter!r} and {first.csv.quote!r}. "
                "Draft a pipeline for each"
            )
        else:
            continue
        alike = (
            quoted(str(file.path)) for file, other in zip(files, dialects, strict=True)
            if _is_part(other, first) and _marks(other) == _marks(first)
        )
        raise SourceError(
            f"{display_path(sample.path)} {why}",
            next=f"semel new {quoted(name)} {' '.join(alike)}",
        )


def _widest(dialects: list[InferredDialect]) -> InferredDialect:
    """The dialect with the most columns, among those of the first one's format."""
    alike = (each for each in dialects if each.format == dialects[0].format)
    return max(alike, key=lambda each: len(each.columns))


def _is_part(dialect: InferredDialect, wider: InferredDialect) -> bool:
    """True if a dialect has the format of a wider one, and some or all of its columns."""
    return dialect.format == wider.format and {*dialect.columns} <= {*wider.columns}


def _marks(dialect: InferredDialect) -> tuple[str, str]:
    return dialect.csv.delimiter, dialect.csv.quote


def _kind_of(dialect: InferredDialect) -> str:
    if dialect.format != "csv":
        return dialect.format
    columns = ", ".join(dialect.columns[: KEYS_NAMED_MAX])
    return f"csv with {len(dialect.columns)} columns ({printable(columns)})"


def _columns_of_csv(files: list[SampledFile], dialects: list[InferredDialect]) -> pa.Table:
    """All good records as text, with the columns in the order of the widest header."""
    order = _widest(dialects).columns
    schema = pa.schema([(name, pa.string()) for name in order])
    tables = [
        block.table.select(order)
        for file, dialect in zip(files, dialects, strict=True)
        for part in parts_of(file, dialect)
        for block in blocks(part, schema, dialect.csv, list(dialect.columns))
    ]
    return pa.concat_tables([schema.empty_table(), *tables])


def _columns_of_json(files: list[SampledFile]) -> tuple[dict[str, int], pa.Table]:
    """The keys that do not become columns; and all good records as texts of values, with the other
    keys as columns in the order of their first occurrence.
    """
    parts = [part for file in files for part in file.parts]
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(_keys(part))
    keys, other_keys = _declared(counts)
    if not keys:
        raise SourceError("no key of the samples' objects can be a column's name. Rename the keys")
    schema = pa.schema([(name, pa.string()) for name in keys])
    form = JsonLines(json=tuple(keys))
    tables = [block.table.select(keys) for part in parts for block in blocks(part, schema, form)]
    return other_keys, pa.concat_tables([schema.empty_table(), *tables])


def _fitting(texts: pa.Table, guesses: Mapping[str, Guess]) -> pa.Table:
    """The records whose values fit. The others are quarantined, so their ids do not matter."""
    for name, guess in guesses.items():
        column = texts.column(name)
        if guess.exceptions:
            texts = texts.filter(pc.invert(pc.is_in(column, guess.unfit.cast(column.type))))
    return texts


def _keys(part: bytes) -> Counter[str]:
    """The keys of objects, each with the number of records that have it."""
    counts: Counter[str] = Counter()
    schema = pa.schema([(f"{RESERVED_PREFIX}_no_key", pa.string())])
    for block in blocks(part, schema, JsonLines()):
        good = block.lines.without(block.faults)
        if len(good):
            counts.update(itertools.chain.from_iterable(keys_of(good.pack())))
    return counts


def _declared(counts: Mapping[str, int]) -> tuple[list[str], dict[str, int]]:
    """The keys that become columns, and the other keys with their counts.

    Only the most frequent keys become columns. A key must be a name that a schema allows, also
    for a column of type json, because any key may get that type.
    """
    lowered: set[str] = set()
    able = []
    for key in counts:
        unfit = column_problem(key) or any(char in '\\"' for char in key)
        if not unfit and key.lower() not in lowered:
            lowered.add(key.lower())
            able.append(key)
    frequent = set(sorted(able, key=lambda key: -counts[key])[:NEW_KEYS_MAX])
    keys = [key for key in able if key in frequent]
    return keys, {key: count for key, count in counts.items() if key not in frequent}


def _source_path(name: str, samples: Samples) -> str:
    """source.path: relative to the first data folder, or absolute in another one.

    Raises TerminalError if the samples are elsewhere, or do not have a folder of their own.
    """
    roots = settings.data_roots()
    folder = roots[0] / name
    root = next((r for r in roots if all(p.is_relative_to(r) for p in samples.paths)), None)
    paths = samples.paths[:FILES_NAMED_MAX]
    old = " ".join(quoted(str(path)) for path in paths)
    new = " ".join(quoted(str(folder / path.name)) for path in paths)
    where = quoted(str(folder))
    # The step must move all files, and files of the same name would replace each other.
    is_complete = len({path.name for path in paths}) == len(samples.paths)

    def step_with(command: str) -> str:
        step = f"mkdir -p {where} && {command} {old} {where} && semel new {name} {new}"
        return step if is_complete else NO_STEP

    if root is None:
        raise TerminalError(
            f"the samples are outside of the data folders {os.pathsep.join(map(str, roots))}. Copy "
            f"them into one of these, or add their folder to {settings.DATA_VARIABLE}",
            next=step_with("cp"),
        )
    pattern = names.source_pattern(
        [PurePosixPath(path.relative_to(root)) for path in samples.paths]
    )
    first = PurePosixPath(pattern).parts
    if len(first) == 1 or GLOB.search(first[0]):
        raise TerminalError(
            f"the samples need a folder of their own below the data folder {root}, because the "
            "output is in that one too, and the folder's name must not have *, ? or [. Move them",
            next=step_with("mv"),
        )
    return pattern if root == roots[0] else str(PurePosixPath(root) / pattern)
