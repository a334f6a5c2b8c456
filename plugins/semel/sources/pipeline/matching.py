"""Which source partition a batch of another pipeline is: its name says so, for ever.

So a marker that is not there frees nothing, and what has another content under a name of which
something was read is never read by itself.
"""

from enum import StrEnum

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
    quoted,
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
    OTHER = "other"
    """Other content, which was read."""


class Does(StrEnum):
    """What a plan does with a batch."""

    BEGIN = "begin"
    GO_ON = "go on"
    REPLAYED = "replayed"
    """A refusal: a person decides."""


# Keeps CH1.
def judge(read: Read) -> Does:
    """The decision table."""
    return {Read.NOTHING: Does.BEGIN, Read.OTHER: Does.REPLAYED}.get(read, Does.GO_ON)


def match(source: Opens, shown: Listing, known: Known, window: Window) -> Matched:
    """As `Source.match`."""
    names = {part.name for part in shown.found}
    offers, refused, begun = [], [], []
    looked, unread = _looked(source, known)
    held = _held(known, looked)
    reads = _reads(known, looked, held)
    for one in looked:
        was = held.get(one.part.name)
        offer = offer_of(one, was)
        does = judge(reads[one.part.name])
        if not one.key:
            refused.append(one.refused)
        elif does is Does.REPLAYED:
            refused.append(_replayed(source, one, was))
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


def _reads(
    known: Known, looked: list[Looked], held: dict[str, Partition]
) -> dict[str, Read]:
    """What is known under each name."""
    found = {one.part.name: Read.NOTHING for one in looked}
    other = {}
    for one in looked:
        name, was = one.part.name, held.get(one.part.name)
        if was is not None and was.evidence.get("content") == one.key:
            found[name] = Read.SAME
        elif was is not None:
            other[name] = was.source_partition_id
    rows = known.rows("sealed", "committed", partitions=[*other.values()]) if other else []
    read = {r["source_partition_id"] for r in rows}
    return found | {n: Read.OTHER if k in read else Read.UNREAD for n, k in other.items()}


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
    held, pipeline = _held(known, asked), source.context.name
    reads = _reads(known, asked, held)
    if not asked or judge(reads[name]) is not Does.REPLAYED:
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
            next=f"semel accept {pipeline} {quoted(name)}",
        )
    was = held[name]
    return Word(offer=offer_of(asked[0], None), ended=[] if was.closed else [was], superseded=[])


def _replayed(source: Opens, one: Looked, held: Partition) -> Refusal:
    accept = accept_command(source.context, one.part.name)
    return refusal(
        one.part,
        Does.REPLAYED,
        f"its output is not what was read as {show(source, held)}; it has {one.rows} rows now. "
        "What was read stays, as no replay of this pipeline takes another pipeline's: declare one of "
        f"another name and sink, which reads all from its start; or {accept} reads the new output "
        "as new rows, beside the old ones",
    )
