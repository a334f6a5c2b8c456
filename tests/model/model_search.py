"""Exhaustive search: every state that a small model can reach, breadth first.

A model says where it starts, which steps each state allows (one for each actor that can go on, and
one for each crash), what is damaged in a state and whether all work has ended. The search visits
every state once, so the way to a damage that it hands back is a shortest one. After a search
without damage it walks backwards from the ended states: a state from which none can be reached is
damage too (`STUCK`).

A model is built with the guards that are taken out of it; a guard is a line of the protocol that
somebody might think to be needless.
"""

import re
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

STUCK = "work is left that nothing can bring to an end"
STATES_MAX = 2_000_000

State = Any
"""A hashable value, here always a NamedTuple of numbers, texts and tuples."""


class Model:
    """What a model of the protocol has. A subclass is one phenomenon; its docstring says what of
    the real protocol it leaves away.

    Each guard is an attribute, true when it is there: "pipeline lock" is `self.pipeline_lock`. Each
    option is an attribute too; the class has its default.
    """

    GUARDS: ClassVar[dict[str, str]]
    """Each guard's name, and what is missing without it."""

    def __init__(self, without: Collection[str] = (), **options: object) -> None:
        unknown = set(without) - set(self.GUARDS)
        if unknown:
            raise ValueError(f"{type(self).__name__} has no guards {unknown}: {[*self.GUARDS]}")
        for guard in self.GUARDS:
            setattr(self, re.sub(r"\W", "_", guard), guard not in without)
        for option, value in options.items():
            assert hasattr(type(self), option), f"{type(self).__name__} has no option {option}"
            setattr(self, option, value)

    def start(self) -> State:
        raise NotImplementedError

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """What may happen next: in plain words, and the state after it."""
        raise NotImplementedError

    def damages(self, state: State) -> Iterable[str]:
        """What must never be, and is."""
        raise NotImplementedError

    def ended(self, state: State) -> bool:
        """Whether all work is done, or what the model has to spend is spent."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search saw. `damage` is None when nothing is wrong; else `way` leads to it."""

    states: int
    steps: int
    damage: str | None = None
    way: tuple[str, ...] = ()

    def told(self) -> str:
        """The counterexample as a numbered interleaving."""
        lines = [f"{number}. {words}" for number, words in enumerate(self.way, start=1)]
        return "\n".join([*lines, f"Damage: {self.damage}."])


def search(model: Model, wanted: str | None = None) -> Found:
    """Visit all states, or stop at the first damage (at the first `wanted` one when that is given).

    OverflowError when there are more than STATES_MAX.
    """
    first = model.start()
    number: dict[Hashable, int] = {first: 0}
    parent = array("q", [-1])
    edges = (array("q"), array("q"))
    states = [first]
    for at, state in enumerate(states):
        for _, after in model.steps(state):
            there = number.get(after)
            if there is None:
                there = number[after] = len(states)
                if there > STATES_MAX:
                    raise OverflowError(f"{model} has more than {STATES_MAX} states")
                states.append(after)
                parent.append(at)
                for damage in model.damages(after):
                    if wanted in (None, damage):
                        way = _way(model, states, parent, there)
                        return Found(states=there, steps=len(edges[0]), damage=damage, way=way)
            if there != at:
                edges[0].append(at)
                edges[1].append(there)
    stuck = _stuck(model, states, edges) if wanted in (None, STUCK) else None
    if stuck is None:
        return Found(states=len(states), steps=len(edges[0]))
    way = _way(model, states, parent, stuck)
    return Found(states=len(states), steps=len(edges[0]), damage=STUCK, way=way)


def _way(model: Model, states: list[State], parent: array, end: int) -> tuple[str, ...]:
    """The words of the steps that first led to a state."""
    words = []
    while parent[end] >= 0:
        before = states[parent[end]]
        words.append(next(w for w, after in model.steps(before) if after == states[end]))
        end = parent[end]
    return tuple(reversed(words))


def _stuck(model: Model, states: list[State], edges: tuple[array, array]) -> int | None:
    """The first state from which no ended one can be reached, or None."""
    before: list[list[int]] = [[] for _ in states]
    for source, target in zip(*edges, strict=True):
        before[target].append(source)
    todo = [at for at, state in enumerate(states) if model.ended(state)]
    reaches = bytearray(len(states))
    for at in todo:
        reaches[at] = 1
    while todo:
        for source in before[todo.pop()]:
            if not reaches[source]:
                reaches[source] = 1
                todo.append(source)
    lost = reaches.find(0)
    return lost if lost >= 0 else None


def swap(values: tuple, at: int, value: object) -> tuple:
    """A tuple with one value replaced."""
    return (*values[:at], value, *values[at + 1 :])


def setter(state: State, name: str, at: int) -> Callable[..., State]:
    """`now(value, **changes)`: the state with one value of its tuple `name` replaced, and changes of
    other fields; `now(value, other)` begins with another state.
    """

    def now(value: object, state: State = state, **changes: object) -> State:
        return state._replace(**{name: swap(getattr(state, name), at, value)}, **changes)

    return now


def bits(them: Iterable, holds: Callable[[Any], bool]) -> int:
    """Which of them something holds for, as bits."""
    return sum(1 << at for at, one in enumerate(them) if holds(one))


def shown(numbers: int) -> str:
    """Bits as a set of numbers."""
    found = (str(n) for n in range(numbers.bit_length()) if numbers >> n & 1)
    return "{" + ", ".join(found) + "}"
