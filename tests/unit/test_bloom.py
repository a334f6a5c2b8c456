"""The Bloom filter: Parquet's bits, no false negatives, false positives as in theory."""

import math

import duckdb
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from semel import limits
from semel.catalog import bloom

hashes = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=300, unique=True).map(
    lambda values: np.array(sorted(values), dtype=np.uint64)
)


def random_hashes(count: int, seed: int) -> np.ndarray:
    return np.unique(np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64))


def expected_rate(ids: int, blocks: int) -> float:
    """False positives: ids are Poisson distributed over blocks, and set a bit of 32 a word."""
    mean = ids / blocks
    chance = [math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(1, 200)]
    return sum(p * (1 - (31 / 32) ** k) ** 8 for k, p in enumerate(chance, start=1))


def test_the_bits_are_those_of_the_parquet_format(tmp_path):
    """Another implementation, DuckDB's Parquet writer, makes the same filter of the same values."""
    path = tmp_path / "ids.parquet"
    values = [f"order-{i % 5000}" for i in range(40_000)]
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT unnest(?) AS id", [values])
        options = "FORMAT parquet, BLOOM_FILTER_FALSE_POSITIVE_RATIO 0.01"
        connection.execute(f"COPY t TO '{path}' ({options})")
        offset, length = connection.execute(
            f"SELECT bloom_filter_offset, bloom_filter_length FROM parquet_metadata('{path}')"
        ).fetchone()
    theirs = path.read_bytes()[offset : offset + length]
    # Before the blocks, whose number is a power of two, is a header of some bytes.
    blocks = 1 << int(math.log2(length // bloom.BLOCK_BYTES))
    theirs = theirs[-blocks * bloom.BLOCK_BYTES :]
    ids = {xxhash.xxh64_intdigest(value.encode()) for value in values}
    h1 = np.array(sorted(ids), dtype=np.uint64)
    assert bloom.build_part(h1, blocks, 0, blocks).tobytes() == theirs


@given(hashes, st.integers(8, 24))
def test_what_was_added_is_found(h1, bits):
    """A filter never says "surely not" of an id that is in it, whatever the number of blocks."""
    assert bloom.build(h1, bits).probe(h1).all()


@given(hashes, st.integers(1, 5), st.integers(0, 1000))
def test_parts_make_the_whole(h1, blocks, at):
    """A filter that is built in parts, as a merge does, is the same as one built at once."""
    cut = at % (blocks + 1)
    block = bloom.block_of(h1, blocks)
    parts = [
        bloom.build_part(h1[block < cut], blocks, 0, cut),
        bloom.build_part(h1[block >= cut], blocks, cut, blocks),
    ]
    assert np.array_equal(np.concatenate(parts), bloom.build_part(h1, blocks, 0, blocks))


@pytest.mark.parametrize("bits", [limits.FILTER_BITS_PER_ID, 10])
def test_false_positives_are_as_theory_says(bits):
    """The declared bits give the declared rate of false positives (0.07 % for the default)."""
    h1 = random_hashes(100_000, seed=1)
    filter_ = bloom.build(h1, bits)
    asked = np.random.default_rng(2).integers(0, 2**64, 1_000_000, dtype=np.uint64)
    rate = filter_.probe(asked).mean()
    expected = expected_rate(len(h1), bloom.blocks_for(len(h1), bits))
    assert rate == pytest.approx(expected, rel=0.15)
    if bits == limits.FILTER_BITS_PER_ID:
        assert 0.0006 < expected < 0.0008


def test_a_filter_in_a_file_answers_alike(tmp_path):
    """A memory-mapped filter is probed as one in memory is."""
    h1 = random_hashes(10_000, seed=3)
    filter_ = bloom.build(h1)
    filter_.words.tofile(tmp_path / "filter")
    mapped = bloom.Filter(words=np.memmap(tmp_path / "filter", dtype="<u4", mode="r"))
    asked = random_hashes(200_000, seed=4)
    assert mapped.probe(h1).all()
    assert np.array_equal(mapped.probe(asked), filter_.probe(asked))
