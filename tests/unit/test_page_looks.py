"""How long a page waits for a look at the source."""

from threading import Event

import pytest

from semel.airflow.page.queries import QueryCache
from semel.errors import SourceError
from semel.reports.gaps import Gaps
from semel.reports.progress import Sight

SIGHT = Sight(gaps=Gaps(pipeline="p", gaps=(), refusals=()), items=())


def test_a_slow_look_is_not_waited_for_and_not_begun_twice() -> None:
    """Three pages share one look; when it is done, the next page has what it came to."""
    looks, done, begun = QueryCache(0.05), Event(), []

    def look() -> Sight:
        begun.append(1)
        assert done.wait(30)
        return SIGHT

    assert [looks.get("p", look) for _ in range(3)] == [None, None, None]
    done.set()
    found = None
    for _ in range(200):
        found = found or looks.get("p", look)
    assert found is SIGHT and len(begun) == 1


def test_a_fast_look_is_made_for_each_page() -> None:
    """What a page shows is so when it is loaded; other pipelines' looks are their own."""
    looks, begun = QueryCache(30.0), []

    def look() -> Sight:
        begun.append(1)
        return SIGHT

    assert [looks.get(name, look) for name in "ppq"] == [SIGHT] * 3
    assert len(begun) == 3


def test_a_look_that_failed_is_told_and_made_again() -> None:
    """Its error is the page's; the next page looks again."""
    looks = QueryCache(30.0)

    def fail() -> Sight:
        raise SourceError("gone")

    for _ in range(2):
        with pytest.raises(SourceError, match="gone"):
            looks.get("p", fail)
    assert looks.get("p", lambda: SIGHT) is SIGHT
