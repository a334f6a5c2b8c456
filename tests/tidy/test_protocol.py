"""docs/protocol.md and the pages of sinks, the code and the tests say the same: rules, states."""

import itertools
import re
from enum import StrEnum
from pathlib import Path

import attacks
import tree
from semel.model.batch import ATTEMPT_TRANSITIONS, BATCH_TRANSITIONS, AttemptStatus, BatchStatus
from semel.model.manifest import Kind
from semel.model.reasons import Reason
from semel.sinks import Presence, judge, note_comparison
from semel.sinks.postgres.types import TYPES
from semel.sources.files.recognise import InodeMatch, Match, PathMatch, recognise
from semel.stage import read, write
from tree import FILES, PAGES, POSTGRES, PROTOCOL, RULE, rules

NOT_CITED_BY_CODE = frozenset[str]()
"""Rules whose code does not name them yet. This list may only shrink: it ends empty."""

NOT_ATTACKED = frozenset[str]()
"""Rules that no test names yet. This list may only shrink: it ends empty."""


def cited(paths: list[Path]) -> dict[str, str]:
    """Each id that the files name, and one file that does."""
    found = {}
    for path in paths:
        for rule in RULE.findall(path.read_text(encoding="utf-8")):
            found.setdefault(rule, tree.shown(path))
    return found


def by_code() -> dict[str, str]:
    sql = [p for p in tree.project_files() if p.is_relative_to(tree.ROOT / "sql")]
    text = [path for path in sql if path.suffix in (".sql", ".py")]
    return cited([*tree.python_files("plugins", "dags", "spark_jobs"), *text])


def by_tests() -> dict[str, str]:
    folders = ("tests/unit", "tests/integration", "tests/acceptance", "tests/chaos")
    return cited(tree.python_files(*folders))


def test_rules_are_numbered_without_gaps() -> None:
    """Ids are unique, and count up from 1 under each letter, so that a removed rule is seen."""
    found = rules()
    for letter in sorted({rule.rstrip("0123456789") for rule in found}):
        own = [rule for rule in found if rule.rstrip("0123456789") == letter]
        numbers = sorted(int(rule.removeprefix(letter)) for rule in own)
        wanted = list(range(1, len(numbers) + 1))
        assert numbers == wanted, f"docs/protocol.md: number the rules {letter} as {wanted}"


def test_each_rule_says_must() -> None:
    """A rule that does not say MUST is prose."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for rule in re.split(r"^- (?=\*\*[A-Z]+\d+\*\*)", text, flags=re.MULTILINE)[1:]:
            head = re.split(r"\n\n|\n(?=#)", rule)[0]
            assert "MUST" in head, f"{page.name} {head[:10]}: say MUST, or make it prose"


def test_what_is_cited_exists() -> None:
    """An id in code, SQL or a test is a rule of docs/protocol.md."""
    known = set(rules())
    for rule, where in {**by_tests(), **by_code()}.items():
        assert rule in known, f"{where} cites {rule}: write that rule, or correct the citation"


def test_each_rule_has_its_code() -> None:
    """Each rule is named where the code keeps it."""
    _compare(by_code(), NOT_CITED_BY_CODE, "NOT_CITED_BY_CODE", "in the code that keeps it")


def test_each_rule_has_its_attack() -> None:
    """Each rule is named by a test that fails when the rule is broken."""
    _compare(by_tests(), NOT_ATTACKED, "NOT_ATTACKED", "in the docstring of a test that attacks it")


def test_make_test_attacks_each_rule() -> None:
    """Whatever the seed: each rule has a test above which it stands, that is not left to CI."""
    known = attacks.attacks()
    for rule in rules():
        there = any(attack.quick for attack in known.get(rule, ()))
        assert there, f"{rule}: write `# Attacks {rule}.` above a test without the marker rest"


def test_the_page_has_the_attacks() -> None:
    """docs/proof.md lists for each rule what `make test` draws from, and where the rest runs."""
    told = "python tests/tidy/attacks.py prints the table for docs/proof.md"
    assert attacks.table() in (tree.ROOT / "docs" / "proof.md").read_text(encoding="utf-8"), told


def _compare(found: dict[str, str], missing: frozenset[str], name: str, where: str) -> None:
    for rule in rules():
        if rule in missing:
            assert rule not in found, f"{rule} is cited by {found[rule]}: take it out of {name}"
        else:
            assert rule in found, f"{rule} is cited nowhere: name it {where}"
    unknown = sorted(missing - set(rules()))
    assert not unknown, f"{name} names {unknown}, which docs/protocol.md does not have: remove them"


def test_the_document_has_the_states_of_the_code() -> None:
    """The two tables of transitions are those of semel.batch, verbs included."""
    text = PROTOCOL.read_text(encoding="utf-8")
    for what, transitions in (("batch", BATCH_TRANSITIONS), ("attempt", ATTEMPT_TRANSITIONS)):
        table = re.search(rf"^\| {what} from \|.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)
        rows = [tuple(c.strip() for c in r.strip("|").split("|")) for r in table[0].split("\n")[2:]]
        wanted = [(str(a), str(b), verb) for (a, b), verb in transitions.items()]
        assert sorted(rows) == sorted(wanted), f"docs/protocol.md: the table of the {what}'s states"


def test_the_schema_has_the_states_of_the_code() -> None:
    """The CHECK of each status column lists the enum's labels."""
    schema = (tree.ROOT / "sql" / "schema.sql").read_text(encoding="utf-8")
    for table, states in (("batch", BatchStatus), ("attempt", AttemptStatus)):
        body = re.search(rf"CREATE TABLE semel\.{table} \((.*?)\n\);", schema, re.DOTALL)[1]
        labels = re.search(r"CHECK \(status IN \(([^)]*)\)\)", body)[1]
        there = {label.strip(" '") for label in labels.split(",")}
        assert there == set(states), f"sql/schema.sql semel.{table}: status IN {sorted(states)}"


def test_the_queries_make_these_transitions_and_no_others() -> None:
    """Each UPDATE of a status is guarded by the states that it may come from."""
    for table, transitions in (("batch", BATCH_TRANSITIONS), ("attempt", ATTEMPT_TRANSITIONS)):
        made = set()
        for (verb, name), text in tree.statements().items():
            for update in re.split(r"(?=\bUPDATE semel\.)", text):
                found = re.match(rf"UPDATE semel\.{table}\b(.*?)\bWHERE\b(.*)", update, re.DOTALL)
                if not found or not (to := re.search(r"\bstatus = '(\w+)'", found[1])):
                    continue
                where = f"sql/queries/{verb}.sql {name}"
                guard = re.search(r"\bstatus (?:= '(\w+)'|IN \(([^)]*)\))", found[2])
                assert guard, f"{where}: guard it with the status that it expects"
                sources = [s.strip(" '") for s in (guard[1] or guard[2]).split(",")]
                for source in sources:
                    made.add((source, to[1]))
                    known = (source, to[1]) in transitions
                    assert known, f"{where}: {source} -> {to[1]} is no transition of semel.batch"
        lacking = {(str(a), str(b)) for a, b in transitions} - made
        assert not lacking, f"no query makes the {table}'s transitions {lacking}: write them"


def test_the_decision_table_is_the_code() -> None:
    """F1: the nine cases of finalize in the document are those of semel.finalize.judge."""
    text = PROTOCOL.read_text(encoding="utf-8")
    pattern = r"^\| staged \\ published \|.*?(?=\n\n)"
    table = re.search(pattern, text, re.MULTILINE | re.DOTALL)[0]
    head, _, *rows = [[c.strip() for c in r.strip("|").split("|")] for r in table.split("\n")]
    found = {
        (Presence(row[0]), Presence(final)): cell
        for row in rows
        for final, cell in zip(head[1:], row[1:], strict=True)
    }
    pairs = [(staged, final) for staged in Presence for final in Presence]
    wanted = {pair: str(judge(*pair)) for pair in pairs}
    assert found == wanted, "docs/protocol.md: the table of finalize is not that of judge"


def test_the_table_of_targets_is_the_code() -> None:
    """H1: the nine cases of a batch in a target are those of semel.sinks.note_comparison.judge_batch."""
    text = PROTOCOL.read_text(encoding="utf-8")
    pattern = r"^\| listed \\ the target holds \|.*?(?=\n\n)"
    table = re.search(pattern, text, re.MULTILINE | re.DOTALL)[0]
    head, _, *rows = [[c.strip() for c in r.strip("|").split("|")] for r in table.split("\n")]
    found = {
        (note_comparison.MarkerVerdict(row[0]), note_comparison.TargetVerdict(holds)): cell
        for row in rows
        for holds, cell in zip(head[1:], row[1:], strict=True)
    }
    pairs = itertools.product(note_comparison.MarkerVerdict, note_comparison.TargetVerdict)
    wanted = {pair: str(note_comparison.judge_batch(*pair)) for pair in pairs}
    assert found == wanted, "docs/protocol.md: the table of targets is not that of judge"


def test_the_table_of_types_is_the_code() -> None:
    """PG5: docs/postgres.md has each type with what holds it, as the Postgres sink's table has."""
    text = POSTGRES.read_text(encoding="utf-8")
    table = re.search(r"^\| the output's type \|.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)[0]
    found = [re.findall(r"`([^`]+)`", row) for row in table.split("\n")[2:]]
    wanted = [[held.word, *held.takes] for held in TYPES]
    assert found == wanted, "docs/postgres.md: the table of types is not that of the sink"


def test_the_recognition_table_is_the_code() -> None:
    """P8, P16, P17: each of the cells has one row in the document, which says what the code does.

    Each row names a test that is there.
    """
    text = FILES.read_text(encoding="utf-8")
    table = re.search(r"^\| own inode \|.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL)[0]
    _, _, *rows = [[c.strip() for c in r.strip("|").split("|")] for r in table.split("\n")]
    found: dict[tuple[InodeMatch, PathMatch, Match], tuple[str, str]] = {}
    for own, place, match, by_position, by_id, test in rows:
        cells = itertools.product(_labels(InodeMatch, own), _labels(PathMatch, place), _labels(Match, match))
        for cell in cells:
            assert cell not in found, f"docs/files.md: two rows of the table speak of {cell}"
            found[cell] = by_position, by_id
        module, _, name = test.strip("`").partition("::")
        [path] = (tree.ROOT / "tests" / "integration").rglob(module)
        source = path.read_text(encoding="utf-8")
        assert f"\ndef {name}(" in source, f"docs/files.md names {test}: there is no such test"
    wanted = {
        cell: tuple(str(recognise(*cell, by_position=flag)) for flag in (True, False))
        for cell in itertools.product(InodeMatch, PathMatch, Match)
    }
    assert found == wanted, "docs/files.md: the table of files is not that of recognise"


def _labels(kind: type[StrEnum], text: str) -> list[StrEnum]:
    return list(kind) if text == "any" else [kind(label.strip()) for label in text.split(",")]


def test_the_document_names_every_reason_and_kind() -> None:
    """A dead letter's and a decision's reasons, and the kinds of files, are all documented."""
    text = PROTOCOL.read_text(encoding="utf-8")
    words = [*Reason, *Kind]
    words += [word for word in write.REASONS.to_pylist() if word]
    words += [*read.DEAD_LETTERS.names]
    lacking = [str(word) for word in words if f"`{word}`" not in text]
    assert not lacking, f"docs/protocol.md does not say what {lacking} means: add it"
