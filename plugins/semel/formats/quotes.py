"""Quotes of CSV: where a record ends, and whether its quotes are as declared.

A quote means something at the start of a field only. It ends with the next quote that is neither
doubled nor, with an `escape`, escaped; a delimiter or the record's end follows. pyarrow accepts text
there, and takes escapes outside of quotes: so records are judged here before it reads them.
"""

import re

import numpy as np

from semel.formats.lines import RecordLines
from semel.formats.selection import NONE

OPEN = "a quote is not closed"
_BEHIND = "text after a closing quote"
_ESCAPE = "an escape before another character than a quote or an escape"
_CR, _LF = 13, 10


class Quotes:
    """The quotes of a dialect. `quote` None: no character is one."""

    def __init__(self, *, delimiter: str, quote: str | None, escape: str | None) -> None:
        self._delimiter, self._quote, self._escape = (
            char and ord(char) for char in (delimiter, quote, escape)
        )
        marks = [re.escape(char.encode()) if char else b"" for char in (delimiter, quote, escape)]
        self._strict = re.compile(_record(*marks, rb"\r\n", strict=True), re.DOTALL)
        self._lax = re.compile(_record(*marks, rb"\r\n", strict=False), re.DOTALL)
        self._line = re.compile(_record(*marks, rb"\n", strict=False) + rb"\n", re.DOTALL)
        if escape:
            self._field = re.compile(rb"(?:^|%b)(%b)" % (marks[0], _quoted(*marks[1:], strict=True)))
            self._pair = re.compile(rb"%b[%b%b]" % (marks[2], *marks[1:]))

    def record_ends(self, buffer: bytearray, filled: int) -> np.ndarray:
        """The ends of records that may hold line ends within quotes. See blocks.RecordEnds."""
        ends, position = [], 0
        while found := self._line.match(buffer, position, filled):
            position = found.end()
            ends.append(position)
        return np.array(ends, np.int64)

    def fault(self, text: bytes) -> str | None:
        """What is wrong with the quotes of a record; None: nothing."""
        if self._strict.fullmatch(text):
            return None
        if not self._lax.fullmatch(text):
            return OPEN
        return f"{_BEHIND}, or {_ESCAPE}" if self._escape else _BEHIND

    def doubtful(self, lines: RecordLines) -> np.ndarray:
        """The records that `fault` must judge. It finds nothing wrong with any other."""
        return self._look(lines)[0]

    def doubled(self, lines: RecordLines) -> bytes | None:
        """Good records with doubled quotes in place of escaped ones; None: nothing is escaped."""
        start, end = lines.span
        if not self._escape or lines.data.find(self._escape, start, end) < 0:
            return None
        doubtful, escapes = self._look(lines)
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

    def _look(self, lines: RecordLines) -> tuple[np.ndarray, np.ndarray]:
        """The records that may have a quote elsewhere than around a field; and the escapes within
        quotes of the others, counted from the first record's start.

        How it works: in a good record every second quote opens a field, from the first one on, and
        the next one closes it; a doubled one closes and opens again. So the byte before the former
        and the one behind the latter tell.
        """
        start, end = lines.span
        if not self._quote or lines.data.find(self._quote, start, end) < 0:
            return NONE, NONE
        codes, starts = np.frombuffer(lines.data, np.uint8)[start:end], lines.starts - start
        quotes, escapes = codes == self._quote, NONE
        borders = (codes == _LF) | (codes == _CR) | (codes == self._delimiter)
        if self._escape:
            escapes = _leading(np.flatnonzero(codes == self._escape))
            quotes[np.minimum(escapes + 1, len(codes) - 1)] = False
        else:
            borders |= quotes
        inside = _odd(quotes)
        before = inside[starts - 1] & (starts > 0)
        if before.any():
            inside ^= np.repeat(before, np.diff(starts, append=len(codes)))
        borders = np.concatenate(([True], borders, [True]))
        wrong = quotes & ~(borders[:-2] & inside | borders[2:] & ~inside)
        bad = inside[lines.ends - start - 1]
        if wrong.any():
            bad |= np.logical_or.reduceat(wrong, starts)
        if len(escapes):
            owner = np.searchsorted(starts, escapes, side="right") - 1
            behind = codes.take(escapes + 1, mode="clip")
            within = inside[escapes] & ~bad[owner]
            alone = within & (behind != self._quote) & (behind != self._escape)
            bad[owner[alone]] = True
            escapes = escapes[within & ~bad[owner]]
        return np.flatnonzero(bad), escapes


def _odd(marks: np.ndarray) -> np.ndarray:
    """Whether the number of marks up to each place is odd, by words of 64."""
    packed = np.packbits(marks, bitorder="little")
    words = np.zeros(-(-len(packed) // 8), "<u8")
    words.view(np.uint8)[: len(packed)] = packed
    for shift in (1, 2, 4, 8, 16, 32):
        words ^= words << np.uint64(shift)
    words[1:] ^= -np.bitwise_xor.accumulate(words >> np.uint64(63))[:-1]
    return np.unpackbits(words.view(np.uint8), count=len(marks), bitorder="little").view(bool)


def _leading(escapes: np.ndarray) -> np.ndarray:
    """Of neighbours the first, third and so on: those that no escape stands before."""
    begins = np.diff(escapes, prepend=-2) != 1
    firsts = np.maximum.accumulate(np.where(begins, escapes, 0))
    return escapes[(escapes - firsts) % 2 == 0]


def _quoted(quote: bytes, escape: bytes, *, strict: bool) -> bytes:
    if not escape:
        return rb"%b[^%b]*(?:%b%b[^%b]*)*%b(?!%b)" % ((quote,) * 7)
    text = rb"[^%b%b]*" % (quote, escape)
    escaped = rb"[%b%b]" % (quote, escape) if strict else rb"."
    return rb"%b%b(?:%b%b%b)*%b" % (quote, text, escape, escaped, text, quote)


def _record(
    delimiter: bytes, quote: bytes, escape: bytes, line_end: bytes, *, strict: bool
) -> bytes:
    """Pattern of a record. There is one way at most to match a text, so a failure takes linear
    time. Not `strict`: as pyarrow reads it, with text after a closing quote.
    """
    field = rb"[^%b%b]*" % (delimiter, line_end)
    if quote:
        quoted = _quoted(quote, escape, strict=strict)
        start = rb"(?:%b|(?!%b)%b)" if strict else rb"(?:%b|(?!%b))%b"
        field = start % (quoted, quote, field)
    return rb"%b(?:%b%b)*" % (field, delimiter, field)
