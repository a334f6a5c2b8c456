"""What the commands say of replayed batches: batches, show, audit, find, letters, made-by."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fixtures.batches.account import quiet, run
from fixtures.batches.replays import BAD, BY_DAY, admitted, replayed, two_batches, wider
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell, answer_in
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.cli import main
from semel.ledger import Ledger
from semel.reports.code_versions import outputs_by_code
from semel.reports.dead_letters import letters
from semel.reports.find import find
from semel.reports.gaps import gaps
from semel.runs import replay
from semel.runs.run import run_batch
from semel.spark.engine import Outcome
from semel.stage.job import StageJob

POSITIONS = {"position_columns": True}


class Passing(LocalEngine):
    """A local engine on which transforms leave each record as it is."""

    def run(self, job: StageJob) -> Outcome:
        spec = job.spec.model_copy(update={"transforms": ()})
        return super().run(replace(job, spec=spec))


@pytest.fixture
def command(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs a command and gives what it prints."""
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)

    def ran(*words: str) -> str:
        assert main(list(words)) == 0
        return capsys.readouterr().out

    return ran


def test_show_and_batches(bench: Workbench, ledger: Ledger, command: Any) -> None:
    """Who replays whom, which generation, and who replaced it; ranges are the root's."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    replayed(ledger, spec, 1, "once more")
    first, second, third = (command("show", str(number)) for number in (1, 3, 4))
    assert "replaced_by: 3\n" in first and "replays" not in first
    assert "\ngeneration: " not in first
    assert "replays: 1\ngeneration: 2\nreplaced_by: 4\n" in second
    assert "replays: 1\ngeneration: 3\n" in third and "replaced_by" not in third
    listed = re.findall(r"^replay: batch (\d+), generation (\d+), finalized \d{4}-", first, re.M)
    assert listed == [("3", "2"), ("4", "3")] and "replay: " not in second
    assert "claim: '" in first and "claim of batch 1: '" in second
    assert "generation" not in command("show", "2")
    claims = [answer_in(command("show", n, "--json"))["claims"] for n in ("1", "3")]
    assert claims[0] == claims[1] != []
    answer = answer_in(command("show", "1", "--json"))["replays"]
    assert [(r["batch_id"], r["generation"], r["status"]) for r in answer] == [
        (3, 2, "finalized"), (4, 3, "finalized"),
    ]  # fmt: skip
    said = command("batches", spec.name)
    for words in ("(replays 1, generation 2; replaced by 4) again", "(replaced by 3) r1",
                  "(replays 1, generation 3) once more"):  # fmt: skip
        assert words in " ".join(said.split())
    found = answer_in(command("batches", spec.name, "--json"))["batches"]
    assert [(r["replays"], r["generation"], r["replaced_by"]) for r in found] == [
        (1, 3, None), (1, 2, 4), (None, 1, None), (None, 1, 3),
    ]  # fmt: skip
    assert not gaps(ledger, spec).idle
    assert f"audit of {spec.name}: passed; 2 batches (1 replayed), 86" in command("audit", "events")
    assert answer_in(command("audit", "events", "--json"))["replayed"] == 1


def test_show_and_made_by_tell_the_code_of_each(
    bench: Workbench, ledger: Ledger, command: Any
) -> None:
    """Each output has the code that made it; each batch is under that of its newest one, once."""
    engine = Passing()
    query = bench.transforms / "times.sql"
    query.write_text("SELECT id, n * 2 AS n FROM records")
    spec = bench.spec(transforms=["times.sql"], source=BY_DAY)
    for day in (1, 2, 3):
        bench.write(f"in/2026-11-0{day}.jsonl", events(day, day + 1))
        interval = datetime(2026, 11, day, tzinfo=UTC), datetime(2026, 11, day + 1, tzinfo=UTC)
        run_batch(ledger, spec, f"r{day}", engine, interval, log=quiet)
    [before] = outputs_by_code(ledger, spec)
    query.write_text("SELECT id, n * 3 AS n FROM records")
    for root in (1, 2):
        replay.run(ledger, spec, "again", root, engine, log=quiet)
    new, old = outputs_by_code(ledger, spec)
    assert (new.batches, new.runs, old.batches) == ((1, 2), ((1, 2),), (3,))
    assert [[t.day for t in span] for span in new.intervals] == [[1, 3]]
    assert old.digest == before.digest != new.digest
    assert "2 batches: 1 to 2\n  of 2026-11-01 to 2026-11-02\n" in command(
        "batches", spec.name, "--made-by"
    )

    def shown(number: int) -> str:
        code = answer_in(command("show", str(number), "--json"))["code"]
        assert code["of"] == "marker"
        return code["digest"]

    assert [shown(n) for n in (1, 2, 3, 4, 5)] == [old.digest] * 3 + [new.digest] * 2
    assert "2026-11-01" in command("show", "4")
    query.write_text("SELECT id, n * 4 AS n FROM records")
    number = replay.plan(ledger, spec, "third", 1)[0].batch_id
    code = answer_in(command("show", str(number), "--json"))["code"]
    assert code["of"] == "plan" and code["digest"] not in (old.digest, new.digest)


def test_find_and_letters(bench: Workbench, ledger: Ledger, command: Any) -> None:
    """A row is found once, in the newest output; a replay's dead letters are its batch's."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    replayed(ledger, spec, 1, "once more")
    places = find(spec, ["e000042"]).places
    assert [(p.what, p.batch_id, p.made_by) for p in places] == [
        ("output", 1, 4), ("duplicate_in_batch", 1, None),
    ]  # fmt: skip
    said = command("find", spec.name, "e000042")
    assert "output: batch 1, made by its replay 4, events-b00000004-00000.parquet\n" in said
    assert find(spec, ["e000069"]).places[0].made_by is None
    own = letters(spec, batch_id=1, count=9)
    assert own.total == 1 and own.letters[0].line == 51
    for number in (3, 4):
        assert letters(spec, batch_id=number, count=9) == own
    assert letters(spec, count=9).total == 1


def test_what_was_admitted(bench: Workbench, ledger: Ledger, command: Any) -> None:
    """It is found where it lies in the source, by the batch that judged it again."""
    bench.write("in/a.jsonl", [*events(0, 5), BAD, b"{bad"])
    run(ledger, bench.spec(sink=POSITIONS), "r1")
    spec = wider(bench, ledger, sink=POSITIONS)
    admitted(ledger, spec)
    path = str(bench.data / "in" / "a.jsonl")
    places = find(spec, ["x1"]).places
    assert [(p.what, p.batch_id, p.source) for p in places] == [
        ("output", 2, path), ("dead_letter", 1, path),
    ]  # fmt: skip
    [left] = letters(spec, batch_id=2, count=9).letters
    assert (left.source, left.line, left.reason) == (path, 7, "malformed")
    assert "admits: 1\nadmission: 1\n" in command("show", "2")
    assert "claim of batch 1: '" in command("show", "2")
    assert "(judges dead letters of 1) q" in " ".join(command("batches", spec.name).split())
    assert layout.marker(layout.archive_folder(spec), 2).exists()


# Attacks RP11.
def test_a_batch_that_reaches_beyond_the_interval(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """A batch of three days is not left out when two of them are replayed: the request is refused,
    and its next step names the interval that has all of the batch.
    """
    source = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"}
    spec = bench.spec(source=source)
    for day in (1, 2, 3):
        bench.write(f"in/day-2026-03-0{day}.jsonl", events(10 * day, 10 * day + 5))
    first, last = datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 4, tzinfo=UTC)
    run(ledger, spec, "r1", interval=(first, last))
    shell.fails("semel replay events --interval 2026-03-01 2026-03-03 --dry-run")
    why, step = shell.err.strip().splitlines()
    assert "batch 1 of 2026-03-01T00:00:00+00:00 to 2026-03-04T00:00:00+00:00 lies only partly in" in why
    assert step.startswith("next: semel replay events --interval 2026-03-01T00:00:00+00:00 2026-03-04")
    assert "batch 1 of " in shell.runs(step.removeprefix("next: "))
