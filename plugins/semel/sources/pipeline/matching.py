"""Which source partition a batch of another pipeline is: its name says so, for ever.

So a marker that is not there frees nothing, and what has another content under a name of which
something was read is never read by itself.
"""

from enum import StrEnum
from typing import NamedTuple

from semel.errors import SourceError
from semel.sources import (
    Gone,
    Known,
    Matched,
    Partition,
    Refusal,
    Window,
    Word,
    accept_command,
    accepting,
)
from semel.sources.sealed.matching import refusal, show, unreadable
from semel.sources.sealed.parts import Listing, Looked, Opens, PartOffer


class Read(StrEnum):
    """What is known under a batch's name."""

    NOTHING = "nothing"
    """No partition."""
    UNREAD = "unread"
    """A partition with other content, of which no batch that has committed read anything."""
    SAME = "same"
    """This content."""
    CLAIMED = "claimed"
    """Other content, which was read; and a replay that has not committed has claimed this one."""
    OTHER = "other"
    """Other content, which was read."""


class Does(StrEnum):
    """What a plan does with a batch."""

    BEGIN = "begin"
    GO_ON = "go on"
    WAIT = "wait"
    """Leave it to the replay."""
    REPLAYED = "replayed"
    """A refusal: a person decides."""


# Keeps CH1.
def judge(read: Read) -> Does:
    """The decision table."""
    does = {Read.NOTHING: Does.BEGIN, Read.CLAIMED: Does.WAIT, Read.OTHER: Does.REPLAYED}
    return does.get(read, Does.GO_ON)


def match(source: Opens, shown: Listing, known: Known, window: Window) -> Matched:
    """As `Source.match`."""
    names = {part.name for part in shown.found}
    offers, refused, begun = [], [], []
    looked, unread = _looked(source, known)
    there = _there(known, looked)
    for one in looked:
        was = there.held.get(one.part.name)
        offer = offer_of(one, was)
        does = judge(there.reads[one.part.name])
        if not one.key:
            refused.append(one.refused)
        elif does is Does.WAIT:
            continue
        elif does is Does.REPLAYED:
            refused.append(_replayed(source, one, there.read[one.part.name]))
        elif one.refused and was is None:
            refused.append(one.refused)
        else:
            offers.append(offer)
            if was is None and not one.rows:
                begun.append(offer)
    gone = [
        Gone(partition=k, seen=k.seen)
        for k in known.partitions
        if shown.complete and k.name not in names and k.reached < k.seen and _is_of(source, k)
    ]
    gone += [Gone(partition=k, seen=k.seen) for k in there.ended]
    return Matched(
        offers=offers,
        refused=refused + unread,
        gone=gone,
        retired=[],
        renamed=[],
        begun=begun,
        resumed=(),
    )


def _is_of(source: Opens, known: Partition) -> bool:
    """Whether a partition is of the pipeline that is declared now."""
    return known.name.startswith(f"{source.context.declared.pipeline}/")


def _looked(source: Opens, known: Known) -> tuple[list[Looked], list[Refusal]]:
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


def _held(known: Known, looked: list[Looked]) -> dict[str, Partition]:
    """The partition of each name: the open one, else the newest that was closed."""
    held = {k.name: k for k in known.partitions}
    new = [one.part.name for one in looked if one.part.name not in held]
    closed = known.rows("sealed", "closed", names=new) if new else []
    return {r["name"]: Partition(**r) for r in closed} | held


class _Was(NamedTuple):
    """The newest part of a name that was read, by which batch. `follows`: a replay of that batch
    can read what is there now.
    """

    part: Partition
    root: int
    follows: bool


class _There(NamedTuple):
    """What is known under each name: how it was read, in which partition, and what is to be told of
    what was `read` in its place. `ended`: open ones in whose place a replay has read another.
    """

    held: dict[str, Partition]
    reads: dict[str, Read]
    read: dict[str, _Was]
    ended: list[Partition]


# Keeps CH1, CH2.
def _there(known: Known, looked: list[Looked]) -> _There:
    held = _held(known, looked)
    reads = {one.part.name: Read.NOTHING for one in looked}
    other, ended = {}, []
    for one in looked:
        name, was = one.part.name, held.get(one.part.name)
        if was is not None and was.evidence.get("content") == one.key:
            reads[name] = Read.SAME
        elif was is not None:
            reads[name], other[name] = Read.UNREAD, one.key
    if not other:
        return _There(held, reads, {}, [])
    before = {r["name"]: dict(r) for r in known.rows("sealed", "committed", names=[*other])}
    reads |= dict.fromkeys(before, Read.OTHER)
    names, contents = [*other], [*other.values()]
    for r in known.rows("sealed", "replayed", names=names, contents=contents):
        part, name = dict(r), r["name"]
        if not part.pop("committed"):
            reads[name] = Read.CLAIMED
            continue
        if not held[name].closed:
            ended.append(held[name])
        reads[name], held[name] = Read.SAME, Partition(**part)
    roots = {name: r.pop("root") for name, r in before.items() if reads[name] is Read.OTHER}
    pairs = {"roots": [*roots.values()], "names": [*roots]}
    apart = {r["root"] for r in known.rows("replay", "apart", **pairs)} if roots else set()
    read = {name: _Was(Partition(**before[name]), r, r not in apart) for name, r in roots.items()}
    return _There(held, reads, read, ended)


def offer_of(one: Looked, held: Partition | None) -> PartOffer:
    """A batch's rows."""
    part = one.part
    return PartOffer(
        name=part.name,
        identity=part.identity,
        fingerprint=part.fingerprint,
        known=held,
        end=one.rows,
        seen=one.rows,
        ahead=one.rows,
        evidence={"head_hash": one.key, "content": one.key, "bytes": one.length},
        part=part,
        length=one.length,
        content=one.key,
        refused=one.refused,
    )


def word(
    source: Opens, known: Known, name: str, *, same: bool, start: int, is_open: bool
) -> Word | None:
    """As `Source.accept`."""
    looked, _ = _looked(source, known)
    asked = [one for one in looked if one.part.name == name and one.key]
    there, pipeline = _there(known, asked), source.context.name
    does = judge(there.reads[name]) if asked else None
    if does is Does.WAIT:
        raise SourceError(
            f"a replay of {pipeline} has claimed the output of {name!r} that is there now, so "
            "there is nothing to accept; let it finish, or abandon it",
            next=f"semel batches {pipeline}",
        )
    if does is not Does.REPLAYED:
        if is_open and not same:
            return None
        raise SourceError(
            f"{name!r} is not refused as a batch that was replayed, so there is nothing to accept",
            next=f"semel gaps {pipeline}",
        )
    if same or start:
        raise SourceError(
            f"{name!r} is another output of that batch, and its rows have other numbers: all of it "
            "is accepted, or nothing",
            next=accepting(pipeline, name),
        )
    was = there.held[name]
    return Word(offer=offer_of(asked[0], None), ended=[] if was.closed else [was], superseded=[])


def _replayed(source: Opens, one: Looked, was: _Was) -> Refusal:
    context, (upstream, _, number) = source.context, one.part.name.rpartition("/b")
    replay = f"semel replay {context.name} --batches {was.root}"
    if was.follows and not context.record_id:
        what = (
            f"`{replay}` reads it in the place of that; and "
            f"`semel replay {upstream} --batches {int(number)} --downstream` does so for each "
            f"pipeline that reads {upstream}"
        )
    else:
        what = (
            f"What was read stays, as no replay takes another output (`{replay} --dry-run` tells "
            "why): declare a pipeline of another name and sink, which reads all from its start"
        )
    return refusal(
        one.part,
        Does.REPLAYED,
        f"its output is not what was read as {show(source, was.part)}; it has {one.rows} rows now. "
        f"{what}; or {accept_command(context, one.part.name)} reads the new output as new rows, "
        "beside the old ones",
    )
