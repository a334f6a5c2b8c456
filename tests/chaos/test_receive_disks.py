"""Power cuts and failing disks beneath a spool: nothing acknowledged is missing."""

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from fix_power import Power
from fix_receive import Heard, Line
from fixtures.batches.account import ids, quiet, run, settled
from fixtures.files.full_disk import file_size_max
from fixtures.queue.segments import values_of
from semel.errors import UnavailableError
from semel.ledger import Ledger
from semel.sources.queue import receive
from semel.sources.queue.spool import Spool


def groups_of(messages: int, patch: pytest.MonkeyPatch) -> None:
    """Groups end by their number alone, however slow the machine is."""
    patch.setattr(receive, "GROUP_MESSAGES", messages)
    patch.setattr(receive, "GROUP_SECONDS", 60)


TAILS = ("none", "half", "zeros")


# Attacks Q1.
def test_a_power_cut_loses_nothing_acknowledged(
    line: Line, heard: Heard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The power is cut after each sync and before each acknowledgement leaves, whatever becomes of
    bytes that were not synced: what is acknowledged is in the segments that are left, or recovered.
    Each receive and cut is of a real server, and of all moments."""
    groups_of(60, monkeypatch)
    data = line.spool.path.parent.parent
    power = Power(data, lambda: heard.acknowledged)
    acknowledge = heard.acknowledge

    def promises(handles) -> int:  # noqa: ANN001
        done = acknowledge(handles)
        power.cut()
        return done

    heard.acknowledge = promises
    line.publish(0, 250)
    with monkeypatch.context() as patch:
        power.watch(patch)
        assert line.receive(heard).messages == 250
    assert len(heard.acknowledged) == 250
    promised = {len(cut.promised) for cut in power.cuts}
    assert {0, 60, 250} <= promised
    top = data.stat().st_ino
    for number, cut in enumerate(power.cuts):
        for tail in TAILS:
            left = tmp_path / f"left{number}{tail}"
            cut.leave(top, left, tail)
            spool = Spool(left / line.spool.path.relative_to(data))
            assert not spool.recover(quiet).damaged
            assert not spool.parts()
            sealed = sorted(spool.sealed.glob("*"))
            found = Counter(value for path in sealed for value in values_of(path))
            missing = set(cut.promised) - set(found)
            assert not missing, f"cut {number}, {tail}: {len(missing)} of {len(cut.promised)}"
            assert set(found.values()) <= {1}


SYNCS = {
    "a head": ("fsync", "open/*.part", 1, 0),
    "the name of a part": ("fsync", "open", 1, 0),
    "a group": ("fdatasync", "open/*.part", 2, 100),
    "a foot": ("fsync", "open/*.part", 2, 250),
    "the name of a segment": ("fsync", "sealed", 1, 250),
}
"""A call, of what, which one of them fails; how many messages are acknowledged by then."""


class Failing:
    """The nth sync of what has such a name fails; afterwards the disk is well again, and the files
    whose sync failed are noted with their sizes."""

    def __init__(self, call: str, pattern: str, nth: int, code: int, patch) -> None:  # noqa: ANN001
        self.failed: dict[str, int] = {}
        self._again: list[str] = []
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._around(name, getattr(os, name)))
        self._call, self._pattern, self._left, self._code = call, pattern, nth, code

    def _around(self, name, real):  # noqa: ANN001, ANN202
        def sync(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            if name == self._call and path.match(f"spool/events/{self._pattern}"):
                self._left -= 1
                if self._left == 0:
                    self.failed[str(path)] = os.stat(path).st_size
                    raise OSError(self._code, os.strerror(self._code), str(path))
            if str(path) in self.failed:
                self._again.append(str(path))
            real(handle)

        return sync

    @property
    def tried_again(self) -> bool:
        return bool(self._again)


# Attacks Q1.
@pytest.mark.parametrize(
    ("what", "code"), [*((what, "EIO") for what in SYNCS), ("a group", "ENOSPC")]
)
def test_a_sync_that_fails_acknowledges_nothing(
    line: Line, heard: Heard, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, what: str, code: str
) -> None:
    """The error says which folder, and counts; nothing of that group is acknowledged, no file is
    synced again after its sync failed, and with a good disk each message is there once."""
    *call, acknowledged = SYNCS[what]
    groups_of(100, monkeypatch)
    line.spool.create_folders()
    line.publish(0, 250)
    with monkeypatch.context() as patch:
        failing = Failing(*call, getattr(errno, code), patch)
        wanted = rf"{line.spool.path} cannot be written \({os.strerror(getattr(errno, code))}\): "
        with pytest.raises(UnavailableError, match=wanted) as raised:
            line.receive(heard)
        assert len(failing.failed) == 1 and not failing.tried_again
        parts = {str(part): part.stat().st_size for part in line.spool.parts()}
        assert parts.items() >= {(p, n) for p, n in failing.failed.items() if p in parts}
    assert len(heard.acknowledged) == acknowledged
    assert not set(heard.handed_back) & set(heard.acknowledged)
    many = len(heard.handed_back)
    assert f": {many} messages not acknowledged" in str(raised.value)
    line.drain()
    assert set(heard.acknowledged) <= set(line.spooled())
    run(ledger, line.spec, "r1")
    assert settled(line.spec).ids == ids(0, 250)


# Attacks Q1.
@pytest.mark.parametrize("size", [100, 2_000, 5_000])
def test_a_full_disk_acknowledges_nothing_more(
    line: Line, heard: Heard, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Writes fail in the middle of a head, a group or a foot: what was acknowledged is there, and
    with room again each message is there once."""
    groups_of(100, monkeypatch)
    line.publish(0, 250)
    with (
        file_size_max(size),
        pytest.raises(UnavailableError, match="Free some space, or repair the disk"),
    ):
        line.receive(heard)
    assert len(heard.acknowledged) < 250
    line.drain()
    assert set(heard.acknowledged) <= set(line.spooled())
    run(ledger, line.spec, "r1")
    assert settled(line.spec).ids == ids(0, 250)
