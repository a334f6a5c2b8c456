"""What is tracked: nothing of this machine, nothing that only one place can reach."""

import re
from pathlib import Path

import tree

_TEXT_BYTES_MAX = 4 << 20
_FORBIDDEN = {
    # Put together from parts, so that this file does not hold them itself.
    "a path of one machine": re.compile(r"(?<![\w.])/(?:ro" r"ot|wo" r"rk|ho" r"me/[a-z]\w*)\b"),
    "a registry's host": re.compile(
        r"index-u" r"rl|https?://[^\s\"']*(?:/simple\b|registry|artifactory|nexus|pyp" r"i\.)"
    ),
}


def test_nothing_of_this_machine_is_tracked() -> None:
    """No absolute path of a machine and no registry host: another machine has others."""
    for path in tree.project_files():
        data = path.read_bytes()
        assert len(data) <= _TEXT_BYTES_MAX, f"{tree.shown(path)}: too large to track"
        text = data.decode("utf-8", "replace")
        for what, pattern in _FORBIDDEN.items():
            if found := pattern.search(text):
                where = f"{tree.shown(path)}:{text.count(chr(10), 0, found.start()) + 1}"
                raise AssertionError(f"{where}: holds {what}, {found[0]!r}; remove it")


def test_each_part_of_the_results_has_a_heading_of_its_own() -> None:
    """A page that cites a benchmark by its heading means one part of RESULTS.md."""
    text = (tree.ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## (B\d+: .*)$", text, re.MULTILINE)
    assert len(heads) > 10 and sorted(heads) == sorted({*heads})
    kinds = {head.partition(":")[0]: head for head in heads}
    apart = {k for k in kinds if sum(h.startswith(f"{k}:") for h in heads) > 1} - {"B1", "B7"}
    assert not apart, f"{apart} are numbers of two benchmarks each"


def test_links_between_documents_lead_somewhere() -> None:
    """A relative link in a document names a file of the project, and a heading that it has."""
    for path in tree.project_files():
        if path.suffix != ".md":
            continue
        text = path.read_text(encoding="utf-8")
        for target, place in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?[^)]*\)", text):
            if "://" in target:
                continue
            there = (path.parent / target).resolve() if target else path
            complaint = f"{tree.shown(path)}: the link {target}#{place} leads nowhere; correct it"
            assert there.exists(), complaint
            assert not place or there.suffix != ".md" or place in _headings(there), complaint


def _headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as git hosts make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    found = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def test_each_decision_says_what_violates_it() -> None:
    """docs/decisions/NNNN-*.md count up from 1, and end with what breaks them."""
    pages = sorted((tree.ROOT / "docs" / "decisions").glob("*.md"))
    assert pages, "docs/decisions/ is empty: write down what deviates from the design, and why"
    for number, page in enumerate(pages, start=1):
        counted = page.name.startswith(f"{number:04d}-")
        assert counted, f"{page.name}: its number should be {number:04d}"
        last = page.read_text(encoding="utf-8").strip().split("\n\n")[-1]
        said = last.startswith("A change violates this when it ")
        assert said, f"{page.name}: end with a paragraph `A change violates this when it ...`"
