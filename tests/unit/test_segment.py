"""Segments: what a dead receiver left is sealed, whatever its end is; damage is refused."""

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fixtures.batches.account import quiet
from fixtures.queue.segments import ADDRESS, messages, values_of
from semel.errors import CorruptionError
from semel.sources.queue.segment import OpenSegment, lock_part, read_foot, read_head, recover_part
from semel.sources.queue.spool import Spool

GROUPS = [[b"a", b"bb"], [b""], [b"c" * 500, b"d"]]


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "spool")
    made.create_folders()
    return made


def left(spool: Spool, groups: list[list[bytes]] = GROUPS) -> tuple[Path, list[int]]:
    """A part of a receiver that died behind its last group, and where its frames end."""
    part = OpenSegment.create(spool.open, "events", ADDRESS, datetime.now(UTC))
    ends, first = [part.end], 1
    for group in groups:
        part.append(messages(group, first))
        first += len(group)
        ends.append(part.end)
    part.close()
    return part.path, ends


# Attacks Q2.
def test_a_part_that_ends_anywhere_is_cut_behind_its_last_whole_group(spool: Spool) -> None:
    """Within and around each frame, and with zeros up to the whole length: what is before the tear
    is sealed, and its foot says so; a part without a group goes."""
    path, ends = left(spool)
    whole = path.read_bytes()
    around = {end + more for end in (0, *ends) for more in (-9, -1, 0, 1, 4, 23, 24, 25)}
    for length in sorted({*around, *range(0, len(whole), 97)} & {*range(len(whole) + 1)}):
        for data in (whole[:length], whole[:length].ljust(len(whole), b"\0")):
            path.write_bytes(data)
            # Of a frame that ends in zeros, zeros are its end.
            groups = sum(data[:end] == whole[:end] for end in ends[1:])
            sealed = recover_part(path, spool.sealed)
            assert not path.exists()
            if not groups:
                assert sealed is None
                continue
            assert values_of(sealed) == sum(GROUPS[:groups], [])
            assert read_foot(sealed).messages == sum(map(len, GROUPS[:groups]))
            assert read_head(sealed).address == ADDRESS
            sealed.unlink()


# Attacks Q2.
def test_a_part_with_its_foot_or_half_of_it_is_sealed_alike(spool: Spool) -> None:
    """A receiver that dies as it seals leaves the same segment, wherever in the foot it died."""
    path, ends = left(spool)
    data = path.read_bytes()
    sealed = recover_part(path, spool.sealed)
    whole = sealed.read_bytes()
    assert whole.startswith(data) and len(whole) > len(data)
    for length in (*range(len(data), len(whole), 29), len(whole) - 1, len(whole)):
        path.write_bytes(whole[:length])
        assert recover_part(path, spool.sealed) == sealed
        assert sealed.read_bytes() == whole


# Attacks Q2.
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_whole_group_behind_damage_is_refused(spool: Spool, which: int) -> None:
    """A changed bit before the last group is no tear: the message says where, nothing is changed,
    and other parts are sealed."""
    path, ends = left(spool)
    data = bytearray(path.read_bytes())
    start = [0, *ends][which]
    data[start + 30] ^= 1
    path.write_bytes(data)
    other, _ = left(spool)
    with pytest.raises(CorruptionError, match=f"bytes {start} to {ends[which]} cannot"):
        recover_part(path, spool.sealed)
    found = spool.recover(quiet)
    assert [*found.damaged] == [path]
    assert [segment.stem.rpartition("-")[2] for segment in found.sealed] == [other.stem]
    assert path.read_bytes() == data


# Attacks Q2.
@pytest.mark.parametrize("group", [0, 1])
def test_what_is_cut_is_kept(spool: Spool, group: int) -> None:
    """The last group may be damaged in place of torn: its bytes are kept, and that is told."""
    path, ends = left(spool)
    data = bytearray(path.read_bytes()[: ends[group + 1]])
    data[-1] ^= 1
    path.write_bytes(data)
    said: list[str] = []
    spool.recover(said.append)
    kept = path.with_suffix(".torn")
    assert kept.read_bytes() == data[ends[group] :] and str(kept) in said[-1]
    assert not spool.parts()


def test_a_segment_that_is_sent_as_a_message_is_a_message(spool: Spool) -> None:
    """Its frames have other positions: a torn group of such a message is a tear, no damage."""
    path, _ = left(spool)
    inner = path.read_bytes()
    recover_part(path, spool.sealed).unlink()
    path, ends = left(spool, [[b"x"], [os.urandom(99) + inner + os.urandom(99)]])
    os.truncate(path, ends[-1] - 1)
    assert values_of(recover_part(path, spool.sealed)) == [b"x"]


# Attacks Q2.
def test_a_living_receiver_is_let_alone(spool: Spool) -> None:
    """Its part is not sealed, nor one whose name is another file's by now."""
    part = OpenSegment.create(spool.open, "events", ADDRESS, datetime.now(UTC))
    part.append(messages([b"x"]))
    assert recover_part(part.path, spool.sealed) is None
    with open(part.path, "rb") as old:
        part.close()
        assert lock_part(old, part.path)
        other = part.path.with_name("other")
        other.touch()
        other.replace(part.path)
        assert not lock_part(old, part.path)


# Attacks Q1.
def test_what_failed_once_is_not_tried_again(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a sync that failed, the part takes nothing and cannot be sealed, though the next sync
    would say that all is well; recovery seals what is whole."""
    part = OpenSegment.create(spool.open, "events", ADDRESS, datetime.now(UTC))
    part.append(messages([b"x"]))

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "bad disk")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(OSError, match="bad disk"):
            part.append(messages([b"y"], 2))
    size = part.path.stat().st_size
    with pytest.raises(OSError, match="an earlier write failed"):
        part.append(messages([b"z"], 3))
    with pytest.raises(OSError, match="an earlier write failed"):
        part.seal(spool.sealed)
    assert part.path.stat().st_size == size
    part.close()
    assert values_of(recover_part(part.path, spool.sealed)) == [b"x", b"y"]
