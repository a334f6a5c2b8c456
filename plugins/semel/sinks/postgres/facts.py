"""What a target is like, held against the columns of the output: once, by the driver."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from psycopg import sql

from semel.clients.sql import query
from semel.errors import TerminalError, UnavailableError
from semel.sinks.postgres import types, view
from semel.sinks.postgres.link import Connection, filled
from semel.sinks.postgres.predicate import parse
from semel.sinks.postgres.target import (
    BATCH_COLUMN,
    BATCHES,
    NAME_BYTES_MAX,
    SEQ_COLUMN,
    PostgresTarget,
)

VERSION_MIN = 140_000
COLUMNS_MAX = 1_600
_SYSTEM = ("tableoid", "ctid", "xmin", "cmin", "xmax", "cmax")
_OWN = (BATCH_COLUMN, SEQ_COLUMN)
_SHOWN_MAX = 10
_UNCHECKED = {
    "f": "the foreign key", "u": "the unique constraint", "p": "the primary key",
    "x": "the exclusion constraint", "t": "the trigger",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ColumnFacts:
    """A column that rows are put into. `type` is PostgreSQL's name of it, without its modifiers.

    `length` is of varchar(n), `precision` and `scale` of numeric(p,s); None: as long as it wants.
    """

    name: str
    type: str
    not_null: bool = False
    length: int | None = None
    precision: int | None = None
    scale: int | None = None


@dataclass(frozen=True, kw_only=True)
class CheckConstraint:
    """A CHECK that can be judged here: its name, and what stands in its brackets."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """What a task must know to find values that the table will refuse. It can be pickled.

    `columns` are those of the output, in its order; `order`: their names in that of the table.
    `row_bytes_max`: of a row in a page. `triggers` act on what is put in. `notes` are sentences
    for an operator: what may refuse rows of a committed batch, and which right is missing.
    """

    table: str
    columns: tuple[ColumnFacts, ...]
    order: tuple[str, ...]
    row_bytes_max: int
    key: tuple[str, ...] = ()
    checks: tuple[CheckConstraint, ...] = ()
    notes: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    exists: bool = True
    has_key: bool = True


# Keeps PG4.
def examine(connection: Connection, target: PostgresTarget, schema: pa.Schema | None) -> TableFacts:
    """What is known of the target. TerminalError: it does not fit `schema` (None: unknown yet).

    UnavailableError: it takes no writes now.
    """
    schema_name, table = target.names
    server = connection.execute(
        query("postgres", "server").text,
        {"schema": schema_name, "table": table, "batches": BATCHES},
    ).fetchone()
    problems = _of_server(target, server)
    _raise(target, problems)
    if target.counting:
        view.check(connection, target)
    if schema is not None:
        _raise(target, of_output(target, schema))
    if server["oid"] is None:
        _raise(target, _of_missing(target, server, schema))
        return _planned(target, schema or pa.schema([]), server["row_bytes_max"])
    columns = connection.execute(
        query("postgres", "columns").text, {"oid": server["oid"]}
    ).fetchall()
    by_name = {column["name"]: column for column in columns}
    problems = _of_kind(target, server) + _of_own(target, by_name)
    problems += _of_collations(target, schema, by_name)
    has_key, of_key = _key(connection, target, server, by_name)
    problems += of_key
    if schema is not None:
        problems += _of_columns(target, schema, by_name) + _of_rights(target, server, by_name)
    _raise(target, problems)
    rules = connection.execute(query("postgres", "rules").text, {"oid": server["oid"]}).fetchall()
    rewriting = [rule["name"] for rule in rules if rule["kind"] == "r"]
    if rewriting and target.key:
        name = _quoted(rewriting[0])
        _raise(target, [f"its rule {name} rewrites what is put in, which mode upsert does not go "
                        f"with; DROP RULE {name} ON {target.shown}"])  # fmt: skip
    triggers = tuple(f"{r['name']} of {r['text']}" for r in rules if r["kind"] == "t")
    if triggers and not all(by_name[name]["may_select"] for name in _OWN):
        grant = f"GRANT SELECT ({', '.join(_OWN)}) ON {target.shown}"
        problem = f"rows are counted where triggers act ({', '.join(triggers)}); {grant}"
        _raise(target, [f"the user may not count its rows, and {problem}"])
    names = schema.names if schema is not None else []
    found = tuple(_facts(by_name[name]) for name in names)
    # What is equal under a collation that is not deterministic is not known here.
    known = {n: by_name[n]["type"] if by_name[n]["deterministic"] else "" for n in names}
    checks, unchecked = _rules(target, rules, known)
    if server["kind"] == "p":
        unchecked.append("which partition takes a row")
    notes = []
    if unchecked:
        notes.append(
            f"{target.shown} may still refuse rows once the batch has committed, for stage cannot "
            f"check: {', '.join(unchecked)}"
        )
    if not all(column["may_select"] for column in columns):
        notes.append(
            f"the user may not read {target.shown}, which `semel audit` needs; GRANT SELECT ON "
            f"{target.shown}"
        )
    return TableFacts(
        table=target.shown,
        columns=found,
        order=tuple(name for name in by_name if name in names),
        row_bytes_max=server["row_bytes_max"],
        key=target.key,
        checks=checks,
        notes=tuple(notes),
        triggers=triggers,
        has_key=has_key,
    )


def _key(
    connection: Connection,
    target: PostgresTarget,
    server: dict[str, Any],
    columns: dict[str, dict[str, Any]],
) -> tuple[bool, list[str]]:
    """Whether a unique index over the key is there or not needed, and what is wrong about it."""
    if not target.key:
        return True, []
    oid = {"oid": server["oid"]}
    found = connection.execute(query("postgres", "unique_keys").text, oid).fetchall()
    deferred = [bool(i["deferred"]) for i in found if {*i["columns"]} == {*target.key}]
    problems = []
    if any(deferred):
        problems.append(
            f"its unique constraint over {list(target.key)} is deferrable, which ON CONFLICT does "
            "not go with; make it NOT DEFERRABLE"
        )
    elif not deferred and not target.create:
        make = f"CREATE UNIQUE INDEX ON {target.shown} ({_list(target.key)})"
        problems.append(f"it has no unique index over {list(target.key)}; {make}")
    elif not deferred and {*server["partitioned_by"]} - {*target.key}:
        by = ", ".join(server["partitioned_by"])
        problems.append(f"it is partitioned by {by}, and a unique index over {list(target.key)} "
                        "would need all of that; add it to sink.key")  # fmt: skip
    elif not deferred and not server["is_owner"]:
        make = f"CREATE UNIQUE INDEX ON {target.shown} ({_list(target.key)})"
        problems.append(
            f"it has no unique index over {list(target.key)}, and its owner alone can make one; "
            f"{make}"
        )
    elif not deferred and all(columns.get(n, {}).get("may_select") for n in target.key):
        values = {"table": target.identifier, "key": sql.SQL(_list(target.key))}
        if connection.execute(filled("repeats", **values)).fetchone():
            problems.append(
                f"several of its rows have one key ({', '.join(target.key)}), so no unique index "
                "can be made over it; remove the others"
            )
    return bool(deferred), problems


def _of_collations(
    target: PostgresTarget, schema: pa.Schema | None, columns: dict[str, dict[str, Any]]
) -> list[str]:
    names = schema.names if target.counting and schema is not None else target.key
    return [
        f"its key column {name!r} treats different texts as equal; give it a deterministic "
        "collation"
        for name in names
        if name in columns and not columns[name]["deterministic"]
    ]


def create_statement(target: PostgresTarget, schema: pa.Schema) -> str:
    """The CREATE TABLE that fits the output. The caller has checked its columns."""
    lines = []
    for field in schema:
        kind = types.created(field.type, json=field.name in target.json_columns)
        lines.append(f"{_quoted(field.name)} {kind}")
    lines += [f"{name} bigint NOT NULL" for name in _OWN]
    if target.key:
        lines.append(f"PRIMARY KEY ({_list(target.key)})")
    return f"CREATE TABLE {target.shown} ({', '.join(lines)})"


def _planned(target: PostgresTarget, schema: pa.Schema, row_bytes_max: int) -> TableFacts:
    """The facts of the table that `create_statement` makes."""
    columns = []
    for field in schema:
        name = types.created(field.type, json=field.name in target.json_columns)
        numeric = name.startswith("numeric")
        columns.append(
            ColumnFacts(
                name=field.name,
                type="numeric" if numeric else name,
                not_null=field.name in target.key,
                precision=field.type.precision if numeric else None,
                scale=field.type.scale if numeric else None,
            )
        )
    return TableFacts(
        table=target.shown, columns=tuple(columns), order=tuple(schema.names),
        row_bytes_max=row_bytes_max, key=target.key, exists=False,
    )  # fmt: skip


def _facts(column: dict[str, Any]) -> ColumnFacts:
    name, typmod = column["type"], column["typmod"]
    length = precision = scale = None
    if typmod >= 0 and name == "character varying":
        length = typmod - 4
    if typmod >= 0 and name == "numeric":
        # A scale has 11 bits and a sign.
        precision, scale = (typmod - 4) >> 16, (((typmod - 4) & 0x7FF) ^ 1024) - 1024
    return ColumnFacts(
        name=column["name"], type=name, not_null=column["not_null"],
        length=length, precision=precision, scale=scale,
    )  # fmt: skip


def _of_server(target: PostgresTarget, server: dict[str, Any]) -> list[str]:
    if server["read_only"]:
        raise UnavailableError(
            f"{target.address} accepts no writes now: it is a standby, or read-only; run this "
            "again when it is promoted"
        )
    schema = _quoted(target.names[0])
    if server["version"] < VERSION_MIN:
        return [f"its PostgreSQL is older than {VERSION_MIN // 10_000}; upgrade it"]
    if server["encoding"] != "UTF8":
        return [f"its database has the encoding {server['encoding']}; make one with UTF8"]
    if not server["has_schema"]:
        return [f"its schema is not there; CREATE SCHEMA {schema}"]
    if not server["may_use"]:
        return [f"the user may not use its schema; GRANT USAGE ON SCHEMA {schema}"]
    if not server["has_batches"] and not server["may_create"]:
        return [
            f"the user may not make the table {BATCHES} beside it; GRANT CREATE ON SCHEMA {schema}"
        ]
    if server["has_batches"] and not server["may_note"]:
        batches = target.batches.as_string()
        return [f"the user may not write to {BATCHES}; GRANT SELECT, INSERT, UPDATE ON {batches}"]
    if target.key and not server["may_temp"]:
        return ["the user may make no temporary table, which upsert needs; GRANT TEMP ON DATABASE"]
    return []


def of_output(target: PostgresTarget, schema: pa.Schema) -> list[str]:
    """What is wrong with the output's own columns, whatever the table is like."""
    problems = []
    if (count := len(schema) + len(_OWN)) > COLUMNS_MAX:
        problems.append(f"the output and semel have {count:,} columns, and PostgreSQL takes "
                        f"{COLUMNS_MAX:,}; leave some out, or put them into a struct")  # fmt: skip
    for field in schema:
        if field.name in (*_OWN, *_SYSTEM):
            who = "semel" if field.name in _OWN else "PostgreSQL"
            problems.append(f"{who} itself writes the column {field.name!r}; name yours otherwise")
        elif not 0 < len(field.name.encode()) <= NAME_BYTES_MAX or "\0" in field.name:
            problems.append(f"the output's column {field.name!r} is not a valid name in PostgreSQL "
                            f"(1 to {NAME_BYTES_MAX} bytes); name it otherwise")  # fmt: skip
        elif types.held(field.type) is None:
            problems.append(f"no column can hold the output's {field.name!r} ({field.type}); cast "
                            "it in the transform")  # fmt: skip
    problems += [f"the output has no column {k!r}, which is in sink.key; name one that it has"
                 for k in target.key if k not in schema.names]  # fmt: skip
    for name in target.key:
        if name in schema.names and (kind := schema.field(name).type):
            if pa.types.is_floating(kind) or types.is_nested(kind) or name in target.json_columns:
                problems.append(f"the key column {name!r} is {kind}, whose values cannot "
                                "be compared for equality; choose others for sink.key")  # fmt: skip
    return problems


def _of_missing(
    target: PostgresTarget, server: dict[str, Any], schema: pa.Schema | None
) -> list[str]:
    if target.create and server["may_create"]:
        return []
    how = create_statement(target, schema) if schema is not None else "CREATE TABLE"
    if target.create:
        grant = f"GRANT CREATE ON SCHEMA {_quoted(target.names[0])}"
        return [f"it is not there, and the user may not make it; {grant}, or {how}"]
    return [f"it is not there, and sink.create is false; set it to true, or {how}"]


def _of_kind(target: PostgresTarget, server: dict[str, Any]) -> list[str]:
    if server["kind"] not in ("r", "p"):
        return ["it is no table (a view, or it or a part is of another database); name a table"]
    if server["row_security"]:
        return ["its row security counts for the user, which COPY does not support; give the "
                "user BYPASSRLS, or name another table"]  # fmt: skip
    if name := server["unlogged"]:
        return [f"{name} is UNLOGGED: a crash of its server empties it; ALTER TABLE {name} SET "
                "LOGGED"]  # fmt: skip
    return []


def _of_own(target: PostgresTarget, columns: dict[str, dict[str, Any]]) -> list[str]:
    lacking = [n for n in _OWN if n not in columns or columns[n]["type"] != "bigint"]
    if not lacking:
        return [_of_generated(target, columns[n]) for n in _OWN if columns[n]["ungenerate"]]
    adds = ", ".join(f"ADD COLUMN {name} bigint" for name in lacking)
    how = f"ALTER TABLE {target.shown} {adds}"
    return [f"it lacks {' and '.join(lacking)} (bigint); {how}"]


def _of_generated(target: PostgresTarget, column: dict[str, Any]) -> str:
    alter = f"ALTER TABLE {target.shown} ALTER COLUMN {_quoted(column['name'])}"
    return (f"its column {column['name']!r} is generated, and semel writes one of that name; "
            f"{alter} {column['ungenerate']}")  # fmt: skip


def _of_columns(
    target: PostgresTarget, schema: pa.Schema, columns: dict[str, dict[str, Any]]
) -> list[str]:
    problems = []
    for field in schema:
        json = field.name in target.json_columns
        made, name = types.created(field.type, json=json), _quoted(field.name)
        column = columns.get(field.name)
        if column is None:
            add = f"ALTER TABLE {target.shown} ADD COLUMN {name} {made}"
            problems.append(f"it lacks the column {field.name!r}; {add}")
        elif column["ungenerate"]:
            problems.append(_of_generated(target, column))
        elif not _holds(field, _facts(column), column["typmod"], takes := _takes(target, field)):
            change = f"ALTER TABLE {target.shown} ALTER COLUMN {name} TYPE {made}"
            if target.counting:  # The view has the column, and finalize makes the view again.
                change = f"DROP VIEW IF EXISTS {target.view.as_string()}; {change}"
            problems.append(
                f"its column {field.name!r} is {_shown(column)}, and the output's is {field.type} "
                f"(what fits: {', '.join(takes)}); {change} USING {name}::{made}"
            )
    there = {*schema.names, *_OWN}
    for n, column in columns.items():
        if n not in there and column["not_null"] and not column["has_default"]:
            drop = f"ALTER TABLE {target.shown} ALTER COLUMN {_quoted(n)} DROP NOT NULL"
            problems.append(f"its column {n!r} is NOT NULL without a default, and the output has "
                            f"none of that name; {drop}")  # fmt: skip
    return problems


def _of_rights(
    target: PostgresTarget, server: dict[str, Any], columns: dict[str, dict[str, Any]]
) -> list[str]:
    """Which rights the user lacks. Those to write MUST be to the whole table, which is locked."""
    problems = []
    for right in ("insert", "select", "update") if target.key else ("insert",):
        everywhere = all(column[f"may_{right}"] for column in columns.values())
        if everywhere if right == "select" else server[f"may_{right}"]:
            continue
        alone = right != "select" and any(column[f"may_{right}"] for column in columns.values())
        how = " but in some columns alone, which does not let it be locked" if alone else ""
        grant = f"GRANT {right.upper()} ON {target.shown}"
        problems.append(f"the user may not {right.upper()}{how}; {grant}")
    return problems


def _shown(column: dict[str, Any]) -> str:
    """A column's type with its modifiers."""
    facts = _facts(column)
    if facts.precision is not None:
        return f"numeric({facts.precision},{facts.scale})"
    return column["type"]


# Keeps PG5.
def _takes(target: PostgresTarget, field: pa.Field) -> tuple[str, ...]:
    """The types that fit. In jsonb different texts may be equal, and json has no equality: keys are
    in neither, and partial rows are all keys and numbers.
    """
    takes = types.held(field.type).takes
    if target.counting or field.name in target.key:
        return tuple(kind for kind in takes if kind not in types.JSON)
    return takes


def _holds(field: pa.Field, column: ColumnFacts, typmod: int, takes: tuple[str, ...]) -> bool:
    """Whether each value can go into the column unchanged, if it is not out of range."""
    if column.type not in takes:
        return False
    if column.type.startswith("timestamp"):
        return typmod in (-1, 6)
    if column.type == "numeric" and column.precision is not None:
        # It would be rounded without a word.
        return column.scale >= (field.type.scale if pa.types.is_decimal(field.type) else 0)
    return True


def _rules(
    target: PostgresTarget, rules: list[dict[str, Any]], columns: dict[str, str]
) -> tuple[tuple[CheckConstraint, ...], list[str]]:
    """The CHECKs that stage can check, and the names of what it cannot."""
    checks, unchecked = [], []
    for rule in rules:
        name, kind = rule["name"], rule["kind"]
        if rule["text"].endswith("NOT ENFORCED"):
            continue
        if kind == "c" and parse(rule["text"], columns):
            checks.append(CheckConstraint(name=name, text=rule["text"]))
        elif kind == "c":
            unchecked.append(f"the CHECK {name!r}")
        elif kind == "r":
            unchecked.append(f"the rule {name!r}, which COPY passes over")
        elif kind not in ("u", "p") or {*rule["columns"]} != {*target.key}:
            unchecked.append(f"{_UNCHECKED[kind]} {name!r}")
    return tuple(checks), unchecked


def _raise(target: PostgresTarget, problems: list[str]) -> None:
    if problems:
        more = f"; and {len(problems) - _SHOWN_MAX} more" if len(problems) > _SHOWN_MAX else ""
        raise TerminalError(
            f"the table {target.address} does not fit: {'; '.join(problems[:_SHOWN_MAX])}{more}"
        )


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(map(_quoted, names))
