"""Messages of a batch are made in a thread, while those before are handed to the producer."""

from collections.abc import Iterator
from contextlib import closing
from threading import Event, active_count

import pyarrow as pa
import pytest

from semel.sinks.kafka.encode import Messages
from semel.sinks.kafka.landing import _ahead, _Block

_NONE = Messages(values=[], keys=[], headers=[], size=0)


def test_the_next_is_made_meanwhile() -> None:
    """While one block is handed on, the next one is made, and no further one."""
    made = [Event() for _ in range(4)]

    def blocks() -> Iterator[_Block]:
        for end, event in enumerate(made):
            event.set()
            yield end, _NONE

    threads = active_count()
    with closing(_ahead(blocks())) as ahead:
        assert next(ahead) == (0, _NONE)
        assert made[1].wait(10)
        assert not made[2].is_set()
        assert [end for end, _ in ahead] == [1, 2, 3]
    assert active_count() == threads


def test_its_errors_are_those_of_the_publish() -> None:
    """A staged file that cannot be read ends the publish, behind what could be read."""

    def blocks() -> Iterator[_Block]:
        yield 1, _NONE
        raise pa.ArrowInvalid("no Parquet")

    with closing(_ahead(blocks())) as ahead:
        assert next(ahead) == (1, _NONE)
        with pytest.raises(pa.ArrowInvalid):
            next(ahead)


def test_who_fails_leaves_no_thread() -> None:
    """A publish that fails in the middle ends the thread."""
    threads = active_count()
    with pytest.raises(LookupError), closing(_ahead(iter([(1, _NONE), (2, _NONE)]))) as ahead:
        next(ahead)
        raise LookupError
    assert active_count() == threads
