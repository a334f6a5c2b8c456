"""Segments: what a receiver that died left is cut behind its last whole group, never elsewhere."""

import io
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier, Thread

import pytest

from fixtures.queue.segments import values_of
from semel import failpoints
from semel.clients.queue import PulledMessages
from semel.errors import UnavailableError
from semel.sources.queue import segment
from semel.sources.queue.receive import to_record_batch
from semel.sources.queue.segment import OpenSegment, read_foot, read_groups, read_head, recover_part
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
    made.create_folders()
    return made


def pulled(values: list[bytes], first: int = 0) -> PulledMessages:
    """Messages, each second one of which has no publish time, and each third one no attributes."""
    found = PulledMessages()
    for number, value in enumerate(values, first):
        found.ids.append(f"m{number}")
        found.published.append(number * 1000 if number % 2 else None)
        found.attributes.append([("a", b"\xff"), ("a", b"2")] if number % 3 else [])
        found.ordering_keys.append(None)
        found.attempts.append(1 + number % 2)
        found.values.append(value)
        found.handles.append(number)
    return found


def begun(spool: Spool, groups: list[list[bytes]]) -> OpenSegment:
    part = OpenSegment.create(spool.open, "events", "nats:s@1", NOW)
    first = 0
    for values in groups:
        part.append(to_record_batch(pulled(values, first)))
        first += len(values)
    return part


def left(spool: Spool, groups: list[list[bytes]]) -> Path:
    """A part whose receiver is dead."""
    part = begun(spool, groups)
    part.close()
    return part.path


def test_a_segment_has_what_was_appended(spool: Spool) -> None:
    """Values, ids, attributes in their order and twice of one name, counts and times come back."""
    part = begun(spool, [[b"one", b""], [b"three"]])
    path = part.seal(spool.sealed)
    assert path.name.startswith("20261125T000000-") and spool.parts() == []
    head, foot = read_head(path), read_foot(path)
    assert (head.pipeline, head.address) == ("events", "nats:s@1")
    assert [group.messages for group in foot.groups] == [2, 1] and foot.messages == 3
    (at_first, first), (at_second, second) = read_groups(path)
    assert (at_first, at_second) == (0, 2)
    assert first.to_pylist()[1] == {
        "message_id": "m1", "published": datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC),
        "attributes": [{"key": "a", "value": b"\xff"}, {"key": "a", "value": b"2"}],
        "ordering_key": None, "attempt": 2, "value": b"",
    }  # fmt: skip
    assert [at for at, _ in read_groups(path, 2, 3)] == [2]
    [(at_second_message, rest)] = read_groups(path, 1, 2)
    assert (at_second_message, rest.to_pylist()) == (1, first.to_pylist()[1:])
    assert second.column("value").to_pylist() == [b"three"]


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


@pytest.mark.usefixtures("undurable")
def test_one_of_many_recovers(spool: Spool) -> None:
    """Of eight at once one seals a part; the others find nothing to do, and change nothing."""
    for _ in range(20):
        path, together = left(spool, [[b"one"], [b"two"]]), Barrier(8)
        found: list[Path | None] = []

        def at_once(path: Path = path, together: Barrier = together, found: list = found) -> None:
            together.wait()
            found.append(recover_part(path, spool.sealed))

        threads = [Thread(target=at_once) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [sealed] = filter(None, found)
        assert len(found) == 8 and values_of(sealed) == [b"one", b"two"]
    assert len(list(spool.sealed.iterdir())) == 20


def test_a_new_part_that_is_taken_for_a_dead_one(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its first moment and its lock somebody may recover it, which removes it: the receiver
    begins another one, and writes to no file without a name.
    """
    real, met = segment.lock_part, []

    def held(file: io.FileIO, path: Path) -> bool:
        if not met:
            met.append(path)
            assert recover_part(path, spool.sealed) is None and not path.exists()
        return real(file, path)

    monkeypatch.setattr(segment, "lock_part", held)
    part = begun(spool, [[b"one"]])
    assert part.path.exists() and part.path != met[0]
    assert values_of(part.seal(spool.sealed)) == [b"one"]


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
        recover_part(path, spool.sealed)
    assert met.hit
    recover_part(path, spool.sealed)
    [found] = spool.sealed.iterdir()
    assert values_of(found) == [b"one", b"two"] + [b"three"] * (not torn)
    assert spool.parts() == []


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
    sealed = recover_part(path, spool.sealed)
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
    closed.create_folders()
    [sealed] = closed.recover(print).sealed
    assert values_of(sealed) == [b"one"]
