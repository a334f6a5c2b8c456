"""Assigns batches of another pipeline to source partitions: a batch's name identifies it for ever.

A missing marker does not free its name. If a batch has claimed different content under a name, plan
does not just read the new content: it waits for that batch, takes it over, or refuses the name.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import NamedTuple

from semel.errors import SourceError
from semel.model.batch import run_of
from semel.sources import (
    Acceptance,
    LedgerView,
    LostRange,
    MatchResult,
    Partition,
    Refusal,
    Window,
    accept_command,
)
from semel.sources.sealed.matching import (
    accept_new_content,
    accept_unrefused,
    describe_partition,
    make_offer,
    partitions_by_name,
    refusal,
    unreadable_refusal,
)
from semel.sources.sealed.parts import PartAccess, PartInspection, PartListing, PartOffer


class UpstreamProgress(StrEnum):
    """The progress of some batches. Abandoned batches do not count."""

    NONE = "none"
    ALIVE = "alive"
    """All are planned, and at least one may not be abandoned."""
    SILENT = "silent"
    COMMITTED = "committed"
    """At least one has committed."""


class BatchDecision(StrEnum):
    """Plan's action for a batch of the upstream."""

    GO_ON = "go on"
    """Continue the partition with this content, or begin a new one."""
    FOLLOW = "follow"
    """Continue the partition of the replay."""
    TAKE_OVER = "take over"
    """Abandon the silent readers, then as GO_ON."""
    WAIT = "wait"
    """Wait for the reader that has claimed one of its outputs."""
    REPLAYED = "replayed"
    """Refuse it, so that a person decides. Abandon silent readers."""


# Keeps CH1.
def judge(*, same: bool, readers: UpstreamProgress, replay: UpstreamProgress) -> BatchDecision:
    """The decision table. `same`: the open partition of the name has the current content.
    `readers`: batches that have claimed other content. `replay`: the newest replay of a reader, if
    it has claimed the current content.
    """
    if same:
        return BatchDecision.GO_ON
    if readers is UpstreamProgress.COMMITTED:
        follows = {
            UpstreamProgress.ALIVE: BatchDecision.WAIT,
            UpstreamProgress.COMMITTED: BatchDecision.FOLLOW,
        }
        return follows.get(replay, BatchDecision.REPLAYED)
    waits = {
        UpstreamProgress.ALIVE: BatchDecision.WAIT,
        UpstreamProgress.SILENT: BatchDecision.TAKE_OVER,
    }
    return waits.get(readers, BatchDecision.GO_ON)


class _ClaimingBatch(NamedTuple):
    """A batch with a claim under a name, and its partition: a row of `sealed.readers`."""

    part: Partition
    content: str
    batch_id: int
    request_key: str
    root: int
    committed: bool
    silent: bool
    newest_replay: bool

    def __str__(self) -> str:
        batch = f"batch {self.batch_id} (run {run_of(self.request_key)})"
        return f"{batch}, a replay, has claimed" if self.newest_replay else f"{batch} has claimed"


class _NameState(NamedTuple):
    """The ledger's state for the name of a batch, and plan's decision.

    `newest`: the open partition, else the newest. `known`: the partition with the current content.
    `others`: readers of other content, newest first. `holder`: the batch that must finish before a
    decision. `released`: silent readers.
    """

    looked: PartInspection
    newest: Partition | None
    decision: BatchDecision
    known: Partition | None
    others: list[_ClaimingBatch]
    holder: _ClaimingBatch | None
    released: list[int]


def _progress(readers: list[_ClaimingBatch], silent: Collection[int]) -> UpstreamProgress:
    if any(reader.committed for reader in readers):
        return UpstreamProgress.COMMITTED
    if any(reader.batch_id not in silent for reader in readers):
        return UpstreamProgress.ALIVE
    return UpstreamProgress.SILENT if readers else UpstreamProgress.NONE


# Keeps CH1, CH2.
def _judge_name(
    looked: PartInspection,
    newest: Partition | None,
    claims: list[_ClaimingBatch],
    orphans: Collection[int],
) -> _NameState:
    others = [reader for reader in claims if reader.content != looked.key]
    replay = [r for r in claims if r.newest_replay and r.content == looked.key]
    same = newest is not None and newest.evidence.get("content") == looked.key
    decision = judge(
        same=same and not newest.closed,
        readers=_progress(others, orphans),
        replay=_progress(replay, [reader.batch_id for reader in replay if reader.silent]),
    )
    partition = newest if same else None
    holders = [r for r in (*replay, *others) if not r.committed and r.batch_id not in orphans]
    if decision is BatchDecision.REPLAYED:
        holders = replay
    return _NameState(
        looked=looked,
        newest=newest,
        decision=decision,
        known=replay[0].part if decision is BatchDecision.FOLLOW else partition,
        others=others,
        holder=next(iter(holders), None),
        released=[reader.batch_id for reader in others if reader.batch_id in orphans],
    )


def match(source: PartAccess, shown: PartListing, known: LedgerView, window: Window) -> MatchResult:
    """As `Source.match`."""
    names = {part.name for part in shown.items}
    offers, begun, notes, over, replayed = [], [], [], [], []
    looked, refused = _open_unsettled(source, known)
    refused += [one.refusal for one in looked if not one.key]
    refused += (missing := _missing(source, known, names) if names or shown.complete else [])
    held_back = missing and source.context.by_position
    states = _name_states(source, known, looked)
    for state in states:
        output, partition, old = state.looked, state.known, state.newest
        if state.decision is BatchDecision.REPLAYED:
            replayed.append(state)
        elif held_back and old is None:
            continue
        elif state.decision is BatchDecision.WAIT:
            offers.append(make_offer(output, None, output.key))
            notes.append(
                f"{output.part.name!r}: {state.holder} an output of it; plan waits for that batch"
            )
        elif output.refusal and partition is None:
            refused.append(output.refusal)
        else:
            offers.append(offer_whole(output, partition))
            over += [old] if old and old != partition and (old.seen or not old.closed) else []
            if partition is None and not output.rows:
                begun.append(offers[-1])
    lost = [
        LostRange(partition=k, seen=k.seen)
        for k in known.partitions
        if shown.complete and k.name not in names and k.reached < k.seen and _is_upstream(source, k)
    ]
    # Content that the source has replaced does not count as lost.
    lost += [LostRange(partition=partition, seen=0) for partition in over]
    released = {
        n
        for s in states
        if s.decision in (BatchDecision.TAKE_OVER, BatchDecision.REPLAYED)
        for n in s.released
    }
    return MatchResult(
        offers=offers,
        refusals=[*refused, *_refuse_replayed(source, known, replayed)],
        lost_ranges=lost,
        new_partition_offers=begun,
        released_batches=tuple(sorted(released)),
        notes=tuple(notes),
    )


# Keeps CH4.
def _missing(source: PartAccess, known: LedgerView, names: Collection[str]) -> list[Refusal]:
    """Refuse batches that semel has read, but whose markers no longer exist."""
    upstream, refused = source.context.declared.pipeline, []
    for k in known.partitions:
        if k.name not in names and k.reached >= k.seen > 0 and _is_upstream(source, k):
            try:
                source.current_part(k.name)  # A listing may lack a marker that is being replaced.
            except FileNotFoundError:
                detail = (
                    f"its marker no longer exists, but {k.reached} of its rows were read. If "
                    f"{upstream} reads their records again, the rows come back in another batch. "
                    "A pipeline without a record_id begins no new batch until then. Put the "
                    "marker back; or declare a pipeline with another name and sink, which reads "
                    "everything from the start"
                )
                refused.append(Refusal(name=k.name, reason="missing", detail=detail))
    return refused


def _is_upstream(source: PartAccess, known: Partition) -> bool:
    """Whether a partition belongs to the declared upstream pipeline."""
    return known.name.startswith(f"{source.context.declared.pipeline}/")


def _open_unsettled(
    source: PartAccess, known: LedgerView
) -> tuple[list[PartInspection], list[Refusal]]:
    """Open the batches that are not settled. Returns them, and refusals of unreadable ones."""
    looked, refused = [], []
    for part in known.unsettled:
        try:
            looked.append(source.inspect(part))
        except FileNotFoundError:
            continue  # Finalize is replacing it: the next plan sees the new marker.
        except OSError as error:
            refused.append(unreadable_refusal(part, error))
    return looked, refused


def _name_states(
    source: PartAccess, known: LedgerView, looked: list[PartInspection]
) -> list[_NameState]:
    """The states of the names of readable batches."""
    partitions, claims = partitions_by_name(known, (one.part for one in looked)), defaultdict(list)
    names = [
        one.part.name for one in looked
        if (old := partitions.get(one.part.name))
        and (old.closed or old.evidence.get("content") != one.key)
    ]  # fmt: skip
    silent = source.context.limits.orphan_after.total_seconds()
    readers = known.query("sealed", "readers", names=names, silent_seconds=silent) if names else []
    for r in readers:
        reader = {key: r[key] for key in _ClaimingBatch._fields if key != "part"}
        part = Partition(**{key: value for key, value in r.items() if key not in reader})
        claims[part.name].append(_ClaimingBatch(part=part, **reader))
    return [
        _judge_name(one, partitions.get(one.part.name), claims[one.part.name], known.orphans)
        for one in looked
        if one.key
    ]


def offer_whole(looked: PartInspection, partition: Partition | None) -> PartOffer:
    """Offer all rows of a batch."""
    return make_offer(looked, partition, looked.key, end=looked.rows)


def accept_output(
    source: PartAccess, known: LedgerView, name: str, *, same: bool, start: int, is_open: bool
) -> Acceptance | None:
    """As `Source.accept`."""
    looked, _ = _open_unsettled(source, known)
    looked = [one for one in looked if one.part.name == name]
    state, pipeline = next(iter(_name_states(source, known, looked)), None), source.context.name
    if state and state.holder and state.decision in (BatchDecision.WAIT, BatchDecision.REPLAYED):
        raise SourceError(
            f"{name!r}: {state.holder} an output of it. Nothing was accepted. Let that batch "
            "finish, or abandon it",
            next=f"semel batches {pipeline}",
        )
    if state is None or state.decision is not BatchDecision.REPLAYED:
        as_what = "a batch that was replayed"
        return accept_unrefused(pipeline, name, as_what, may_be=is_open and not same)
    return accept_new_content(
        pipeline, name, "another output of that batch, and its rows have other numbers",
        state.newest, lambda: offer_whole(state.looked, None), same=same, start=start,
    )  # fmt: skip


def _refuse_replayed(
    source: PartAccess, known: LedgerView, states: list[_NameState]
) -> Iterator[Refusal]:
    """Refuse batches whose output a replay has replaced."""
    context = source.context
    read = [next(one for one in state.others if one.committed) for state in states]
    pairs = {"roots": [one.root for one in read], "names": [one.part.name for one in read]}
    pairs["orphans"] = [*known.orphans]
    apart = {r["root"] for r in known.query("replay", "apart", **pairs)} if read else set()
    for state, one in zip(states, read, strict=True):
        part = state.looked.part
        upstream, _, number = part.name.rpartition("/b")
        replay = f"semel replay {context.name} --batches {one.root}"
        advice = (
            f"`{replay}` replaces the old rows by the new ones; "
            f"`semel replay {upstream} --batches {int(number)} --downstream` does so in each "
            f"pipeline that reads {upstream}"
        )
        if one.root in apart or context.record_id:
            advice = (
                f"The old rows stay, because no replay can take the new output (`{replay} "
                "--dry-run` explains why): declare a pipeline with another name and sink, which "
                "reads everything from the start"
            )
        end = f"{accept_command(context, part.name)} adds the new output and keeps the old rows"
        if state.holder:
            silent = state.holder.batch_id
            end = f"`semel abandon {silent}` ends the silent replay {silent}, which has claimed it"
        yield refusal(
            part,
            BatchDecision.REPLAYED,
            f"its output has changed since semel read it as "
            f"{describe_partition(source, one.part)}; it has "
            f"{state.looked.rows} rows now. {advice}; or {end}",
        )
