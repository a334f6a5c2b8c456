"""The pages that show output rows, dead letters as a file, a pipeline's YAML and the lineage."""

import json
import re

import pyarrow.parquet as pq
import pytest

from fixtures.airflow.pages import Pages
from fixtures.batches.account import first_batch
from fixtures.batches.workbench import Workbench, events
from semel.airflow.page import records
from semel.airflow.page.drawing import BOX_HEIGHT, BOX_WIDTH, Node, draw
from semel.ledger import Ledger
from semel.reports import dead_letters

BATCH = "/semel/dags/events/batches/1"
HOSTILE = "<script>alert(1)</script>"


def bad(n: str) -> bytes:
    return json.dumps({"id": HOSTILE, "n": n}).encode()


def test_first_rows_of_a_batch(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """The first output rows are text, for a user who may read task logs and nobody else."""
    first_batch(bench, ledger, [{"id": HOSTILE, "n": 7}, *events(0, 100)])
    assert f'href="{BATCH}/rows"' in pages.get(BATCH).text
    page = pages.get(f"{BATCH}/rows")
    assert page.status == 200 and page.text.count("<script") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
    cells = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td>", page.text)
    assert len(cells) == records.PAGE_ROWS and ("e000003", "3") in cells
    assert pages.get(f"{BATCH}/rows", "nologs").status == 403
    assert pages.get(f"{BATCH}/rows", None).status == 401
    assert "/rows" not in pages.get(BATCH, "nologs").text
    assert "is not a finalized batch" in pages.get("/semel/dags/events/batches/9/rows").text


def test_dead_letters_are_a_file(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """Each dead letter is a line with its whole record, as an attachment that no browser renders."""
    whole = "x" * 1_000
    first_batch(bench, ledger, [*events(0, 3), bad(whole), b"\xff{"])
    path = f"{BATCH}/letters.jsonl"
    assert f'href="{path}"' in pages.get(BATCH).text
    answer = pages.get(path)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    name = "events-batch-1-letters.jsonl"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    letters = [json.loads(line) for line in answer.text.splitlines()]
    assert json.loads(letters[0]["record"]) == {"id": HOSTILE, "n": whole}
    assert letters[0]["reason"] == "type_mismatch" and letters[0]["offset"] > 0
    assert letters[1]["record_base64"] == "/3s=" and len(letters) == 2
    assert pages.get(path, "nologs").status == 403 and pages.get(path, None).status == 401
    assert "letters.jsonl" not in pages.get(BATCH, "nologs").text


def test_a_file_of_dead_letters_is_bounded(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has a number of letters, or of bytes, at most. Its last line counts the others, and
    names the files that have all.
    """
    spec = first_batch(bench, ledger, [bad(f"{n:04}") for n in range(50)])
    assert len(list(dead_letters.raw_letters(dead_letters.marker_of(spec, 1)))) == 50
    whole = records._letters_file(spec, 1)
    monkeypatch.setattr(records, "PAGE_LETTERS_MAX", 7)
    *letters, last = records._letters_file(spec, 1).splitlines(keepends=True)
    assert letters == whole.splitlines(keepends=True)[:7]
    last = json.loads(last)
    assert last["left_out"] == 43
    assert sum(pq.read_metadata(path).num_rows for path in last["files"]) == 50
    monkeypatch.setattr(records, "PAGE_LETTERS_BYTES_MAX", 1_000)
    *letters, last = records._letters_file(spec, 1).splitlines(keepends=True)
    assert 0 < len(b"".join(letters)) <= 1_000
    assert json.loads(last)["left_out"] == 50 - len(letters)


def test_without_samples_no_page_has_records(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """With `log_samples: false`, neither the rows nor the dead letters of a batch are served."""
    limits = {"log_samples": False, "quarantine_ratio_max": 1.0}
    first_batch(bench, ledger, [*events(0, 3), bad("secret")], limits=limits)
    page = pages.get(BATCH).text
    assert "letters.jsonl" not in page and f"{BATCH}/rows" not in page
    for path in ("rows", "letters.jsonl"):
        text = pages.get(f"{BATCH}/{path}").text
        assert "log_samples: false" in text and "secret" not in text and "e000001" not in text


def test_the_declaration(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """The file as it is; without the file, the declaration of the newest batch."""
    spec = first_batch(bench, ledger, events(0, 3), description=HOSTILE)
    path = "/semel/dags/events/declaration"
    page = pages.get(path).text
    assert "path: in/*.jsonl" in page and page.count("<script") == 1
    assert pages.get(path, None).status == 401
    (bench.pipelines / "events.yaml").unlink()
    page = pages.get(path).text
    assert "declaration of its newest batch" in page and spec.name in page
    assert "in/*.jsonl" in page and page.count("<script") == 1


def test_the_lineage_of_pipelines(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """An arrow leads to each reader; a pipeline that the user may not see has no name there."""
    bench.spec("hidden")
    schema = {"id": "string", "n": "bigint"}
    bench.spec(source={"type": "pipeline", "pipeline": "hidden", "schema": schema})
    whole = pages.get("/semel/lineage").text
    assert whole.count('class="arrow"') == 1 and "hidden" in whole
    partly = pages.get("/semel/lineage", "viewer").text
    assert partly.count('class="arrow"') == 1 and 'href="/semel/dags/events"' in partly
    assert "You may not see its DAG" in partly and ">hidden<" not in partly
    assert "dags/hidden" not in partly and "out/hidden" not in partly
    assert pages.get("/semel/lineage", None).status == 401
    del ledger


def node(name: str, *reads: str) -> Node:
    return Node(name=name, reads=frozenset(reads), source="", sink="")


def test_a_drawing_of_lineage() -> None:
    """Each arrow leads to the right, no two boxes overlap, and unrelated hidden ones are left out."""
    nodes = [
        node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c"), node("e", "d", "f"),
        node("f"), node("secret"), node("g", "secret"), *(node(f"x{n}") for n in range(20)),
    ]  # fmt: skip
    names = {each.name for each in nodes} - {"secret", "f"}
    drawing = draw(nodes, names)
    assert all(x1 < x2 for x1, _, x2, _ in drawing.arrows) and len(drawing.arrows) == 7
    places = {(box.x, box.y) for box in drawing.boxes}
    assert len(places) == len(nodes) == len(drawing.boxes)
    for x, y in places:
        others = places - {(x, y)}
        assert not [1 for a, b in others if abs(a - x) < BOX_WIDTH and abs(b - y) < BOX_HEIGHT]
        assert x + BOX_WIDTH < drawing.width + 1 and y + BOX_HEIGHT < drawing.height + 1
    assert sum(box.node is None for box in drawing.boxes) == 2
    alone = draw([node("secret", "other"), node("other"), node("mine")], {"mine"})
    assert [box.node.name for box in alone.boxes] == ["mine"] and not alone.arrows
    assert not draw([], set()).boxes
