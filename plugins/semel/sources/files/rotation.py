"""Names that log rotation (logrotate and similar tools) gives to old logs."""

import os
import re

_NUMBER = r"\.(?P<mark>\d{1,4})"
_DATE = r"[.-](?P<mark>\d{4}-?\d\d-?\d\d[\d.-]*)"
_ROTATED = [
    re.compile(rf"(?P<stem>.+?)(?:{mark})(?P<ending>{ending})", re.DOTALL)
    for ending in ("", r"\.[A-Za-z]\w*")
    for mark in (_NUMBER, _DATE)
]


def is_rotation(old: str, new: str) -> bool:
    """Whether log rotation renames `old` to `new`.

    It adds a number or a date after the name or before its extension, then `.gz` at the end. The
    new name is in the same folder or in one below.
    """
    if not f"{os.path.dirname(new)}/".startswith(f"{os.path.dirname(old)}/"):
        return False
    base, mark, packed = _rotated_name(old)
    new_base, new_mark, new_packed = _rotated_name(new)
    if base != new_base or packed:
        return False
    if mark is None:
        return new_mark is not None or new_packed
    if not new_packed or new_mark is None:
        return False
    return mark == new_mark or (len(mark) <= 4 and len(new_mark) <= 4 and int(mark) < int(new_mark))


def _rotated_name(path: str) -> tuple[str, str | None, bool]:
    """(original name, number or date, whether it is compressed) of a log."""
    name = os.path.basename(path)
    packed = name.endswith(".gz")
    name = name.removesuffix(".gz")
    for pattern in _ROTATED:
        if match := pattern.fullmatch(name):
            return match["stem"] + match["ending"], match["mark"], packed
    return name, None, packed
