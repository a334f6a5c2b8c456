"""`semel demo --lake` as a user meets it, on the stack that runs; and its store as a part of it."""

import pytest

from fix_stack import STORE, Stack
from fixtures.objects.s3 import built
from semel_local import stack as semel_stack
from semel_local.demo import follow, lake
from semel_local.stack import object_server

# Two minutes of a core, and as long again for Go; the tests of objects and of Delta have its parts.
pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


def test_two_weeks_of_a_bucket_are_exact(stack: Stack) -> None:
    """Nothing of the stack is started anew. Each flight is in the table once, as DuckDB reads it,
    also when somebody has compacted what the first week has committed.
    """
    program = built(object_server.MODULE)
    (stack.state / STORE).mkdir(mode=0o700, exist_ok=True)
    (stack.state / STORE / program.name).symlink_to(program)  # Go would take two minutes.
    before = stack.records()
    for week in (1, 2):
        code, answer, said = stack.call("demo", "--lake")
        assert code == 0, (answer, said)
        assert (answer["ok"], answer["week"]) == (True, week), said
        assert answer["found"] == answer["truth"] and answer["audit"]["ok"], said
    true = answer["truth"]
    assert true["messages_read"] == true["new"] + true["repeats"] + true["quarantined"]
    assert true["rows_finalized"] == true["new"] > 12_000 and answer["files_compacted"] == 2
    assert "put s3://lake/raw/flights-2013-01-08.jsonl: " in said
    kept = stack.state / STORE / "data" / object_server.BUCKET / "archives" / lake.PIPELINE
    assert [path.name for path in sorted((kept / "markers").iterdir())] == [
        "b00000001.json", "b00000002.json"
    ]  # fmt: skip
    assert not [path for path in stack.data.rglob("*") if lake.PIPELINE in str(path)]
    after = stack.records()
    assert after.pop(STORE) and after == before
    airflow = stack.airflow
    states = {n: task.state for n, task in airflow.tasks(lake.PIPELINE, "demo-week-02").items()}
    assert states == dict.fromkeys(follow.VERBS[1:], "success")


@pytest.mark.follows("test_two_weeks_of_a_bucket_are_exact")
def test_the_store_can_be_left_out(stack: Stack) -> None:
    """`up` starts it no more, until somebody wants it again; its objects stay."""
    address = semel_stack.server_address(STORE)
    code, state, said = stack.call("up", "--no-store")
    assert code == 0 and STORE not in {part["name"] for part in state["parts"]}, said
    code, state, said = stack.call("up", "--store")
    assert code == 0 and state["healthy"], said
    assert semel_stack.server_address(STORE) == address
    code, answer, said = stack.call("audit", lake.PIPELINE)
    assert (code, answer["ok"]) == (0, True), said
    code, state, said = stack.call("up", "--no-store")
    assert code == 0 and state["healthy"], said
