"""A guard of the protocol, as the negative controls know it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Guard:
    """`remove` takes it out of this process; each of `tests` must then fail."""

    name: str
    rules: str
    remove: Callable[[], None]
    tests: tuple[str, ...]
