"""The vectorised path: the expressions by which DuckDB reads the declared columns from text.

It only accepts lines; the exact path judges all that it does not accept. If DuckDB's cast is laxer
than the declared type, a pattern tests the text first.
"""

from collections.abc import Callable
from dataclasses import dataclass

from semel.audit import windows
from semel.audit.exact import Rules
from semel.audit.windows import is_compared
from semel.clients.duck import TYPES, duck_type
from semel.clients.sql import column, quote_text
from semel.declare.ddl import ColumnType
from semel.declare.parts import NO_QUOTE, RepeatScope, Unknown
from semel.formats.table import sink_format
from semel.pipeline.spec import Spec
from semel.sources.reread import csv_options
from semel.sources.spec import CsvOptions

_TIME = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?Z?$"
_LONG_TIME = _TIME.replace("{1,6}", "+")  # DuckDB drops the excess digits, as semel does.
_NUMBER = r"^-?\d+(\.\d+)?([eE][-+]?\d+)?$"


@dataclass(frozen=True, kw_only=True)
class LineDialect:
    """How to read the lines of some claims: the columns in their text, the columns beside the text,
    the CSV options and header, and DuckDB's expressions for the values of each record."""

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
        """True if records are text, which needs a parser."""
        return self.form not in ("bytes", "parquet")


def dialect(spec: Spec, header: tuple[str, ...], bucket_seconds: int) -> LineDialect:
    """The dialect of a batch's source."""
    others = spec.source.unparsed_columns
    columns = {name: kind for name, kind in spec.column_types().items() if name not in others}
    place = {name: f"f[{at}]" for at, name in enumerate(columns, start=1)}
    place |= {name: f"beside.{column(name)}" for name in others}
    kinds = spec.column_types().items()
    typed = {name: _cast(place[name], kind) for name, kind in kinds if is_compared(kind)}
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
        **windows.record_expressions(spec, typed),
    )


def identity(spec: Spec, place: Callable[[str], str]) -> str:
    """The id as text: one column's value, or a JSON array of several; null if a part is null."""
    kinds = spec.column_types()
    parts = [f"CAST({_cast(place(name), kinds[name])} AS VARCHAR)" for name in spec.record_id]
    if len(parts) < 2:
        return parts[0] if parts else "CAST(NULL AS VARCHAR)"
    nulls = " OR ".join(f"{part} IS NULL" for part in parts)
    return f"CASE WHEN {nulls} THEN NULL ELSE CAST(to_json([{', '.join(parts)}]) AS VARCHAR) END"


def content(spec: Spec, place: Callable[[str], str]) -> str:
    """A hash of a row's scalar values, the same for all formats. 0 for pipelines with windows."""
    kinds = {name: kind for name, kind in spec.column_types().items() if is_compared(kind)}
    if not kinds or spec.aggregate is not None:
        return "CAST(0 AS UBIGINT)"
    values = (_folder_value(spec, n, kind, _cast(place(n), kind)) for n, kind in kinds.items())
    return f"hash({', '.join(values)})"


def output_expression(spec: Spec, name: str) -> str:
    """The SQL for a column of the output. Formats without bytes have base64 instead."""
    kind = spec.column_types().get(name)
    if kind is None or kind.word != "binary":
        return column(name) if kind is None else _folder_value(spec, name, kind, column(name))
    stored = sink_format(spec.sink.format).code().read_back_type(kind.arrow())
    return f"from_base64({column(name)})" if stored != kind.arrow() else column(name)


def _folder_value(spec: Spec, name: str, kind: ColumnType, value: str) -> str:
    """A value. In a column of folders, null equals the empty text."""
    null_is_empty = name in spec.sink.folders and kind.word == "string" and spec.aggregate is None
    return f"COALESCE({value}, '')" if null_is_empty else value


def sift(dialect: LineDialect) -> tuple[str, dict[str, str]]:
    """The name of the statement that sifts the lines of a dialect, and its braces' values."""
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
        "quote": quote_text("\n" if dialect.csv.quote == NO_QUOTE else dialect.csv.quote),
        "delimiter": quote_text(dialect.csv.delimiter),
    }


def _sift_json(dialect: LineDialect, cut: set[str]) -> dict[str, str]:
    """The values of the braces of `sift_jsonl`. A column has one value, under any of its keys."""
    others, keys, values, good = dict(dialect.rules.names), [], [], []
    for name, kind in dialect.columns:
        names = (name, *others.get(name, ()))
        places = range(len(keys) + 1, len(keys) + 1 + len(names))
        keys += names
        values.append(f"COALESCE({', '.join(f'f[{at}]' for at in places)})")
        good += [_good_json(f"t[{at}]", f"f[{at}]", kind, name in cut) for at in places]
        if len(names) > 1:
            present = (f"CAST(COALESCE(t[{at}], 'NULL') <> 'NULL' AS INTEGER)" for at in places)
            good.append(f"{' + '.join(present)} <= 1")
    if dialect.rules.unknown is Unknown.QUARANTINE:
        good.append("len(k) = list_count(t)")
    return {
        "paths": f"[{', '.join(quote_text(_pointer(key)) for key in keys)}]",
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
    """A JSON pointer to a key; it allows any character."""
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
        # DuckDB parses a fraction as a double first, which loses digits of a decimal.
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
    tests = [f"regexp_matches({value}, {quote_text(pattern)})"] if pattern else []
    if test := _fits(value, kind, cut):
        tests.append(test)
    return f"({value} IS NULL OR ({' AND '.join(tests)}))" if tests else "true"


def _fits(value: str, kind: ColumnType, cut: bool) -> str:
    """The SQL test that a value's text certainly has this type. Empty if every text has it.

    `cut`: a time may have more digits than semel keeps.
    """
    cast = f"TRY_CAST({value} AS {TYPES.get(kind.word, '')})"
    match kind.word:
        case "string" | "boolean":
            return ""
        case "bigint" | "int" | "smallint":
            return f"{cast} IS NOT NULL"
        case "double":
            return f"isfinite({cast})"
        case "float":  # DuckDB could round a longer text twice.
            return f"(length({value}) <= 15 AND isfinite({cast}))"
        case "decimal":
            whole_digits, scale = min(kind.precision - kind.scale, 15), kind.scale
            digits = rf"^-?\d{{1,{whole_digits}}}" if whole_digits else r"^-?0"
            pattern = digits + (rf"(\.\d{{1,{scale}}})?$" if scale else "$")
            return f"(length({value}) <= 15 AND regexp_matches({value}, {quote_text(pattern)}))"
        case "date":
            form = rf"regexp_matches({value}, '^\d{{4}}-\d\d-\d\d$')"
            return f"({form} AND {value} >= '0001' AND {cast} IS NOT NULL)"
        case _:
            form = f"regexp_matches({value}, {quote_text(_LONG_TIME if cut else _TIME)})"
            return f"({form} AND {value} >= '0001' AND {cast} IS NOT NULL)"
