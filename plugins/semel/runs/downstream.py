"""downstream: after a replay, replay what other pipelines have made of that output, down the chain.

How it works: the consumers of a pipeline are the declarations beside it that read its output, and
their consumers, and so on. Of each, the batches that claimed a batch that is replayed are known
before anything is done, because a replay keeps a batch's number. Each is replayed if something that
it reads was replaced since; so the same request goes on where the one before stopped, and does
nothing twice.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from semel import pipeline as declarations
from semel.archive import layout
from semel.errors import RetryableError, SemelError, TerminalError
from semel.ledger import Ledger, pipelines
from semel.model.batch import Log
from semel.pipeline.spec import Spec
from semel.runs import replay
from semel.runs.replay import Replayed
from semel.stage import JobEngine


@dataclass(frozen=True, kw_only=True)
class Link:
    """A pipeline further down, and its batches in commit order: why each cannot follow, or None.

    `behind`: those that would be replayed. `above`: the pipeline that it reads.
    """

    spec: Spec
    above: str
    batches: dict[int, SemelError | None]
    behind: tuple[int, ...]


# Keeps CH3.
def look(ledger: Ledger, spec: Spec, roots: Mapping[int, bool]) -> list[Link]:
    """What follows a replay of some batches, in the order of the chain. `roots`: each with whether
    it will be replayed. SpecError: a declaration beside it cannot be read, so nobody knows.
    """
    declared = list(declarations.load_all().values())
    return list(_below(ledger, declared, spec, roots))


def _below(
    ledger: Ledger, declared: list[Spec], above: Spec, roots: Mapping[int, bool]
) -> Iterator[Link]:
    for spec in declared:
        source, output = spec.source, above.sink.whereabouts()
        if source.upstream != above.name or not source.reads_from(output):
            continue
        read = _readers(ledger, above, spec, [*roots])
        if not read:
            continue
        moving = _parts(above, [root for root, moves in roots.items() if moves])
        found = {n: replay.follows(ledger, spec, n, moving) for n in read}
        behind = tuple(n for n, (is_so, _) in found.items() if is_so)
        why = {n: why for n, (_, why) in found.items()}
        yield Link(spec=spec, above=above.name, batches=why, behind=behind)
        yield from _below(ledger, declared, spec, {n: n in behind for n in read})


def _readers(ledger: Ledger, above: Spec, spec: Spec, roots: list[int]) -> list[int]:
    """The batches of a pipeline that read some batches of another one, in commit order."""
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    if pipeline is None:
        return []
    values = {"pipeline_id": pipeline.pipeline_id, "names": _parts(above, roots)}
    return [r["root"] for r in ledger.rows("replay", "readers", **values)]


def _parts(above: Spec, roots: list[int]) -> list[str]:
    """Some batches as the source partitions that they are."""
    return [f"{above.name}/{layout.marker(Path(), root).stem}" for root in roots]


def refuse(spec: Spec, links: list[Link], *, alone: str) -> None:
    """TerminalError: some of what follows cannot be replayed, so nothing is done. `alone`: replays
    the first pipeline alone.
    """
    why = [
        f"batch {number} of {link.spec.name}: {error}"
        for link in links
        for number, error in link.batches.items()
        if error is not None
    ]
    if why:
        raise TerminalError(
            "\n".join([f"not all that reads {spec.name} can follow; nothing was done", *why]),
            next=alone,
        )


# Keeps CH3.
def run(
    ledger: Ledger,
    links: list[Link],
    engine: JobEngine,
    log: Log,
    *,
    request: str | None,
    command: str,
) -> Iterator[tuple[Link, Replayed]]:
    """Replay what is behind, one after another. An error ends it; what is done stays so.

    `command`: goes on from there. RetryableError, TerminalError: it stopped, and where.
    """
    for link in links:
        key = request or replay.request_of(link.spec)
        for at, root in enumerate(link.batches, 1):
            log(f"{link.spec.name}: batch {root} ({at} of {len(link.batches)})")
            try:
                behind, why = replay.follows(ledger, link.spec, root, ())
                if why:
                    raise why
                if behind:
                    yield link, replay.run(ledger, link.spec, key, root, engine, log)
            except SemelError as error:
                kind = RetryableError if isinstance(error, RetryableError) else TerminalError
                raise kind(
                    f"stopped at batch {root} of {link.spec.name}, which reads {link.above}; what "
                    f"was replayed before it stays: {error}. `{command}` goes on there",
                    next=command,
                ) from error
