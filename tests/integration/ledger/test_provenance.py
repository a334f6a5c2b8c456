"""Which code made which batch: what ran is what is kept, and what the marker names."""

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fixtures.batches.account import quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.spark.local import LocalEngine
from semel import __version__
from semel.archive import layout, provenance
from semel.archive.marker import markers
from semel.commit import commit
from semel.errors import CorruptionError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.spark.engine import SparkEngine
from semel.stage import stage

PLUS = "def plus(frame):\n    return frame.selectExpr('id', 'n + {} AS n')\n"
QUERY = "SELECT id, n * {} AS n FROM records"


class EditedEngine:
    """An engine beside which somebody edits the transforms as soon as it has a job."""

    def __init__(self, engine: SparkEngine, edit: Any) -> None:
        self._engine, self._edit = engine, edit

    def run(self, job: Any) -> Any:
        self._edit()
        return self._engine.run(job)


def written(bench: Workbench, plus: int, times: int) -> dict[str, bytes]:
    """Write a module and a query. Returns their texts, by file name."""
    texts = {"plus.py": PLUS.format(plus).encode(), "times.sql": QUERY.format(times).encode()}
    for name, text in texts.items():
        (bench.transforms / name).write_bytes(text)
    return texts


def both(bench: Workbench) -> Spec:
    return bench.spec(transforms=["plus:plus", "times.sql"])


def code_folder(spec: Spec) -> Path:
    return layout.archive_folder(spec) / "code"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def marked(spec: Spec, batch_id: int) -> dict[str, Any]:
    name = f"b{batch_id:08d}.json"
    (path,) = (marker.path for marker in markers(spec.sink_path()) if marker.path.name == name)
    return json.loads(path.read_bytes())


def test_a_marker_names_its_code(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """S26: each batch names its own files' digests, semel's version and the commit.

    The texts are kept once each, and the digest is the same exactly when what runs is the same.
    """
    (bench.folder / ".git").mkdir()
    (bench.folder / ".git" / "HEAD").write_text("a" * 40 + "\n")
    first = written(bench, 1, 2)
    spec = both(bench)
    for number, stop in enumerate((5, 10), start=1):
        bench.write(f"in/{number}.jsonl", events(stop - 5, stop))
        run(ledger, spec, f"r{number}", engine=spark_engine)
        (bench.folder / ".git" / "HEAD").write_text("b" * 40 + "\n")
    second = written(bench, 1, 3)
    bench.write("in/3.jsonl", events(10, 15))
    run(ledger, spec, "r3", engine=spark_engine)
    found = [marked(spec, number) for number in (1, 2, 3)]
    assert [m["code"]["git_commit"] for m in found] == ["a" * 40, "b" * 40, "b" * 40]
    assert {m["code"]["semel"] for m in found} == {__version__}
    for marker, texts in zip(found, (first, first, second), strict=True):
        assert marker["code"]["files"] == {name: sha256(text) for name, text in texts.items()}
        assert marker["spec"]["code"] == marker["code"] or marker["batch_id"] == 1
    digests = [marker.code_digest for marker in markers(spec.sink_path())]
    assert digests[0] == digests[1] != digests[2]
    kept = {path.name: path.read_bytes() for path in code_folder(spec).iterdir()}
    assert kept == {
        f"{sha256(text)}{Path(name).suffix}": text
        for texts in (first, second)
        for name, text in texts.items()
    }
    rows = {row["id"]: row["n"] for row in settled(spec).rows}
    assert rows == {f"e{n:06d}": (n + 1) * (2 if n < 10 else 3) for n in range(15)}


def test_which_batches_a_code_made(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """`semel batches --made-by`: each code once, the newest first, with its batches, their days and
    the texts that ran; also one that came back, and batches whose marker does not tell.
    """
    written(bench, 1, 2)
    spec = bench.spec(
        transforms=["plus:plus", "times.sql"],
        source={"select": "interval", "interval_from": "%Y-%m-%d.jsonl"},
    )
    for day, times in enumerate((2, 2, 3, 2, 2), start=1):
        written(bench, 1, times)
        bench.write(f"in/2026-11-0{day}.jsonl", events(day, day + 1))
        interval = tuple(datetime(2026, 11, d, tzinfo=UTC) for d in (day, day + 1))
        run(ledger, spec, f"r{day}", interval, engine=LocalEngine(transforms=True))
    old = layout.marker(layout.archive_folder(spec), 5)
    marker = json.loads(old.read_text())
    del marker["code"]
    old.write_text(json.dumps(marker))
    found = shell.answers("semel batches events --made-by")["made_by"]
    assert [made["batches"] for made in found] == [[5], [1, 2, 4], [3]]
    assert [made["runs"] for made in found] == [[[5, 5]], [[1, 2], [4, 4]], [[3, 3]]]
    assert found[0]["code"] is None and found[0]["texts"] == {}
    days = [[start[:10], end[:10]] for start, end in found[1]["intervals"]]
    assert days == [["2026-11-01", "2026-11-03"], ["2026-11-04", "2026-11-05"]]
    for made, times in ((found[1], 2), (found[2], 3)):
        text = Path(made["texts"]["times.sql"]).read_text()
        assert text == QUERY.format(times)
    said = shell.runs("semel batches events --made-by")
    assert "3 batches: 1 to 2, 4\n  of 2026-11-01 to 2026-11-02, 2026-11-04\n" in said
    assert "code unknown\n  batch 5\n  of 2026-11-05\n" in said
    shell.runs("semel batches --made-by", code=2)


@pytest.mark.rest
def test_what_changed_since_plan_is_said(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage says which file is another one, and runs it; what is the same is not spoken of."""
    texts = written(bench, 1, 2)
    spec = both(bench)
    bench.write("in/a.jsonl", events(0, 5))
    plan(ledger, spec, "r1")
    new = written(bench, 1, 3)
    said: list[str] = []
    stage(ledger, spec, 1, spark_engine, said.append)
    was, now = (sha256(t["times.sql"])[:12] for t in (texts, new))
    changed = [line for line in said if "planned" in line]
    assert changed == [
        f"{bench.transforms / 'times.sql'} changed since batch 1 was planned "
        f"(SHA-256 {was}, now {now})"
    ]
    bench.write("in/b.jsonl", events(5, 10))
    plan(ledger, spec, "r2")
    (bench.transforms / "beside.py").write_text("")
    (bench.transforms / "plus.py").write_text(f"try:\n    import beside\nexcept ImportError:\n"
                                              f"    pass\n{PLUS.format(2)}")  # fmt: skip
    monkeypatch.setattr("semel.__version__", "9.9")
    said.clear()
    stage(ledger, spec, 2, spark_engine, said.append)
    assert [line for line in said if "planned" in line and "SHA" not in line] == [
        f"{bench.transforms / 'beside.py'} is in use, and was not when batch 2 was planned",
        f"semel is 9.9, and was {__version__} when batch 2 was planned",
    ]
    for batch_id in (1, 2):
        commit(ledger, spec, batch_id, pytest.fail, quiet)
        finalize(ledger, spec, batch_id)
    assert {row["n"] for row in settled(spec).rows} == {
        *((n + 1) * 3 for n in range(5)), *((n + 2) * 3 for n in range(5, 10))
    }  # fmt: skip


def test_an_edit_while_stage_runs_counts_for_the_next(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """S26: what was read at the start runs to the end, and that is what the marker names."""
    texts = written(bench, 1, 2)
    spec = both(bench)
    bench.write("in/a.jsonl", events(0, 5))
    edited = EditedEngine(spark_engine, lambda: written(bench, 7, 7))
    run(ledger, spec, "r1", engine=edited)
    assert sorted(row["n"] for row in settled(spec).rows) == [2, 4, 6, 8, 10]
    assert marked(spec, 1)["code"]["files"] == {n: sha256(text) for n, text in texts.items()}


@pytest.mark.rest
def test_an_edit_that_keeps_size_and_time_runs(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Python has compiled of an older text of the same size and second is not run."""
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = bench.transforms / "plus.py"
    spec = None
    for number in (1, 2):
        written(bench, number, 1)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        spec = spec or both(bench)
        bench.write(f"in/{number}.jsonl", events(number * 10, number * 10 + 1))
        run(ledger, spec, f"r{number}", engine=spark_engine)
    assert sorted(row["n"] for row in settled(spec).rows) == [11, 22]


def test_a_damaged_copy_is_loud(bench: Workbench, ledger: Ledger) -> None:
    """What lies under a digest and is another text stops stage; removed, it is written anew."""
    texts = written(bench, 1, 2)
    spec = both(bench)
    bench.write("in/a.jsonl", events(0, 5))
    kept = code_folder(spec) / f"{sha256(texts['times.sql'])}.sql"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"SELECT")
    with pytest.raises(CorruptionError, match="does not match the digest in its name"):
        run(ledger, spec, "r1")
    kept.unlink()
    run(ledger, spec, "r1", engine=LocalEngine(transforms=True))
    assert kept.read_bytes() == texts["times.sql"]
    assert settled(spec).counts.survivors == 5


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{")])
def test_a_committed_batch_is_finalized_without_it(
    bench: Workbench, ledger: Ledger, damage: Any
) -> None:
    """What nobody can tell any more is left out of the marker; without transforms no text is kept.
    """
    spec = bench.spec()
    for number in (1, 2):
        bench.write(f"in/{number}.jsonl", events(number * 10, number * 10 + 5))
        plan(ledger, spec, f"r{number}")
        stage(ledger, spec, number, LocalEngine(), quiet)
        commit(ledger, spec, number, pytest.fail, quiet)
        if number == 2:
            (record,) = (layout.archive_folder(spec) / "staging").glob("*2/*/code.json")
            damage(record)
        finalize(ledger, spec, number)
    first, second = (marked(spec, number) for number in (1, 2))
    assert first["code"]["files"] == {} and len(first["code_digest"]) == 64
    assert "code" not in second and "code_digest" not in second
    assert [m.code_digest for m in markers(spec.sink_path())] == [first["code_digest"], None]
    assert not code_folder(spec).exists()
    assert settled(spec).counts.survivors == 10


def test_only_modules_of_the_folder_count(bench: Workbench) -> None:
    """Imports are followed within the folder, each file once; others, and broken ones, are not."""
    files = {
        "main": "import os, one\nfrom two.deep import x\nimport json.decoder\ndef f(frame): ...",
        "one": "import two, main",
        "two": "def (",
        "json_like": "",
        "other": "",
    }
    files["one"] += "\nimport " + "x" * 300
    for name, text in files.items():
        (bench.transforms / f"{name}.py").write_text(text)
    spec = bench.spec(transforms=["main:f"])
    assert sorted(provenance.read_code(spec).texts) == ["main.py", "one.py", "two.py"]
    (bench.transforms / "main.py").unlink()
    with pytest.raises(TerminalError, match=r"cannot read .*main\.py: No such file"):
        provenance.read_code(spec)


def test_show_says_which_code_made_a_batch(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """First what it was planned with, then what its winner ran, then what its marker says; with
    the place of each text. Where a marker is gone, what was planned.
    """

    def shown() -> tuple[str, dict[str, Any]]:
        lines = [line for line in shell.runs("semel show 1").splitlines() if "code" in line]
        return "\n".join(lines), shell.answers("semel show 1")["code"]

    (bench.folder / ".git").mkdir()
    (bench.folder / ".git" / "HEAD").write_text("a" * 40 + "\n")
    old = written(bench, 1, 2)
    spec = both(bench)
    bench.write("in/a.jsonl", events(0, 5))
    plan(ledger, spec, "r1")
    words, found = shown()
    assert f"code, as planned: semel {__version__}, git commit {'a' * 40}" in words
    assert f"code, as planned: 'plus.py' SHA-256 {sha256(old['plus.py'])}, its text is not in the archive" in words
    assert (found["of"], [file["text"] for file in found["files"]]) == ("plan", [None, None])

    new = written(bench, 1, 3)
    stage(ledger, spec, 1, LocalEngine(transforms=True), quiet)
    assert shown()[1]["of"] == "plan"  # No attempt has won.
    commit(ledger, spec, 1, pytest.fail, quiet)
    after_commit = shown()
    finalize(ledger, spec, 1)
    digest = markers(spec.sink_path())[0].code_digest
    kept = {n: code_folder(spec) / f"{sha256(t)}{Path(n).suffix}" for n, t in new.items()}
    files = [{"name": n, "sha256": sha256(t), "text": str(kept[n])} for n, t in new.items()]
    about = {"semel": __version__, "git_commit": "a" * 40, "digest": digest, "files": files}
    for (words, found), of in ((after_commit, "attempt"), (shown(), "marker")):
        assert f"code: semel {__version__}, git commit {'a' * 40}" in words
        for name, text in new.items():
            line = f"code: {name!r} SHA-256 {sha256(text)}, text {str(kept[name])!r}"
            assert line in words
        assert found == {"of": of, **about}
        assert Path(found["files"][0]["text"]).read_bytes() == new["plus.py"]

    marker = layout.marker(layout.archive_folder(spec), 1)
    marker.write_text("{")
    assert shown()[1]["of"] == "plan"
    marker.parent.rename(marker.parent.with_name("moved"))
    marker.parent.touch()  # As a folder that cannot be read.
    assert shown()[1]["of"] == "plan"
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE semel.batch SET spec = spec - 'code'")
    words, found = shown()
    assert "code: unknown" in words and found is None
