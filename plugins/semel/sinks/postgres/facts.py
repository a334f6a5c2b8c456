"""Inspect a target table and compare it with the output's columns. Runs once, in the driver."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from psycopg import sql

from semel.clients.sql import query
from semel.errors import TerminalError, UnavailableError
from semel.sinks.postgres import types, view
from semel.sinks.postgres.link import Connection, fill_query
from semel.sinks.postgres.predicate import parse
from semel.sinks.postgres.target import (
    BATCHES,
    BATCH_COLUMN,
    NAME_BYTES_MAX,
    SEQ_COLUMN,
    PostgresTarget,
)

VERSION_MIN = 140_000
COLUMNS_MAX = 1_600
_SYSTEM_COLUMNS = ("tableoid", "ctid", "xmin", "cmin", "xmax", "cmax")
_OWN_COLUMNS = (BATCH_COLUMN, SEQ_COLUMN)
_PROBLEMS_MAX = 10
_UNCHECKED = {
    "f": "the foreign key", "u": "the unique constraint", "p": "the primary key",
    "x": "the exclusion constraint", "t": "the trigger",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ColumnFacts:
    """A column that semel writes. `type` is PostgreSQL's type name without modifiers.

    `length` comes from varchar(n), `precision` and `scale` from numeric(p,s). None means no limit.
    """

    name: str
    type: str
    not_null: bool = False
    length: int | None = None
    precision: int | None = None
    scale: int | None = None


@dataclass(frozen=True, kw_only=True)
class CheckConstraint:
    """A CHECK constraint that stage can evaluate. `text`: see `predicate`."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """The facts by which a task finds values that the table will refuse. Picklable.

    `columns` has the output's columns in its order, `order` their names in the table's order.
    `row_bytes_max`: the size limit of a row in a page. `triggers` fire on inserts or updates.
    `notes` name, for an operator, the rules that stage cannot check, and a missing right.
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
    """Inspect the target. `schema`: the output's columns; None if they are not known yet.

    Raises TerminalError if the target does not fit, UnavailableError if it is read-only now.
    """
    schema_name, table = target.names
    server = connection.execute(
        query("postgres", "server").text,
        {"schema": schema_name, "table": table, "batches": BATCHES},
    ).fetchone()
    problems = _server_problems(target, server)
    _refuse(target, problems)
    if target.counting:
        view.check_names(connection, target)
    if schema is not None:
        _refuse(target, output_problems(target, schema))
    if server["oid"] is None:
        _refuse(target, _missing_table_problems(target, server, schema))
        return _planned_facts(target, schema or pa.schema([]), server["row_bytes_max"])
    columns = connection.execute(
        query("postgres", "columns").text, {"oid": server["oid"]}
    ).fetchall()
    by_name = {column["name"]: column for column in columns}
    problems = _kind_problems(target, server) + _own_column_problems(target, by_name)
    problems += _collation_problems(target, schema, by_name)
    has_key, of_key = _check_key(connection, target, server, by_name)
    problems += of_key
    if schema is not None:
        problems += _column_problems(target, schema, by_name) + _right_problems(
            target, server, by_name
        )
    _refuse(target, problems)
    rules = connection.execute(query("postgres", "rules").text, {"oid": server["oid"]}).fetchall()
    rewriting = [rule["name"] for rule in rules if rule["kind"] == "r"]
    if rewriting and target.key:
        name = _quoted(rewriting[0])
        _refuse(target, [f"its rule {name} rewrites inserts, and mode upsert does not support "
                         f"that; DROP RULE {name} ON {target.sql_name}"])  # fmt: skip
    triggers = tuple(f"{r['name']} of {r['text']}" for r in rules if r["kind"] == "t")
    if triggers and not all(by_name[name]["may_select"] for name in _OWN_COLUMNS):
        grant = f"GRANT SELECT ({', '.join(_OWN_COLUMNS)}) ON {target.sql_name}"
        problem = f"semel must count them after triggers ({', '.join(triggers)}); {grant}"
        _refuse(target, [f"the user may not count its rows, and {problem}"])
    names = schema.names if schema is not None else []
    # semel cannot compare texts under a nondeterministic collation.
    column_types = {n: by_name[n]["type"] if by_name[n]["deterministic"] else "" for n in names}
    checks, unchecked = _split_rules(target, rules, column_types)
    if server["kind"] == "p":
        unchecked.append("whether a partition accepts the row")
    notes = []
    if unchecked:
        notes.append(
            f"{target.sql_name} may still refuse rows after commit, because stage cannot check: "
            f"{', '.join(unchecked)}"
        )
    if not all(column["may_select"] for column in columns):
        notes.append(
            f"the user may not read {target.sql_name}, and `semel audit` needs that; "
            f"GRANT SELECT ON {target.sql_name}"
        )
    return TableFacts(
        table=target.sql_name,
        columns=tuple(_column_facts(by_name[name]) for name in names),
        order=tuple(name for name in by_name if name in names),
        row_bytes_max=server["row_bytes_max"],
        key=target.key,
        checks=checks,
        notes=tuple(notes),
        triggers=triggers,
        has_key=has_key,
    )


def _check_key(
    connection: Connection,
    target: PostgresTarget,
    server: dict[str, Any],
    columns: dict[str, dict[str, Any]],
) -> tuple[bool, list[str]]:
    """Returns whether a unique index over the key exists (or none is needed), and the problems."""
    if not target.key:
        return True, []
    oid = {"oid": server["oid"]}
    indexes = connection.execute(query("postgres", "unique_keys").text, oid).fetchall()
    deferred = [bool(i["deferred"]) for i in indexes if {*i["columns"]} == {*target.key}]
    problems = []
    if any(deferred):
        problems.append(
            f"its unique constraint over {list(target.key)} is deferrable, and ON CONFLICT does "
            "not support that; make it NOT DEFERRABLE"
        )
    elif not deferred and not target.create:
        make = f"CREATE UNIQUE INDEX ON {target.sql_name} ({_name_list(target.key)})"
        problems.append(f"it lacks a unique index over {list(target.key)}; {make}")
    elif not deferred and {*server["partitioned_by"]} - {*target.key}:
        by = ", ".join(server["partitioned_by"])
        problems.append(f"it is partitioned by {by}, and its unique index over "
                        f"{list(target.key)} must contain {by}; add it to sink.key")  # fmt: skip
    elif not deferred and not server["is_owner"]:
        make = f"CREATE UNIQUE INDEX ON {target.sql_name} ({_name_list(target.key)})"
        problems.append(
            f"it lacks a unique index over {list(target.key)}, and only its owner can create one; "
            f"{make}"
        )
    elif not deferred and all(columns.get(n, {}).get("may_select") for n in target.key):
        values = {"table": target.identifier, "key": sql.SQL(_name_list(target.key))}
        if connection.execute(fill_query("repeats", **values)).fetchone():
            problems.append(
                f"several of its rows share a key ({', '.join(target.key)}), so semel cannot "
                "create the unique index; keep one row of each key"
            )
    return bool(deferred), problems


def _collation_problems(
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
    """The CREATE TABLE for the output. The caller MUST have checked the columns."""
    lines = []
    for field in schema:
        kind = types.created_type(field.type, json=field.name in target.json_columns)
        lines.append(f"{_quoted(field.name)} {kind}")
    lines += [f"{name} bigint NOT NULL" for name in _OWN_COLUMNS]
    if target.key:
        lines.append(f"PRIMARY KEY ({_name_list(target.key)})")
    return f"CREATE TABLE {target.sql_name} ({', '.join(lines)})"


def _planned_facts(target: PostgresTarget, schema: pa.Schema, row_bytes_max: int) -> TableFacts:
    """The facts of the table that `create_statement` would create."""
    columns = []
    for field in schema:
        name = types.created_type(field.type, json=field.name in target.json_columns)
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
        table=target.sql_name, columns=tuple(columns), order=tuple(schema.names),
        row_bytes_max=row_bytes_max, key=target.key, exists=False,
    )  # fmt: skip


def _column_facts(column: dict[str, Any]) -> ColumnFacts:
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


def _server_problems(target: PostgresTarget, server: dict[str, Any]) -> list[str]:
    if server["read_only"]:
        raise UnavailableError(
            f"{target.address} accepts no writes now: it is a standby, or read-only. Run this "
            "again once it is promoted"
        )
    schema = _quoted(target.names[0])
    if server["version"] < VERSION_MIN:
        return [f"its PostgreSQL is older than {VERSION_MIN // 10_000}; upgrade it"]
    if server["encoding"] != "UTF8":
        return [f"its database has the encoding {server['encoding']}; use a UTF8 database"]
    if not server["has_schema"]:
        return [f"its schema does not exist; CREATE SCHEMA {schema}"]
    if not server["may_use"]:
        return [f"the user may not use its schema; GRANT USAGE ON SCHEMA {schema}"]
    if not server["has_batches"] and not server["may_create"]:
        return [f"the user may not create the table {BATCHES}; GRANT CREATE ON SCHEMA {schema}"]
    if server["has_batches"] and not server["may_note"]:
        batches = target.batches.as_string()
        return [f"the user may not write to {BATCHES}; GRANT SELECT, INSERT, UPDATE ON {batches}"]
    if target.key and not server["may_temp"]:
        return ["the user may not create temporary tables (mode upsert); GRANT TEMP ON DATABASE"]
    return []


def output_problems(target: PostgresTarget, schema: pa.Schema) -> list[str]:
    """Problems of the output's columns that any table would have."""
    problems = []
    if (count := len(schema) + len(_OWN_COLUMNS)) > COLUMNS_MAX:
        problems.append(f"the output and semel have {count:,} columns, and PostgreSQL's limit is "
                        f"{COLUMNS_MAX:,}; drop some, or nest them in a struct")  # fmt: skip
    for field in schema:
        if field.name in (*_OWN_COLUMNS, *_SYSTEM_COLUMNS):
            who = "semel" if field.name in _OWN_COLUMNS else "PostgreSQL"
            problems.append(f"the column name {field.name!r} is reserved for {who}; rename yours")
        elif not 0 < len(field.name.encode()) <= NAME_BYTES_MAX or "\0" in field.name:
            problems.append(f"the output's column {field.name!r} is not a valid name in PostgreSQL "
                            f"(1 to {NAME_BYTES_MAX} bytes); rename it")  # fmt: skip
        elif types.kind_of_column(field.type) is None:
            problems.append(f"no column can hold the output's {field.name!r} ({field.type}); cast "
                            "it in the transform")  # fmt: skip
    problems += [f"sink.key names {k!r}, which is not a column of the output; correct sink.key"
                 for k in target.key if k not in schema.names]  # fmt: skip
    for name in target.key:
        if name in schema.names and (kind := schema.field(name).type):
            if pa.types.is_floating(kind) or types.is_nested(kind) or name in target.json_columns:
                problems.append(f"the key column {name!r} is {kind}, and semel cannot compare such "
                                "values for equality; choose another for sink.key")  # fmt: skip
    return problems


def _missing_table_problems(
    target: PostgresTarget, server: dict[str, Any], schema: pa.Schema | None
) -> list[str]:
    if target.create and server["may_create"]:
        return []
    how = create_statement(target, schema) if schema is not None else "CREATE TABLE"
    if target.create:
        grant = f"GRANT CREATE ON SCHEMA {_quoted(target.names[0])}"
        return [f"it does not exist, and the user may not create it; {grant}, or {how}"]
    return [f"it does not exist, and sink.create is false; set it to true, or {how}"]


def _kind_problems(target: PostgresTarget, server: dict[str, Any]) -> list[str]:
    if server["kind"] not in ("r", "p"):
        return ["it is not a plain table (a view, or a foreign table or partition); name a table"]
    if server["row_security"]:
        return ["its row security applies to the user, and COPY does not support that; give the "
                "user BYPASSRLS, or name another table"]  # fmt: skip
    if name := server["unlogged"]:
        return [f"{name} is UNLOGGED: a server crash empties it; ALTER TABLE {name} SET "
                "LOGGED"]  # fmt: skip
    return []


def _own_column_problems(target: PostgresTarget, columns: dict[str, dict[str, Any]]) -> list[str]:
    lacking = [n for n in _OWN_COLUMNS if n not in columns or columns[n]["type"] != "bigint"]
    if not lacking:
        return [
            _generated_column_problem(target, columns[n])
            for n in _OWN_COLUMNS
            if columns[n]["ungenerate"]
        ]
    adds = ", ".join(f"ADD COLUMN {name} bigint" for name in lacking)
    how = f"ALTER TABLE {target.sql_name} {adds}"
    return [f"it lacks {' and '.join(lacking)} (bigint); {how}"]


def _generated_column_problem(target: PostgresTarget, column: dict[str, Any]) -> str:
    alter = f"ALTER TABLE {target.sql_name} ALTER COLUMN {_quoted(column['name'])}"
    return (f"its column {column['name']!r} is generated, and semel must write it; "
            f"{alter} {column['ungenerate']}")  # fmt: skip


def _column_problems(
    target: PostgresTarget, schema: pa.Schema, columns: dict[str, dict[str, Any]]
) -> list[str]:
    problems = []
    for field in schema:
        json = field.name in target.json_columns
        fitting, name = types.created_type(field.type, json=json), _quoted(field.name)
        column = columns.get(field.name)
        if column is None:
            add = f"ALTER TABLE {target.sql_name} ADD COLUMN {name} {fitting}"
            problems.append(f"it lacks the column {field.name!r}; {add}")
        elif column["ungenerate"]:
            problems.append(_generated_column_problem(target, column))
        elif not _can_hold(
            field, _column_facts(column), column["typmod"], takes := _fitting_types(target, field)
        ):
            change = f"ALTER TABLE {target.sql_name} ALTER COLUMN {name} TYPE {fitting}"
            if target.counting:  # The view uses the column; finalize creates the view again.
                change = f"DROP VIEW IF EXISTS {target.view.as_string()}; {change}"
            problems.append(
                f"its column {field.name!r} is {_full_type(column)}, and the output has "
                f"{field.type} (these fit: {', '.join(takes)}); {change} USING {name}::{fitting}"
            )
    written = {*schema.names, *_OWN_COLUMNS}
    for n, column in columns.items():
        if n not in written and column["not_null"] and not column["has_default"]:
            drop = f"ALTER TABLE {target.sql_name} ALTER COLUMN {_quoted(n)} DROP NOT NULL"
            problems.append(f"its column {n!r} is NOT NULL without a default, and the output "
                            f"lacks it; {drop}")  # fmt: skip
    return problems


def _right_problems(
    target: PostgresTarget, server: dict[str, Any], columns: dict[str, dict[str, Any]]
) -> list[str]:
    """The rights that the user lacks. LOCK TABLE needs write rights on the whole table."""
    problems = []
    for right in ("insert", "select", "update") if target.key else ("insert",):
        everywhere = all(column[f"may_{right}"] for column in columns.values())
        if everywhere if right == "select" else server[f"may_{right}"]:
            continue
        alone = right != "select" and any(column[f"may_{right}"] for column in columns.values())
        how = " except in some columns, and semel locks the whole table" if alone else ""
        grant = f"GRANT {right.upper()} ON {target.sql_name}"
        problems.append(f"the user may not {right.upper()}{how}; {grant}")
    return problems


def _full_type(column: dict[str, Any]) -> str:
    """A column's type with its modifiers."""
    facts = _column_facts(column)
    if facts.precision is not None:
        return f"numeric({facts.precision},{facts.scale})"
    return column["type"]


# Keeps PG5.
def _fitting_types(target: PostgresTarget, field: pa.Field) -> tuple[str, ...]:
    """The types that fit. Keys and partial rows use neither JSON type: different texts may be equal
    as jsonb, and json does not define equality.
    """
    takes = types.kind_of_column(field.type).takes
    if target.counting or field.name in target.key:
        return tuple(kind for kind in takes if kind not in types.JSON)
    return takes


def _can_hold(field: pa.Field, column: ColumnFacts, typmod: int, takes: tuple[str, ...]) -> bool:
    """Whether the column stores each value unchanged, unless the value is out of range."""
    if column.type not in takes:
        return False
    if column.type.startswith("timestamp"):
        return typmod in (-1, 6)
    if column.type == "numeric" and column.precision is not None:
        # A smaller scale would round silently.
        return column.scale >= (field.type.scale if pa.types.is_decimal(field.type) else 0)
    return True


def _split_rules(
    target: PostgresTarget, rules: list[dict[str, Any]], columns: dict[str, str]
) -> tuple[tuple[CheckConstraint, ...], list[str]]:
    """Returns the CHECK constraints that stage can evaluate, and the names of the other rules."""
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
            unchecked.append(f"the rule {name!r}, which COPY ignores")
        elif kind not in ("u", "p") or {*rule["columns"]} != {*target.key}:
            unchecked.append(f"{_UNCHECKED[kind]} {name!r}")
    return tuple(checks), unchecked


def _refuse(target: PostgresTarget, problems: list[str]) -> None:
    if problems:
        more = (
            f"; and {len(problems) - _PROBLEMS_MAX} more" if len(problems) > _PROBLEMS_MAX else ""
        )
        raise TerminalError(
            f"the table {target.address} does not fit: {'; '.join(problems[:_PROBLEMS_MAX])}{more}"
        )


def _quoted(name: str) -> str:
    return sql.Identifier(name).as_string()


def _name_list(names: tuple[str, ...]) -> str:
    return ", ".join(map(_quoted, names))
