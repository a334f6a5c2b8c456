"""What is told of records that were set aside: samples in errors and summaries, `semel letters`."""

import gzip
import re

import pytest

from fixtures.batches.account import first_batch, run
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.errors import LimitError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.plan import plan
from semel.reports import summary
from semel.reports.dead_letters import letters
from semel.spark.engine import SparkEngine
from semel.stage import stage

BAD = [b'{"id":"x","n":"N/A"}', b'{"id":"y"', b'{"id":"z\xe9","n":1}', b'{"n":1}']
SAID = {
    "type_mismatch": 'n: expected a whole number, found "N/A"',
    "malformed": 'not JSON: cut off after {"id":"y"',
    "encoding": "expected text in UTF-8, found the byte 0xe9 at byte 8 of the record",
    "id_missing": "id: expected a value, as it is part of record_id; found nothing",
}


def test_one_of_each_reason_is_told_as_the_batch_fails(bench: Workbench, ledger: Ledger) -> None:
    """The error shows how many there are for each reason, and one: file, line, fault and text."""
    spec = bench.spec(limits={"quarantine_ratio_max": 0.01})
    bench.write("in/a.jsonl", [*events(0, 5), *BAD, BAD[0]])
    with pytest.raises(LimitError) as caught:
        run(ledger, spec, "r1")
    said = str(caught.value).splitlines()
    assert said[0].startswith("batch 1: 5 of 10 records would be quarantined, more than limits.")
    path = bench.data / "in" / "a.jsonl"
    start = path.read_bytes().index(BAD[0])
    assert said[1:4] == [
        f"type_mismatch 2, one of them: '{path}' line 6 (byte {start})",
        f"    {SAID['type_mismatch']}",
        f"    {BAD[0].decode()}",
    ]
    assert {re.match(r"\w+", line)[0] for line in said[1:13:3]} == set(SAID)
    assert '    {"id":"z\\xe9","n":1}' in said
    assert all(len(line) <= 110 for line in said if str(path) not in line)


@pytest.mark.parametrize("packed", [False, True])
def test_letters_say_where_and_why(bench: Workbench, ledger: Ledger, packed: bool) -> None:
    """File, line, byte, reason, fault and text of each, also within a packed file."""
    spec = bench.spec(limits={"quarantine_ratio_max": 1.0}, source={"path": "in/*"})
    data = b"\n".join([b"", *BAD, b""])
    path = bench.data / "in" / ("a.jsonl.gz" if packed else "a.jsonl")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(data) if packed else data)
    run(ledger, spec, "r1")
    found = letters(spec, count=10)
    assert (found.total, found.batches) == (4, 1)
    assert [(one.line, one.offset) for one in found.letters] == [
        (2 + at, data.index(raw)) for at, raw in enumerate(BAD)
    ]
    assert [(one.reason, one.detail) for one in found.letters] == list(SAID.items())
    texts = [raw.decode(errors="backslashreplace") for raw in BAD]
    assert [one.text for one in found.letters] == texts
    assert {one.source for one in found.letters} == {str(path)}


def test_letters_are_the_newest_of_what_is_asked_for(bench: Workbench, ledger: Ledger) -> None:
    """The last batch first; by batch, by reason, and no more than so many; all are counted."""
    spec = bench.spec(limits={"quarantine_ratio_max": 1.0})
    for name in "abc":
        bench.write(f"in/{name}.jsonl", [*BAD, BAD[0]])
        run(ledger, spec, f"r{name}")
    newest = letters(spec, count=7)
    assert [one.batch_id for one in newest.letters] == [3] * 5 + [2] * 2
    assert (newest.total, newest.batches) == (15, 3)
    some = letters(spec, batch_id=2, reason="type_mismatch", count=1)
    assert [(one.batch_id, one.line) for one in some.letters] == [(2, 1)]
    assert (some.total, some.batches) == (2, 1)
    with pytest.raises(TerminalError, match="batch 9 is not a finalized batch of events"):
        letters(spec, batch_id=9, count=1)


def test_lines_are_counted_only_where_they_can_be(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far into a file, in one that was edited, or is gone: the byte alone is told."""
    spec = first_batch(bench, ledger, [*events(0, 3), *BAD], limits={"quarantine_ratio_max": 1.0})
    path = bench.data / "in" / "a.jsonl"

    def lines() -> list[int | None]:
        return [one.line for one in letters(spec, count=10).letters]

    assert lines() == [4, 5, 6, 7]
    start = path.read_bytes().index(BAD[2])
    monkeypatch.setattr("semel.sources.files.claims.LINES_NUMBERED_BYTES_MAX", start - 1)
    assert lines() == [4, 5, None, None]
    path.write_bytes(path.read_bytes().replace(b'"y"', b'"q"'))
    assert lines() == [None] * 4
    path.unlink()
    assert lines() == [None] * 4
    assert all(one.offset is not None for one in letters(spec, count=10).letters)


def test_letters_on_the_command_line(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Text and JSON; an unknown reason is a wrong command line; its next command works."""
    spec = bench.spec(limits={"quarantine_ratio_max": 1.0})

    assert shell.runs("semel letters events") == "events has no dead letters\n"
    path = bench.write("in/a.jsonl", [b"\x1b[31m", b'{"id":"' + b"x" * 300, *BAD])
    run(ledger, spec, "r1")
    out = shell.runs("semel letters events --count 2").splitlines()
    assert out[0] == f"batch 1, {str(path)!r} line 1 (byte 0): malformed"
    assert out[1:3] == [
        "    expected a JSON object {...}, found \\x1b[31m", "    \\x1b[31m",
    ]  # fmt: skip
    assert out[5].endswith("x...") and max(map(len, (*out[1:3], *out[4:7]))) <= 110
    assert out[6] == "2 of 6 dead letters of events, in 1 batch; the newest first"
    assert out[7] == f"as Parquet: {layout.archive_folder(spec) / 'dead_letters'}"
    assert len(shell.answers(out[8].removeprefix("next: "))["letters"]) == 6
    wrong = shell.answers("semel letters events --reason x", code=2)
    assert "the reasons are malformed, " in wrong["message"]
    assert "no dead letters (late)" in shell.runs("semel letters events --reason late")


def test_no_text_of_letters_is_told(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """With log_samples: false the places and reasons are told, and where the texts are kept."""
    spec = bench.spec(limits={"quarantine_ratio_max": 1.0, "log_samples": False})
    bench.write("in/a.jsonl", [b'{"id":"jane@example.org","n":"x"}'])
    batch = plan(ledger, spec, "r1").batch.batch_id
    told = summary.stage(stage(ledger, spec, batch, LocalEngine(), print))
    assert "type_mismatch 1: " in told and "line 1 (byte 0)" in told and "jane" not in told
    run(ledger, spec, "r1")
    for words in ("letters events", "letters events --json", "find events x"):
        out = shell.runs(f"semel {words}")
        assert "type_mismatch" in out and "jane" not in out and "expected" not in out


def test_summaries_name_what_is_kept(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """stage and finalize name the files of dead letters and decisions where a batch has some; the
    command that finalize prints shows them. A batch without any says nothing of them. Finalize
    counts the rows of the output, and no files.
    """
    spec = bench.spec(limits={"quarantine_ratio_max": 1.0})
    bench.write("in/a.jsonl", [*events(0, 3), *events(0, 1), BAD[0]])
    done = run(ledger, spec, "r1")
    staged, finalized = summary.stage(done.staged), summary.finalize(done.finalized)
    for kind, files in (("dead letters", "dead_letters"), ("decisions", "decisions")):
        pattern = layout.archive_folder(spec) / files / "b00000001-*.parquet"
        assert len(list(pattern.parent.glob(pattern.name))) == 1
        assert f"finalize keeps {kind} in {pattern}\n" in staged
        assert f"{kind}: {pattern}\n" in finalized
    assert finalized.startswith("finalized: batch 1 of events, 3 rows\n")
    again = summary.finalize(finalize(ledger, spec, 1))
    assert again.splitlines()[1:] == finalized.splitlines()[1:]
    line = re.search(r"^records that were set aside, and why: (.*)$", finalized, re.MULTILINE)[1]
    assert "line 5" in shell.runs(line)
    bench.write("in/b.jsonl", events(3, 5))
    clean = run(ledger, spec, "r2")
    assert "keeps" not in summary.stage(clean.staged)
    assert "letters" not in summary.finalize(clean.finalized)


@pytest.mark.rest
def test_samples_come_from_sparks_tasks(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """One for each reason, of the first file that has it, whichever task was the first."""
    spec = bench.spec(limits={"quarantine_ratio_max": 0.01})
    bench.write("in/a.jsonl", [*events(0, 50), BAD[0]])
    bench.write("in/b.jsonl", [*events(50, 99), *BAD])
    with pytest.raises(LimitError) as caught:
        run(ledger, spec, "r1", engine=spark_engine)
    places = re.findall(r"^(\w+) (\d).*/(.\.jsonl)' line (\d+) ", str(caught.value), re.MULTILINE)
    assert places == [
        ("type_mismatch", "2", "a.jsonl", "51"),
        ("encoding", "1", "b.jsonl", "52"),
        ("id_missing", "1", "b.jsonl", "53"),
        ("malformed", "1", "b.jsonl", "51"),
    ]
