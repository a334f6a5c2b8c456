"""Reads a pipeline's YAML with the line of each key, for errors with their place."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin

import yaml

from semel.errors import SpecError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

SPEC_BYTES_MAX = 64 << 10
"""Longest pipeline file. A spec has some hundred lines; hostile YAML takes a second for 30 KB."""

SPEC_PROBLEMS_MAX = 100
"""Problems of one pipeline file that an error lists, so that a wrong file cannot fill a log."""

SPEC_DEPTH_MAX = 16
"""Deepest nesting of a pipeline file. Its reader recurses, and a spec needs three levels."""

Key = tuple[str | int, ...]

_WORD = re.compile("[a-z0-9_]+")
_PATTERN_RULES = {
    r"^[a-z][a-z0-9_]{0,62}$": "must begin with a lower-case letter, and contain only a-z, 0-9 and "
    "_ (63 characters at most), such as my_pipeline"
}
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_DOCUMENTS_KEPT = 512  # A task reads the name in each file several times, and parsing takes 4 ms.
_INT_BITS_MAX = 64  # Python cannot even print a number of some thousand digits.


@dataclass(frozen=True)
class Problem:
    """A fault of a document: the path of its key, and the reason."""

    key: Key
    why: str


class Problems(ValueError):
    """The problems of one validator. Their keys start at the validated value."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{key_of(p.key)}: {p.why}" for p in problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed file: its data, and the line (from 1) of each key by its path.

    `problems`: repeated keys and unreadable values. With problems the data MUST NOT be used.
    Callers MUST NOT change the parts, because the document is cached by its text.
    """

    path: Path
    data: dict[str, Any]
    lines: dict[Key, int]
    problems: list[Problem]

    def error(self, problems: Iterable[Problem]) -> SpecError:
        """A SpecError that lists the document's problems and these, in the order of lines."""
        keys = {p.key for p in self.problems}
        every = self.problems + [p for p in problems if p.key not in keys]
        placed = sorted((self.line(p.key), key_of(p.key), p.why) for p in every)
        lines = [_placed(self.path, *problem) for problem in placed[:SPEC_PROBLEMS_MAX]]
        if more := len(placed) - len(lines):
            lines.append(_placed(self.path, placed[-1][0], "(file)", f"{more} more problems"))
        return SpecError("\n".join(lines), next=validate(self.path))

    def line(self, key: Key) -> int:
        """The line of a key. If the key is missing, the line of its innermost parent."""
        while key not in self.lines and key:
            key = key[:-1]
        return self.lines.get(key, 1)


def key_of(key: Key) -> str:
    """The path of a key as text: `source.schema.carrier`, `record_id[2]`."""
    path = ""
    for part in key:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    # A key with a newline must not look like two messages.
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in path) or "(file)"


def read(path: Path) -> Document:
    """The document of a file. Raises SpecError, with file and line, if it is not a YAML mapping."""
    return _document(path, _text(path))


@lru_cache(maxsize=_DOCUMENTS_KEPT)
def _document(path: Path, text: str) -> Document:
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = error.problem or str(error)
        if "cannot start any token" in why:
            quotes = 'put quotes around the value, such as "@daily"'
            why += "; indent with spaces" if "\\t" in why else f"; {quotes}"
        raise _wrong(path, mark.line + 1 if mark else 1, "(yaml)", why) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        why = f"the character U+{error.character:04X} is not allowed in YAML"
        raise _wrong(path, line, "(yaml)", why) from error
    except (ValueError, OverflowError) as error:
        # PyYAML does not catch Python's errors about an escape or a version that is too large.
        raise _wrong(path, loader.line + 1, "(yaml)", str(error)) from error
    if not isinstance(root, yaml.MappingNode):
        why = "is not a mapping; a pipeline begins with `name: ...`"
        raise _wrong(path, 1, "(file)", why)
    data = loader.build(root, ())
    return Document(path=path, data=data, lines=loader.lines, problems=loader.problems)


def declared_name(path: Path) -> str:
    """The name that a file declares, or its stem if the file is unreadable. It is printable."""
    try:
        return _name(path, _text(path))
    except SpecError:
        return _printable(path.stem)


def declares(path: Path, name: str) -> bool:
    """True if `declared_name` of a file is `name`. Parses the file only if the name is in it."""
    try:
        text = _text(path)
    except SpecError:
        return _printable(path.stem) == name
    # Escapes are the only other way to write a word in YAML.
    may_have = "\\" in text or re.search(rf"\b{re.escape(name)}\b", text)
    if _WORD.fullmatch(name) and path.stem != name and not may_have:
        return False
    return _name(path, text) == name


def _name(path: Path, text: str) -> str:
    try:
        name = _document(path, text).data.get("name")
    except SpecError:
        name = None
    return name if isinstance(name, str) and name.isprintable() else _printable(path.stem)


def problems_of(error: "ValidationError", model: type["BaseModel"]) -> list[Problem]:
    """The errors of pydantic about an input of `model`, in words that a user can act on."""
    problems: list[Problem] = []
    for item in error.errors(include_url=False):
        key, part_of = _named(item["loc"], model)
        if item["type"].startswith("union_tag"):
            key += ("type",)
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            problems += [Problem(key + inner.key, inner.why) for inner in cause.problems]
        else:
            problems.append(Problem(key, _why(item, cause, part_of)))
    return problems


def _named(loc: Key, model: type["BaseModel"]) -> tuple[Key, type["BaseModel"]]:
    """The path of a key in the file, and the model that has the last key of the path.

    pydantic's path also has the value of a `type` that selects a model. In a list of texts or
    mappings it has the tag of an item's kind, in brackets.
    """
    parts, key, within = list(loc), [], model
    while parts:
        key.append(parts.pop(0))
        fields = within.model_fields.items() if within else ()
        field = next((f for name, f in fields if (f.alias or name) == key[-1]), None)
        if not parts or field is None:
            break
        within = _required(field.annotation)
        if get_origin(within) is dict:
            key.append(parts.pop(0))
            within = get_args(within)[1]
        if field.discriminator:
            tag = parts.pop(0)
            within = next(
                each
                for each in get_args(field.annotation)
                if tag in get_args(each.model_fields[field.discriminator].annotation)
            )
        if not hasattr(within, "model_fields"):
            within = next((m for m in _models(within) if f"[{m.__name__}]" in parts), within)
            if not hasattr(within, "model_fields"):
                break
            at = parts.index(f"[{within.__name__}]")
            key += parts[:at]
            parts = parts[at + 1 :]
    return tuple(part for part in (*key, *parts) if part not in ("[key]", "[text]")), within


def _required(kind: Any) -> Any:
    """The type without None."""
    parts = get_args(kind)
    others = [part for part in parts if part is not NoneType]
    return others[0] if len(others) == 1 < len(parts) else kind


def _models(kind: Any) -> Iterator[type["BaseModel"]]:
    """The models among the parts of a type."""
    if hasattr(kind, "model_fields"):
        yield kind
    for part in get_args(kind):
        yield from _models(part)


def _why(item: "ErrorDetails", cause: object, model: type["BaseModel"]) -> str:
    kind, value = item["type"], item.get("input")
    if kind == "extra_forbidden":
        return _unknown(item["loc"], model)
    if kind in ("missing", "union_tag_not_found"):
        return "is missing"
    if kind == "union_tag_invalid":
        return f"must be {item['ctx']['expected_tags']}, not {item['ctx']['tag']!r}"
    if kind == "string_pattern_mismatch":
        pattern = item["ctx"]["pattern"]
        return f"{value!r} {_PATTERN_RULES.get(pattern, f'does not match the pattern {pattern}')}"
    if kind == "tuple_type":
        return f"must be a list, such as [{value if isinstance(value, str) else '...'}]"
    if kind in ("dict_type", "model_type"):
        return "must be a mapping: keys with values, each on its own indented line"
    if isinstance(cause, ValueError):
        return str(cause)
    why = item["msg"].replace("Input should be", "must be")
    if isinstance(value, (dict, list)) or value is None:
        return f"{why}, not {'nothing' if value is None else 'a list or mapping'}"
    read = isinstance(value, bool) and kind == "string_type"
    hint = "; YAML reads it as a truth value, put it in quotes" if read else ""
    return f"{why}, not {value!r}{hint}"


def _unknown(loc: Key, model: type["BaseModel"]) -> str:
    keys = [field.alias or name for name, field in model.model_fields.items()]
    close = get_close_matches(str(loc[-1]), keys, n=1)
    hint = f"did you mean {close[0]}?" if close else f"the keys are {', '.join(keys)}"
    return f"is an unknown key; {hint}"


def validate(path: Path) -> str:
    """The command that checks a file."""
    return f"semel validate {shlex.quote(str(path))}"


def _wrong(path: Path, line: int, key: str, why: str) -> SpecError:
    return SpecError(_placed(path, line, key, why), next=validate(path))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(SPEC_BYTES_MAX + 1)
    except OSError as error:
        why = f"{_printable(path)}: cannot be read: {error.strerror}"
        raise SpecError(why, next=validate(path)) from error
    if len(raw) > SPEC_BYTES_MAX:
        why = f"{_printable(path)}: is larger than {SPEC_BYTES_MAX >> 10} KiB"
        raise SpecError(why, next=validate(path))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _wrong(path, line, "(yaml)", "is not valid UTF-8") from error


class _Loader(yaml.SafeLoader):
    """Loads plain data: keys are text as written and unique, and data is not larger than its text.

    `build` makes the data: PyYAML's constructor lacks the path of a key, and stops at one problem.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lines: dict[Key, int] = {}
        self.problems: list[Problem] = []
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        """Refuse syntax that makes a large document of a small file, before a recursion into it."""
        event, why = self.peek_event(), ""
        nests = isinstance(event, yaml.CollectionStartEvent)
        self.depth += nests
        if event.anchor:  # also an alias's
            why = "anchors and aliases (& and *) are not allowed; repeat the value, or quote it"
        elif getattr(event, "tag", None):
            why = f"the tag {event.tag} is not allowed; write the plain value, or quote it"
        elif self.depth > SPEC_DEPTH_MAX:
            why = f"nests deeper than {SPEC_DEPTH_MAX}"
        if why:
            raise yaml.composer.ComposerError(None, None, why, event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= nests
        return node

    def build(self, node: yaml.Node, key: Key) -> Any:
        self.lines.setdefault(key, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == "tag:yaml.org,2002:map":
            return self.mapping(node, key)
        if isinstance(node, yaml.SequenceNode) and node.tag == "tag:yaml.org,2002:seq":
            return [self.build(child, (*key, at)) for at, child in enumerate(node.value)]
        try:
            value = self.construct_object(node, deep=True)
        except (yaml.constructor.ConstructorError, ValueError, OverflowError) as error:
            why = getattr(error, "problem", None) or str(error)
            self.problems.append(Problem(key, f"cannot be read: {why}"))
            return None
        if isinstance(value, int) and value.bit_length() > _INT_BITS_MAX:
            why = f"cannot be read: a number of more than {_INT_BITS_MAX} bits"
            self.problems.append(Problem(key, why))
            return None
        if isinstance(value, str) and _UNSTORABLE.search(value):
            why = "has a NUL or half a surrogate pair, which the ledger cannot store"
            self.problems.append(Problem(key, why))
        return value

    def mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(key, f"line {line} has a key that is not text"))
                continue
            name = key_node.value
            if _UNSTORABLE.search(name):
                why = f"line {line} has a key with a NUL or half a surrogate pair"
                self.problems.append(Problem(key, why))
                continue
            if name in built:
                why = f"is there twice, first in line {self.lines[*key, name]}"
                self.lines[*key, name] = line
                self.problems.append(Problem((*key, name), why))
                continue
            self.lines[*key, name] = line
            built[name] = self.build(value_node, (*key, name))
        return built


def _placed(path: Path, line: int, key: str, why: str) -> str:
    return f"{_printable(path)}:{line}: {key}: {why}"


def _printable(path: str | os.PathLike[str]) -> str:
    """A path as printable text, even if its name is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
