"""Infer the pattern of the source, and the dates in files' names, from the samples' paths."""

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
    """`pattern`: for `interval_from`. `schedule`: how often a file comes, or None if unknown."""

    pattern: str
    schedule: str | None


def _forms() -> list[tuple[re.Pattern[str], str, str]]:
    """The forms of dates in names, the longest first: regex, strptime's format, schedule."""
    templates = []
    for sep in ("-", "_", ".", ""):
        day, words = f"{_Y}{sep}{_M}{sep}{_D}", f"%Y{sep}%m{sep}%d"
        for mid in ("T", "-", "_", "t", "."):
            templates.append((f"{day}{mid}{_H}[-_.]{_MIN}", words + mid + "%H{}%M", "@hourly"))
            templates.append((f"{day}{mid}{_H}{_MIN}", words + mid + "%H%M", "@hourly"))
            templates.append((f"{day}{mid}{_H}", words + mid + "%H", "@hourly"))
        if not sep:
            templates.append((f"{day}{_H}", words + "%H", "@hourly"))
        templates.append((day, words, "@daily"))
        if sep:
            templates.append((f"{_Y}{sep}{_M}", f"%Y{sep}%m", "@monthly"))
    forms = []
    for form, strptime, schedule in templates:
        form = form.replace(".", r"\.") if "." in strptime else form
        forms.append((re.compile(_NOT_IN_A_NUMBER.format(form)), strptime, schedule))
    return forms


def dates_in(names: Sequence[str]) -> Dates | None:
    """The pattern that fits the date in every name. Returns None if there is no such pattern.

    The names must not differ in anything except the date.
    """
    for form, words, schedule in _FORMS:
        match = form.search(names[0])
        if match is None:
            continue
        if "{}" in words:
            words = words.format(match[0][-3])
        prefix, suffix = names[0][: match.start()], names[0][match.end() :]
        pattern = prefix.replace("%", "%%") + words + suffix.replace("%", "%%")
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
    """The glob that finds all the paths and later ones: `*` replaces the parts that differ.

    For a single path, `*` replaces its date and its numbers. `paths` are relative to one root.
    """
    folders = _folders([path.parent.parts for path in paths])
    names = [path.name for path in paths]
    return str(PurePosixPath(*folders, _name(sorted(set(names)))))


def _folders(folders: list[tuple[str, ...]]) -> list[str]:
    first = folders[0]
    if len({*map(len, folders)}) == 1:
        return [
            _escaped(level[0]) if len(set(level)) == 1 else "*"
            for level in zip(*folders, strict=True)
        ]
    common = os.path.commonprefix(folders)
    return [*map(_escaped, first[: len(common)]), "**"]


def _name(names: list[str]) -> str:
    shapes = {_shape(name) for name in names}
    if len(shapes) == 1 and len(names) > 1 or _shape(names[0]) != names[0] and len(names) == 1:
        return _join(names[0], names)
    if len(names) == 1:
        return _escaped(names[0])
    prefix = os.path.commonprefix(names)
    suffix = os.path.commonprefix([name[len(prefix) :][::-1] for name in names])[::-1]
    # Do not cut within a number or word, because the next name may have another one.
    prefix = re.sub(r"[A-Za-z0-9]*$", "", prefix)
    suffix = suffix[re.search(r"[^A-Za-z0-9]|$", suffix).start() :]
    if not suffix and all(re.search(r"\.[A-Za-z]+(\.gz)?$", name) for name in names):
        endings = {re.search(r"(\.[A-Za-z]+)(\.gz)?$", name)[1] for name in names}
        suffix = f"{endings.pop()}*" if len(endings) == 1 else ""
        return f"{_escaped(prefix)}*{suffix}"
    return f"{_escaped(prefix)}*{_escaped(suffix)}"


def _shape(name: str) -> str:
    """A name with 0 in place of each number, if the numbers are dates or counts."""
    return _NUMBER.sub("0", name) if _dates_or_counts(name) else name


def _dates_or_counts(name: str) -> bool:
    """True if a number stands apart or has 3 digits: `part-0001`, `2024-01-01`, not `s3`, `v2`."""
    return bool(re.search(r"(?:^|[^A-Za-z0-9])[0-9]+(?:[^A-Za-z0-9]|$)", name)) or bool(
        re.search(r"[0-9]{3,}", name)
    )


def _join(name: str, names: list[str]) -> str:
    """The name with `*` for each number that differs. A single name: for all its numbers."""
    numbers = [_NUMBER.findall(each) for each in names]
    differs = [len(names) == 1 or len(set(column)) > 1 for column in zip(*numbers, strict=True)]
    pieces, at = [], 0
    for number, other in zip(_NUMBER.finditer(name), differs, strict=True):
        pieces += [_escaped(name[at : number.start()]), "*" if other else number[0]]
        at = number.end()
    pattern = "".join([*pieces, _escaped(name[at:])])
    # Replace a date as a unit: 2024-01-* would end with January.
    form = next((form for form, *_ in _FORMS if form.search(name)), None)
    if form is not None:
        date = form.search(name)
        outer = _escaped(name[: date.start()]), _escaped(name[date.end() :])
        pattern = "*".join(outer) if len(names) == 1 or _same_except(date, names) else pattern
    return re.sub(r"\*(?:[-_.:T]?\*)+", "*", pattern)


def _same_except(date: re.Match[str], names: list[str]) -> bool:
    """True if the names differ only in the date."""
    return len({(name[: date.start()], name[date.end() :]) for name in names}) == 1


def _escaped(text: str) -> str:
    """A text for a glob, with `?` for each character that a declaration does not allow."""
    return "".join(char if char.isprintable() else "?" for char in glob.escape(text))
