"""semel's pages in Airflow: a replay is shown first, and then made by a run of the DAG."""

import html
import re
from datetime import UTC, datetime

import pytest

from fixtures.airflow.pages import Pages
from fixtures.batches.account import run, sql
from fixtures.batches.replays import (
    BAD, BY_DAY, DAY, ONE, admitted, allow, replayed, three_days, waiting,
)  # fmt: skip
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import answer_in
from semel.cli import main
from semel.ledger import Ledger
from semel.plan.abandon import abandon
from semel.runs import replay

DAYS = "/semel/dags/events"
WHERE = f"{DAYS}/replay"
THREE = "from=2026-01-01&to=2026-01-04"


def text_of(page: str) -> str:
    """What a page shows, without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def token_of(page: str) -> str:
    [token] = re.findall(r'name="token" value="([^"]+)"', page)
    return token


def asked(pages: Pages, query: str = THREE) -> str:
    """The page that asks, once it has looked at the batches."""
    for _ in range(30):
        page = pages.get(f"{WHERE}?{query}").text
        if "longer than a page waits" not in page:
            return page
    raise AssertionError(page)


def test_a_range_is_shown_and_then_replayed(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """Which batches, how many records, by which code; its button makes one manual run of the DAG,
    with the interval and `replay: true`, and writes that into Airflow's audit log.
    """
    spec = three_days(bench, ledger)
    replayed(ledger, spec, 2, "again")
    days = pages.get(f"{DAYS}?from=2026-01-01&to=2026-01-03").text
    links = re.findall(r'href="(/semel/dags/events/replay[^"]*)"', days)
    assert len(links) == 4, "for each day, and for all that are shown"
    assert pages.get(html.unescape(links[1])).status == 200
    page = asked(pages)
    rows = [text_of(row) for row in re.findall(r"<tr>.*?</tr>", page, re.S)][1:]
    assert [row.split()[:4] for row in rows] == [
        [f"{n + 1}", f"2026-01-0{n + 1}", "2" if n == 1 else "1", "10"] for n in range(3)
    ]
    assert all("the current code and declaration yes" in row for row in rows)
    assert pages.runs() == []
    sent = pages.send(WHERE, {"token": token_of(page)})
    assert sent.status == 303, sent.text
    assert pages.send(WHERE, {"token": token_of(page)}).headers["location"] == (
        sent.headers["location"]
    ), "a form that is sent twice makes one run"
    [[run_id, kind, conf, start, end]] = pages.runs()
    shown = conf.pop("shown")
    assert (kind, conf) == ("manual", {"replay": True}) and shown["batches"] == [1, 2, 3]
    assert (start[:10], end[:10]) == ("2026-01-01", "2026-01-04")
    done = pages.get(sent.headers["location"])
    assert done.status == 200 and run_id.split("T")[0] in html.unescape(done.text)


def test_why_one_cannot_be(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """The reason stands beside its batch, and there is no button, for it is all or none."""
    three_days(bench, ledger)
    (bench.data / "in/2026-01-02.jsonl").unlink()
    page = asked(pages)
    rows = [text_of(row) for row in re.findall(r"<tr>.*?</tr>", page, re.S)][1:]
    assert "no :" in rows[1] and "2026-01-02.jsonl" in rows[1] and rows[0].endswith(" yes")
    assert "semel gaps events" in rows[1] or "<code>" in page
    assert 'name="token"' not in page
    one = asked(pages, "from=2026-01-01&to=2026-01-02")
    assert 'name="token"' in one
    assert "There is no batch" in pages.get(f"{WHERE}?from=2026-12-01&to=2026-12-02").text


def test_a_replay_that_is_open(
    pages: Pages, bench: Workbench, ledger: Ledger, capsys: pytest.CaptureFixture
) -> None:
    """The page and `--dry-run` show the output that readers see, whatever became of a replay: while
    it is at work, once its worker has died, committed, and abandoned.
    """
    spec = three_days(bench, ledger)
    replayed(ledger, spec, 1, "a")

    def shown(generation: str) -> list[str]:
        page = text_of(asked(pages, "from=2026-01-01&to=2026-01-02"))
        assert "backup" not in page and f" {generation} 10 " in page, page
        main(["replay", "events", "--batches", "1", "--dry-run", "--json"])
        [batch] = answer_in(capsys.readouterr().out)["batches"]
        assert (batch["generation"], batch["counts"]["survivors"]) == (int(generation), 10)
        return page

    number = replay.plan(ledger, spec, "b", 1)[0].batch_id
    assert "is at work on batch 1" in shown("2")
    sql(ledger, "UPDATE semel.batch SET seen_at = now() - interval '1 day'")
    assert " the current code and declaration yes " in shown("2")
    abandon(ledger, number, "it is not wanted")
    assert shown("2")
    waiting(ledger, spec, 1, "c")
    assert shown("2")


@pytest.mark.parametrize("what", ["batches", "code", "spec"])
def test_what_changed_since_it_was_shown(
    what: str, pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """The button does what was shown, or nothing."""
    # Attacks A7.
    path = bench.transforms / "same.py"
    path.write_text("def same(df):\n    return df\n")
    spec = three_days(bench, ledger)
    if what == "code":
        bench.spec(source=BY_DAY, schedule="@daily", transforms=["same:same"])
    token = token_of(asked(pages))
    if what == "batches":
        bench.write("in/2026-01-03.jsonl", events(20, 40))
        run(ledger, spec, "r4", (DAY + 2 * ONE, DAY + 3 * ONE))
    if what == "code":
        path.write_text("def same(df):\n    return df.select('*')\n")
    if what == "spec":
        bench.spec(source=BY_DAY | {"lookback": "1 day"}, schedule="@daily")
    answer = pages.send(WHERE, {"token": token})
    assert answer.status == 409 and f"{what} of events changed since" in text_of(answer.text)
    assert pages.runs() == []


def test_who_may_not_trigger_replays_nothing(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """A viewer has no link and no page; the form must be signed for its user and come from here."""
    # Attacks A8.
    three_days(bench, ledger)
    seen = pages.get(f"{DAYS}?from=2026-01-01&to=2026-01-03", "viewer").text
    assert "finalized" in seen and "/replay?" not in seen
    token = token_of(asked(pages))
    assert pages.get(f"{WHERE}?{THREE}", "viewer").status == 403
    assert pages.get(f"{WHERE}?{THREE}", None).status == 401
    assert pages.send(WHERE, {"token": token}, "viewer").status == 403
    assert pages.send(WHERE, {"token": token}, "second").status == 403
    assert pages.send(WHERE, {"token": token}, headers={"origin": "http://evil"}).status == 403
    assert pages.send(WHERE, {"token": token + "x"}).status == 403
    assert pages.send(f"{DAYS}/backfill", {"token": token}).status == 403
    for query in ("from=2026-01-02&to=2026-01-01", "from=2020-01-01&to=2026-01-01", "from=x&to=y"):
        assert pages.get(f"{WHERE}?{query}").status == 422
    assert pages.runs() == []


def test_pages_tell_the_generation(
    pages: Pages, bench: Workbench, ledger: Ledger,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    """Days and a batch's page say which output readers see, and who made it; a day counts its
    records once; the overview's counts too.
    """
    spec = three_days(bench, ledger)
    assert [replayed(ledger, spec, 2, key).batch.batch_id for key in ("a", "b")] == [4, 5]
    replay.plan(ledger, spec, "c", 1)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    days = pages.get(f"{DAYS}?from=2026-01-01&to=2026-01-03").text
    rows = {
        day: text_of(row) for day, row in re.findall(r'<tr id="d(\d+)">(.*?)</tr>', days, re.S)
    }
    assert f"2 generation 3, by batch 5 , on {today}" in rows["20260102"]
    assert "finalized" in rows["20260102"] and " 10 10 0 0 " in rows["20260102"]
    assert "finalized" in rows["20260101"] and "batch 6 replays it" in rows["20260101"]
    assert "generation" not in rows["20260103"]
    cells = re.findall(r'<td class="n"([^>]*)>', days + asked(pages))
    assert len(cells) > 8 and all("title=" in cell for cell in cells)
    shown = {n: text_of(pages.get(f"{DAYS}/batches/{n}").text) for n in (1, 2, 4, 5)}
    assert "batch 4 replaced it" in shown[2] and "batch 5 replaced it" in shown[4]
    assert "replays batch 2 :" in shown[5] and "replaced it" not in shown[5]
    assert "2026-01-02.jsonl" in shown[5], "what it reads"
    assert "Outputs of batch" in shown[2] and "visible to readers" in shown[2]
    overview = text_of(pages.get("/semel/").text)
    assert " 30 30 0 0" in overview.replace(",", ""), overview
    assert main(["days", "events", "--from", "2026-01-01", "--to", "2026-01-03"]) == 0
    assert "2 (replayed by 5)" in capsys.readouterr().out


def test_a_pipeline_without_intervals(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """Its batches are those that committed in the time, and the run names them by number; a replay
    at work is no batch of its day.
    """
    spec, began = bench.spec(), datetime.now(UTC)
    for n in range(2):
        bench.write(f"in/{n}.jsonl", events(10 * n, 10 * n + 10))
        run(ledger, spec, f"r{n}")
    ended = datetime.now(UTC) + ONE  # Also where midnight was in between.
    query = f"from={began:%Y-%m-%d}&to={ended:%Y-%m-%d}"
    sent = pages.send(WHERE, {"token": token_of(asked(pages, query))})
    assert sent.status == 303, sent.text
    conf = pages.runs()[0][2]
    assert conf.pop("shown")["batches"] == [1, 2] and conf == {"replay": True, "batches": "1..2"}
    replay.plan(ledger, spec, "c", 1)
    row = text_of(pages.get(DAYS).text)
    assert "done" in row and "in work" not in row


def test_records_that_were_admitted_are_of_their_day(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """An admission stands in the interval of the batch whose dead letters it judges again."""
    spec = bench.spec(source=BY_DAY, schedule="@daily")
    bench.write("in/2026-01-01.jsonl", [*events(0, 10), BAD])
    run(ledger, spec, "r1", (DAY, DAY + ONE))
    schema = {"id": "string", "n": "double", "at": "timestamp"}
    spec = bench.spec(source=BY_DAY | {"schema": schema}, schedule="@daily")
    allow(ledger, spec)
    admitted(ledger, spec)
    days = pages.get(f"{DAYS}?from=2026-01-01&to=2026-01-01").text
    row = text_of(re.findall(r'<tr id="d20260101">(.*?)</tr>', days, re.S)[0])
    assert row.startswith("2026-01-01 ✓ finalized replay 12 11 0 1 2 "), row
    shown = text_of(pages.get(f"{DAYS}/batches/2").text)
    assert "the dead letters of batch 1" in shown and "2026-01-01.jsonl" in shown
    replayed(ledger, spec, 2, "again")
    assert "the dead letters of batch 1" in text_of(pages.get(f"{DAYS}/batches/3").text)
