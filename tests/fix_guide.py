"""docs/guide/ as its tests read it: its pages, their commands, their pictures."""

import re
from pathlib import Path

from fix_dags import ROOT

FOLDER = ROOT / "docs" / "guide"

PICTURES = ("backfill", "days", "log", "replay", "replayed")
"""Each is taken by test_c_day.py or test_c_replay.py, for `make screenshots`."""

PICTURE_WIDTH = 1200
PICTURE_BYTES_MAX = 150_000


def pages() -> list[Path]:
    """The guide's pages in the order in which its first one lists them."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    return [FOLDER / name for name in re.findall(r"^\d\. .*?\(([a-z-]+\.md)\)", text, re.M)]


def commands(page: Path) -> list[str]:
    """The lines of a page's blocks of commands."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line]


def quoted(page: Path) -> dict[str, str]:
    """The block of text below each numbered heading of a page, by its number."""
    text = page.read_text(encoding="utf-8")
    parts = re.findall(r"^## (\d+)\. (?:.*?)\n\n```text\n(.*?)^```", text, re.M | re.S)
    return dict(parts)


def pictures(page: Path) -> list[str]:
    """The pictures that a page shows."""
    return re.findall(r"!\[[^\]]+\]\(images/([a-z-]+)\.png\)", page.read_text(encoding="utf-8"))
