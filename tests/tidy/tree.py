"""The project's files as the tidy tests see them."""

import ast
import gc
import re
from functools import cache
from pathlib import Path

from fixtures.checkout import ROOT, listed_paths

PACKAGE = ROOT / "plugins" / "semel"
QUERIES = ROOT / "sql" / "queries"


@cache
def project_files() -> tuple[Path, ...]:
    """All files that are or will be tracked: what .gitignore names is left out."""
    return tuple(path for path in listed_paths() if path.is_file())


def python_files(*folders: str) -> list[Path]:
    """The Python files below some folders of the project."""
    roots = [ROOT / folder for folder in folders]
    return [
        path
        for path in project_files()
        if path.suffix == ".py" and any(path.is_relative_to(root) for root in roots)
    ]


@cache
def parsed(path: Path) -> ast.Module:
    """A file's syntax tree. Each stays: to look for garbage in them takes longer than the parse."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    finally:
        gc.freeze()
        gc.enable()


def shown(path: Path) -> str:
    """A path as messages show it."""
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    """The dotted name of a file of the package: `semel.sources.files`."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def statements() -> dict[tuple[str, str], str]:
    """Every named statement: (file's stem, name) -> its text, comments left out."""
    found = {}
    for path in sorted(QUERIES.glob("*.sql")):
        for part in path.read_text(encoding="utf-8").split("-- name: ")[1:]:
            name, _, body = part.partition("\n")
            found[path.stem, name.strip()] = re.sub(r"--[^\n]*", "", body)
    return found


PROTOCOL = ROOT / "docs" / "protocol.md"

FILES = ROOT / "docs" / "files.md"
POSTGRES = ROOT / "docs" / "postgres.md"
KAFKA = ROOT / "docs" / "kafka.md"
CHAIN = ROOT / "docs" / "chain.md"
QUEUES = ROOT / "docs" / "queues.md"
OBJECTS = ROOT / "docs" / "objects.md"
DELTA = ROOT / "docs" / "delta.md"
BIGQUERY = ROOT / "docs" / "bigquery.md"
AGGREGATES = ROOT / "docs" / "aggregates.md"
PAGES = (PROTOCOL, FILES, CHAIN, POSTGRES, KAFKA, QUEUES, OBJECTS, DELTA, BIGQUERY, AGGREGATES)
"""What holds rules. Those of one source or sink have a page of their own, and later ones also two
letters.
"""

RULE = re.compile(r"\b(?:PG|RP|ER|KS|KP|CH|OB|DL|BQ|AG|AR|HI|[PSCFGALRDHQW])[1-9][0-9]?\b")


def rules() -> list[str]:
    """The ids in the order of the documents."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    return re.findall(r"^- \*\*([A-Z]+\d+)\*\* ", text, re.MULTILINE)
