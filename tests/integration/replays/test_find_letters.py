"""find: a dead letter is found by its id, however its bytes write it."""

import shlex

import pytest

from fixtures.batches.account import run
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from semel.ledger import Ledger

WRITTEN = {
    "plain": (b'{"id": "k-1", "n": "bad"}', "k-1"),
    "letter": (rb'{"id": "caf\u00e9", "n": "bad"}', "café"),
    "pair": (rb'{"id": "\ud83d\ude00!", "n": "bad"}', "\U0001f600!"),
    "slash": (rb'{"id": "a\/b", "n": "bad"}', "a/b"),
    "quote": (rb'{"id": "a\"b\\c", "n": "bad"}', 'a"b\\c'),
    "tab": (rb'{"id": "a\tb", "n": "bad"}', "a\tb"),
    "half": (rb'{"id": "x-9", "n": "\ud83d"}', "x-9"),
    "cut": (rb'{"id": "caf\u00e9", "n": ', "café"),
}


@pytest.mark.parametrize(("raw", "wanted"), WRITTEN.values(), ids=WRITTEN)
def test_a_dead_letter_with_escapes(
    raw: bytes, wanted: str, bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """What a producer escapes in JSON is the same id."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 30), raw])
    run(ledger, spec, "r1")
    found = shell.answers(f"semel find events {shlex.quote(wanted)}")
    [place] = found["places"]
    assert (place["what"], place["batch_id"]) == ("dead_letter", 1)


def test_a_dead_letter_of_csv(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """A quote within a quoted field is written twice."""
    schema = {"id": "string", "n": "bigint"}
    spec = bench.spec(source={"path": "in/*.csv", "format": "csv", "schema": schema})
    rows = [b"x%d,%d" % (n, n) for n in range(30)]
    path = bench.data / "in/a.csv"
    path.write_bytes(b"\n".join([b"id,n", *rows, b'"a ""b"" c",bad', b""]))
    run(ledger, spec, "r1")
    [place] = shell.answers("""semel find events 'a "b" c'""")["places"]
    assert place["what"] == "dead_letter"
