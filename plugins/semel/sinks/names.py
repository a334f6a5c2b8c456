"""Parse an output file's name by the template `sink.file_name`, to get its batch."""

import re
from string import Formatter

from semel.formats.table import SINKS
from semel.sinks.spec import NO_WINDOW, SinkSpec

NUMBER = r"[0-9]{1,18}"  # Fits a bigint; semel writes no longer number.
_WINDOW = rf"{NO_WINDOW}|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:T[0-9]+)?(?:[+-][0-9]+)?"


class OutputNames:
    """The names that a declaration gives to the files of a pipeline."""

    def __init__(self, declared: SinkSpec, pipeline: str) -> None:
        self._declared, self._pipeline = declared, pipeline
        self._pattern = _pattern(declared.file_name, pipeline)

    def batch_of(self, name: str) -> int | None:
        """The batch in an output file's name. Returns None if semel did not give this name."""
        if not (match := self._pattern.fullmatch(name)):
            return None
        fields = match.groupdict()
        window = fields.pop("window", None)
        numbers = {key: int(value) for key, value in fields.items()}
        # Check the numbers' widths: 1-1 is not a name of {batch:08d}-{part:05d}.
        stem = self._declared.stem(self._pipeline, **{"fence": 0, **numbers}, window=window)
        return numbers["batch"] if stem == match[1] else None


def _pattern(file_name: str, pipeline: str) -> re.Pattern:
    """A pattern for the names of a template, with a group for each number."""
    stem = ""
    for literal, name, _, _ in Formatter().parse(file_name):
        stem += re.escape(literal)
        if name == "pipeline":
            stem += re.escape(pipeline)
        elif name is not None:
            text = _WINDOW if name == "window" else NUMBER
            stem += f"(?P={name})" if f"(?P<{name}>" in stem else f"(?P<{name}>{text})"
    suffixes = "|".join(re.escape(form.suffix) for form in SINKS.values())
    return re.compile(rf"({stem})({suffixes})")
