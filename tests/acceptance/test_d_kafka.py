"""`semel demo --kafka` as a user meets it, on the stack that runs; and its broker as a part of it.
"""

from datetime import date
from pathlib import Path

import pytest

from fix_stack import BROKER, PARTS, Stack
from semel import pipeline
from semel_local import stack as semel_stack
from semel_local.demo.topics import ABORTED, DemoTopics
from semel_local.stack import layout

# Two minutes of a core; test_demo_kafka_topics.py and the tests of kinds have its parts.
pytestmark = pytest.mark.proof


def test_a_week_through_a_broker_is_exact(stack: Stack, kafka_jars: Path) -> None:
    """Nothing of the stack is started anew. A schedule follows the topic, in several batches; a
    backfill takes it day by day; both outputs are the flights, each once, and nothing aborted.
    """
    (stack.state / "kafka").mkdir(mode=0o700, exist_ok=True)
    (stack.state / "kafka" / kafka_jars.name).symlink_to(kafka_jars)  # Maven would take 4 s.
    before = stack.records()
    code, answer, said = stack.call("demo", "--kafka")
    assert (code, answer["ok"], answer["week"]) == (0, True, 1), said
    assert all(found == answer["truth"] for found in answer["found"].values()), said
    truth = {"messages_read": 6284, "new": 6098, "rows_finalized": 6098, "rows_that_are_wrong": 0}
    assert truth.items() <= answer["truth"].items()
    assert {name: found["ok"] for name, found in answer["audit"].items()} == {
        "flights_live": True, "flights_by_date": True,
    }  # fmt: skip
    after = stack.records()
    assert after.pop(BROKER) and after == before
    days = stack.query(
        "SELECT interval_start::date FROM semel.batch JOIN semel.pipeline USING (pipeline_id)"
        " WHERE name = 'flights_by_date' ORDER BY interval_start"
    )
    assert [day for (day,) in days] == [date(2013, 1, n) for n in range(1, 8)]
    runs = stack.query(
        "SELECT DISTINCT request_key FROM semel.batch JOIN semel.pipeline USING (pipeline_id)"
        " WHERE name = 'flights_live'"
    )
    assert len(runs) >= 2 and all(":scheduled__" in key for (key,) in runs), runs
    assert f"a transaction of {ABORTED} messages was aborted" in said
    topics = DemoTopics(semel_stack.server_address(BROKER))
    assert sum(1 for _ in topics.drain("flights")) == answer["truth"]["messages_read"]


@pytest.mark.follows("test_a_week_through_a_broker_is_exact")
def test_the_broker_can_be_left_out(stack: Stack) -> None:
    """`up` starts it again, until somebody wants it no more; its messages stay. No other part is
    touched.
    """
    before = stack.records()
    code, state, said = stack.call("up")
    assert code == 0 and {part["name"] for part in state["parts"]} == {*PARTS, BROKER}, said
    servers, topic = semel_stack.server_address(BROKER), pipeline.find("flights_live").sink.topic
    code, state, said = stack.call("up", "--no-kafka")
    assert code == 0 and {part["name"] for part in state["parts"]} == PARTS, said
    assert layout.port_is_free(int(servers.rpartition(":")[2]))
    code, state, said = stack.call("up", "--kafka")
    assert code == 0 and state["healthy"], said
    assert semel_stack.server_address(BROKER) == servers
    assert sum(1 for _ in DemoTopics(servers).drain(topic)) == 6098
    after = stack.records()
    assert after.pop(BROKER) != before.pop(BROKER) and after == before
