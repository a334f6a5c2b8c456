"""What hostile producers write: names of files, and what is in them. Strategies of Hypothesis."""

from hypothesis import strategies as st

SUFFIX = b".jsonl"
LONGEST = 255 - len(SUFFIX)


def _is_name(name: bytes) -> bool:
    return not {0, ord("/")} & {*name} and len(name) <= LONGEST


NAMES = st.one_of(
    st.binary(max_size=30),
    st.text(max_size=30).map(lambda text: text.encode()),
    st.sampled_from(
        [b"..", b".", b"-rf", b"%s%(x)s", b"a\nb", b"\r", b"'; --", b'"', b"\\", b"\\udcff",
         b"\xff", b"\xed\xa0\x80", b"[a-z]", b"**", b"?", b"{x}", b"$HOME", b"~", b" ",
         b"x" * LONGEST, "é".encode(), "e\u0301".encode(), "\u202e".encode(), "\ufeff".encode()]
    ),
).filter(_is_name)  # fmt: skip


PIECES = [
    b'{"id":"a","n":1}', b'{"id":"b"}', b"{", b"}", b"[", b'"', b"\\", b"\\u0000", b"\\ud800", b":",
    b",", b"null", b"1e999", b"NaN", b"-", b"\r", b"\r\r", b"\0", b"\xff", b"\xef\xbb\xbf", b" ",
    b"\t", b'""', b"a,1,2013-01-01T00:00:00Z", b"b,,", b'"a\nb",1,', b"\x1a", b"\x0b", b"\x85",
    b"\xe2\x80\xa8", b"2013-02-30", b"9" * 25, b"x" * 300, b"[" * 200,
]  # fmt: skip
FILES = st.lists(
    st.one_of(st.sampled_from([*PIECES, *[b"\n"] * 12]), st.binary(max_size=12)), max_size=25
).map(b"".join)


def lines_of(data: bytes, blank: bytes) -> dict[int, bytes]:
    """The records of a file by their offsets, without line ends: LF, or CRLF after no other CR."""
    found, at = {}, 0
    for line in data.split(b"\n"):
        text = line
        if at == 0 and text.startswith(b"\xef\xbb\xbf"):
            text = text[3:]
        start = at + len(line) - len(text)
        text = text if text.endswith(b"\r\r") else text.removesuffix(b"\r")
        if text.strip(blank):
            found[start] = text
        at += len(line) + 1
    return found
