"""Where a declaration points to, as far as its text tells."""

Place = tuple[str | None, ...]
"""What it is (a table, a topic), and the keys that name it: two equal ones are one place."""


def reached(connection: str | None, servers: str | None) -> str:
    """How a service is reached, in Markdown: who sees this need not know more."""
    return f"connection `{connection}`" if connection else f"`{servers}`"
