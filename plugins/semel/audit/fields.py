"""Where the fields and the records of CSV end, by the audit's own reading."""


def split_fields(text: str, delimiter: str, quote: str) -> list[tuple[str, bool]] | None:
    """The fields of one CSV record, each with whether it was quoted; None: a quote does not end.

    A quote means something at the start of a field only; there, two are one within quotes.
    """
    fields: list[tuple[str, bool]] = []
    at = 0
    while True:
        value, quoted = "", text.startswith(quote, at)
        if quoted:
            at += 1
            while True:
                end = text.find(quote, at)
                if end < 0:
                    return None
                value += text[at:end]
                at = end + 1
                if not text.startswith(quote, at):
                    break
                value += quote
                at += 1
        end = text.find(delimiter, at)
        fields.append((value + text[at : end if end >= 0 else len(text)], quoted))
        if end < 0:
            return fields
        at = end + 1


def record_end(text: bytes, start: int, delimiter: bytes, quote: bytes) -> int:
    """The offset behind a CSV record that may hold line ends within quotes, LF included."""
    at = start
    while True:
        if text.startswith(quote, at):
            at += 1
            while (at := text.find(quote, at) + 1) and text.startswith(quote, at):
                at += 1
            if not at:
                return len(text)
        line, field = text.find(b"\n", at), text.find(delimiter, at)
        if line < 0 and field < 0:
            return len(text)
        if field < 0 or 0 <= line < field:
            return line + 1
        at = field + 1
