"""The audit of the code: the texts that markers name are in the archive, as they ran."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fix_sink import HonestSink
from semel.audit import Check, audit
from semel.errors import CorruptionError
from semel.reader import markers

TEXTS = {"plus.py": b"def plus(frame):\n    return frame\n", "times.sql": b"SELECT 1"}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def named(texts: dict[str, bytes]) -> dict[str, Any]:
    """What a marker says of the code, by the protocol alone."""
    files = {name: sha256(text) for name, text in texts.items()}
    shaping = json.dumps({"files": files, "semel": "0.1.0"}, sort_keys=True, separators=(",", ":"))
    code = {"semel": "0.1.0", "git_commit": None, "files": files}
    return {"code": code, "code_digest": sha256(shaping.encode())}


@pytest.fixture
def sink(tmp_path: Path) -> HonestSink:
    """Two batches of one code; the archive has both files of it, and one that no marker names."""
    made = HonestSink(tmp_path)
    for number in (1, 2):
        made.land("a.jsonl", {"id": str(number), "n": 1})
        made.batch()
        made.rewrite_marker(number, made.marker(number) | named(TEXTS))
    for name, text in (TEXTS | {"of_a_lost_attempt.py": b"..."}).items():
        kept(made, name, text).parent.mkdir(exist_ok=True)
        kept(made, name, text).write_bytes(text)
    return made


def kept(sink: HonestSink, name: str, text: bytes | None = None) -> Path:
    return sink.archive / "code" / f"{sha256(text or TEXTS[name])}{Path(name).suffix}"


def check(sink: HonestSink) -> Check:
    """What the audit found of the code; all else is right."""
    verdict = audit(sink.spec, sink.path)
    assert {c.name for c in verdict.checks if not c.ok} <= {"code"}
    return next(c for c in verdict.checks if c.name == "code")


def test_kept_texts_pass(sink: HonestSink) -> None:
    """Each is examined once, however many batches it made; what no marker names is no harm."""
    assert (check(sink).ok, check(sink).examined) == (True, 2)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_gone(sink: HonestSink, name: str) -> None:
    """It is named, with the first batch that it made."""
    kept(sink, name).unlink()
    (found,) = check(sink).offenders
    assert (found.batch, found.file) == (1, str(kept(sink, name)))
    assert found.what == f"the text of {name!r} cannot be read (No such file or directory)"


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_was_altered(sink: HonestSink, name: str) -> None:
    """Also by one byte."""
    kept(sink, name).write_bytes(TEXTS[name][:-1])
    (found,) = check(sink).offenders
    assert (found.batch, found.file) == (1, str(kept(sink, name)))
    short = sha256(TEXTS[name][:-1])[:12]
    assert found.what == f"the text of {name!r} was changed: its SHA-256 begins with {short} now"


def test_a_digest_that_is_not_the_codes(sink: HonestSink) -> None:
    """Who compares batches by it would take another code for the same."""
    sink.rewrite_marker(2, sink.marker(2) | {"code_digest": "ab"})
    (found,) = check(sink).offenders
    assert (found.batch, found.what) == (2, "its code_digest is not that of its code")


ODD = [
    {"files": {"a.py": "../../../etc/passwd"}}, {"files": {"a.py": "A" * 64}},
    {"files": {"a.py": 1}}, {"files": ["a.py"]}, {"files": None}, {"semel": None},
    {"git_commit": 1},
]  # fmt: skip


@pytest.mark.parametrize("odd", [[], "text", {}, *ODD])
def test_what_is_no_code(sink: HonestSink, odd: Any) -> None:
    """A marker that was tampered with leads nobody out of the archive: it cannot be read."""
    content = sink.marker(2)
    content["code"] = content["code"] | odd if isinstance(odd, dict) and odd else odd
    sink.rewrite_marker(2, content)
    with pytest.raises(CorruptionError, match="b00000002.json"):
        markers(sink.path)
