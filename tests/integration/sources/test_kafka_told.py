"""What is said of a pipeline over topics: partitions and offsets, and no files or bytes of them."""

import json
import re
from collections.abc import Callable

import pytest

from fixtures.airflow.pages import Pages
from fixtures.batches.account import committed, run
from fixtures.batches.workbench import Workbench
from fixtures.commands.documents import ROOT
from fixtures.kafka.broker import Kafka, Record
from fixtures.kafka.topics import Topic
from semel import pipeline
from semel.cli import main
from semel.errors import SourceError
from semel.ledger import Ledger
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.reports import summary
from semel.reports.gaps import GapReason, gaps

Said = Callable[..., tuple[int, str]]


@pytest.fixture
def said(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Said:
    """Runs a command, and gives its exit code and what it said."""
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)

    def call(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(list(words))
        return code, capsys.readouterr().out

    return call


def told(ledger: Ledger, topic: Topic, key: str, **changes: object) -> list[str]:
    return summary.plan(plan(ledger, topic.spec(**changes), key)).splitlines()


def test_a_plan_counts_offsets(topic: Topic, ledger: Ledger) -> None:
    """What it takes, what it leaves, and whose everything is, in offsets of partitions."""
    topic.append(0, 1000)
    lines = told(ledger, topic, "r1", limits={"records_per_batch_max": 600})
    assert lines == [
        "planned: batch 1 of events reads 1 partition, 600 offsets",
        f"  {topic.at()}",
        "left over: 400 offsets; the next run reads them",
        "next: stage",
    ]
    told(ledger, topic, "r2")
    lines = told(ledger, topic, "r3")
    assert lines[0] == "nothing to do: batches already have all records of 1 partition"
    assert lines[1:3] == [
        "batch 2 (run r2) is working on 1 partition", "batch 1 (run r1) is working on 1 partition"
    ]  # fmt: skip


def test_open_transactions(topic: Topic, ledger: Ledger) -> None:
    """What lies behind one is shown as waiting, at each look, until it ends: whether it is all that
    a topic has, or comes behind all that was read."""
    spec = topic.spec()
    for start, key in ((0, "r1"), (2, "r2")):  # Its mark is an offset too.
        assert gaps(ledger, spec).gaps == ()
        opened = topic.kafka.begin(topic.name, [Record(value=b'{"id":"a"}')])
        for number in range(2):
            lines = told(ledger, topic, f"{key}-{number}")
            assert f"waiting for open transactions: '{topic.at()}'" in lines
            assert start or lines[0] == (
                "nothing to do: 1 partition has no record that can be read"
            )
            [gap] = gaps(ledger, spec).gaps
            assert (gap.start, gap.state, gap.idle) == (start, GapReason.WAITING, False)
        opened.commit_transaction()
        [gap] = gaps(ledger, spec).gaps
        assert (gap.start, gap.state) == (start, GapReason.UNCLAIMED)
        run(ledger, spec, key)
    assert gaps(ledger, spec).gaps == ()


def test_gaps_and_accept(topic: Topic, ledger: Ledger, said: Said) -> None:
    """What is unread, refused or lost is told in offsets; following the advice ends it."""
    topic.append(0, 10)
    spec = topic.spec(source={"on_refused": "fail"})
    run(ledger, spec, "r1")
    topic.append(10, 20)
    opened = topic.kafka.begin(topic.name, [])
    code, words = said("gaps", spec.name)
    assert code == 1 and f"unclaimed: '{topic.at()}' offsets 10 to 20" in words
    opened.abort_transaction()
    abandon(ledger, plan(ledger, spec, "r2").batch.batch_id, "not now")
    topic.kafka.delete_records(topic.name, {0: 15})
    with pytest.raises(SourceError):
        run(ledger, spec, "r3")
    assert f"refused: '{topic.at()}': gone: offsets 10 to 15" in said("gaps", spec.name)[1]
    code, words = said("accept", spec.name, topic.at(), "--lost")
    lost = f"lost: offsets 10 to 15 of '{topic.at()}'"
    assert code == 0 and words == f"{lost}\nnext: semel run {spec.name}\n"
    run(ledger, spec, "r4")
    code, words = said("gaps", spec.name)
    assert code == 0 and f"lost: '{topic.at()}' offsets 10 to 15: gone, by" in words


@pytest.mark.rest
def test_find_letters_and_show(topic: Topic, ledger: Ledger, said: Said) -> None:
    """A record, a dead letter and a claim are told by partition and offset."""
    topic.append(0, 5)
    topic.put([b'{"id": "bad'])
    topic.append(3, 5)
    spec = topic.spec(record_id=["id"], sink={"position_columns": True})
    run(ledger, spec, "r1")
    assert f"from '{topic.at()}' offset 2\n" in said("find", spec.name, "e000002")[1]
    assert "duplicate_in_batch: batch 1, " in said("find", spec.name, "e000003")[1]
    assert f"from '{topic.at()}' offset 6\n" in said("find", spec.name, "e000003")[1]
    topic.append(10, 11)
    assert (
        "1 source partition has records that are not finalized"
        in said("find", spec.name, "e000010")[1]
    )
    code, words = said("letters", spec.name)
    assert code == 0 and f"batch 1, '{topic.at()}' (offset 5): malformed" in words
    assert f"claim: '{topic.at()}' offsets 0 to 8 (part=1)" in said("show", "1")[1]


def test_the_guides_page(
    bench: Workbench, kafka: Kafka, ledger: Ledger, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipeline runs as it stands, plan says what the page shows, and its commands work."""
    page = (ROOT / "docs" / "guide" / "kafka.md").read_text(encoding="utf-8")
    [text] = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    [shown] = re.findall(r"^```text\n(.*?)^```", page, re.M | re.S)
    (bench.pipelines / "orders.yaml").write_text(text)
    settings = json.dumps({"bootstrap.servers": kafka.broker.bootstrap})
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", f'{{"conn_type": "kafka", "extra": {settings}}}')
    kafka.topic("orders")
    value = b'{"order_id": "%d", "amount": 1.5}'
    kafka.produce("orders", [Record(value=value % n) for n in range(10)])
    assert said("validate", str(bench.pipelines / "orders.yaml"))[0] == 0
    spec = pipeline.find("orders")
    assert "\n".join(summary.plan_lines(plan(ledger, spec, "r1"))) == shown.rstrip()
    run(ledger, spec, "r1")
    assert said("gaps", "orders")[0] == 0
    kafka.produce("orders", [Record(value=value % 11)])
    assert said("gaps", "orders")[0] == 1
    kafka.delete_records("orders", {0: 11})
    with pytest.raises(SourceError):
        plan(ledger, spec, "r2")
    assert said("accept", "orders", "orders/0", "--lost")[0] == 0


@pytest.mark.rest
def test_pages(topic: Topic, ledger: Ledger, pages: Pages) -> None:
    """A batch's page and that of what is refused; a topic that was made anew is accepted there."""
    topic.append(0, 10)
    spec = topic.spec()
    batch = committed(ledger, spec, "r1")
    text = pages.get(f"/semel/dags/events/batches/{batch}").text
    assert "The first offset that the batch reads" in text and "The first byte" not in text
    topic.kafka.recreate(topic.name)
    topic.append(20, 30)
    with pytest.raises(SourceError, match="deleted and recreated"):
        plan(ledger, spec, "r2")
    text = pages.get("/semel/dags/events/refused").text
    assert "refused partitions" in text and "or from an offset that you name" in text
    assert "byte" not in text and "refused files" not in text
    asked = f"/semel/dags/events/accept?file={topic.name}%2F0&how=new"
    text = pages.get(asked).text
    assert "from offset" in text and "accept a partition" in text and "byte" not in text
