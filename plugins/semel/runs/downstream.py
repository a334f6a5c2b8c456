"""downstream: after a replay, replay the batches of other pipelines that read that output.

How it works: the followers of a pipeline are the declarations in its folder that read its output,
then their followers, and so on. A replay keeps a batch's number, so semel knows in advance which
batches claimed a replayed batch. It replays each one whose input was replaced since. So the same
request goes on where the previous one stopped, and does nothing twice.
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
    """A pipeline further down. `batches`: in commit order, why each cannot follow, or None.

    `behind`: the batches to replay. `above`: the pipeline that it reads.
    """

    spec: Spec
    above: str
    batches: dict[int, SemelError | None]
    behind: tuple[int, ...]


# Keeps CH3.
def find_followers(ledger: Ledger, spec: Spec, roots: Mapping[int, bool]) -> list[Link]:
    """The pipelines that follow a replay of some batches, in the order of the chain. `roots`: each
    batch, True if semel will replay it. Raises SpecError if a declaration in the folder is invalid.
    """
    declared = list(declarations.load_all().values())
    return list(_followers(ledger, declared, spec, roots))


def _followers(
    ledger: Ledger, declared: list[Spec], above: Spec, roots: Mapping[int, bool]
) -> Iterator[Link]:
    for spec in declared:
        source, output = spec.source, above.sink.whereabouts()
        if source.upstream != above.name or not source.reads_from(output):
            continue
        readers = _readers(ledger, above, spec, [*roots])
        if not readers:
            continue
        moving = _partition_names(above, [root for root, moves in roots.items() if moves])
        checks = {n: replay.follows(ledger, spec, n, moving) for n in readers}
        behind = tuple(n for n, (is_behind, _) in checks.items() if is_behind)
        why = {n: why for n, (_, why) in checks.items()}
        yield Link(spec=spec, above=above.name, batches=why, behind=behind)
        yield from _followers(ledger, declared, spec, {n: n in behind for n in readers})


def _readers(ledger: Ledger, above: Spec, spec: Spec, roots: list[int]) -> list[int]:
    """The batches of a pipeline that read the batches `roots` of another, in commit order."""
    with ledger.transaction() as connection:
        pipeline = pipelines.find(connection, spec.name)
    if pipeline is None:
        return []
    values = {"pipeline_id": pipeline.pipeline_id, "names": _partition_names(above, roots)}
    return [r["root"] for r in ledger.rows("replay", "readers", **values)]


def _partition_names(above: Spec, roots: list[int]) -> list[str]:
    """The names of batches as source partitions of a reading pipeline."""
    return [f"{above.name}/{layout.marker(Path(), root).stem}" for root in roots]


def refuse(spec: Spec, links: list[Link], *, alone: str) -> None:
    """Raise TerminalError if some followers cannot be replayed; then nothing is done. `alone`: the
    command that replays only the first pipeline.
    """
    why = [
        f"batch {number} of {link.spec.name}: {error}"
        for link in links
        for number, error in link.batches.items()
        if error is not None
    ]
    if why:
        raise TerminalError(
            "\n".join(
                [f"some batches that read {spec.name} cannot be replayed. Nothing was done", *why]
            ),
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
    """Replay the batches that are behind, in order. An error ends it; earlier replays stay.

    `command`: goes on from there. Raises RetryableError or TerminalError, which name the batch.
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
                    f"stopped at batch {root} of {link.spec.name}, which reads {link.above}: "
                    f"{error}. Earlier replays stay. `{command}` goes on there",
                    next=command,
                ) from error
