"""Checks of a declaration's transforms: their files, and SQL, which is one query over `records`.

This module parses SQL without a JVM, so that `semel validate` and a DAG's file report its faults.
Spark reports those in columns, types and functions at stage.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from semel import settings

if TYPE_CHECKING:
    from sqlglot import Token, exp
    from sqlglot.errors import ParseError

SQL_BYTES_MAX = 64 << 10
"""Longest file of a SQL transform. Its parser takes 10 µs a byte."""

PATTERN = r"^[a-z_][a-z0-9_]*(:[a-z_][a-z0-9_]*|\.sql)$"
"""`module:function`, or the name of a SQL file."""

VIEW = "records"
"""The table that a SQL transform reads: the survivors, or the output of the transform before it."""

_BEGINNINGS = ("SELECT", "WITH", "FROM", "(")
_NAMES_TABLES = ("IDENTIFIER", "STREAM", "TABLE")  # Functions of a table's name.
_SHOWN_CHARS = 60
_QUOTED = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|--[^\n]*|/\*.*?\*/|(?P<open>['"`]|/\*)""",
    re.DOTALL,
)


def is_sql(name: str) -> bool:
    """True if a transform is a SQL file, and False if it is `module:function`."""
    return name.endswith(".sql")


def file_of(name: str) -> Path:
    """The file of a transform."""
    return settings.transforms_dir() / (name if is_sql(name) else f"{name.partition(':')[0]}.py")


def problems(name: str) -> Iterator[str]:
    """The faults of a transform's file on this machine."""
    path = file_of(name)
    # os.path, because Path.is_file raises if a name is too long.
    if not os.path.isfile(path):
        yield f"{name!r}: there is no file {path}"
    elif not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent)):
        yield f"{name!r}: {path} is a link to another folder; replace it by the file itself"
    elif is_sql(name):
        try:
            with path.open("rb") as file:
                data = file.read(SQL_BYTES_MAX + 1)
        except OSError as error:
            yield f"{name!r}: {path} cannot be read: {error.strerror}"
        else:
            yield from (f"{path}:{flaw}" for flaw in flaws(data))


# Keeps S25.
def flaws(data: bytes) -> list[str]:
    """The faults in the text of a SQL transform, each as `line:column: why`."""
    if len(data) > SQL_BYTES_MAX:
        return [f"1:1: is larger than {SQL_BYTES_MAX >> 10} KiB"]
    try:
        text = text_of(data)
    except UnicodeDecodeError as error:
        return [f"{1 + data[: error.start].count(10)}:1: is not valid UTF-8"]
    try:
        return [f"{_place(text, at)}: {why}" for at, why in _flaws(text)]
    except RecursionError:
        return ["1:1: is nested too deeply; move a part into a WITH clause"]


def text_of(data: bytes) -> str:
    """The text of a SQL file. Raises UnicodeDecodeError."""
    return data.decode("utf-8-sig")


def _flaws(text: str) -> list[tuple[int, str]]:
    """The faults of a SQL text, each with its place in it."""
    import sqlglot  # Slow to import, and most pipelines do without SQL.
    from sqlglot.errors import ParseError, TokenError

    try:
        tokens = sqlglot.tokenize(text, read="spark")
    except TokenError:
        opened = (match.start() for match in _QUOTED.finditer(text) if match["open"])
        return [(next(opened, 0), "a text, a quoted name or a comment begins here and never ends")]
    ended = [token.token_type is sqlglot.TokenType.SEMICOLON for token in tokens]
    size = ended.index(True) if True in ended else len(tokens)
    if not size:
        return [(0, f"is empty; write SELECT ... FROM {VIEW}")]
    if tokens[0].text.upper() not in _BEGINNINGS:
        why = f"{_printed(tokens[0].text)} does not begin a query; write one SELECT"
        return [(tokens[0].start, why)]
    if not all(ended[size:]):
        second = tokens[ended.index(False, size)]
        return [(second.start, "a second statement begins here; a transform is one query")]
    try:
        tree = sqlglot.parse(text, dialect="spark")[0]
    except ParseError as error:
        return [_unreadable(tokens, error)]
    return _foreign(tree)


def _foreign(tree: "exp.Expression") -> list[tuple[int, str]]:
    """The tables other than `records` that a parsed statement reads, as faults with their place."""
    from sqlglot import exp

    if not isinstance(tree, exp.Query):
        return [(0, f"is {tree.key.upper()}, not a query; write one SELECT")]
    faults, reads = [], False
    for table in tree.find_all(exp.Table):
        if table.find_ancestor(exp.Hint):
            continue
        plain = isinstance(table.this, exp.Identifier) and len(table.parts) == 1
        named = isinstance(table.this, exp.Anonymous) and table.this.name.upper() in _NAMES_TABLES
        function = isinstance(table.this, exp.Func) and not named
        if function or (plain and _is_cte(table)):
            continue
        if plain and table.name.lower() == VIEW:
            reads = True
            continue
        name = table.copy()
        name.set("alias", None)
        text = _printed(name.sql("spark"))
        why = f"reads the table {text}; a transform may read {VIEW} only"
        faults.append((_start(table), why))
    for call in tree.find_all(exp.Anonymous):
        if call.name.upper() == "TABLE":
            faults.append((_start(call), f"TABLE(...) is not allowed; write FROM {VIEW}"))
    if not faults and not reads:
        faults.append((0, f"does not read {VIEW}, so each batch would have the same rows"))
    return sorted(faults)


def _is_cte(table: "exp.Table") -> bool:
    """True if a table is a WITH clause in whose scope it is named."""
    from sqlglot import exp

    inside, node = None, table
    while node := node.parent:
        if isinstance(node, exp.CTE):
            inside = node
        head = node.args.get("with_")
        for cte in head.expressions if head else ():
            if cte is inside and not head.recursive:
                break  # Its scope has the clauses before it, and not itself.
            if cte.alias.lower() == table.name.lower():
                return True
            if cte is inside:
                break
    return False


def _start(node: "exp.Expression") -> int:
    """The place of the first name in a node, among those with a place in the parser."""
    places = (part.meta["start"] for part in node.walk() if "start" in part.meta)
    return min(places, default=0)


def _unreadable(tokens: "list[Token]", error: "ParseError") -> tuple[int, str]:
    """The place where the parser stopped. The parser identifies a token by the place of its end."""
    fault = error.errors[0]
    end = fault["line"], fault["col"]
    start = next((token.start for token in tokens if (token.line, token.col) == end), 0)
    why = fault["description"].partition(" but got <")[0].partition(" for <class")[0]
    why = "" if why.startswith("Invalid expression") else f": {_printed(why)}"
    return start, f"cannot be read at {_printed(fault['highlight'])}{why}"


def _printed(text: str) -> str:
    """Any text as one line of bounded length."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:_SHOWN_CHARS])


def _place(text: str, at: int) -> str:
    """A place in a text as line and column, both from 1."""
    above = text[:at].split("\n")
    return f"{len(above)}:{len(above[-1]) + 1}"
