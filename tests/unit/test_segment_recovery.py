"""Segments: what a receiver that died left is cut behind its last whole group, never elsewhere."""

import errno
import io
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Thread

import pytest

from semel import failpoints
from semel.clients.queue import Pulled
from semel.errors import CorruptionError, UnavailableError
from semel.sources.queue import segment
from semel.sources.queue.receive import batch_of
from semel.sources.queue.segment import Part, read_foot, read_groups, read_head, recover
from semel.sources.queue.spool import Spool

NOW = datetime(2026, 11, 25, tzinfo=UTC)


@pytest.fixture
def undurable(monkeypatch: pytest.MonkeyPatch) -> None:
    """For thousands of files, of which none shall last."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path / "spool")
    made.make()
    return made


def pulled(values: list[bytes], first: int = 0) -> Pulled:
    """Messages, each second one of which has no publish time, and each third one no attributes."""
    found = Pulled()
    for number, value in enumerate(values, first):
        found.ids.append(f"m{number}")
        found.published.append(number * 1000 if number % 2 else None)
        found.attributes.append([("a", b"\xff"), ("a", b"2")] if number % 3 else [])
        found.ordering_keys.append(None)
        found.attempts.append(1 + number % 2)
        found.values.append(value)
        found.handles.append(number)
    return found


def begun(spool: Spool, groups: list[list[bytes]]) -> Part:
    part = Part.create(spool.open, "events", "nats:s@1", NOW)
    first = 0
    for values in groups:
        part.append(batch_of(pulled(values, first)))
        first += len(values)
    return part


def left(spool: Spool, groups: list[list[bytes]]) -> Path:
    """A part whose receiver is dead."""
    part = begun(spool, groups)
    part.close()
    return part.path


def values(path: Path) -> list[bytes]:
    foot = read_foot(path)
    batches = [batch for _, batch in read_groups(path, foot, 0, foot.messages)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_segment_has_what_was_appended(spool: Spool) -> None:
    """Values, ids, attributes in their order and twice of one name, counts and times come back."""
    part = begun(spool, [[b"one", b""], [b"three"]])
    path = part.seal(spool.sealed)
    assert path.name.startswith("20261125T000000-") and spool.parts() == []
    head, foot = read_head(path), read_foot(path)
    assert (head.pipeline, head.address) == ("events", "nats:s@1")
    assert (foot.messages, foot.size, foot.redelivered) == (3, 8, 1)
    assert (foot.oldest, foot.newest) == (1000, 1000)
    (at_first, first), (at_second, second) = read_groups(path, foot, 0, 3)
    assert (at_first, at_second) == (0, 2)
    assert first.to_pylist()[1] == {
        "message_id": "m1", "published": datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
        "attributes": [{"key": "a", "value": b"\xff"}, {"key": "a", "value": b"2"}],
        "ordering_key": None, "attempt": 2, "value": b"",
    }  # fmt: skip
    assert [at for at, _ in read_groups(path, foot, 2, 3)] == [2]
    assert second.column("value").to_pylist() == [b"three"]


# Attacks Q2.
@pytest.mark.usefixtures("undurable")
def test_each_torn_end_is_cut(spool: Spool) -> None:
    """Wherever a file of two groups ends, within its foot too, its whole groups are sealed: no
    message more, none less; and a part without one is removed. Here some 300 ends are tried.
    """
    part = begun(spool, [[b"one"]])
    ends = [part.end]
    part.append(batch_of(pulled([b"two"], 1)))
    ends.append(part.end)
    data = part.seal(spool.sealed).read_bytes()
    edges = {edge + d for edge in (0, *ends, len(data)) for d in (-9, -8, -1, 0, 1, 23, 24)}
    for length in sorted(edges & {*range(len(data) + 1)} | {*range(0, len(data), 7)}):
        path = spool.open / "x.part"
        path.write_bytes(data[:length])
        sealed = recover(path, spool.sealed)
        assert not path.exists()
        whole = sum(end <= length for end in ends)
        assert (values(sealed) if sealed else []) == [b"one", b"two"][:whole], length
        if whole == 2:
            assert sealed.read_bytes() == data  # As the receiver would have sealed it.


# Attacks Q2.
def test_a_torn_end_of_zeros_is_cut(spool: Spool) -> None:
    """A file system that grew a file and lost its blocks leaves zeros: they are no group."""
    path = left(spool, [[b"one"], [b"two"]])
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 40)
        file.truncate(os.path.getsize(path) + 4096)
    assert values(recover(path, spool.sealed)) == [b"one"]


# Attacks Q2.
def test_damage_is_no_torn_end(spool: Spool) -> None:
    """With a byte changed before the last group, the part is refused and left as it is: behind
    it lie acknowledged messages.
    """
    part = begun(spool, [[b"one"]])
    end = part.end
    part.append(batch_of(pulled([b"two"], 1)))
    part.close()
    data = part.path.read_bytes()
    for at in {*range(24), *range(24, end, 5)}:
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        part.path.write_bytes(changed)
        with pytest.raises(CorruptionError, match="whole frame begins at byte"):
            recover(part.path, spool.sealed)
        assert part.path.read_bytes() == changed, at
    assert list(spool.sealed.iterdir()) == []


def test_a_damaged_part_stops_no_other(spool: Spool) -> None:
    """It is told, with its path, and the parts beside it are sealed."""
    damaged = left(spool, [[b"one"], [b"two"]])
    data = bytearray(damaged.read_bytes())
    data[200] ^= 1
    damaged.write_bytes(data)
    whole = [left(spool, [[b"three"]]) for _ in range(4)]
    told: list[str] = []
    found = spool.recover(told.append)
    assert [*found.damaged] == [damaged] == spool.parts()
    assert len(found.sealed) == len(whole)
    assert any(line.startswith("refused: ") and str(damaged) in line for line in told)


def test_a_segment_within_a_message_is_no_damage(spool: Spool) -> None:
    """Who sends a segment as a message, and is torn there, stops nothing: its frames are those of
    another place.
    """
    inner = begun(spool, [[b"two"]]).seal(spool.sealed).read_bytes()
    path = left(spool, [[b"one"]])
    end = os.path.getsize(path)
    torn = segment.framed(segment.GROUP, 1, b"head" + inner + b"end", end)[:-1]
    path.write_bytes(path.read_bytes() + torn)
    assert values(recover(path, spool.sealed)) == [b"one"]


# Attacks Q2.
def test_a_living_receiver_s_part_is_left_alone(spool: Spool) -> None:
    """Who holds its lock goes on with it; sealed, it has all."""
    part = begun(spool, [[b"one"]])
    assert recover(part.path, spool.sealed) is None
    part.append(batch_of(pulled([b"two"], 1)))
    assert values(part.seal(spool.sealed)) == [b"one", b"two"]


@pytest.mark.usefixtures("undurable")
def test_one_of_many_recovers(spool: Spool) -> None:
    """Of eight at once one seals a part; the others find nothing to do, and change nothing."""
    for _ in range(20):
        path, together = left(spool, [[b"one"], [b"two"]]), Barrier(8)
        found: list[Path | None] = []

        def at_once(path: Path = path, together: Barrier = together, found: list = found) -> None:
            together.wait()
            found.append(recover(path, spool.sealed))

        threads = [Thread(target=at_once) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [sealed] = filter(None, found)
        assert len(found) == 8 and values(sealed) == [b"one", b"two"]
    assert len(list(spool.sealed.iterdir())) == 20


def test_a_new_part_that_is_taken_for_a_dead_one(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its first moment and its lock somebody may recover it, which removes it: the receiver
    begins another one, and writes to no file without a name.
    """
    real, met = segment.hold, []

    def held(file: io.FileIO, path: Path) -> bool:
        if not met:
            met.append(path)
            assert recover(path, spool.sealed) is None and not path.exists()
        return real(file, path)

    monkeypatch.setattr(segment, "hold", held)
    part = begun(spool, [[b"one"]])
    assert part.path.exists() and part.path != met[0]
    assert values(part.seal(spool.sealed)) == [b"one"]


STEPS = ("before_cut", "after_cut", "before_seal", "after_rename")


# Attacks Q2.
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("torn", [True, False])
def test_a_recoverer_dies(spool: Spool, step: str, torn: bool) -> None:
    """At each step: the next one ends it, and the segment has the whole groups."""
    path = left(spool, [[b"one"], [b"two"], [b"three"]])
    if torn:
        os.truncate(path, os.path.getsize(path) - 5)

    def dies() -> None:
        raise failpoints.FaultError("died here")

    with failpoints.armed(f"receive.{step}", dies) as met, pytest.raises(failpoints.FaultError):
        recover(path, spool.sealed)
    assert met.hit
    recover(path, spool.sealed)
    [found] = spool.sealed.iterdir()
    assert values(found) == [b"one", b"two"] + [b"three"] * (not torn)
    assert spool.parts() == []


# Attacks Q1.
@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
def test_nothing_follows_a_failed_sync(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The page cache may say of what failed that all is well: neither append nor seal goes on."""
    part = begun(spool, [[b"one"]])

    def fails(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(OSError, match="Input/output"):
            if call == "fsync":
                part.seal(spool.sealed)
            else:
                part.append(batch_of(pulled([b"two"], 1)))
    size = os.path.getsize(part.path)
    with pytest.raises(OSError, match="an earlier write failed"):
        part.append(batch_of(pulled([b"three"], 2)))
    with pytest.raises(OSError, match="an earlier write failed"):
        part.seal(spool.sealed)
    assert os.path.getsize(part.path) == size
    part.close()
    assert values(recover(part.path, spool.sealed))[0] == b"one"


class Writes(io.FileIO):
    """A file that knows what was written to it."""

    def __init__(self, *words: object, **options: object) -> None:
        options.pop("buffering", None)
        path, mode = words[:2]
        super().__init__(path, str(mode).replace("b", ""))
        self.written: list[tuple[int, bytes]] = []

    def write(self, data: object) -> int:
        at = self.tell()
        self.written.append((at, bytes(data)))
        return super().write(data)


# Attacks Q2.
def test_the_last_group_is_written_once_more(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sync may have failed: then only memory has it, and a sync alone would not change that."""
    path = left(spool, [[b"one"], [b"two"]])
    data, made = path.read_bytes(), []

    def recording(*words: object, **options: object) -> io.IOBase:
        if words[1] != "r+b":
            return open(*words, **options)  # noqa: SIM115 - as the one it stands for
        made.append(Writes(*words, **options))
        return made[-1]

    monkeypatch.setattr(segment, "open", recording, raising=False)
    sealed = recover(path, spool.sealed)
    last = read_foot(sealed).groups[-1].at
    assert (last, data[last:]) in made[0].written
    assert sealed.read_bytes().startswith(data)


@pytest.fixture
def closed(spool: Spool) -> Iterator[Spool]:
    """A spool whose sealed segments have no folder any more."""
    shutil.rmtree(spool.sealed)
    yield spool


def test_a_part_that_cannot_be_sealed_is_told(closed: Spool) -> None:
    """With its path and the cause; it is sealed once that is mended."""
    path = left(closed, [[b"one"]])
    with pytest.raises(UnavailableError, match=rf"{path.name}.*No such file"):
        closed.recover(print)
    closed.make()
    [sealed] = closed.recover(print).sealed
    assert values(sealed) == [b"one"]
