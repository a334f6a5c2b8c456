"""Each removal of a guard finds the code that it takes out, before any control runs."""

import ast
import textwrap

import tree
from tiers import guards_cases

MODULES = {tree.module_of(path): path for path in tree.python_files("plugins/semel")}
REMOVALS = tree.ROOT / "tests" / "controls" / "removals.py"


def _source_of(target: str) -> str | None:
    """The text of `<module>:<name>` of the library, as inspect gives it; None: there is no such name."""
    module, _, path = target.partition(":")
    file = MODULES.get(f"semel.{module}")
    if file is None:
        return None
    node: ast.AST = tree.parsed(file)
    for part in path.split("."):
        inner = [child for child in ast.iter_child_nodes(node) if part in _names(child)]
        if not inner:
            return None
        node = inner[-1]
        if isinstance(node, ast.Import | ast.ImportFrom):
            break  # What an imported module has is its own.
    decorators = getattr(node, "decorator_list", [])
    first = min(each.lineno for each in (node, *decorators))
    lines = file.read_text(encoding="utf-8").splitlines()[first - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines))


def _names(node: ast.AST) -> list[str]:
    """The names that a statement binds."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Import() | ast.ImportFrom():
            return [(alias.asname or alias.name).split(".")[0] for alias in node.names]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def test_each_removal_finds_what_it_removes() -> None:
    """A function that is renamed or reworded takes its removal along: otherwise only a dear control
    notices, on the day that the seed draws it.
    """
    complaints, checked = [], 0
    for node in ast.walk(tree.parsed(REMOVALS)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
            continue
        first = node.args[0]
        if node.func.id not in ("code", "gives", "other") or not isinstance(first, ast.Constant):
            continue
        text = _source_of(first.value)
        if text is None:
            complaints.append(f"{node.lineno}: semel has no {first.value}")
        quoted = node.args[1:] if node.func.id == "code" else []
        for part in quoted:
            checked += isinstance(part, ast.Constant)
            if text and isinstance(part, ast.Constant) and part.value not in text:
                complaints.append(f"{node.lineno}: {first.value} does not say {part.value!r}")
    assert checked > 100
    assert not complaints, "\n".join(complaints)


def test_each_guard_names_tests_that_exist() -> None:
    """A test that is renamed takes its rows in the tables "Guards" along."""
    named = guards_cases()
    missing = [name for name in named if not _is_test(*name.partition("[")[0].split("::"))]
    assert named and not missing, missing


def _is_test(path: str, name: str) -> bool:
    file = tree.ROOT / path
    return file.is_file() and any(name in _names(node) for node in ast.walk(tree.parsed(file)))
