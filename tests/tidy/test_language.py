"""The language of the library: sentences with an actor, names that are nouns and verbs.

Sentences are those of docstrings, comments, and texts of three words or more (messages, help, log
lines). A habit of language has a limit per 10,000 words, below which it is a writer's choice.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import tree

CODE = tree.python_files("plugins/semel", "plugins/semel_local")

LONG_WORDS = 30
LONG_PERCENT_MAX = 1.0
VAGUE_PERCENT_MAX = 1.0

_NOT_PROSE = re.compile(r"\b(SELECT|INSERT|UPDATE|CREATE|FROM)\b")
_BE = "is|are|was|were|be|been|being"
_IRREGULAR = (
    "found|made|kept|read|written|taken|given|left|lost|put|held|told|said|known|seen|begun|done|"
    "gone|set"
)


@dataclass(frozen=True)
class Habit:
    """A habit of language: how to find it, how often per 10,000 words, and what to write instead."""

    pattern: str
    limit: float
    advice: str


HABITS = {
    "headless": Habit(
        r"(?:^|[.;:!?] |\n)(What|Who|Whoever|Whatever|Whose|Of)\b(?![^.?!]*\?)",
        0,
        'begin with the actor or the thing: "What is lost" is "Lost records"',
    ),
    "told": Habit(r"\b(told|tells?)\b", 0, "write reports, prints, shows or returns"),
    "asked": Habit(
        r"\b(is|are|was|were|be) (said|asked|told|held against|taken for|looked at)\b",
        0,
        "write queries, compares with or treats as, with the actor as the subject",
    ),
    "none": Habit(r"\b(is|are|has|have|was) none\b", 0, 'write "is not a" or "lacks a"'),
    "anew": Habit(r"\banew\b(?!`)", 0, "write again"),
    "but for": Habit(r"\bbut for\b", 0, "write except"),
    "no as object": Habit(
        r"\b(takes?|names?|holds?|makes?|knows?|has|have|says?|needs?) no(thing)?\b",
        5,
        'write "does not take", "lacks a" or "without a"; "has no space" is English',
    ),
    "of which": Habit(
        r"\bof (which|whom|it|them|those|these)\b", 4, "write its, their, or the noun"
    ),
    "somebody": Habit(r"\b(another's|somebody|nobody)\b", 1, "name the actor"),
    "passive": Habit(
        rf"\b({_BE}) (\w+ed|{_IRREGULAR})\b", 200, "make the actor the subject, in active voice"
    ),
}

VAGUE = frozenset(
    "found one some made there shown left told held kept known taken asked seen looks look said "
    "given done gone before after these those this that own whole rest".split()
)
"""Names that say nothing of what they name. A comprehension may use them."""


def prose(path: Path) -> list[tuple[int, str]]:
    """The texts of a module that a person reads, each with its line."""
    source = path.read_text(encoding="utf-8")
    parsed = tree.parsed(path)
    texts, documented = [], set()
    for node in ast.walk(parsed):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            documented.add(id(node.value))
            if isinstance(node.value.value, str):
                texts.append((node.lineno, node.value.value))
    for node in ast.walk(parsed):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if id(node) not in documented and len(text.split()) > 2 and not _NOT_PROSE.search(text):
                texts.append((node.lineno, text))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(
            ("#!", "# noqa", "# type")
        ):
            texts.append((token.start[0], token.string.lstrip("# ")))
    return texts


@cache
def all_prose() -> list[tuple[str, str]]:
    """Each text of the library, with its place."""
    return [(f"{tree.shown(path)}:{line}", text) for path in CODE for line, text in prose(path)]


def words_of(texts: list[tuple[str, str]]) -> int:
    return sum(len(re.findall(r"[A-Za-z']+", text)) for _, text in texts)


def places_of(habit: Habit, texts: list[tuple[str, str]]) -> list[str]:
    """Each place with the habit, and the words around it."""
    places = []
    for place, text in texts:
        for match in re.finditer(habit.pattern, text, re.MULTILINE):
            around = text[max(0, match.start() - 30) : match.end() + 40].replace("\n", " ")
            places.append(f"{place}: ...{around.strip()}...")
    return places


@pytest.mark.parametrize("name", HABITS)
def test_a_habit_is_rare(name: str) -> None:
    """Sentences have an actor, and words that a native reader parses once."""
    habit = HABITS[name]
    texts = all_prose()
    places = places_of(habit, texts)
    most = habit.limit * words_of(texts) / 10_000
    listed = "\n".join(places)
    assert len(places) <= most, f"{len(places)}, at most {most:.0f}: {habit.advice}\n{listed}"


def test_sentences_are_short() -> None:
    """Nearly all sentences have at most 30 words."""
    sentences = [
        (place, sentence)
        for place, text in all_prose()
        for sentence in re.split(r"(?<=[.!?;])\s+", text)
        if len(sentence.split()) > 2
    ]
    long = [f"{place}: {s[:60]}..." for place, s in sentences if len(s.split()) > LONG_WORDS]
    most = LONG_PERCENT_MAX * len(sentences) / 100
    assert len(long) <= most, f"{len(long)}, at most {most:.0f}: split them\n" + "\n".join(long)


def assigned(path: Path) -> Iterator[tuple[int, str]]:
    """Variables (not those of comprehensions) and parameters, each with its line."""
    parsed = tree.parsed(path)
    within = {
        id(part)
        for node in ast.walk(parsed)
        if isinstance(node, ast.comprehension)
        for part in ast.walk(node.target)
    }
    for node in ast.walk(parsed):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            if id(node) not in within:
                yield node.lineno, node.id


def test_a_variable_says_what_it_is() -> None:
    """`rows`, `batch`, `refusal`: not `found`, `one`, `made`."""
    names = [
        (f"{tree.shown(path)}:{line}: {name}", name)
        for path in CODE
        for line, name in assigned(path)
        if name not in ("self", "cls", "_")
    ]
    vague = [place for place, name in names if name.lower() in VAGUE]
    most = VAGUE_PERCENT_MAX * len(names) / 100
    listed = "\n".join(vague)
    assert len(vague) <= most, f"{len(vague)}, at most {most:.0f}: name the thing\n{listed}"


def test_a_function_says_what_it_does() -> None:
    """No function and no module has a participle or a pronoun alone as its name."""
    vague = [
        f"{tree.shown(path)}:{node.lineno}: {node.name}"
        for path in CODE
        for node in ast.walk(tree.parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name.strip("_").lower() in VAGUE
    ]
    vague += [tree.shown(path) for path in CODE if path.stem in VAGUE]
    assert not vague, "a noun or a verb:\n" + "\n".join(vague)


def test_a_class_name_stands_once() -> None:
    """A reader who meets a class in a message or a trace knows which one it is."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in CODE:
        for node in ast.walk(tree.parsed(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{tree.shown(path)}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, f"name them apart: {twice}"


def test_the_habits_are_found() -> None:
    """Each pattern finds its habit, and leaves what to write instead."""
    told = {
        "headless": "What is lost",
        "told": "the log tells it",
        "asked": "the server is asked",
        "none": "it is none",
        "anew": "read anew",
        "but for": "all but for one",
        "no as object": "it takes no row",
        "of which": "a part of which",
        "somebody": "somebody else",
        "passive": "rows are written",
    }
    better = "Lost records: the log prints them, except one. Stage writes rows again."
    for name, habit in HABITS.items():
        assert len(places_of(habit, [("x:1", told[name])])) == 1
        assert not places_of(habit, [("x:1", better)])
