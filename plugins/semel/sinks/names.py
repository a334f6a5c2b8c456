"""Which batch an output file's name says it is of: `sink.file_name`, read backwards."""

import re
from string import Formatter

from semel.formats.table import SINKS
from semel.sinks.spec import NO_WINDOW, SinkSpec

NUMBER = r"[0-9]{1,18}"  # Fits a bigint: a longer one is not ours.
_WINDOW = rf"{NO_WINDOW}|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:T[0-9]+)?(?:[+-][0-9]+)?"


class OutputNames:
    """The names that a declaration gives to the files of a pipeline."""

    def __init__(self, declared: SinkSpec, pipeline: str) -> None:
        self._declared, self._pipeline = declared, pipeline
        self._pattern = _pattern(declared.file_name, pipeline)

    def batch_of(self, name: str) -> int | None:
        """The batch in an output file's name. None: not ours."""
        if not (match := self._pattern.fullmatch(name)):
            return None
        named = match.groupdict()
        window = named.pop("window", None)
        numbers = {key: int(value) for key, value in named.items()}
        # Check the numbers' widths: 1-1 is not a name of {batch:08d}-{part:05d}.
        stem = self._declared.stem(self._pipeline, **{"fence": 0, **numbers}, window=window)
        return numbers["batch"] if stem == match[1] else None


def _pattern(file_name: str, pipeline: str) -> re.Pattern:
    """A pattern for the names that a template gives, with a group for each number."""
    found = ""
    for literal, name, _, _ in Formatter().parse(file_name):
        found += re.escape(literal)
        if name == "pipeline":
            found += re.escape(pipeline)
        elif name is not None:
            text = _WINDOW if name == "window" else NUMBER
            found += f"(?P={name})" if f"(?P<{name}>" in found else f"(?P<{name}>{text})"
    suffixes = "|".join(re.escape(form.suffix) for form in SINKS.values())
    return re.compile(rf"({found})({suffixes})")
