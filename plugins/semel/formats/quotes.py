"""Quotes of CSV: where a record ends, and whether its quotes follow the declaration.

A quote has a meaning only at the start of a field. It ends at the next quote that is neither
doubled nor, with an `escape`, escaped; a delimiter or the end of the record follows. pyarrow
accepts text there, and escapes outside of quotes. So semel judges records before pyarrow reads
them.
"""

import re

import numpy as np

from semel.formats.lines import RecordLines
from semel.formats.selection import NO_OFFSETS

OPEN = "a quote is not closed"
_TEXT_AFTER = "text after a closing quote"
_ESCAPE = "an escape before a character that is neither a quote nor an escape"
_CR, _LF = 13, 10


class Quotes:
    """The quotes of a dialect. `quote` None: a dialect without quotes."""

    def __init__(self, *, delimiter: str, quote: str | None, escape: str | None) -> None:
        self._delimiter, self._quote, self._escape = (
            char and ord(char) for char in (delimiter, quote, escape)
        )
        marks = [re.escape(char.encode()) if char else b"" for char in (delimiter, quote, escape)]
        self._strict = re.compile(_record_pattern(*marks, rb"\r\n", strict=True), re.DOTALL)
        self._lax = re.compile(_record_pattern(*marks, rb"\r\n", strict=False), re.DOTALL)
        self._line = re.compile(_record_pattern(*marks, rb"\n", strict=False) + rb"\n", re.DOTALL)
        if escape:
            quoted = _in_quotes(*marks[1:], strict=True)
            self._field = re.compile(rb"(?:^|%b)(%b)" % (marks[0], quoted))
            self._pair = re.compile(rb"%b[%b%b]" % (marks[2], *marks[1:]))

    def record_ends(self, buffer: bytearray, filled: int) -> np.ndarray:
        """The ends of records, which may have line ends within quotes. See blocks.RecordEnds."""
        ends, position = [], 0
        while match := self._line.match(buffer, position, filled):
            position = match.end()
            ends.append(position)
        return np.array(ends, np.int64)

    def fault(self, text: bytes) -> str | None:
        """The fault in the quotes of a record. Returns None if they are correct."""
        if self._strict.fullmatch(text):
            return None
        if not self._lax.fullmatch(text):
            return OPEN
        return f"{_TEXT_AFTER}, or {_ESCAPE}" if self._escape else _TEXT_AFTER

    def suspects(self, lines: RecordLines) -> np.ndarray:
        """The indexes of records that `fault` must judge. It accepts all others."""
        return self._scan(lines)[0]

    def double_escaped_quotes(self, lines: RecordLines) -> bytes | None:
        """Good records with doubled quotes instead of escaped ones. Returns None for records
        without escapes."""
        start, end = lines.span
        if not self._escape or lines.data.find(self._escape, start, end) < 0:
            return None
        doubtful, escapes = self._scan(lines)
        shift = (lines.starts[doubtful] - start).tolist()
        others = [
            at + pair.start()
            for at, text in zip(shift, lines.raws(doubtful), strict=True)
            for field in self._field.finditer(text)
            for pair in self._pair.finditer(text, *field.span(1))
        ]
        escapes = np.append(escapes, np.array(others, np.int64))
        codes = np.frombuffer(lines.data, np.uint8)[start:end].copy()
        quotes = codes[escapes + 1] == self._quote
        codes[escapes[quotes]] = self._quote
        return np.delete(codes, escapes[~quotes]).tobytes()

    def _scan(self, lines: RecordLines) -> tuple[np.ndarray, np.ndarray]:
        """Records that may have a quote other than around a field, and the escapes within quotes of
        the other records, as positions from the start of the first record.

        In a good record, every second quote opens a field, from the first one on, and the next one
        closes it; a doubled quote closes and opens again. So it checks the byte before each opening
        quote and the byte after each closing one.
        """
        start, end = lines.span
        if not self._quote or lines.data.find(self._quote, start, end) < 0:
            return NO_OFFSETS, NO_OFFSETS
        codes, starts = np.frombuffer(lines.data, np.uint8)[start:end], lines.starts - start
        quotes, escapes = codes == self._quote, NO_OFFSETS
        borders = (codes == _LF) | (codes == _CR) | (codes == self._delimiter)
        if self._escape:
            escapes = _effective_escapes(np.flatnonzero(codes == self._escape))
            quotes[np.minimum(escapes + 1, len(codes) - 1)] = False
        else:
            borders |= quotes
        inside = _odd_counts(quotes)
        starts_inside = inside[starts - 1] & (starts > 0)
        if starts_inside.any():
            inside ^= np.repeat(starts_inside, np.diff(starts, append=len(codes)))
        borders = np.concatenate(([True], borders, [True]))
        wrong = quotes & ~(borders[:-2] & inside | borders[2:] & ~inside)
        bad = inside[lines.ends - start - 1]
        if wrong.any():
            bad |= np.logical_or.reduceat(wrong, starts)
        if len(escapes):
            owner = np.searchsorted(starts, escapes, side="right") - 1
            following = codes.take(escapes + 1, mode="clip")
            within = inside[escapes] & ~bad[owner]
            alone = within & (following != self._quote) & (following != self._escape)
            bad[owner[alone]] = True
            escapes = escapes[within & ~bad[owner]]
        return np.flatnonzero(bad), escapes


def _odd_counts(marks: np.ndarray) -> np.ndarray:
    """Whether the number of marks up to each position is odd, in words of 64 bits."""
    packed = np.packbits(marks, bitorder="little")
    words = np.zeros(-(-len(packed) // 8), "<u8")
    words.view(np.uint8)[: len(packed)] = packed
    for shift in (1, 2, 4, 8, 16, 32):
        words ^= words << np.uint64(shift)
    words[1:] ^= -np.bitwise_xor.accumulate(words >> np.uint64(63))[:-1]
    return np.unpackbits(words.view(np.uint8), count=len(marks), bitorder="little").view(bool)


def _effective_escapes(escapes: np.ndarray) -> np.ndarray:
    """The escapes that are not escaped: the first, third and so on of adjacent ones."""
    begins = np.diff(escapes, prepend=-2) != 1
    firsts = np.maximum.accumulate(np.where(begins, escapes, 0))
    return escapes[(escapes - firsts) % 2 == 0]


def _in_quotes(quote: bytes, escape: bytes, *, strict: bool) -> bytes:
    if not escape:
        return rb"%b[^%b]*(?:%b%b[^%b]*)*%b(?!%b)" % ((quote,) * 7)
    text = rb"[^%b%b]*" % (quote, escape)
    escaped = rb"[%b%b]" % (quote, escape) if strict else rb"."
    return rb"%b%b(?:%b%b%b)*%b" % (quote, text, escape, escaped, text, quote)


def _record_pattern(
    delimiter: bytes, quote: bytes, escape: bytes, line_end: bytes, *, strict: bool
) -> bytes:
    """Pattern of a record. It matches a text in at most one way, so a failure takes linear time.

    If not `strict`, it allows text after a closing quote, as pyarrow does.
    """
    field = rb"[^%b%b]*" % (delimiter, line_end)
    if quote:
        quoted = _in_quotes(quote, escape, strict=strict)
        start = rb"(?:%b|(?!%b)%b)" if strict else rb"(?:%b|(?!%b))%b"
        field = start % (quoted, quote, field)
    return rb"%b(?:%b%b)*" % (field, delimiter, field)
