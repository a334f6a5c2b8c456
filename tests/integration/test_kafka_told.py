"""What is said of a pipeline over topics: partitions and offsets, and no files or bytes of them."""

import json
import re

import pytest

from fix_account import committed, ids, quiet, settled
from fix_docs import ROOT
from fix_engine import LocalEngine
from fix_kafka import Kafka, Record
from fix_pages import Pages
from fix_pipelines import Workbench
from fix_topics import Topic
from semel import summary
from semel.cli import main
from semel.errors import SourceError
from semel.gaps import State, gaps
from semel.ledger import Ledger
from semel.plan import plan
from semel.run import run_batch
from semel.spec import pipeline


def told(ledger: Ledger, topic: Topic, key: str, **changes: object) -> list[str]:
    return summary.plan(plan(ledger, topic.spec(**changes), key)).splitlines()


def test_a_plan_counts_offsets(topic: Topic, ledger: Ledger) -> None:
    """What it takes, what it leaves, and whose everything is, in offsets of partitions."""
    topic.append(0, 1000)
    lines = told(ledger, topic, "r1", limits={"records_per_batch_max": 600})
    assert lines == [
        "planned: batch 1 of events reads 1 partition, 600 offsets",
        f"  {topic.at()}",
        "left over: 400 offsets; the next run takes them",
        "next: stage",
    ]
    told(ledger, topic, "r2")
    lines = told(ledger, topic, "r3")
    assert lines[0] == "nothing to do: all records that 1 partition holds have a batch"
    assert lines[1:3] == [
        "batch 2 (run r2) is at work on 1 partition", "batch 1 (run r1) is at work on 1 partition"
    ]  # fmt: skip


def test_a_plan_of_nothing(topic: Topic, ledger: Ledger) -> None:
    """A topic whose only record is of a transaction that is open."""
    topic.kafka.begin(topic.name, [Record(value=b'{"id":"a"}')])
    assert told(ledger, topic, "r1")[:2] == [
        "nothing to do: 1 partition holds no record that can be read",
        f"waiting for open transactions: '{topic.at()}'",
    ]


def test_a_transaction_behind_all_that_is_read(topic: Topic, ledger: Ledger) -> None:
    """Its records are shown as waiting, at each look, until it ends."""
    topic.append(0, 10)
    run_batch(ledger, topic.spec(), "r1", LocalEngine(), log=quiet)
    spec = topic.spec()
    assert gaps(ledger, spec).gaps == ()
    opened = topic.kafka.begin(topic.name, [Record(value=b'{"id":"a"}')])
    for number in range(2):
        said = told(ledger, topic, f"again{number}")
        assert f"waiting for open transactions: '{topic.at()}'" in said
        [gap] = gaps(ledger, spec).gaps
        assert (gap.start, gap.state, gap.idle) == (10, State.WAITING, False)
    opened.commit_transaction()
    [gap] = gaps(ledger, spec).gaps
    assert (gap.start, gap.state) == (10, State.UNCLAIMED)
    run_batch(ledger, spec, "r2", LocalEngine(), log=quiet)
    assert gaps(ledger, spec).gaps == ()


def test_commands(
    topic: Topic, ledger: Ledger, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`gaps` and `show` name offsets, of what is unread, lost and claimed."""
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    topic.append(0, 10)
    run_batch(ledger, topic.spec(), "r1", LocalEngine(), log=quiet)
    topic.append(10, 20)
    assert main(["gaps", "events"]) == 1
    assert f"'{topic.at()}' offsets 10 to 20" in capsys.readouterr().out
    topic.kafka.delete_records(topic.name, {0: 15})
    with pytest.raises(SourceError):
        plan(ledger, topic.spec(), "r2")
    assert main(["accept", "events", topic.at(), "--lost"]) == 0
    main(["gaps", "events"])
    assert f"lost: '{topic.at()}' offsets 10 to 15" in capsys.readouterr().out
    assert main(["show", "1"]) == 0
    assert f"'{topic.at()}' offsets 0 to 10" in capsys.readouterr().out
    assert settled(topic.spec(), audited=False).ids == ids(0, 10)


def test_the_guides_page(
    bench: Workbench, kafka: Kafka, ledger: Ledger, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Its pipeline runs as it stands, plan says what the page shows, and its commands work."""
    page = (ROOT / "docs" / "guide" / "kafka.md").read_text(encoding="utf-8")
    [text] = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    [shown] = re.findall(r"^```text\n(.*?)^```", page, re.M | re.S)
    (bench.pipelines / "orders.yaml").write_text(text)
    settings = json.dumps({"bootstrap.servers": kafka.broker.bootstrap})
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", f'{{"conn_type": "kafka", "extra": {settings}}}')
    kafka.topic("orders")
    value = b'{"order_id": "%d", "amount": 1.5}'
    kafka.produce("orders", [Record(value=value % n) for n in range(10)])
    assert main(["validate", str(bench.pipelines / "orders.yaml")]) == 0
    spec = pipeline.find("orders")
    assert summary.plan(plan(ledger, spec, "r1")) == shown.rstrip()
    run_batch(ledger, spec, "r1", LocalEngine(), log=quiet)
    assert main(["gaps", "orders"]) == 0
    kafka.produce("orders", [Record(value=value % 11)])
    assert main(["gaps", "orders"]) == 1
    kafka.delete_records("orders", {0: 11})
    with pytest.raises(SourceError):
        plan(ledger, spec, "r2")
    assert main(["accept", "orders", "orders/0", "--lost"]) == 0


@pytest.mark.rest
def test_pages(topic: Topic, ledger: Ledger, pages: Pages) -> None:
    """A batch's page and that of what is refused; a topic that was made anew is accepted there."""
    topic.append(0, 10)
    spec = topic.spec()
    batch = committed(ledger, spec, "r1")
    text = pages.get(f"/semel/dags/events/batches/{batch}").text
    assert "The first offset that is read" in text and "The first byte" not in text
    topic.kafka.recreate(topic.name)
    topic.append(20, 30)
    with pytest.raises(SourceError, match="made anew"):
        plan(ledger, spec, "r2")
    text = pages.get("/semel/dags/events/refused").text
    assert "refused partitions" in text and "or from an offset that you name" in text
    assert "byte" not in text and "refused files" not in text
    asked = f"/semel/dags/events/accept?file={topic.name}%2F0&how=new"
    text = pages.get(asked).text
    assert "from offset" in text and "accept a partition" in text and "byte" not in text
