"""JSON that somebody else may have written: a marker, a note, a message."""

import json
from typing import Any


def parsed(data: bytes | str) -> Any:
    """The values of a JSON text. ValueError: it is none, or nested too deeply to be read."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
