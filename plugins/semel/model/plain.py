"""Parses JSON that may come from another program: a marker, a note, a message."""

import json
from typing import Any


def parse_json(data: bytes | str) -> Any:
    """The values of a JSON text. Raises ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
