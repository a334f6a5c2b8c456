"""What the samples' paths say: the pattern of the source, and the dates in the files' names."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

_NUMBER = re.compile(r"[0-9]+")
_Y, _M, _D = r"(?:19|20)[0-9]{2}", r"(?:0[1-9]|1[0-2])", r"(?:0[1-9]|[12][0-9]|3[01])"
_H, _MIN = r"(?:[01][0-9]|2[0-3])", r"[0-5][0-9]"
_NOT_IN_A_NUMBER = r"(?<![0-9]){}(?![0-9])"


@dataclass(frozen=True, kw_only=True)
class Dates:
    """Where a file's time is read, and how often a file comes: a word for `schedule`."""

    pattern: str
    schedule: str | None


def _forms() -> list[tuple[re.Pattern[str], str, str]]:
    """How dates are written in names, the longest first: form, strptime's words, schedule."""
    found = []
    for sep in ("-", "_", ".", ""):
        day, words = f"{_Y}{sep}{_M}{sep}{_D}", f"%Y{sep}%m{sep}%d"
        for mid in ("T", "-", "_", "t", "."):
            found.append((f"{day}{mid}{_H}[-_.]{_MIN}", words + mid + "%H{}%M", "@hourly"))
            found.append((f"{day}{mid}{_H}{_MIN}", words + mid + "%H%M", "@hourly"))
            found.append((f"{day}{mid}{_H}", words + mid + "%H", "@hourly"))
        if not sep:
            found.append((f"{day}{_H}", words + "%H", "@hourly"))
        found.append((day, words, "@daily"))
        if sep:
            found.append((f"{_Y}{sep}{_M}", f"%Y{sep}%m", "@monthly"))
    forms = []
    for form, strptime, schedule in found:
        form = form.replace(".", r"\.") if "." in strptime else form
        forms.append((re.compile(_NOT_IN_A_NUMBER.format(form)), strptime, schedule))
    return forms


def dates_in(names: Sequence[str]) -> Dates | None:
    """The one pattern that gives the time of each name back. None: the names have none.

    What else differs between the names has no place in such a pattern.
    """
    for form, words, schedule in _FORMS:
        found = form.search(names[0])
        if found is None:
            continue
        if "{}" in words:
            words = words.format(found[0][-3])
        before, behind = names[0][: found.start()], names[0][found.end() :]
        pattern = before.replace("%", "%%") + words + behind.replace("%", "%%")
        if all(_reads(pattern, name) for name in names):
            return Dates(pattern=pattern, schedule=schedule)
    return None


_FORMS = _forms()


def _reads(pattern: str, name: str) -> bool:
    try:
        return datetime.strptime(name, pattern).strftime(pattern) == name
    except ValueError:
        return False


def source_pattern(paths: Sequence[PurePosixPath]) -> str:
    """The glob that finds all the paths, and those that come: over what differs between them.

    Of one path alone, over its date and its numbers. `paths` are of one root.
    """
    folders = _folders([path.parent.parts for path in paths])
    names = [path.name for path in paths]
    return str(PurePosixPath(*folders, _name(sorted(set(names)))))


def _folders(several: list[tuple[str, ...]]) -> list[str]:
    first = several[0]
    if len({*map(len, several)}) == 1:
        return [
            _escaped(level[0]) if len(set(level)) == 1 else "*"
            for level in zip(*several, strict=True)
        ]
    common = os.path.commonprefix(several)
    return [*map(_escaped, first[: len(common)]), "**"]


def _name(names: list[str]) -> str:
    shapes = {_shape(name) for name in names}
    if len(shapes) == 1 and len(names) > 1 or _shape(names[0]) != names[0] and len(names) == 1:
        return _join(names[0], names)
    if len(names) == 1:
        return _escaped(names[0])
    before = os.path.commonprefix(names)
    behind = os.path.commonprefix([name[len(before) :][::-1] for name in names])[::-1]
    # A number or word that is cut would be another one in the next name.
    before = re.sub(r"[A-Za-z0-9]*$", "", before)
    behind = behind[re.search(r"[^A-Za-z0-9]|$", behind).start() :]
    if not behind and all(re.search(r"\.[A-Za-z]+(\.gz)?$", name) for name in names):
        endings = {re.search(r"(\.[A-Za-z]+)(\.gz)?$", name)[1] for name in names}
        behind = f"{endings.pop()}*" if len(endings) == 1 else ""
        return f"{_escaped(before)}*{behind}"
    return f"{_escaped(before)}*{_escaped(behind)}"


def _shape(name: str) -> str:
    """A name but for its numbers."""
    return _NUMBER.sub("0", name) if _dates_or_counts(name) else name


def _dates_or_counts(name: str) -> bool:
    """Whether its numbers stand apart: `part-0001`, `2024-01-01`, and not `s3` or `v2`."""
    return bool(re.search(r"(?:^|[^A-Za-z0-9])[0-9]+(?:[^A-Za-z0-9]|$)", name)) or bool(
        re.search(r"[0-9]{3,}", name)
    )


def _join(name: str, names: list[str]) -> str:
    """The name, a `*` in the place of each number that differs, or of all in a single one."""
    numbers = [_NUMBER.findall(one) for one in names]
    differs = [len(names) == 1 or len(set(column)) > 1 for column in zip(*numbers, strict=True)]
    pieces, at = [], 0
    for found, other in zip(_NUMBER.finditer(name), differs, strict=True):
        pieces += [_escaped(name[at : found.start()]), "*" if other else found[0]]
        at = found.end()
    pattern = "".join([*pieces, _escaped(name[at:])])
    # A date is one thing: 2024-01-* would end with January.
    dated = next((form for form, *_ in _FORMS if form.search(name)), None)
    if dated is not None:
        found = dated.search(name)
        outer = _escaped(name[: found.start()]), _escaped(name[found.end() :])
        pattern = "*".join(outer) if len(names) == 1 or _same_but(found, names) else pattern
    return re.sub(r"\*(?:[-_.:T]?\*)+", "*", pattern)


def _same_but(found: re.Match[str], names: list[str]) -> bool:
    """Whether the names differ in the date alone."""
    return len({(one[: found.start()], one[found.end() :]) for one in names}) == 1


def _escaped(text: str) -> str:
    """A text as a glob finds it; `?` for a character that no declaration may hold."""
    return "".join(char if char.isprintable() else "?" for char in glob.escape(text))
