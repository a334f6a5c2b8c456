"""What semel makes of Spark's failures: one line that says the reason."""

import pytest

from semel.errors import RetryableError
from semel.spark.engine import translate_error

CRASH = """Job aborted due to stage failure: Task 3 in stage 7.0 failed 1 times, most recent failure:
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:550)
\tat org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:842)
Caused by: java.io.EOFException
\t... 14 more"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CRASH, "a Python worker ended before its task did"),
        ("[RESPONSE_ALREADY_RECEIVED] The response was received.", "Spark was restarted"),
        ("Stage 4 failed the maximum allowable number of times: 1.", "an executor died"),
    ],
)
@pytest.mark.parametrize("samples", [True, False])
def test_the_reason_is_one_line(text: str, reason: str, samples: bool) -> None:
    """Not the tail of a trace: what happened, and that the same may succeed later."""
    error = translate_error(Exception(text), samples=samples)
    assert isinstance(error, RetryableError)
    assert str(error).startswith(f"the Spark job failed: {reason}")
    assert len(str(error).splitlines()) == 1 and "org.apache" not in str(error)


BARE = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times:
\tat org.apache.spark.executor.Executor$TaskRunner.run(Executor.scala:842)
Caused by: java.io.IOException: No space left on device
\t... 14 more
org.apache.spark.SparkException
"""


def test_a_class_alone_is_no_reason() -> None:
    """Where the last exception has no words, the line that has some is told."""
    assert "java.io.IOException: No space left on device;" in str(translate_error(Exception(BARE)))
