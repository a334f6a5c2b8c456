"""Waiting for what other processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS = 240
"""Less than a test's time limit, so that the message tells what did not come."""

T = TypeVar("T")


def wait_for(
    found: Callable[[], T | None], what: str, seconds: float = SECONDS, poll: float = 0.2
) -> T:
    """What `found` returns, once that is true; asked each `poll` seconds."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(poll)
    return value
