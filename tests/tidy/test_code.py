"""The house rules that a machine can check: errors, SQL, imports, names."""

import ast
import builtins
import re
import symtable
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tree
from semel.sinks import spec as sinks
from semel.sources import spec as sources

LINE_CHARS_MAX = 100

CODE = tree.python_files("plugins", "spark_jobs", "dags", "sql", "benchmarks")
PACKAGE = tree.python_files("plugins/semel", "plugins/semel_local")
MODULES = {tree.module_of(path) for path in PACKAGE}
PACKAGES = {"semel", "semel_local"}

OUTER = {"airflow", "spark", "cli", "commands"}
"""Rooms that may import Airflow and Spark in their functions; at their tops only the first two."""

_SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|WITH|MERGE)\s[\s\S]*")


def told(complaints: list[str]) -> str:
    """All of them, so that one run shows all there is to fix."""
    return f"{len(complaints)} to fix:\n" + "\n".join(complaints)


def test_no_error_is_swallowed() -> None:
    """No bare except; who catches everything raises again or tells what it caught."""
    complaints = []
    for path in CODE:
        for node in ast.walk(tree.parsed(path)):
            why = _swallows(node)
            if why:
                complaints.append(f"{tree.shown(path)}:{node.lineno}: {why}")
    assert not complaints, told(complaints)


def _swallows(node: ast.AST) -> str | None:
    wide = {"Exception", "BaseException"}
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
        caught = {ast.unparse(argument) for argument in node.args}
        return "suppress what you expect, not everything" if caught & wide else None
    if not isinstance(node, ast.ExceptHandler):
        return None
    if node.type is None:
        return "name the error that you expect"
    if not wide & set(_names(node.type)):
        return None
    told = node.name and node.name in _names(*node.body)
    raised = any(isinstance(n, ast.Raise) for part in node.body for n in ast.walk(part))
    return None if told or raised else "raise it, or say what was caught"


def _names(*nodes: ast.AST) -> list[str]:
    return [n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)]


def test_sql_lies_in_sql_files() -> None:
    """Python holds no SQL longer than a line. The audit's engine is DuckDB, and has its own."""
    complaints = []
    for path in PACKAGE:
        if path.is_relative_to(tree.PACKAGE / "audit"):
            continue
        for node in ast.walk(tree.parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                long = node.end_lineno > node.lineno or len(node.value) > LINE_CHARS_MAX
                if long and _SQL.fullmatch(node.value):
                    complaints.append(f"{tree.shown(path)}:{node.lineno}: move it to sql/queries/")
    assert not complaints, told(complaints)


@cache
def imports(path: Path, *, lazy: bool, types: bool = False) -> list[tuple[int, str]]:
    """What a module imports: line and dotted name. `lazy`: also what functions import; `types`:
    and what is imported for annotations alone.
    """
    found: list[tuple[int, str]] = []
    todo: list[ast.AST] = [tree.parsed(path)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not types:
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found += ((node.lineno, _imported(node.module or "", n.name)) for n in node.names)
    return found


def _imported(module: str, name: str) -> str:
    """The module that `from module import name` imports."""
    inner = f"{module}.{name}"
    return inner if inner in MODULES or module in PACKAGES else module


def room(module: str) -> str:
    """The folder of the package that a module is in, or its own name where it is in none."""
    return (module.split(".") + [""])[1]


def arrows(place: Callable[[str], str]) -> dict[str, set[str]]:
    """Which places each place imports, in functions and under TYPE_CHECKING too."""
    found: dict[str, set[str]] = {place(name): set() for name in MODULES - PACKAGES}
    for path in PACKAGE:
        if own := place(tree.module_of(path)):
            names = {place(name) for _, name in imports(path, lazy=True, types=True)}
            found.setdefault(own, set()).update((names & found.keys()) - {own})
    return found


@pytest.mark.parametrize("place", [room, str], ids=["rooms", "modules"])
def test_nothing_reaches_itself(place: Callable[[str], str]) -> None:
    """Imports lead one way: who imports a room, or a module, is not imported by it in turn."""
    try:
        TopologicalSorter(arrows(place)).prepare()
    except CycleError as found:
        way = " <- ".join(found.args[1])
        pytest.fail(f"{way}: hand the value in, or move what is shared below both")


KINDS = {*sources.KINDS, *sinks.KINDS}
_OF_KINDS = {kind.__name__ for kind in (*sources.declarations(), *sinks.declarations())}
_OWN_ROOMS = ("sources", "sinks", "clients", "storage", "stack", "demo", "infer")


def _knows_a_kind(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module=str(module)):
            return bool(re.match(rf"semel\.(sources|sinks|clients)\.({'|'.join(KINDS)})\b", module))
        case ast.Compare():
            text = ast.unparse(node)
            return bool(re.search(r"type\b", text)) and any(f"'{kind}'" in text for kind in KINDS)
        case ast.Name(id=name):
            return name in _OF_KINDS
    return False


def test_a_kind_is_known_in_its_room() -> None:
    """Nobody else asks which kind of source or sink there is: the kind's declaration answers."""
    complaints = [
        f"{tree.shown(path)}:{node.lineno}: let the kind's declaration answer"
        for path in PACKAGE
        if room(tree.module_of(path)) not in _OWN_ROOMS
        for node in ast.walk(tree.parsed(path))
        if _knows_a_kind(node)
    ]
    assert not complaints, "\n".join(complaints)


_JUDGES = r"semel\.(audit|sources\.reread|sources\.\w+\.audit)\b"
_SHARED = (
    r"semel\.sources(\.spec|\.messages|\.\w+\.spec|\.files\.claims|\.pipeline\.(published|places))?"  # Declarations; what a claim says.
    r"|semel\.formats\.(output|pieces|table)"  # How semel's own files are read.
)


def test_the_audit_shares_no_reader() -> None:
    """What reads records again for the audit imports nothing of how they are read for a batch."""
    complaints = [
        f"{tree.shown(path)}:{line}: {name} reads records for stage; the audit reads by itself"
        for path in PACKAGE
        if re.match(_JUDGES, tree.module_of(path))
        for line, name in imports(path, lazy=True, types=True)
        if re.match(r"semel\.(sources|formats|stage|spark|catalog|ledger)\b", name)
        if not re.match(_JUDGES, name) and not re.fullmatch(_SHARED, name)
    ]
    assert not complaints, told(complaints)


def test_the_rooms_are_drawn() -> None:
    """docs/architecture.md names each room of the package, and no other."""
    text = (tree.ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"[a-z]+", text.split("```")[1]))
    rooms = arrows(room).keys() - {"__main__"}
    assert not (lacking := rooms - drawn), lacking


def test_a_name_of_a_package_is_its_module() -> None:
    """What a package imports under a name that one of its modules has is that module."""
    modules = {tree.module_of(path) for path in PACKAGE}
    complaints = [
        f"{tree.shown(path)}:{node.lineno}: {own}.{alias.name} is a module; import that"
        for path in PACKAGE
        if path.name == "__init__.py"
        for own in [tree.module_of(path)]
        for node in tree.parsed(path).body
        if isinstance(node, ast.ImportFrom) and node.module != own
        for alias in node.names
        if f"{own}.{alias.asname or alias.name}" in modules
    ]
    assert not complaints, told(complaints)


def test_the_library_knows_nothing_of_the_local_stack() -> None:
    """Whoever has an own Airflow installs semel alone: nothing in it imports `semel_local`."""
    complaints = [
        f"{tree.shown(path)}:{line}: {name}; use semel.settings"
        for path in tree.python_files("plugins/semel")
        for line, name in imports(path, lazy=True)
        if name.split(".")[0] == "semel_local"
    ]
    assert not complaints, told(complaints)


def test_the_core_needs_neither_airflow_nor_spark() -> None:
    """Only semel/airflow and semel/spark import them; other outer parts do when called."""
    complaints = []
    for path in PACKAGE:
        own = tree.module_of(path)
        if room(own) in ("airflow", "spark") or own == "semel_local.stack.executor":
            continue
        for line, name in imports(path, lazy=room(own) not in OUTER):
            if name.split(".")[0] in ("airflow", "pyspark"):
                why = f"move what needs {name} to semel/airflow or semel/spark"
                complaints.append(f"{tree.shown(path)}:{line}: {why}")
    assert not complaints, told(complaints)


def test_openlineage_is_imported_where_it_asks() -> None:
    """Without the provider all is as before: no other module imports what needs it at its top."""
    complaints = [
        f"{tree.shown(path)}: import it in the function that needs it"
        for path in PACKAGE
        if tree.module_of(path) != "semel.airflow.lineage"
        for _, name in imports(path, lazy=False)
        if name == "semel.airflow.lineage" or "openlineage" in name
    ]
    assert not complaints, told(complaints)


def test_the_stack_s_workers_have_what_its_tasks_import() -> None:
    """No task of the local stack imports a module of semel's that its worker has not imported."""
    paths = {tree.module_of(path): path for path in PACKAGE}
    known = next(
        ast.literal_eval(node.value)
        for node in tree.parsed(paths["semel_local.stack.executor"]).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PRELOADED"
    )

    def reach(names: set[str]) -> set[str]:
        found, todo = set(), names & paths.keys()
        while todo:
            found |= todo
            todo = {n for one in todo for _, n in imports(paths[one], lazy=False)} & paths.keys()
            todo -= found
        return found

    there = reach(set(known))
    tasks = [name for name in reach({"semel.airflow.factory"}) if name.startswith("semel.airflow.")]
    # Lineage: Airflow's OpenLineage provider asks for it, where it is installed.
    late = paths.keys() - there - {"semel.airflow.lineage"}
    complaints = [
        f"{tree.shown(paths[own])}:{line}: PRELOADED lacks {name}"
        for own in (*tasks, "semel.airflow.spark")
        for line, name in imports(paths[own], lazy=True)
        if name in late
    ]
    assert not complaints, told(complaints)


def test_duckdb_is_opened_in_one_place() -> None:
    """One that is opened elsewhere prints its progress into the answers of `--json`."""
    opened = [
        str(path.relative_to(tree.ROOT))
        for path in tree.python_files("plugins")
        if "duckdb.connect(" in path.read_text(encoding="utf-8")
    ]
    assert opened == ["plugins/semel/clients/duck.py"]


def test_dags_hold_no_logic() -> None:
    """A file in dags/ names what it takes from the package, and nothing else."""
    logic = ast.FunctionDef | ast.ClassDef | ast.For | ast.If | ast.Try
    for path in tree.python_files("dags"):
        found = [node for node in ast.walk(tree.parsed(path)) if isinstance(node, logic)]
        assert not found, f"{tree.shown(path)}: move its logic to semel/airflow"


def test_nothing_shadows_the_standard_library() -> None:
    """plugins/ and spark_jobs/ stand first on sys.path: a queue.py there would be everybody's."""
    there = [p for folder in ("plugins", "spark_jobs") for p in (tree.ROOT / folder).iterdir()]
    for path in there:
        taken = path.stem in sys.stdlib_module_names
        assert not taken, f"{tree.shown(path)}: rename it, the standard library has that name"


def test_airflow_leaves_the_package_alone() -> None:
    """Airflow's plugin loader runs every file below plugins/ that .airflowignore does not name."""
    ignored = (tree.ROOT / "plugins" / ".airflowignore").read_text(encoding="utf-8").split()
    for package in PACKAGES:
        assert f"{package}/" in ignored, f"plugins/.airflowignore: add the line `{package}/`"


def names_of(path: Path) -> set[str]:
    """What a module makes or imports at its top, also under a condition."""
    found: set[str] = set()
    todo: list[ast.AST] = [tree.parsed(path)]
    while todo:
        for node in ast.iter_child_nodes(todo.pop()):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
                continue
            if isinstance(node, ast.Import | ast.ImportFrom):
                found |= {alias.asname or alias.name for alias in node.names}
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            todo.append(node)
    return found


def undefined(path: Path) -> Iterator[str]:
    """Each name that a module uses and neither it nor Python has, with the function that does."""
    top = symtable.symtable(path.read_text(encoding="utf-8"), str(path), "exec")
    tables = [top]
    for table in tables:
        tables += table.get_children()
    known = {*vars(builtins), "__file__"}
    for table in tables:
        made = (s for s in table.get_symbols() if table is top or s.is_declared_global())
        known |= {s.get_name() for s in made if s.is_assigned() or s.is_imported()}
    for table in tables:
        for symbol in table.get_symbols():
            used = symbol.is_referenced() and symbol.is_global()
            if used and symbol.get_name() not in known:
                yield f"{table.get_name()} in line {table.get_lineno()}: {symbol.get_name()}"


def test_each_name_is_defined() -> None:
    """Also in a line that only a failure reaches: Python itself looks when it runs there."""
    complaints = [
        f"{tree.shown(path)}: nothing defines what is used by {what}"
        for path in [*CODE, *tree.python_files("tests")]
        for what in undefined(path)
    ]
    assert not complaints, told(complaints)


def test_what_is_imported_is_there() -> None:
    """Also what only a function imports, when it runs, is a name or a module of semel's."""
    modules = {tree.module_of(path): path for path in PACKAGE}
    complaints = []
    for path in [*CODE, *tree.python_files("tests")]:
        for node in ast.walk(tree.parsed(path)):
            if not isinstance(node, ast.ImportFrom) or node.module not in modules:
                continue
            there = names_of(modules[node.module])
            complaints += [
                f"{tree.shown(path)}:{node.lineno}: {node.module} has no {alias.name}"
                for alias in node.names
                if alias.name not in there and f"{node.module}.{alias.name}" not in modules
            ]
    assert not complaints, told(complaints)


def test_a_class_name_stands_once() -> None:
    """A reader who meets a class in a message or a trace knows which one it is."""
    places: dict[str, list[str]] = {}
    for path in PACKAGE:
        for node in ast.walk(tree.parsed(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{tree.shown(path)}:{node.lineno}")
    complaints = [f"{name}: {', '.join(at)}" for name, at in places.items() if len(at) > 1]
    assert not complaints, told(complaints)
