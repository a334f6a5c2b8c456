"""Which source partition a batch of another pipeline is: its name says so, for ever.

A marker that is not there frees nothing. If a batch has claimed other content under a name, plan
never reads the new content by itself: it waits for that batch, takes it over, or refuses the name.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import NamedTuple

from semel.errors import SourceError
from semel.model.batch import run_of
from semel.sources import (
    LostRange,
    LedgerView,
    MatchResult,
    Partition,
    Refusal,
    Window,
    Acceptance,
    accept_command,
)
from semel.sources.sealed.matching import (
    by_name,
    new_word,
    offer_of,
    refusal,
    show,
    unreadable,
    unrefused,
)
from semel.sources.sealed.parts import PartListing, Looked, Opens, PartOffer


class UpstreamProgress(StrEnum):
    """How far some batches have come. Abandoned ones do not count."""

    NONE = "none"
    ALIVE = "alive"
    """All are planned, and plan may not abandon each of them."""
    SILENT = "silent"
    COMMITTED = "committed"
    """At least one has committed."""


class BatchDecision(StrEnum):
    """What a plan does with a batch."""

    GO_ON = "go on"
    """Read on in the partition with this content, or in a new one."""
    FOLLOW = "follow"
    """The same, in the partition of the replay."""
    TAKE_OVER = "take over"
    """Abandon the silent readers, and go on."""
    WAIT = "wait"
    """Leave it to the batch that has claimed some of it."""
    REPLAYED = "replayed"
    """A refusal: a person decides. Silent readers are abandoned."""


# Keeps CH1.
def judge(*, same: bool, readers: UpstreamProgress, replay: UpstreamProgress) -> BatchDecision:
    """The decision table. `same`: the open partition of the name has the content shown. `readers`:
    batches that have claimed other content. `replay`: the newest replay of one, on this content.
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
    """A batch with a claim under a name, as `sealed.readers` gives it, and the partition."""

    part: Partition
    content: str
    batch_id: int
    request_key: str
    root: int
    committed: bool
    silent: bool
    newest_replay: bool

    def __str__(self) -> str:
        what = f"batch {self.batch_id} (run {run_of(self.request_key)})"
        return f"{what}, a replay, has claimed" if self.newest_replay else f"{what} has claimed"


class _State(NamedTuple):
    """What is known under the name of a batch, and what plan does with it.

    `newest`: the open partition, else the newest one. `known`: the one with the content shown.
    `others`: readers of other content, the newest first. `holder`: the batch that has to finish
    before anybody decides. `released`: silent readers.
    """

    looked: Looked
    newest: Partition | None
    does: BatchDecision
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
def _state(
    one: Looked, newest: Partition | None, claims: list[_ClaimingBatch], orphans: Collection[int]
) -> _State:
    others = [reader for reader in claims if reader.content != one.key]
    replay = [r for r in claims if r.newest_replay and r.content == one.key]
    same = newest is not None and newest.evidence.get("content") == one.key
    does = judge(
        same=same and not newest.closed,
        readers=_progress(others, orphans),
        replay=_progress(replay, [reader.batch_id for reader in replay if reader.silent]),
    )
    known = newest if same else None
    waited = [r for r in (*replay, *others) if not r.committed and r.batch_id not in orphans]
    if does is BatchDecision.REPLAYED:
        waited = replay
    return _State(
        looked=one,
        newest=newest,
        does=does,
        known=replay[0].part if does is BatchDecision.FOLLOW else known,
        others=others,
        holder=next(iter(waited), None),
        released=[reader.batch_id for reader in others if reader.batch_id in orphans],
    )


def match(source: Opens, shown: PartListing, known: LedgerView, window: Window) -> MatchResult:
    """As `Source.match`."""
    names = {part.name for part in shown.items}
    offers, begun, notes, over, replayed = [], [], [], [], []
    looked, refused = _looked(source, known)
    refused += [one.refused for one in looked if not one.key]
    refused += (missing := _missing(source, known, names) if names or shown.complete else [])
    held_back = missing and source.context.by_position
    states = _states(source, known, looked)
    for state in states:
        one, goes_on, old = state.looked, state.known, state.newest
        if state.does is BatchDecision.REPLAYED:
            replayed.append(state)
        elif held_back and old is None:
            continue
        elif state.does is BatchDecision.WAIT:
            offers.append(offer_of(one, None, one.key))
            notes.append(f"{one.part.name!r}: {state.holder} an output of it; plan waits for that")
        elif one.refused and goes_on is None:
            refused.append(one.refused)
        else:
            offers.append(whole(one, goes_on))
            over += [old] if old and old != goes_on and (old.seen or not old.closed) else []
            if goes_on is None and not one.rows:
                begun.append(offers[-1])
    gone = [
        LostRange(partition=k, seen=k.seen)
        for k in known.partitions
        if shown.complete and k.name not in names and k.reached < k.seen and _is_of(source, k)
    ]
    # Nothing is missing of content that the source has replaced.
    gone += [LostRange(partition=partition, seen=0) for partition in over]
    released = {
        n
        for s in states
        if s.does in (BatchDecision.TAKE_OVER, BatchDecision.REPLAYED)
        for n in s.released
    }
    return MatchResult(
        offers=offers,
        refusals=[*refused, *_replayed(source, known, replayed)],
        lost_ranges=gone,
        new_partition_offers=begun,
        released_batches=tuple(sorted(released)),
        notes=tuple(notes),
    )


# Keeps CH4.
def _missing(source: Opens, known: LedgerView, names: Collection[str]) -> list[Refusal]:
    """The refusals of batches that were read and whose markers are gone."""
    upstream, found = source.context.declared.pipeline, []
    for k in known.partitions:
        if k.name not in names and k.reached >= k.seen > 0 and _is_of(source, k):
            try:
                source.now(k.name)  # A listing may lack a marker that is being replaced.
            except FileNotFoundError:
                detail = (
                    f"its marker is gone, and {k.reached} rows of it were read. If {upstream} "
                    "reads their records again, they come back in another batch. A pipeline "
                    "without a record_id begins no new batch meanwhile. Put the marker back; or "
                    "declare a pipeline of another name and sink, which reads all from its start"
                )
                found.append(Refusal(name=k.name, reason="missing", detail=detail))
    return found


def _is_of(source: Opens, known: Partition) -> bool:
    """Whether a partition is of the pipeline that is declared now."""
    return known.name.startswith(f"{source.context.declared.pipeline}/")


def _looked(source: Opens, known: LedgerView) -> tuple[list[Looked], list[Refusal]]:
    """The batches that are not settled, opened; and those that cannot be."""
    looked, refused = [], []
    for part in known.unsettled:
        try:
            looked.append(source.look(part))
        except FileNotFoundError:
            continue  # It is being replaced: the next plan sees the new one.
        except OSError as error:
            refused.append(unreadable(part, error))
    return looked, refused


def _states(source: Opens, known: LedgerView, looked: list[Looked]) -> list[_State]:
    """The states of the names of some batches, except those that cannot be read."""
    held, claims = by_name(known, (one.part for one in looked)), defaultdict(list)
    asked = [
        one.part.name for one in looked
        if (was := held.get(one.part.name))
        and (was.closed or was.evidence.get("content") != one.key)
    ]  # fmt: skip
    silent = source.context.limits.orphan_after.total_seconds()
    found = known.query("sealed", "readers", names=asked, silent_seconds=silent) if asked else []
    for r in found:
        reader = {key: r[key] for key in _ClaimingBatch._fields if key != "part"}
        part = Partition(**{key: value for key, value in r.items() if key not in reader})
        claims[part.name].append(_ClaimingBatch(part=part, **reader))
    return [
        _state(one, held.get(one.part.name), claims[one.part.name], known.orphans)
        for one in looked
        if one.key
    ]


def whole(one: Looked, held: Partition | None) -> PartOffer:
    """A batch's rows, all of them."""
    return offer_of(one, held, one.key, end=one.rows)


def word(
    source: Opens, known: LedgerView, name: str, *, same: bool, start: int, is_open: bool
) -> Acceptance | None:
    """As `Source.accept`."""
    looked, _ = _looked(source, known)
    asked = [one for one in looked if one.part.name == name]
    state, pipeline = next(iter(_states(source, known, asked)), None), source.context.name
    if state and state.holder and state.does in (BatchDecision.WAIT, BatchDecision.REPLAYED):
        raise SourceError(
            f"{name!r}: {state.holder} an output of it. Nothing was accepted. Let that batch "
            "finish, or abandon it",
            next=f"semel batches {pipeline}",
        )
    if state is None or state.does is not BatchDecision.REPLAYED:
        as_what = "a batch that was replayed"
        return unrefused(pipeline, name, as_what, may_be=is_open and not same)
    return new_word(
        pipeline, name, "another output of that batch, and its rows have other numbers",
        state.newest, lambda: whole(state.looked, None), same=same, start=start,
    )  # fmt: skip


def _replayed(source: Opens, known: LedgerView, states: list[_State]) -> Iterator[Refusal]:
    """The refusals of batches that were replayed."""
    context = source.context
    read = [next(one for one in state.others if one.committed) for state in states]
    pairs = {"roots": [one.root for one in read], "names": [one.part.name for one in read]}
    pairs["orphans"] = [*known.orphans]
    apart = {r["root"] for r in known.query("replay", "apart", **pairs)} if read else set()
    for state, one in zip(states, read, strict=True):
        part = state.looked.part
        upstream, _, number = part.name.rpartition("/b")
        replay = f"semel replay {context.name} --batches {one.root}"
        what = (
            f"`{replay}` reads it in the place of that; and "
            f"`semel replay {upstream} --batches {int(number)} --downstream` does so for each "
            f"pipeline that reads {upstream}"
        )
        if one.root in apart or context.record_id:
            what = (
                f"What was read stays, as no replay takes another output (`{replay} --dry-run` "
                "tells why): declare a pipeline of another name and sink, which reads all from "
                "its start"
            )
        end = f"{accept_command(context, part.name)} reads the new output as new rows, beside the old"
        if state.holder:
            silent = state.holder.batch_id
            end = f"`semel abandon {silent}` ends the silent replay {silent}, which has claimed it"
        yield refusal(
            part,
            BatchDecision.REPLAYED,
            f"its output is not what was read as {show(source, one.part)}; it has "
            f"{state.looked.rows} rows now. {what}; or {end}",
        )
