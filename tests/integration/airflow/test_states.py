"""Every page and command against every state of a batch and of its replay: states.txt is the table,
a block for each state, with the sentence of each page and command. `SEMEL_ANSWERS=new` writes it
anew; then read each line that changed: it has to be true.
"""

import html
import os
import re
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from fixtures.airflow.pages import Pages
from fixtures.batches.account import add_attempt, quiet, run, sql
from fixtures.batches.replays import replayed
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.spark.local import LocalEngine
from semel.cli import main
from semel.commit import commit
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.runs import replay
from semel.stage import stage

SOURCE = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"}
OF_BATCH = (
    "finalized", "planned", "running", "lost", "killed", "staged", "abandoned", "refused",
    "committed",
)  # fmt: skip
OF_REPLAY = (
    "planned", "running", "lost", "killed", "staged", "committed", "finalized", "abandoned",
)  # fmt: skip
STATES = [*(f"batch {state}" for state in OF_BATCH), *(f"replay {state}" for state in OF_REPLAY)]
TABLE = Path(__file__).with_name("states.txt")
DAYS = "2026-01-01 --to 2026-01-17"
NOISE = {
    r"/tmp/\S*?/data/": "",
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d": "TIME",
    r"on 20(?!26-01)\d\d-\d\d-\d\d": "on TIME",
    r"\b[0-9a-f]{12}\b": "CODE",
    r"\b\d+ (s|min) ago": "N s ago",
    r"TIME[.\d]*\+00:00": "TIME",
    r"\b\d+\.\d s\b": "N s",
    r"inode \d+": "inode N",
}


class Case(NamedTuple):
    """A day whose batch, or the replay of its batch, is in some state."""

    day: int
    batch: int
    replay: int | None


def brought(bench: Workbench, ledger: Ledger, spec: Spec, number: int, name: str) -> Case:
    """A day of the state: by the verbs, and where a worker has to die by rows of the ledger."""
    kind, state = name.split()
    start = datetime(2026, 1, number, tzinfo=UTC)
    between = start, start + timedelta(days=1)
    file = bench.write(f"in/day-{start:%F}.jsonl", events(10 * number, 10 * number + 10))
    key = f"airflow:events:scheduled__{number:02}"
    if kind == "replay" or state in ("finalized", "refused"):
        root = target = run(ledger, spec, key, between).plan.batch.batch_id
    else:
        root = target = plan(ledger, spec, key, between).batch.batch_id
    if kind == "replay" and state == "finalized":
        target = replayed(ledger, spec, root, f"again{number}").batch.batch_id
    elif kind == "replay":
        target = replay.plan(ledger, spec, f"again{number}", root)[0].batch_id
    if state in ("running", "killed", "lost"):
        add_attempt(ledger, target, "lost" if state == "lost" else "running")
    if state in ("staged", "committed"):
        stage(ledger, spec, target, LocalEngine(), log=quiet)
    if state == "committed":
        commit(ledger, spec, target, lambda: None, log=quiet)
    if state == "abandoned":
        abandon(ledger, target, "not wanted")
    if state != "committed":  # However slow this machine is: seen now, or by a worker that died.
        ago = "10 minutes" if state == "killed" else "-1 hour"
        seen = f"UPDATE semel.batch SET seen_at = now() - interval '{ago}' WHERE batch_id = :b"
        sql(ledger, seen, b=target)
    if state == "refused":
        file.write_bytes(file.read_bytes()[:100])
    return Case(number, root, target if kind == "replay" else None)


def text_of(markup: str) -> str:
    """Markup as a person reads it, without what differs from run to run."""
    return plain(html.unescape(re.sub(r"<[^>]*>", " ", markup)))


def plain(text: str) -> str:
    text = " ".join(text.split())
    for noise, word in NOISE.items():
        text = re.sub(noise, word, text)
    return text


class Surfaces:
    """All pages and commands, each asked once, or once for each batch."""

    def __init__(self, pages: Pages, shell: Shell) -> None:
        self.pages, self.shell = pages, shell
        page = pages.get("/semel/dags/events?from=2026-01-01&to=2026-01-17").text
        rows = re.findall(r'<tr id="d202601(\d\d)">(.*?)</tr>', page, re.S)
        self.days = {int(day): text_of(row) for day, row in rows}
        windows = pages.get("/semel/dags/events/windows?from=2026-01-01&to=2026-01-17").text
        self.windows = {text_of(row) for row in re.findall(r"<tr>(.*?)</tr>", windows, re.S)}
        self.lines = {
            name: self.said(f"semel {name} events{asked}").splitlines()
            for name, asked in (
                ("days", f" --from {DAYS}"), ("gaps", ""), ("batches", ""),
                ("windows", f" --from {DAYS}"),
            )
        }  # fmt: skip

    def said(self, line: str) -> str:
        self.shell.capsys.readouterr()
        main(shlex.split(line.removeprefix("semel ")))
        return "".join(self.shell.capsys.readouterr())

    def of(self, case: Case) -> dict[str, str]:
        """The sentences of each about a case."""
        day = f"2026-01-{case.day:02}"
        numbers = [case.batch, *([case.replay] if case.replay else [])]
        named = rf"\b{day}\b|batch ({'|'.join(map(str, numbers))}) "
        told = {
            "page Days": self.days[case.day],
            "page Windows": " ".join(row for row in self.windows if row.startswith(day)),
            "page Replay": self.replay(case.day),
        }
        for name, lines in self.lines.items():
            if name != "batches":
                told[name] = self.matching(lines, named, day)
        for number in numbers:
            own = f"/semel/dags/events/batches/{number}"
            page = self.pages.get(own).text.partition("<main>")[2]
            asks = self.pages.get(f"{own}/abandon").text.partition("<main>")[2]
            dry = self.said(f"semel replay events --batches {number} --dry-run")
            told |= {
                f"page Batch {number}": text_of(re.split(r"<h2>Input|<h2>Time", page)[0]),
                f"page Abandon {number}": text_of(re.split("<form|</main", asks)[0]),
                f"batches {number}": self.matching(self.lines["batches"], rf"^ *{number} "),
                f"show {number}": self.matching(
                    self.said(f"semel show {number}").splitlines(),
                    "^(status|replaced_by|replays|reason|attempt):",
                ),
                f"replay {number} --dry-run": plain(dry),
            }
        told["find"] = plain(self.said(f"semel find events e{10 * case.day:06}"))
        return told

    def matching(self, lines: list[str], wanted: str, day: str = "") -> str:
        next_of_day = rf"^next: .*--interval {day} " if day else "$^"
        some = [line for line in lines if re.search(wanted, line)]
        some = [x for x in some if not x.startswith("next: ") or re.search(next_of_day, x)]
        return plain(" | ".join(re.sub(r"attempt_id \d+, |, snapshot_seq.*", "", x) for x in some))

    def replay(self, day: int) -> str:
        for _ in range(30):
            asked = f"from=2026-01-{day:02}&to=2026-01-{day + 1:02}"
            page = self.pages.get(f"/semel/dags/events/replay?{asked}").text
            if "longer than a page waits" not in page:
                break
        rows = "".join(re.findall(r"<tbody>.*?</tbody>|<p class=\"alert\".*?</p>", page, re.S))
        return text_of(rows)


def test_every_state_on_every_page_and_command(
    bench: Workbench, ledger: Ledger, pages: Pages, shell: Shell
) -> None:
    """Each cell of the table is what the page or command says."""
    spec = bench.spec(source=SOURCE | {"on_refused": "warn"}, schedule="@daily")
    cases = {
        name: brought(bench, ledger, spec, number, name) for number, name in enumerate(STATES, 1)
    }
    surfaces = Surfaces(pages, shell)
    lines = []
    for name, case in cases.items():
        lines += [f"== {name}", *(f"{of}: {says}" for of, says in surfaces.of(case).items()), ""]
    for name, case in cases.items():  # Abandoning changes what the others show.
        for number in filter(None, (case.batch, case.replay)):
            said = plain(surfaces.said(f"semel abandon {number}"))
            lines.append(f"abandon {number} ({name}): {said}")
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    if os.environ.get("SEMEL_ANSWERS") == "new":
        TABLE.write_text(text, encoding="utf-8")
    assert text == TABLE.read_text(encoding="utf-8")
