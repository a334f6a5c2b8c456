"""Durations and sizes as people write them: "30 days", "1h 30m", "P3D"; "8 GiB", "500 MB"."""

import re
from datetime import timedelta

DURATION_DAYS_MAX = 3_650
"""Longest duration of a spec, so that it fits the ledger's 32-bit seconds: ten years."""

_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_UNITS = {
    word: _SECONDS[short]
    for short, words in {
        "s": "s sec secs second seconds",
        "m": "m min mins minute minutes",
        "h": "h hour hours",
        "d": "d day days",
        "w": "w week weeks",
    }.items()
    for word in words.split()
}
_TERM = re.compile(r"([0-9]{1,12})\s*([a-z]+)\s*", re.ASCII)
_ISO = re.compile(
    r"P(?=.)(?:(?P<w>[0-9]{1,12})W)?(?:(?P<d>[0-9]{1,12})D)?"
    r"(?:T(?=.)(?:(?P<h>[0-9]{1,12})H)?(?:(?P<m>[0-9]{1,12})M)?(?:(?P<s>[0-9]{1,12})S)?)?",
    re.ASCII,
)
_SIZE = re.compile(r"([0-9]{1,18})\s*([A-Za-z]+)", re.ASCII)
_BYTES = {"b": 1, "byte": 1, "bytes": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1_000), ("ib", 1_024))
}
_PLAIN = (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))

_DURATION_HELP = 'write whole numbers with a unit, such as "30 days", "6 hours", "90 s" or "P3D"'
_SIZE_HELP = 'write whole bytes, or a whole number with a unit, such as "8 GiB" or "500 MB"'


def parse_duration(value: object) -> timedelta:
    """A duration in whole seconds. Raises ValueError with an example.

    A number needs a unit, since it could mean seconds or days. Months and years are not allowed,
    because their length varies.
    """
    if isinstance(value, timedelta):
        return _bounded(value // timedelta(seconds=1))
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a duration; {_DURATION_HELP}")
    text = value.strip()
    if iso := _ISO.fullmatch(text):
        return _bounded(sum(int(n) * _SECONDS[unit] for unit, n in iso.groupdict("0").items()))
    terms = _TERM.findall(text.lower())
    if not terms or _TERM.sub("", text.lower()):
        raise ValueError(f"{value!r} is not a duration; {_DURATION_HELP}")
    for _, unit in terms:
        if unit not in _UNITS:
            raise ValueError(f"{value!r} has the unknown unit {unit!r}; {_DURATION_HELP}")
    return _bounded(sum(int(number) * _UNITS[unit] for number, unit in terms))


def format_duration(value: timedelta) -> str:
    """The duration in the largest unit that divides it; `parse_duration` reads it back."""
    seconds = value // timedelta(seconds=1)
    dividing = (pair for pair in _PLAIN if seconds and seconds % pair[1] == 0)
    unit, length = next(dividing, ("second", 1))
    count = seconds // length
    return f"{count} {unit}" + ("" if count == 1 else "s")


def parse_size(value: object) -> int:
    """A size in bytes: an integer, or text with a unit (GiB counts in 1024, GB in 1000).

    Raises ValueError with an example.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        unit = match[2].lower()
        if unit not in _BYTES:
            raise ValueError(f"{value!r} has the unknown unit {match[2]!r}; {_SIZE_HELP}")
        size = int(match[1]) * _BYTES[unit]
    else:
        raise ValueError(f"{value!r} is not a size; {_SIZE_HELP}")
    if not 1 <= size < 1 << 63:
        raise ValueError(f"{value!r} is not between 1 byte and 8 EiB")
    return size


def _bounded(seconds: int) -> timedelta:
    if not 0 <= seconds <= DURATION_DAYS_MAX * 86_400:
        raise ValueError(f"is not between 0 s and {DURATION_DAYS_MAX} days")
    return timedelta(seconds=seconds)
