"""Accepting a refused file and abandoning a batch on semel's pages: who may, and what is done."""

import html
import json
import os
import re
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from itsdangerous import TimestampSigner, URLSafeTimedSerializer

from fixtures.airflow.pages import OWN_SITE, SECRET, Answer, Pages
from fixtures.batches.account import lines, refusals, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.files.rotation import position
from semel.airflow.page.guard import PAGE_CONFIRM_SECONDS
from semel.errors import StateError
from semel.ledger import Ledger
from semel.model.batch import Batch
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.accept import accept_file, choices, preview_accept
from semel.repair.losses import accept_loss, losses_digest, preview_loss

ACCEPT = "/semel/dags/events/accept"
HOSTILE = "in/<b>\"'&%2F x.jsonl"


@pytest.fixture
def changed(bench: Workbench, ledger: Ledger) -> tuple[Spec, Path]:
    """A file that was read and then written anew: refused."""
    spec = bench.spec()
    path = bench.write(HOSTILE, events(0, 10))
    run(ledger, spec, "r1")
    path.write_bytes(lines(5, 20))
    plan(ledger, spec, "r2")
    assert list(refusals(ledger)) == [path.name]
    return spec, path


def token_of(answer: Answer) -> str:
    """What a confirmation page signed."""
    assert answer.status == 200, answer.text
    return html.unescape(re.search(r'name="token" value="([^"]+)"', answer.text)[1])


def ask(pages: Pages, path: Path, how: str = "new", who: str = "admin") -> Answer:
    return pages.get(f"{ACCEPT}?file={quote(str(path))}&how={how}", who)


def test_a_copy_that_is_whole_is_not_offered_as_the_same(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """Of Parquet by position: accept always refuses `same` there, and it takes a new generation."""
    table = pa.table({"id": ["a", "b"]})
    for name in ("a", "b"):
        bench.write(f"in/{name}.parquet", [])
        pq.write_table(table, bench.data / "in" / f"{name}.parquet")
    source = {"path": "in/*.parquet", "format": "parquet", "schema": {"id": "string"}}
    spec = bench.spec(source=source, record_id=None)
    (one,) = plan(ledger, spec, "r1").refusals
    assert one.reason == "copy"
    text = pages.get("/semel/dags/events/refused").text
    assert 'value="new" checked' in text and 'value="same"' not in text
    assert choices(spec.source, "copy") == ("new",)
    assert choices(bench.spec().source, "copy") == ("new", "same")
    assert preview_accept(ledger, spec, one.name, same=False)


def test_a_refused_file_is_accepted_in_two_steps(
    pages: Pages, changed: tuple[Spec, Path], ledger: Ledger
) -> None:
    """The list says why, the second page what would be done, and only the form does it; the next
    run reads the file. A viewer sees no button.
    """
    spec, path = changed
    listed = pages.get("/semel/dags/events/refused")
    assert "changed" in listed.text and "What would this do?" in listed.text
    assert f'value="{html.escape(str(path))}"'.replace("&#x27;", "&#39;") in listed.text.replace(
        "&#34;", "&quot;"
    )
    seen = pages.get("/semel/dags/events/refused", "viewer")
    assert "What would this do?" not in seen.text and "permission to edit" in seen.text
    asked = ask(pages, path)
    assert "the file as a <strong>new generation</strong>" in asked.text and "<b>" not in asked.text
    assert list(refusals(ledger)) == [path.name]
    done = pages.send(ACCEPT, {"token": token_of(asked)})
    assert done.status == 200 and "the file is accepted" in done.text
    assert "generation 2" in done.text and "clear the run" in done.text
    assert refusals(ledger) == {}
    with sqlite3.connect(pages.home / "airflow.db") as airflow:
        [row] = airflow.execute("SELECT owner, dag_id, extra FROM log WHERE event = 'semel_accept'")
    assert row[:2] == ("admin", "events")
    assert json.loads(row[2]) == {"file": str(path), "how": "new", "start": 0}
    run(ledger, spec, "r3")
    assert settled(spec, audited=False).ids == [record["id"] for record in events(0, 20)]
    again = pages.send(ACCEPT, {"token": token_of(asked)})
    assert again.status in (200, 409) and "nothing was" in again.text


# Attacks A8.
def test_nobody_else_accepts(
    pages: Pages, changed: tuple[Spec, Path], ledger: Ledger
) -> None:
    """No login, no permission, no signature, another's signature, an old one, another site: refused
    with nothing done.
    """
    _, path = changed
    token = token_of(ask(pages, path))
    assert ask(pages, path, who="viewer").status == 403
    assert ask(pages, path, who=None).status == 401
    form = {"token": token}
    other = pages.get(f"{ACCEPT}?file={quote(str(path))}&how=new", "second")
    assert other.status == 200
    old = URLSafeTimedSerializer(SECRET, salt="semel-page", signer=_Late).dumps(
        URLSafeTimedSerializer(SECRET, salt="semel-page").loads(token)
    )
    foreign = URLSafeTimedSerializer("another", salt="semel-page").dumps(
        URLSafeTimedSerializer(SECRET, salt="semel-page").loads(token)
    )
    tried = {
        "no login": (pages.send(ACCEPT, form, None), 401),
        "forged": (pages.send(ACCEPT, form, "forged"), 403),
        "viewer": (pages.send(ACCEPT, form, "viewer"), 403),
        "no token": (pages.send(ACCEPT, {}), 403),
        "no JSON": (pages.send(ACCEPT, {"token": "x" * 10_000}), 403),
        "another user": (pages.send(ACCEPT, form, "second"), 403),
        "another user's": (pages.send(ACCEPT, {"token": token_of(other)}), 403),
        "another DAG": (pages.send("/semel/dags/big/accept", form), 403),
        "another action": (pages.send("/semel/dags/events/batches/1/abandon", form), 403),
        "too old": (pages.send(ACCEPT, {"token": old}), 403),
        "another key": (pages.send(ACCEPT, {"token": foreign}), 403),
        "fields": (pages.send(ACCEPT, {"file": str(path), "how": "new"}), 403),
    }
    for name, headers in {
        "origin": {"origin": "http://evil.example"},
        "null": {"origin": "null"},
        "same host as a part": {"origin": "http://testserver.evil.example"},
        "site": OWN_SITE | {"sec-fetch-site": "cross-site"},
        "beside": OWN_SITE | {"sec-fetch-site": "same-site"},
        "neither": {},
    }.items():
        tried[name] = (pages.send(ACCEPT, form, headers=headers), 403)
    wrong = {name: a.status for name, (a, status) in tried.items() if a.status != status}
    assert not wrong
    assert "more than 15 min old" in tried["too old"][0].text
    assert list(refusals(ledger)) == [path.name]
    assert pages.send(ACCEPT, form, headers={"origin": "http://testserver"}).status == 200


class _Late(TimestampSigner):
    """Signs as if it were longer ago than a confirmation is taken."""

    def get_timestamp(self) -> int:
        return int(time.time()) - PAGE_CONFIRM_SECONDS - 2


# Attacks A7.
def test_what_changed_since_it_was_shown_is_not_accepted(
    pages: Pages, changed: tuple[Spec, Path], ledger: Ledger
) -> None:
    """Other bytes, another file: nothing is done. A file that grew is the same."""
    spec, path = changed
    token = token_of(ask(pages, path))
    text = path.read_bytes()
    path.write_bytes(text.replace(b"e000007", b"e999997"))
    for _ in range(2):
        late = pages.send(ACCEPT, {"token": token})
        assert late.status == 409 and "has changed since you saw its preview" in late.text
    assert list(refusals(ledger)) == [path.name]
    token = token_of(ask(pages, path))
    beside = path.with_name("other")
    beside.write_bytes(path.read_bytes())
    os.replace(beside, path)
    late = pages.send(ACCEPT, {"token": token})
    assert late.status == 409 and "nothing to accept. semel does not refuse it" in late.text
    run(ledger, spec, "r3")
    path.write_bytes(lines(60, 80))
    plan(ledger, spec, "r4")
    foreseen = preview_accept(ledger, spec, str(path), same=False)
    path.write_bytes(lines(30, 40))
    with pytest.raises(StateError, match="Nothing was accepted"):
        agreed = (foreseen.end, foreseen.digest)
        accept_file(ledger, spec, str(path), same=False, agreed=agreed)
    token = token_of(ask(pages, path))
    path.write_bytes(path.read_bytes() + lines(40, 50))
    assert pages.send(ACCEPT, {"token": token}).status == 200
    assert refusals(ledger) == {}


# Attacks A7.
def test_a_loss_is_recorded_in_the_name_of_who_saw_it(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """What went with its file is lost only as it was shown; the ledger keeps the user's name."""
    spec = position(bench, "in/*.jsonl", limits={"bytes_per_batch_max": "200 bytes"})
    path = bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    path.unlink()
    plan(ledger, spec, "r2")
    assert "gone" in pages.get("/semel/dags/events/refused").text
    losses = preview_loss(ledger, spec, str(path))
    with pytest.raises(StateError, match="Nothing was accepted"):
        accept_loss(ledger, spec, str(path), agreed=losses_digest(losses[1:]))
    done = pages.send(ACCEPT, {"token": token_of(ask(pages, path, "lost"))})
    assert done.status == 200 and "the loss is recorded" in done.text
    text = pages.get("/semel/dags/events/refused").text
    assert "admin (Airflow)" in text and "would not refuse any file now" in text
    assert "is already recorded" in ask(pages, path, "lost").text


def test_what_cannot_be_accepted_has_no_button(pages: Pages, bench: Workbench) -> None:
    """A refusal that only a fixed file settles is told, also before there is a ledger of it."""
    bench.spec(source={"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"})
    bench.write("in/nonsense.jsonl", events(0, 1))
    text = pages.get("/semel/dags/events/refused").text
    assert "1</span> file is refused" in text and "You cannot accept this: fix the file" in text
    assert "<button" not in text


@pytest.fixture
def planned(bench: Workbench, ledger: Ledger) -> Batch:
    bench.write("in/a.jsonl", events(0, 10))
    return plan(ledger, bench.spec(), "airflow:events:manual__1").batch


def test_a_batch_is_abandoned_in_two_steps(
    pages: Pages, planned: Batch, ledger: Ledger
) -> None:
    """The page says what it gives up, and whether somebody is at work; the form does it once."""
    where = f"/semel/dags/events/batches/{planned.batch_id}"
    assert "Abandon it" in pages.get(where).text
    assert "Abandon it" not in pages.get(where, "viewer").text
    assert pages.get(f"{where}/abandon", "viewer").status == 403
    asked = pages.get(f"{where}/abandon")
    assert "No attempt is at work on this batch" in asked.text and "a.jsonl" in asked.text
    form = {"token": token_of(asked)}
    assert pages.send(f"{where}/abandon", form, "viewer").status == 403
    assert pages.send(f"{where}/abandon", form, headers={"origin": "http://evil"}).status == 403
    assert pages.send("/semel/dags/events/batches/99/abandon", form).status == 403
    done = pages.send(f"{where}/abandon", form)
    assert done.status == 200 and "is abandoned" in done.text
    assert "/dags/events/runs/manual__1" in done.text
    [row] = ledger.rows("look", "batch", batch_id=planned.batch_id)
    assert (row["status"], row["reason"]) == (
        "abandoned", "abandoned on semel's page by admin (Airflow)"
    )  # fmt: skip
    again = pages.send(f"{where}/abandon", form)
    assert again.status == 409 and "is abandoned already" in again.text
    assert pages.get("/semel/dags/events/batches/99/abandon").status == 404


def test_a_batch_that_somebody_began_is_not_abandoned_unseen(
    pages: Pages, planned: Batch, ledger: Ledger
) -> None:
    """An attempt that began after the page was shown stays; a page that shows it gives it up."""
    where = f"/semel/dags/events/batches/{planned.batch_id}/abandon"
    form = {"token": token_of(pages.get(where))}
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO semel.attempt (batch_id, fence, snapshot_seq, forgotten, driver) "
            f"VALUES ({planned.batch_id}, 1, 0, '{{}}', 'somewhere')"
        )
    late = pages.send(where, form)
    assert late.status == 409 and "have changed since the page showed them" in late.text
    asked = pages.get(where)
    assert "An attempt is at work on this batch" in asked.text
    assert pages.send(where, {"token": token_of(asked)}).status == 200


def test_who_may_not_trigger_makes_no_backfill(pages: Pages, bench: Workbench) -> None:
    """The page of a backfill asks for Airflow's own right, and for a form that it signed."""
    bench.spec(source={"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"})
    where = "/semel/dags/events/backfill"
    asked = f"{where}?from=2026-11-01T00:00:00Z&to=2026-11-02T00:00:00Z"
    assert pages.get(asked, None).status == 401
    assert pages.get(asked, "viewer").status == 403
    bench.spec("big")
    unread = asked.replace("/events/", "/big/")
    assert pages.get(unread).status == 404  # Airflow has read no file of this DAG.
    assert pages.get(asked).status == 200
    for wrong in ("from=2026-11-02&to=2026-11-01", "from=x&to=y", "from=2000-01-01&to=2026-01-01"):
        assert pages.get(f"{where}?{wrong}").status == 422, wrong
    signed = ["admin", "events", "backfill", {"from": "2026-11-01", "to": "2026-11-02"}]
    form = {"token": URLSafeTimedSerializer(SECRET, salt="semel-page").dumps(signed)}
    assert pages.send(where, form, "viewer").status == 403
    assert pages.send(where, form, "second").status == 403
    assert pages.send(where, {}).status == 403
    assert pages.send(where, form, headers={"origin": "http://evil.example"}).status == 403
