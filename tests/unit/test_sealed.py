"""Sealed parts: the table that decides about each, and what changes while they are looked at."""

import itertools
import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from semel.model.batch import Claim
from semel.sources import LedgerView, MatchResult, Partition, Window
from semel.sources.sealed.claims import find_claims, locate_by_content
from semel.sources.sealed.matching import NameMatch, Twin, judge, match, refusal
from semel.sources.sealed.parts import PartInspection, PartListing, SealedPart

DOCS = Path(__file__).parents[2] / "docs" / "files.md"


# Attacks P22.
def test_the_page_has_the_table() -> None:
    """docs/files.md shows what becomes of a part in each of the 40 cases, each once."""
    text = DOCS.read_text(encoding="utf-8").partition("| under its name |")[2]
    lines = re.findall(r"^\| ([a-z, ]+) \| ([a-z, ]+) \| ([a-z ]+) \| ([a-z ]+) \|$", text, re.M)
    told = {
        (own, twin): answers
        for owns, twins, *answers in lines
        for own, twin in itertools.product(owns.split(", "), twins.split(", "))
    }
    assert told == {
        (own, twin): [judge(own, twin, by_position=by) for by in (True, False)]
        for own, twin in itertools.product(NameMatch, Twin)
    }


@dataclass
class Shelf:
    """A source in memory: what each part holds, by name. `away`: its folder cannot be read.
    `moved`: parts that are the one that was read under another name. A part of "" has no end yet.
    """

    by_position: bool = True
    contents: dict[str, str] = field(default_factory=dict)
    known: list[Partition] = field(default_factory=list)
    away: bool = False
    errors: dict[str, OSError] = field(default_factory=dict)
    digested: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    lost: dict[str, int] = field(default_factory=dict)
    unread: dict[str, OSError] = field(default_factory=dict)
    misfits: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    put: set[str] = field(default_factory=set)
    when: datetime | None = None

    @property
    def context(self) -> SimpleNamespace:
        declared = SimpleNamespace(part="file", unit="rows")
        return SimpleNamespace(name="p", by_position=self.by_position, declared=declared)

    def part(self, name: str) -> SealedPart:
        stamp = f"{name}:{self.contents[name]}"
        identity = self.moved.get(name, stamp)
        return SealedPart(name=name, identity=identity, fingerprint=stamp, length=10, when=self.when)

    def inspect(self, part: SealedPart) -> PartInspection:
        if part.name in self.errors:
            raise self.errors[part.name]
        if not self.contents[part.name]:
            return PartInspection(part=part, length=part.length, unfinished=True)
        why = refusal(part, "schema", "") if part.name in self.misfits else None
        return PartInspection(part=part, length=part.length, key=self.contents[part.name][0], rows=10, refusal=why)

    def digest(self, part: SealedPart) -> str:
        if part.name in self.unread:
            raise self.unread[part.name]
        self.digested.append(part.name)
        return self.contents[part.name]

    def removal_reason(self, claim: Claim) -> None:  # noqa: ARG002
        return None

    def discover(self) -> PartListing:
        return PartListing(items=[*map(self.part, self.contents)], refusals=[], complete=True)

    def find_candidates(self) -> list[SealedPart]:
        return [*self.discover().items]

    def is_archived(self, known: Partition) -> bool:
        return known.name in self.put

    def current_part(self, name: str) -> SealedPart:
        if name not in self.contents:
            raise FileNotFoundError(2, "No such file or directory", name)
        return self.part(name)

    def read(self, name: str, content: str, *, reached: int = 10, closed: bool = False) -> None:
        """A partition of which rows were read."""
        stamp = f"{name}:{content}"
        self.known.append(
            Partition(
                source_partition_id=len(self.known) + 1, name=name, generation=1, identity=stamp,
                fingerprint=stamp, settled=True, reached=reached, seen=10, closed=closed,
                evidence={"head_hash": content[0], "content": content},
            )  # fmt: skip
        )

    def rows(self, _: str, name: str, *, keys: list[str], contents: object = ()) -> list[dict]:
        """What the queries of `sealed` give."""
        read = [
            k for k in self.known if (k.reached or k.closed) and k.evidence["head_hash"] in keys
        ]
        if name == "keys":
            return [{"key": key} for key in {k.evidence["head_hash"] for k in read}]
        return [
            vars(k) | {"retired": k.name in self.retired, "lost": self.lost.get(k.name)}
            for k in read
            if k.evidence["content"] in contents
        ]

    def match(self, window: Window = None) -> MatchResult:
        parts = [self.part(name) for name in self.contents if name not in self.refused]
        settled = {looks(k) for k in self.known if not k.closed and k.reached == 10}
        settled &= {looks(part) for part in parts}
        known = LedgerView(
            partitions=[k for k in self.known if not k.closed and looks(k) not in settled],
            unsettled=[part for part in parts if looks(part) not in settled],
            refusals=[],
            query=self.rows,
        )
        refused = [SimpleNamespace(name=name) for name in self.refused]
        listing = PartListing(items=parts, refusals=refused, complete=not self.away)
        return match(self, listing, known, window)


def looks(shown: SealedPart | Partition) -> tuple[str, str, str]:
    return shown.name, shown.identity, shown.fingerprint


def refusals(found: MatchResult) -> dict[str, str]:
    return {refusal.name: refusal.reason for refusal in found.refusals}


def went_on(found: MatchResult) -> dict[str, str | None]:
    """By name: the name of the partition that goes on; None: a new one."""
    return {offer.name: offer.partition and offer.partition.name for offer in found.offers}


# Attacks P22.
def test_of_two_copies_one_goes_on() -> None:
    """When the file that was read is gone, one copy is it, and the other one a copy."""
    shelf = Shelf(contents={"b": "x1", "c": "x1"})
    shelf.read("a", "x1")
    found = shelf.match()
    assert went_on(found) == {"b": "a"} and refusals(found) == {"c": "copy"}
    assert found.lost_ranges == []


# Attacks P22.
@pytest.mark.parametrize("by_position", [True, False])
def test_of_equal_parts_in_one_plan_one_is_read(by_position: bool) -> None:
    """By position. By record id all are, and none is hashed for that."""
    shelf = Shelf(contents={"a": "x1", "b": "x1", "c": "x2"}, by_position=by_position)
    found = shelf.match()
    assert refusals(found) == ({"b": "copy"} if by_position else {})
    assert went_on(found).keys() == {"a", "b", "c"} - refusals(found).keys()
    assert shelf.digested == ["a", "b", "c"] * by_position


# Attacks P22.
def test_equal_parts_of_another_interval() -> None:
    """They are looked at, as one that was read is gone; none of them is read, so none is a copy."""
    day = datetime(2026, 1, 1, tzinfo=UTC)
    shelf = Shelf(contents={"a": "x1", "b": "x1"}, when=day)
    shelf.read("gone", "y1")
    found = shelf.match((day + timedelta(days=1), day + timedelta(days=2)))
    assert refusals(found) == {} == went_on(found) and len(found.lost_ranges) == 1


# Attacks P22.
def test_what_is_not_read_makes_no_copy() -> None:
    """Neither a part that is refused itself, nor one that waits for accept."""
    shelf = Shelf(contents={"a": "x1", "b": "x1"}, misfits={"a", "b"})
    assert refusals(shelf.match()) == {"a": "schema", "b": "schema"}
    shelf = Shelf(contents={"a": "x1", "b": "x1"})
    shelf.read("a", "y1")
    found = shelf.match()
    assert refusals(found) == {"a": "changed"} and went_on(found) == {"b": None}


# Attacks P22.
def test_of_equal_parts_the_known_one_is_read() -> None:
    """It has a partition, of which nothing was read yet."""
    shelf = Shelf(contents={"a": "x1", "b": "x1"})
    shelf.read("b", "y1", reached=0)
    found = shelf.match()
    assert refusals(found) == {"a": "copy"} and went_on(found) == {"b": "b"}


# Attacks P22.
def test_a_copy_of_what_will_be_read() -> None:
    """The batch that had it was abandoned, and a later one reads it."""
    shelf = Shelf(contents={"a": "x1", "b": "x1"})
    shelf.read("b", "x1", reached=0)
    found = shelf.match()
    assert refusals(found) == {"a": "copy"} and went_on(found) == {"b": "b"}


# Attacks P18.
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("by_position", [True, False])
def test_a_part_of_which_nothing_was_read_goes_on(by_position: bool, closed: bool) -> None:
    """It is there, under another name or again: none of it is gone."""
    shelf = Shelf(contents={"b": "x1"}, by_position=by_position)
    shelf.read("a", "x1", reached=0, closed=closed)
    found = shelf.match()
    assert went_on(found) == {"b": "a"} and found.lost_ranges == []


# Attacks P9, P18.
@pytest.mark.parametrize("by_position", [True, False])
def test_a_part_that_was_moved_beside_a_folder_that_is_away(by_position: bool) -> None:
    """It is seen under its new name, so nothing else has to be looked for."""
    shelf = Shelf(contents={"b": "x1"}, moved={"b": "a:x1"}, away=True, by_position=by_position)
    shelf.read("a", "x1")
    found = shelf.match()
    assert went_on(found) == {"b": "a"} and refusals(found) == {} and found.lost_ranges == []
    shelf.contents = {"b": "y1"}  # It was edited as well.
    found = shelf.match()
    assert went_on(found) == {"b": None} and [g.partition.name for g in found.lost_ranges] == ["a"]


# Attacks P9.
def test_a_part_that_was_moved_over_its_copy() -> None:
    """By record id both were read. The name that is free now is read as new."""
    shelf = Shelf(contents={"a": "x1", "b": "y1"}, moved={"a": "b:x1"}, by_position=False)
    shelf.read("a", "x1")
    shelf.read("b", "x1")
    found = shelf.match()
    assert went_on(found) == {"a": "a", "b": None}
    assert [gone.partition.name for gone in found.lost_ranges] == ["b"]


# Attacks P9, P13.
# Attacks P27.
@pytest.mark.parametrize("by_position", [True, False])
def test_the_name_of_a_part_that_was_put_away(by_position: bool) -> None:
    """Other content there begins; the same goes on, and nothing of it is read twice."""
    shelf = Shelf(by_position=by_position, contents={"a": "y"}, put={"a"})
    shelf.read("a", "x")
    found = shelf.match()
    assert refusals(found) == {} and went_on(found) == {"a": None}
    assert [gone.partition.name for gone in found.lost_ranges] == ["a"]
    shelf.contents = {"a": "x"}
    found = shelf.match()
    assert (refusals(found), found.lost_ranges) == ({}, [])


def test_a_hard_link_to_a_settled_part() -> None:
    """The settled one stays, also when the other name is known too."""
    shelf = Shelf(contents={"0": "x1", "a": "x1"}, moved={"0": "a:x1"}, by_position=False)
    shelf.read("a", "x1")
    shelf.read("0", "y1", reached=0)
    found = shelf.match()
    assert refusals(found) == {"0": "hard link"} and went_on(found) == {}


# Attacks P22.
def test_a_key_alone_proves_nothing() -> None:
    """Two files may have one footer: all their bytes decide."""
    shelf = Shelf(contents={"b": "x2"})
    shelf.read("a", "x1")
    found = shelf.match()
    assert went_on(found) == {"b": None} and [g.partition.name for g in found.lost_ranges] == ["a"]


# Attacks P22.
def test_what_has_another_key_is_never_hashed() -> None:
    """A plan reads footers, and the whole file only where one was read before."""
    shelf = Shelf(contents={f"n{key}": f"{key}1" for key in "abcde"})
    shelf.read("a", "x1")
    shelf.match()
    assert shelf.digested == []


# Attacks P18, P22.
@pytest.mark.parametrize("by_position", [True, False])
def test_a_folder_that_is_away_makes_no_part_gone(by_position: bool) -> None:
    """Nothing is closed, and what may be a copy of what is there waits by position."""
    shelf = Shelf(contents={"b": "x1"}, away=True, by_position=by_position)
    shelf.read("a", "x1")
    found = shelf.match()
    assert found.lost_ranges == []
    assert refusals(found) == ({"b": "copy"} if by_position else {})


# Attacks P18.
def test_a_name_that_is_refused_is_not_gone() -> None:
    """Its part is there, and nobody may look at it."""
    shelf = Shelf(contents={"a": "x1", "b": "x1"}, refused={"a"})
    shelf.read("a", "x1")
    found = shelf.match()
    assert found.lost_ranges == [] and refusals(found) == {"b": "copy"}


def test_a_part_that_was_closed_goes_on() -> None:
    """What came back is read on, under any name."""
    shelf = Shelf(contents={"b": "x1"})
    shelf.read("a", "x1", reached=5, closed=True)
    found = shelf.match()
    assert went_on(found) == {"b": "a"} and found.resumed_names == (("b", "a"),)


# Attacks P22.
@pytest.mark.parametrize("by_position", [True, False])
def test_a_part_whose_rest_was_accepted_as_lost(by_position: bool) -> None:
    """It waits for a person when it is back, under any name, unless it is read again already."""
    shelf = Shelf(contents={"b": "x1"}, by_position=by_position, lost={"a": 5})
    shelf.read("a", "x1", reached=5, closed=True)
    found = shelf.match()
    assert went_on(found) == {} and refusals(found) == {"b": "returned"}
    assert "`semel accept p b --from 5`" in found.refusals[0].detail
    shelf.read("c", "x1", reached=7, closed=True)
    assert went_on(shelf.match()) == {"b": "c"}


# Attacks P19.
def test_a_part_that_moves_while_it_is_looked_at() -> None:
    """It is left out, its partition stays open, and no part takes that up."""
    shelf = Shelf(contents={"a": "x2", "b": "x1"}, errors={"a": FileNotFoundError("a")})
    shelf.read("a", "x1")
    found = shelf.match()
    assert found.lost_ranges == [] and went_on(found) == {} and refusals(found) == {"b": "copy"}


def test_a_part_that_cannot_be_read() -> None:
    """It is refused, with the advice, and its partition stays open."""
    shelf = Shelf(contents={"a": "x2"}, errors={"a": PermissionError(13, "Permission denied")})
    shelf.read("a", "x1")
    found = shelf.match()
    assert refusals(found) == {"a": "unreadable"} and found.lost_ranges == []


def test_a_part_whose_content_cannot_be_read() -> None:
    """Its footer could be: it is refused all the same, and the others are read."""
    shelf = Shelf(contents={"b": "x1", "c": "y1"}, unread={"b": OSError(5, "Input/output error")})
    shelf.read("a", "x1")
    found = shelf.match()
    assert refusals(found) == {"b": "unreadable"} and went_on(found) == {"c": None}


# Attacks P22.
@pytest.mark.parametrize("by_position", [True, False])
def test_content_that_was_accepted_away(by_position: bool) -> None:
    """It was read: by position another name of it is a copy."""
    shelf = Shelf(contents={"a": "y1", "b": "x1"}, retired={"old"}, by_position=by_position)
    shelf.read("old", "x1")
    shelf.known[0] = replace(shelf.known[0], closed=True)
    found = shelf.match()
    assert refusals(found) == ({"b": "copy"} if by_position else {})


# Attacks P22.
@pytest.mark.parametrize("reached", [0, 5])
def test_a_name_that_is_free_and_is_written_to(reached: int) -> None:
    """It is waited for: what was read of that name goes on under another one."""
    shelf = Shelf(contents={"a": "", "b": "x1"})
    shelf.read("a", "x1", reached=reached)
    found = shelf.match()
    assert went_on(found) == {"a": None, "b": "a"} and refusals(found) == {}
    assert found.lost_ranges == []


# Attacks P22.
def test_parts_that_change_places() -> None:
    """Each content stays in its partition."""
    shelf = Shelf(contents={"a": "y1", "b": "x1"})
    shelf.read("a", "x1")
    shelf.read("b", "y1")
    found = shelf.match()
    assert went_on(found) == {"a": "b", "b": "a"} and found.lost_ranges == []


def test_what_was_not_read_may_change() -> None:
    """Its partition goes on with what is there now."""
    shelf = Shelf(contents={"a": "y1"})
    shelf.read("a", "x1", reached=0)
    shelf.known[0] = replace(shelf.known[0], seen=7)
    found = shelf.match()
    assert went_on(found) == {"a": "a"} and found.offers[0].seen == 10


# Attacks S6.
def test_each_part_is_hashed_once_however_many_claims_look_for_theirs() -> None:
    """All files of one size were renamed after a plan: their number is not squared."""
    shelf = Shelf(contents={f"b{at}": f"x{at}" for at in range(30)})
    evidence = {"stamp": "", "bytes": 10}
    known = [
        Claim(
            ordinal=at, source_partition_id=at, name=f"a{at}", identity="", start=0, end=10,
            evidence=evidence | {"content": f"x{at}"},
        )
        for at in range(30)
    ]  # fmt: skip
    assert [claim.name for claim in find_claims(shelf, known, 1)] == [*shelf.contents]
    assert len(shelf.digested) == 30
    shelf.digested.clear()
    for claim in known:
        shelf.read(claim.name, claim.evidence["content"])
        shelf.known[-1].evidence["bytes"] = 10
    found = locate_by_content(shelf, shelf.discover().items, shelf.known)
    assert [known.name for known in found] == [*shelf.contents] and len(shelf.digested) == 30


def test_a_plan_of_many_new_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part is compared with all others."""
    compared, same = [], SealedPart.__eq__
    monkeypatch.setattr(SealedPart, "__eq__", lambda a, b: compared.append(a) or same(a, b))
    shelf = Shelf(contents={f"n{at}": f"y{at}" for at in range(600)})
    shelf.read("a", "x1")
    assert len(shelf.match().offers) == 600
    assert len(compared) < 6_000  # With that, they were 180,000 comparisons.
