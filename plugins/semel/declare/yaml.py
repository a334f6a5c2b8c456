"""Reading a pipeline's YAML with the line of every key, and errors that say where they are."""

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
"""Longest pipeline file. A spec has some hundred lines; hostile YAML is parsed at 30 KB/s."""

SPEC_PROBLEMS_MAX = 100
"""Problems of one pipeline file that are listed, so that a wrong file cannot fill a log."""

SPEC_DEPTH_MAX = 16
"""Deepest nesting of a pipeline file: its reader recurses, and a spec needs three levels."""

Key = tuple[str | int, ...]

_WORD = re.compile("[a-z0-9_]+")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_DOCUMENTS_KEPT = 512  # A task asks each file of a folder for its name several times: 4 ms each.
_INT_BITS_MAX = 64  # Python cannot even print a number of some thousand digits.


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: the key's path in the document, and why."""

    key: Key
    why: str


class Problems(ValueError):
    """Several problems that one validator found; their keys start at the validated value."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{key_of(p.key)}: {p.why}" for p in problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed file: its data, the line (from 1) of each key by its path, and what YAML hides.

    `problems` are repeated keys and values that cannot be read; the data is then not to be used.
    Nobody may change its parts: who reads the same text again gets the same document.
    """

    path: Path
    data: dict[str, Any]
    lines: dict[Key, int]
    problems: list[Problem]

    def error(self, problems: Iterable[Problem]) -> SpecError:
        """One SpecError of these problems and the document's own, in the order of their lines."""
        own = {p.key for p in self.problems}
        every = self.problems + [p for p in problems if p.key not in own]
        placed = sorted((self.line(p.key), key_of(p.key), p.why) for p in every)
        shown = [_placed(self.path, *one) for one in placed[:SPEC_PROBLEMS_MAX]]
        if more := len(placed) - len(shown):
            shown.append(_placed(self.path, placed[-1][0], "(file)", f"{more} more problems"))
        return SpecError("\n".join(shown), next=validate(self.path))

    def line(self, key: Key) -> int:
        """The line of the key, or of the nearest key around it when it is missing."""
        while key not in self.lines and key:
            key = key[:-1]
        return self.lines.get(key, 1)


def key_of(key: Key) -> str:
    """A key's path as people write it: `source.schema.carrier`, `record_id[2]`."""
    shown = ""
    for part in key:
        shown += f"[{part}]" if isinstance(part, int) else f".{part}" if shown else str(part)
    # A key that holds a newline must not look like two messages.
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in shown) or "(file)"


def read(path: Path) -> Document:
    """The document of one file. SpecError with file and line when it is not a mapping in YAML."""
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
        # PyYAML passes on what Python says of an escape or a version too large.
        raise _wrong(path, loader.line + 1, "(yaml)", str(error)) from error
    if not isinstance(root, yaml.MappingNode):
        why = "is not a mapping; a pipeline begins with `name: ...`"
        raise _wrong(path, 1, "(file)", why)
    data = loader.build(root, ())
    return Document(path=path, data=data, lines=loader.lines, problems=loader.problems)


def declared_name(path: Path) -> str:
    """The name that a file declares, or its stem when the file cannot say; it can be printed."""
    try:
        return _name(path, _text(path))
    except SpecError:
        return _shown(path.stem)


def declares(path: Path, name: str) -> bool:
    """Whether `declared_name` of a file is `name`. Parses the file only if its text may say so."""
    try:
        text = _text(path)
    except SpecError:
        return _shown(path.stem) == name
    # YAML can write a word in one other way: with escapes.
    may_say = "\\" in text or re.search(rf"\b{re.escape(name)}\b", text)
    if _WORD.fullmatch(name) and path.stem != name and not may_say:
        return False
    return _name(path, text) == name


def _name(path: Path, text: str) -> str:
    try:
        name = _document(path, text).data.get("name")
    except SpecError:
        name = None
    return name if isinstance(name, str) and name.isprintable() else _shown(path.stem)


def problems_of(error: "ValidationError", model: type["BaseModel"]) -> list[Problem]:
    """What pydantic found in the input of `model`, in words that a person can act on."""
    found: list[Problem] = []
    for item in error.errors(include_url=False):
        key, part_of = _named(item["loc"], model)
        if item["type"].startswith("union_tag"):
            key += ("type",)
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            found += [Problem(key + inner.key, inner.why) for inner in cause.problems]
        else:
            found.append(Problem(key, _why(item, cause, part_of)))
    return found


def _named(loc: Key, model: type["BaseModel"]) -> tuple[Key, type["BaseModel"]]:
    """A place as the file names it, and the model that its last part is a key of.

    Where a `type` chooses among models, pydantic's place names the chosen type too; and of a list
    whose items are texts or mappings, the tag of the item's kind, in brackets.
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
                one
                for one in get_args(field.annotation)
                if tag in get_args(one.model_fields[field.discriminator].annotation)
            )
        if not hasattr(within, "model_fields"):
            within = next((one for one in _models(within) if f"[{one.__name__}]" in parts), within)
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
    """The models that a type is made of."""
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
        return f"{value!r} does not match the pattern {item['ctx']['pattern']}"
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
    known = [field.alias or name for name, field in model.model_fields.items()]
    close = get_close_matches(str(loc[-1]), known, n=1)
    told = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
    return f"is an unknown key; {told}"


def validate(path: Path) -> str:
    """The command that checks a file, as it is typed."""
    return f"semel validate {shlex.quote(str(path))}"


def _wrong(path: Path, line: int, key: str, why: str) -> SpecError:
    return SpecError(_placed(path, line, key, why), next=validate(path))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(SPEC_BYTES_MAX + 1)
    except OSError as error:
        why = f"{_shown(path)}: cannot be read: {error.strerror}"
        raise SpecError(why, next=validate(path)) from error
    if len(raw) > SPEC_BYTES_MAX:
        why = f"{_shown(path)}: is larger than {SPEC_BYTES_MAX >> 10} KiB"
        raise SpecError(why, next=validate(path))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _wrong(path, line, "(yaml)", "is not valid UTF-8") from error


class _Loader(yaml.SafeLoader):
    """Plain data: keys are text as written, none comes twice, and nothing is larger than its text.

    `build` makes the data; PyYAML's own way to it knows neither the path of a key nor two problems.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lines: dict[Key, int] = {}
        self.problems: list[Problem] = []
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        """Refuse what makes a small file a large document, before anything recurses into it."""
        event, why = self.peek_event(), ""
        nests = isinstance(event, yaml.CollectionStartEvent)
        self.depth += nests
        if event.anchor:  # also an alias's
            why = "anchors and aliases (& and *) are not read; write the value out, or quote it"
        elif getattr(event, "tag", None):
            why = f"the tag {event.tag} is not read; write the plain value, or quote it"
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
            why = "holds a NUL or half a surrogate pair, which the ledger cannot store"
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
    return f"{_shown(path)}:{line}: {key}: {why}"


def _shown(path: str | os.PathLike[str]) -> str:
    """A path as text that can be printed, also when its name is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
