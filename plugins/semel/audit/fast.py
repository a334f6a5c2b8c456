"""The vectorised path: the expressions by which DuckDB reads the declared columns from text.

It only ever says "good"; what it cannot call good goes to the exact path. Where its casts are laxer
than the declared type, a pattern stands before them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from semel.audit import windows
from semel.audit.exact import Rules
from semel.audit.windows import compared
from semel.clients.duck import TYPES, duck_type
from semel.clients.sql import column, quoted
from semel.declare.ddl import ColumnType
from semel.declare.parts import NO_QUOTE, RepeatScope, Unknown
from semel.formats.table import sink_format
from semel.pipeline.spec import Spec
from semel.sources.reread import csv_options
from semel.sources.spec import CsvOptions

_TIME = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?Z?$"
_LONG_TIME = _TIME.replace("{1,6}", "+")  # DuckDB cuts the digits too.
_NUMBER = r"^-?\d+(\.\d+)?([eE][-+]?\d+)?$"


@dataclass(frozen=True, kw_only=True)
class LineDialect:
    """How the lines of some claims are read: the columns of their text, for CSV its marks and its
    header, and what fills the columns beside the text."""

    form: str
    columns: tuple[tuple[str, ColumnType], ...]
    beside: tuple[tuple[str, str], ...]
    csv: CsvOptions | None
    header: tuple[str, ...]
    rules: Rules
    id: str
    bucket: str
    content: str
    time: str
    cells: str

    @property
    def text(self) -> bool:
        """Whether a record is text, which has to be parsed."""
        return self.form not in ("bytes", "parquet")


def dialect(spec: Spec, header: tuple[str, ...], bucket_seconds: int) -> LineDialect:
    """The dialect of a batch's source."""
    others = spec.source.unparsed_columns
    columns = {name: kind for name, kind in spec.column_types().items() if name not in others}
    place = {name: f"f[{at}]" for at, name in enumerate(columns, start=1)}
    place |= {name: f"beside.{column(name)}" for name in others}
    typed = {n: _cast(place[n], kind) for n, kind in spec.column_types().items() if compared(kind)}
    return LineDialect(
        form=spec.source.format,
        columns=tuple(columns.items()),
        beside=tuple(others.items()),
        csv=csv_options(spec.source),
        header=header,
        rules=Rules(
            id=spec.record_id,
            unknown=spec.source.unknown,
            typed=spec.source.has_typed_values,
            names=tuple((c, r.names) for c, r in spec.source.column_rules.items() if r.names),
        ),
        id=identity(spec, place.__getitem__),
        bucket=_bucket(spec, place, bucket_seconds),
        content=content(spec, place.__getitem__),
        **windows.of_records(spec, typed),
    )


def identity(spec: Spec, place: Callable[[str], str]) -> str:
    """The id as text: one column's value, or a JSON array of several; null when a part is null."""
    kinds = spec.column_types()
    parts = [f"CAST({_cast(place(name), kinds[name])} AS VARCHAR)" for name in spec.record_id]
    if len(parts) < 2:
        return parts[0] if parts else "CAST(NULL AS VARCHAR)"
    nulls = " OR ".join(f"{part} IS NULL" for part in parts)
    return f"CASE WHEN {nulls} THEN NULL ELSE CAST(to_json([{', '.join(parts)}]) AS VARCHAR) END"


def content(spec: Spec, place: Callable[[str], str]) -> str:
    """A hash of a row's scalar values, the same whatever format they were read from; of what
    windows count, none.
    """
    kinds = {name: kind for name, kind in spec.column_types().items() if compared(kind)}
    if not kinds or spec.aggregate is not None:
        return "CAST(0 AS UBIGINT)"
    values = (_of_folder(spec, n, kind, _cast(place(n), kind)) for n, kind in kinds.items())
    return f"hash({', '.join(values)})"


def in_output(spec: Spec, name: str) -> str:
    """A column of the output as SQL has it: a format that has no bytes holds them as base64."""
    kind = spec.column_types().get(name)
    if kind is None or kind.word != "binary":
        return column(name) if kind is None else _of_folder(spec, name, kind, column(name))
    held = sink_format(spec.sink.format).code().held_as(kind.arrow())
    return f"from_base64({column(name)})" if held != kind.arrow() else column(name)


def _of_folder(spec: Spec, name: str, kind: ColumnType, value: str) -> str:
    """A value, where null and the empty text are one: of a folder."""
    is_one = name in spec.sink.folders and kind.word == "string" and spec.aggregate is None
    return f"COALESCE({value}, '')" if is_one else value


def sift(dialect: LineDialect) -> tuple[str, dict[str, str]]:
    """The statement that sifts the lines of a dialect, and what fills its braces."""
    if not dialect.text:
        return "sift_bytes", {}
    rules = dialect.rules
    cut = {name for name, _ in dialect.columns if name not in rules.id}
    kinds = [(at, kind, name in cut) for at, (name, kind) in enumerate(dialect.columns, start=1)]
    if dialect.csv is None:
        return "sift_jsonl", _sift_json(dialect, cut)
    good = [_good_csv(f"f[{at}]", kind, cut) for at, kind, cut in kinds]
    fields = {name: f"s[{at}]" for at, name in enumerate(dialect.header, start=1)}
    places = [fields.get(name, "NULL") for name, _ in dialect.columns]
    return "sift_csv", {
        "good": " AND ".join(good),
        "values": f"[{', '.join(f'''NULLIF({place}, '')''' for place in places)}]",
        "count": str(len(dialect.header)),
        "quote": quoted("\n" if dialect.csv.quote == NO_QUOTE else dialect.csv.quote),
        "delimiter": quoted(dialect.csv.delimiter),
    }


def _sift_json(dialect: LineDialect, cut: set[str]) -> dict[str, str]:
    """What fills the braces of the statement that sifts JSON. A column has one value, under any of
    its keys.
    """
    others, keys, values, good = dict(dialect.rules.names), [], [], []
    for name, kind in dialect.columns:
        own = (name, *others.get(name, ()))
        places = range(len(keys) + 1, len(keys) + 1 + len(own))
        keys += own
        values.append(f"COALESCE({', '.join(f'f[{at}]' for at in places)})")
        good += [_good_json(f"t[{at}]", f"f[{at}]", kind, name in cut) for at in places]
        if len(own) > 1:
            given = (f"CAST(COALESCE(t[{at}], 'NULL') <> 'NULL' AS INTEGER)" for at in places)
            good.append(f"{' + '.join(given)} <= 1")
    if dialect.rules.unknown is Unknown.QUARANTINE:
        good.append("len(k) = list_count(t)")
    return {
        "paths": f"[{', '.join(quoted(_pointer(key)) for key in keys)}]",
        "values": f"[{', '.join(values)}]" if others else "f",
        "good": " AND ".join(good),
    }


def _bucket(spec: Spec, place: dict[str, str], seconds: int) -> str:
    if spec.dedup.scope is not RepeatScope.BUCKET:
        return "CAST(0 AS BIGINT)"
    time = f"TRY_CAST({place[spec.record_time]} AS TIMESTAMP)"
    return f"CAST(floor(epoch({time}) / {seconds}) AS BIGINT)"


def _cast(value: str, kind: ColumnType) -> str:
    return f"TRY_CAST({value} AS {duck_type(kind)})" if kind.word != "string" else value


def _pointer(name: str) -> str:
    """A JSON pointer, which takes any key."""
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _good_json(kind_found: str, value: str, kind: ColumnType, cut: bool) -> str:
    missing = f"({kind_found} IS NULL OR {kind_found} = 'NULL')"
    if kind.word == "json":
        return "true"
    if kind.nested or kind.word == "binary":
        return missing
    words = {
        "bigint": "'BIGINT', 'UBIGINT'", "int": "'BIGINT', 'UBIGINT'",
        "smallint": "'BIGINT', 'UBIGINT'", "boolean": "'BOOLEAN'",
        "double": "'DOUBLE', 'BIGINT', 'UBIGINT'", "float": "'DOUBLE', 'BIGINT', 'UBIGINT'",
        # DuckDB reads a fraction as a double before it can be looked at: too late for a decimal.
        "decimal": "'BIGINT', 'UBIGINT'",
    }.get(kind.word, "'VARCHAR'")  # fmt: skip
    test = _fits(value, kind, cut)
    return f"({missing} OR ({kind_found} IN ({words}){f' AND {test}' if test else ''}))"


def _good_csv(value: str, kind: ColumnType, cut: bool) -> str:
    pattern = {
        "bigint": r"^-?\d{1,18}$", "int": r"^-?\d{1,18}$", "smallint": r"^-?\d{1,18}$",
        "double": _NUMBER, "float": _NUMBER, "boolean": "^(true|false)$",
    }.get(kind.word)  # fmt: skip
    if kind.word == "binary":
        return f"({value} IS NULL)"
    tests = [f"regexp_matches({value}, {quoted(pattern)})"] if pattern else []
    if test := _fits(value, kind, cut):
        tests.append(test)
    return f"({value} IS NULL OR ({' AND '.join(tests)}))" if tests else "true"


def _fits(value: str, kind: ColumnType, cut: bool) -> str:
    """Whether a value's text is surely one of the type. Empty: it always is.

    `cut`: a time may have more digits than it keeps.
    """
    cast = f"TRY_CAST({value} AS {TYPES.get(kind.word, '')})"
    match kind.word:
        case "string" | "boolean":
            return ""
        case "bigint" | "int" | "smallint":
            return f"{cast} IS NOT NULL"
        case "double":
            return f"isfinite({cast})"
        case "float":  # Longer ones could be rounded twice on their way.
            return f"(length({value}) <= 15 AND isfinite({cast}))"
        case "decimal":
            before, after = min(kind.precision - kind.scale, 15), kind.scale
            digits = rf"^-?\d{{1,{before}}}" if before else r"^-?0"
            pattern = digits + (rf"(\.\d{{1,{after}}})?$" if after else "$")
            return f"(length({value}) <= 15 AND regexp_matches({value}, {quoted(pattern)}))"
        case "date":
            form = rf"regexp_matches({value}, '^\d{{4}}-\d\d-\d\d$')"
            return f"({form} AND {value} >= '0001' AND {cast} IS NOT NULL)"
        case _:
            form = f"regexp_matches({value}, {quoted(_LONG_TIME if cut else _TIME)})"
            return f"({form} AND {value} >= '0001' AND {cast} IS NOT NULL)"
