"""`semel demo --queue` as a user meets it, on the stack that runs; and its server as a part of it.
"""

import pytest

from fix_stack import QUEUE, Stack
from semel_local import stack as semel_stack
from semel_local.demo import follow, queue
from semel_local.stack import layout

# A minute and a half of a core; test_demo_queue.py and the tests of receive have its parts.
pytestmark = pytest.mark.proof


def test_a_week_through_a_queue_is_exact(stack: Stack) -> None:
    """Nothing of the stack is started anew. What the publisher sent again, what somebody took and
    forgot, and what a killed receiver had spooled is in the output once; each message that came is
    accounted for, and none is left in the queue.
    """
    before = stack.records()
    code, answer, said = stack.call("demo", "--queue")
    assert (code, answer["ok"], answer["week"]) == (0, True, 1), said
    assert answer["found"] == answer["truth"] and answer["audit"]["ok"], said
    came, true = answer["came"], answer["truth"]
    assert came["received"] == true["messages_read"] == 6284 + came["received_again"]
    assert came["received_again"] >= queue.KILLED_MESSAGES
    assert came["redelivered"] >= queue.KILLED_MESSAGES + queue.FORGOTTEN_MESSAGES
    assert true["messages_read"] == true["new"] + true["repeats"] + true["quarantined"]
    assert (true["new"], true["rows_finalized"], true["left_in_the_queue"]) == (6098, 6098, 0)
    assert "was killed before it acknowledged" in said
    after = stack.records()
    assert after.pop(QUEUE) and after == before
    airflow, run = stack.airflow, "demo-week-01"
    states = {name: task.state for name, task in airflow.tasks(queue.PIPELINE, run).items()}
    assert states == dict.fromkeys(follow.VERBS, "success")
    log = "\n".join(airflow.log(queue.PIPELINE, run, "receive"))
    assert "recovered " in log and "from receivers that ended early" in log, log
    assert "redelivered so far)" in log and ", acknowledged; the oldest waited" in log, log


@pytest.mark.follows("test_a_week_through_a_queue_is_exact")
def test_the_server_can_be_left_out(stack: Stack) -> None:
    """`up` starts it no more, until somebody wants it again; its messages stay. No other part is
    touched.
    """
    from semel_local.demo.publisher import DemoStream

    address = semel_stack.server_address(QUEUE)
    before = stack.records()
    code, state, said = stack.call("up", "--no-nats")
    assert code == 0 and QUEUE not in {part["name"] for part in state["parts"]}, said
    assert layout.port_is_free(int(address.rpartition(":")[2]))
    code, state, said = stack.call("up", "--nats")
    assert code == 0 and state["healthy"], said
    assert semel_stack.server_address(QUEUE) == address
    assert DemoStream(address).published() == 6284
    after = stack.records()
    assert after.pop(QUEUE) != before.pop(QUEUE) and after == before
    code, state, said = stack.call("up", "--no-nats")
    assert code == 0 and state["healthy"], said
