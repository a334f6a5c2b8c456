"""The fields of what commands answer with --json, and of a marker, and their types: scripts, and
sinks that were written before, are built on them.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.batches.replays import BAD, wider
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from semel.ledger import Ledger

FIELDS = Path(__file__).with_name("json_answers.txt")
"""A line for each field: command, path, types. `SEMEL_ANSWERS=new` writes it anew."""

MADE = [
    "semel validate",
    "semel run events",
    "semel batches events",
    "semel batches events --made-by",
    "semel show 1",
    "semel gaps events",
    "semel days events",
    "semel find events e000003",
    "semel letters events",
    "semel audit events",
    "semel compare events --batches 1..2",
    "semel collect",
]
WIDER = [
    "semel replay events --batches 1..2 --dry-run",
    "semel replay events --batches 1..2 --requarantine --dry-run",
    "semel replay events --batches 1..2 --requarantine",
    "semel replay events --batches 1..2",
    "semel show 3",
    "semel adopt events",
    "semel exact events",
]
REFUSED = {
    "semel show 99": 1,
    "semel windows events": 1,
    "semel gaps orders": 2,
    "semel find events": 2,
    "semel abandon 1": 1,
}


def test_the_fields_of_each_answer(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """No field of an answer, or of a marker, is renamed, dropped, or of another type."""
    bench.spec()
    bench.write("in/a.jsonl", [*events(0, 50), b"{bad", BAD, *events(40, 60)])
    shell.runs("semel run events")
    bench.write("in/b.jsonl", events(55, 90))
    answers = {line: shell.answers(line) for line in MADE}
    wider(bench, ledger)
    answers |= {line: shell.answers(line) for line in WIDER}
    answers |= {line: shell.answers(line, code) for line, code in REFUSED.items()}
    marker = bench.data / "out/_semel/events/markers/b00000001.json"
    answers["marker"] = json.loads(marker.read_bytes())
    found = "".join(f"{line}\n" for command in answers for line in _fields(command, answers))
    if os.environ.get("SEMEL_ANSWERS") == "new":
        FIELDS.write_text(found)
        pytest.fail(f"{FIELDS.name} was written anew; read what changed in it")
    assert found.splitlines() == FIELDS.read_text().splitlines()


def _fields(command: str, answers: dict[str, Any]) -> list[str]:
    types: defaultdict[str, set[str]] = defaultdict(set)
    for path, kind in _walk("", answers[command]):
        types[path].add(kind)
    return [f"{command}: {path} {' or '.join(sorted(types[path]))}" for path in types]


def _walk(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Each field below a value. A key that is a number stands for any."""
    if isinstance(value, dict):
        yield from ((path, "object") for _ in [0] if not value)
        for key, held in value.items():
            yield from _walk(f"{path}.{'N' if key.isdigit() else key}", held)
    elif isinstance(value, list):
        yield from ((f"{path}[]", "nothing") for _ in [0] if not value)
        for held in value:
            yield from _walk(f"{path}[]", held)
    else:
        yield path, type(value).__name__ if value is not None else "null"
