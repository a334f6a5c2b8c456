"""Durations and sizes: what people write is read, what is ambiguous is refused."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.declare.durations import DURATION_DAYS_MAX, format_duration, parse_duration, parse_size

SECONDS_MAX = DURATION_DAYS_MAX * 86_400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30 days", 30 * 86_400),
        ("6 hours", 6 * 3_600),
        ("90 s", 90),
        ("1 week", 604_800),
        ("1h30m", 5_400),
        ("1 Day 12 hours", 129_600),
        ("P3D", 3 * 86_400),
        ("P1W", 604_800),
        ("P1DT2H3M4S", 93_784),
        ("PT0S", 0),
        (" 5 min ", 300),
    ],
)
def test_a_written_duration_is_read(text, seconds):
    """Each documented way to write a duration gives its exact length."""
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [30, 1.5, True, None, "", "30", "days", "P", "PT", "P1Y", "P1M", "1 month", "1 year", "-1 day",
     "1.5 hours", "1 day x", "PT0.5S", "3651 days", "999999999999 weeks", "１ day", "1 day, 2 h"],
)  # fmt: skip
def test_an_unclear_duration_is_refused(value):
    """A number without unit, months, fractions, signs and absurd lengths are never guessed at."""
    with pytest.raises(ValueError, match=r"duration|unit|between"):
        parse_duration(value)


@given(st.integers(0, SECONDS_MAX))
def test_every_duration_round_trips(seconds):
    """What is stored as text is read back as the same duration, for every possible one."""
    value = timedelta(seconds=seconds)
    assert parse_duration(format_duration(value)) == value


@given(st.text())
def test_any_text_is_a_duration_or_a_value_error(text):
    """No text makes the parser fail in another way, or give a length out of bounds."""
    try:
        value = parse_duration(text)
    except ValueError:
        return
    assert timedelta(0) <= value <= timedelta(seconds=SECONDS_MAX)


@pytest.mark.parametrize(
    ("value", "size"),
    [(1, 1), ("8 GiB", 8 << 30), ("500 MB", 500_000_000), ("1kib", 1024), ("12 B", 12),
     ("2 TiB", 2 << 40)],
)  # fmt: skip
def test_a_written_size_is_read(value, size):
    """GiB counts in 1024, GB in 1000, and a bare integer is bytes."""
    assert parse_size(value) == size


@pytest.mark.parametrize("value", ["8", "GiB", "8 GX", "1.5 GB", 0, -1, True, 1.0, None, 1 << 63])
def test_an_unclear_size_is_refused(value):
    """Text without unit, fractions, zero and what does not fit 63 bits are errors."""
    with pytest.raises(ValueError, match=r"size|unit|between"):
        parse_size(value)
