"""Completeness by the time of change: a file that is written on leaves one interval after another,
and an object of many parts appears in one that is over.
"""

import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from test_complete import covered

from fixtures.batches.account import run, settled, sql
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.contract.sources import Objects
from fixtures.objects.s3 import S3
from semel.clients import objects as client
from semel.errors import SourceError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.reports import completeness
from semel.sources.files import evidence

DAY = datetime(2025, 11, 3, tzinfo=UTC)
HOUR = timedelta(hours=1)


def by_mtime(bench: Workbench, *, delay: str = "0 seconds", **source: object) -> Spec:
    return bench.spec(
        source={"select": "interval", "interval_from": "mtime", **source},
        record_time="at",
        window={"size": "1 hour", "delay": delay},
    )


def hour(number: float, *, hours: float = 1) -> tuple[datetime, datetime]:
    return DAY + number * HOUR, DAY + (number + hours) * HOUR


def complete(ledger: Ledger, spec: Spec, *numbers: int) -> list[int]:
    found = completeness.read_completeness(ledger, spec)
    return [number for number in numbers if found.complete(*hour(number))]


class Logs:
    """Files of a past day: when each began, and when it was written last."""

    def __init__(self, bench: Workbench) -> None:
        self.bench, self.records = bench, 0
        self.births: dict[int, datetime] = {}

    def write(self, name: str, at: float) -> Path:
        """Append a record at an hour of the day."""
        path = self.bench.write(
            f"in/{name}", events(self.records, self.records + 1), "ab"
        )
        self.records += 1
        when = DAY + at * HOUR
        self.births.setdefault(path.stat().st_ino, when)
        os.utime(path, (when.timestamp(), when.timestamp()))
        return path

    def birth_ns(self, place: int | str) -> int | None:
        status = os.fstat(place) if isinstance(place, int) else os.stat(place)
        born = self.births.get(status.st_ino)
        return born and int(born.timestamp()) * 10**9

    def rotate(self, name: str, last: float) -> None:
        """The file's last write, and its other name."""
        path = self.write(name, last)
        path.rename(path.with_name(f"{last:.2f}-{name}"))


@pytest.fixture
def logs(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Logs:
    made = Logs(bench)
    monkeypatch.setattr(evidence, "birth_ns", made.birth_ns)
    return made


# Attacks W2, P10.
@pytest.mark.parametrize("refused", ["fail", "warn"])
def test_a_log_that_never_rests(
    bench: Workbench, ledger: Ledger, shell: Shell, refused: str
) -> None:
    """Its last write is always later than the interval: no run is green and has read nothing of it,
    and nothing is complete; and the command that is printed reads all, and covers it.
    """
    spec = by_mtime(bench, on_refused=refused)
    log, step = bench.data / "in" / "app.log.jsonl", timedelta(seconds=0.4)
    first = datetime.now(UTC)
    edges = [first + number * step for number in range(5)]
    for number, edge in enumerate(edges):
        time.sleep(max(0, (edge - datetime.now(UTC)).total_seconds()) + 0.05)
        bench.write("in/app.log.jsonl", events(number, number + 1), "ab")
        if number < 3:  # The first run reads nothing, the next two leave the file to a later one.
            plan(ledger, spec, f"r{number}", (edge - step, edge))
        elif refused == "fail":
            with pytest.raises(SourceError, match="semel run events --interval"):
                plan(ledger, spec, f"r{number}", (edge - step, edge))
        else:
            [refusal] = plan(ledger, spec, f"r{number}", (edge - step, edge)).refusals
            assert refusal.reason == "growing" and refusal.name == str(log)
    assert covered(ledger)[-1][1] < edges[1]
    today = f"--from {first:%F}"
    assert f"not read: {log}: refused as growing" in shell.runs(f"semel windows events {today}")
    said = shell.runs("semel gaps events", code=1)
    assert str(log) in said
    [command] = {line for line in said.splitlines() if line.startswith("next: semel run")}
    shell.runs(command.removeprefix("next: "))
    assert settled(spec).ids == [f"e{n:06d}" for n in range(5)]
    assert [start <= first and edges[-1] <= end for start, end in covered(ledger)] == [True]


# Attacks W2.
@pytest.mark.parametrize("lookback", ["0 seconds", "1 hour"])
@pytest.mark.parametrize("delay", ["0 seconds", "1 hour"])
def test_a_log_that_rotates_each_hour(
    bench: Workbench, ledger: Ledger, shell: Shell, logs: Logs, lookback: str, delay: str
) -> None:
    """The last write of each is of the next hour, whose run reads it; until then its own hour is
    open. After it a lookback covers that hour, or the command that is printed.
    """
    spec = by_mtime(bench, delay=delay, lookback=lookback)
    for number in range(4):
        logs.write("app.jsonl", number + 0.01)
        logs.write("app.jsonl", number + 0.9)
        logs.rotate("app.jsonl", number + 1.001)
        logs.write("app.jsonl", number + 1.01)
        said: list[str] = []
        done = plan(ledger, spec, f"r{number}", hour(number), log=said.append)
        assert done.refusals == () and (done.batch is None) == (number == 0)
        if done.batch:
            run(ledger, spec, f"r{number}", hour(number))
        early = [n for n in complete(ledger, spec, *range(5)) if n >= number]
        assert not early, "its records are unread"
        assert (delay != "0 seconds") or "1.00-app.jsonl" in said[0] or number
    ready = complete(ledger, spec, *range(5))
    assert ready == ([0, 1, 2] if (lookback, delay) != ("0 seconds", "0 seconds") else [])
    if not ready:
        told = shell.runs("semel windows events --from 2025-11-03 --to 2025-11-03")
        for command in told.splitlines():
            if command.startswith("next: semel run"):
                shell.runs(command.removeprefix("next: "))
        assert complete(ledger, spec, *range(3)) == [0, 1, 2]
    assert len(settled(spec).ids) == (11 if ready else 16)


# Attacks W2.
def test_a_log_that_was_read_and_goes_on(bench: Workbench, ledger: Ledger, logs: Logs) -> None:
    """What was written after it was read counts: the hours before that are covered, and the first
    run that passes over it is green, the second is not.
    """
    spec = by_mtime(bench)
    logs.write("app.jsonl", 0.2)
    logs.write("app.jsonl", 2.5)
    run(ledger, spec, "r2", hour(2))
    logs.write("app.jsonl", 4.2)
    assert plan(ledger, spec, "backfill", hour(1)).refusals == ()
    assert plan(ledger, spec, "r3", hour(3)).refusals == ()
    assert complete(ledger, spec, *range(5)) == [1, 2]
    logs.write("app.jsonl", 5.1)
    with pytest.raises(SourceError, match="growing"):
        plan(ledger, spec, "r4", hour(4))
    assert complete(ledger, spec, *range(6)) == [1, 2]
    run(ledger, spec, "all", hour(3, hours=3))
    assert complete(ledger, spec, *range(6)) == [1, 2, 3, 4, 5]
    os.utime(bench.data / "in" / "app.jsonl")  # Touched, and nothing of it is unread.
    assert plan(ledger, spec, "r6", hour(6)).refusals == ()
    assert complete(ledger, spec, 6) == [6]


# Attacks W2.
@pytest.mark.parametrize("birth", ["later", "unknown"])
def test_a_file_of_the_next_hour_holds_nothing(
    bench: Workbench, ledger: Ledger, logs: Logs, birth: str
) -> None:
    """It began there; or the file system does not say when, as some of networks."""
    spec = by_mtime(bench)
    path = logs.write("new.jsonl", 1.2)
    if birth == "unknown":
        logs.births.clear()
    assert plan(ledger, spec, "r0", hour(0)).refusals == ()
    assert complete(ledger, spec, 0) == [0]
    assert path.exists()


# Attacks W2.
def test_a_touched_file_holds_nothing(bench: Workbench, ledger: Ledger) -> None:
    """A file of an earlier day whose permissions change has nothing to be read: no hour waits."""
    names = {"select": "interval", "interval_from": "h-%Y-%m-%dT%H.jsonl"}
    spec = bench.spec(
        source=names, record_time="at", window={"size": "1 hour", "delay": "1 hour"}
    )
    path = bench.write("in/h-2025-11-03T00.jsonl", events(0, 3))
    run(ledger, spec, "r0", hour(0))
    path.chmod(0o640)
    plan(ledger, spec, "r1", hour(1))
    assert complete(ledger, spec, 0) == [0]


class Uploads:
    """Objects of many parts. Amazon documents that such an object has the time when its upload
    began; ministack and versitygw show when it was completed, so the listing is changed to that.
    """

    def __init__(self, place: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.began = place, {}
        ask = client._listed_object

        def as_amazon(meta: object) -> client.Object:
            found = ask(meta)
            return replace(found, modified=self.began.get(found.key, found.modified))

        monkeypatch.setattr(client, "_listed_object", as_amazon)

    def upload(self, key: str, began: float, start: int, stop: int) -> None:
        """Complete an upload that began at an hour of the day."""
        of = {"Bucket": self.place.bucket, "Key": f"in/{key}"}
        s3, body = self.place.s3.client, "".join(f"{json.dumps(e)}\n" for e in events(start, stop))
        of["UploadId"] = s3.create_multipart_upload(**of)["UploadId"]
        part = s3.upload_part(**of, PartNumber=1, Body=body.encode())
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        s3.complete_multipart_upload(**of, MultipartUpload=parts)
        self.began[key] = DAY + began * HOUR


@pytest.fixture
def uploads(bench: Workbench, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Uploads:
    return Uploads(Objects(bench, s3, "jsonl"), monkeypatch)


def by_object(uploads: Uploads, delay: str, lookback: str, rule: str = "mtime") -> Spec:
    source = {"select": "interval", "interval_from": rule, "lookback": lookback}
    window = {"size": "1 hour", "delay": delay}
    return uploads.place.spec(source=source, record_time="at", window=window)


# Attacks W2, W1.
@pytest.mark.parametrize("rule", ["mtime", "h=%Y-%m-%dT%H/"])
@pytest.mark.parametrize("lookback", ["0 seconds", "1 hour"])
def test_an_upload_that_took_long(
    uploads: Uploads, ledger: Ledger, shell: Shell, rule: str, lookback: str
) -> None:
    """Within the delay its hour waits for it: the next run reads it if it looks back, and leaves
    the hour open if not. So it is with a late object of a folder, which the next run must list.
    """
    spec = by_object(uploads, "1 hour", lookback, rule)
    key = "{}" if rule == "mtime" else "h=2025-11-03T{:02d}/{}"
    uploads.upload(key.format(*([0, "a.jsonl"][rule == "mtime":])), 0.1, 0, 3)
    run(ledger, spec, "r0", hour(0))
    uploads.upload(key.format(*([0, "big.jsonl"][rule == "mtime":])), 0.5, 3, 6)
    plan(ledger, spec, "r1", hour(1))
    if lookback == "1 hour":
        assert complete(ledger, spec, 0, 1) == [], "its batch is planned"
        run(ledger, spec, "r1", hour(1))
        assert complete(ledger, spec, 0, 1) == [0]
        assert len(settled(spec).ids) == 6
        return
    assert complete(ledger, spec, 0, 1) == []
    said = shell.runs("semel gaps events", code=1)
    assert "big.jsonl" in said
    [command] = {line for line in said.splitlines() if line.startswith("next: semel run")}
    shell.runs(command.removeprefix("next: "))
    assert complete(ledger, spec, 0, 1) == [0, 1]
    assert len(settled(spec).ids) == 6


# Attacks W1, W9.
def test_an_upload_beyond_the_delay(uploads: Uploads, ledger: Ledger, shell: Shell) -> None:
    """Its hour is complete, and stays so; the plan and `semel gaps` name it, the command that they
    print reads it, and the event of that batch names the hour.
    """
    spec = by_object(uploads, "0 seconds", "0 seconds")
    assert "Declare source.lookback" in shell.runs("semel validate events")
    run(ledger, spec, "r0", hour(0))
    uploads.upload("big.jsonl", 0.5, 0, 3)
    late = plan(ledger, spec, "r1", hour(1))
    assert late.earlier == {DAY.date(): 1} and complete(ledger, spec, 0, 1) == [0, 1]
    said = shell.runs("semel gaps events", code=1)
    assert "big.jsonl" in said
    [command] = {line for line in said.splitlines() if line.startswith("next: semel run")}
    shell.runs(command.removeprefix("next: "))
    assert len(settled(spec).ids) == 3
    [batch] = sql(ledger, "SELECT batch_id FROM semel.batch")
    assert hour(0) in completeness.windows_of_batch(ledger, spec, batch["batch_id"])


@pytest.mark.parametrize(("rule", "delay", "noted"), [
    ("mtime", "90 minutes", True), ("mtime", "0 seconds", False), ("%Y-%m-%d.jsonl", "90 minutes", False),
])  # fmt: skip
def test_validate_says_what_a_delay_must_cover(
    bench: Workbench, shell: Shell, rule: str, delay: str, noted: bool
) -> None:
    """Only of `mtime`: a name says the time whenever its file is written."""
    by_mtime(bench, delay=delay, interval_from=rule, lookback="2 hours")
    note = "window.delay must cover the time from a record to the last write of its file"
    assert (note in shell.runs("semel validate events")) == noted
