"""The split-block Bloom filter of the Parquet format, with vectors of NumPy.

A filter is blocks of 256 bits, eight 32-bit words each. The high half of a hash picks the block,
the low half times each of eight published salts picks one bit in each of its words. The number of
blocks need not be a power of two. Ids are sorted by hash, so building and probing both traverse
memory in one direction. The cost of a probe does not depend on the filter's size.

A filter answers "certainly absent" or "perhaps": it only saves look-ups that would find nothing.
The loader (payload) verifies its checksum, because a lost bit would let duplicates pass.
"""

from dataclasses import dataclass

import numpy as np

from semel import limits

BLOCK_BYTES = 32
_WORDS = 8
_SALTS = np.array(
    [
        0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D,
        0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
    ],
    dtype=np.uint32,
)  # fmt: skip
_STEP = 1 << 15  # hashes per step, whose masks (1 MiB) fit in the CPU cache


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A built filter. `words` is uint32[8 * blocks], little endian; it may be a np.memmap."""

    words: np.ndarray

    def probe(self, h1: np.ndarray) -> np.ndarray:
        """Whether each hash (uint64, preferably sorted) may be in the filter. False is certain."""
        hits = np.empty(len(h1), dtype=bool)
        for start in range(0, len(h1), _STEP):
            hits[start : start + _STEP] = self._probe(h1[start : start + _STEP])
        return hits

    def _probe(self, h1: np.ndarray) -> np.ndarray:
        first = block_of(h1, len(self.words) // _WORDS) * _WORDS
        low = h1.astype(np.uint32)
        candidates = np.arange(len(h1))
        for word, salt in enumerate(_SALTS):
            # Two of three absent ids fail at each word, so most of the later words are never read.
            bits = (self.words[first + word] >> ((low * salt) >> np.uint32(27))) & np.uint32(1)
            keep = np.flatnonzero(bits)
            first, low, candidates = first[keep], low[keep], candidates[keep]
        hits = np.zeros(len(h1), dtype=bool)
        hits[candidates] = True
        return hits


def build(h1_sorted: np.ndarray, bits_per_id: int = limits.FILTER_BITS_PER_ID) -> Filter:
    """The filter of sorted hashes (uint64), with at least `bits_per_id` bits for each."""
    blocks = blocks_for(len(h1_sorted), bits_per_id)
    return Filter(words=build_part(h1_sorted, blocks, 0, blocks))


def blocks_for(ids: int, bits_per_id: int = limits.FILTER_BITS_PER_ID) -> int:
    """The number of blocks that gives each id its bits."""
    return max(1, -(-ids * bits_per_id // (8 * BLOCK_BYTES)))


def build_part(h1_sorted: np.ndarray, blocks: int, first: int, end: int) -> np.ndarray:
    """The words of blocks `first` to `end` (exclusive) of a filter of `blocks` blocks.

    The hashes must be sorted and belong to these blocks. A large filter is built in parts.
    """
    words = np.zeros((end - first, _WORDS), dtype="<u4")
    for start in range(0, len(h1_sorted), _STEP):
        h1 = h1_sorted[start : start + _STEP]
        block = block_of(h1, blocks) - first
        masks = np.uint32(1) << ((h1.astype(np.uint32)[:, None] * _SALTS) >> np.uint32(27))
        # The hashes of one block are adjacent, so each step writes each block once.
        starts = np.flatnonzero(np.concatenate(([True], block[1:] != block[:-1])))
        words[block[starts]] |= np.bitwise_or.reduceat(masks, starts, axis=0)
    return words.reshape(-1)


def block_of(h1: np.ndarray, blocks: int) -> np.ndarray:
    """The block of each hash: its high half scaled to the number of blocks (int64)."""
    return (((h1 >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)).astype(np.int64)
