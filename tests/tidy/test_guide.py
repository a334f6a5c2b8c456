"""docs/guide/: all its pages are listed, and its pictures are those that a test takes."""

import struct

from fixtures.commands.guide import (
    FOLDER,
    PICTURE_BYTES_MAX,
    PICTURE_WIDTH,
    PICTURES,
    pages,
    pictures,
)


def test_its_first_page_lists_all_others() -> None:
    """And the project's README and the pages of DAGs in Airflow lead to it."""
    assert {page.name for page in pages()} == {p.name for p in FOLDER.glob("*.md")} - {"README.md"}
    root = FOLDER.parents[1]
    for path in ("README.md", "plugins/semel/airflow/describe.py"):
        assert "docs/guide/" in (root / path).read_text(encoding="utf-8"), path


def test_its_pictures_are_those_that_a_test_takes() -> None:
    """None is missing, left over or large: `make screenshots` takes them all anew."""
    shown = [name for page in pages() for name in pictures(page)]
    kept = sorted(path.name for path in (FOLDER / "images").iterdir())
    assert sorted(shown) == sorted(PICTURES)
    assert kept == sorted(f"{name}.png" for name in PICTURES)
    for name in kept:
        data = (FOLDER / "images" / name).read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) <= PICTURE_BYTES_MAX, name
        assert struct.unpack(">I", data[16:20]) == (PICTURE_WIDTH,), name
