"""Keys that Spark's hash partitioning sends to wanted partitions.

`repartition(n, key)` sends a row to the partition `hash(key) mod n`, with Spark's Murmur3 and the
seed 42. For a 32-bit key each step of this hash is reversible, so there is a key for each hash
value. `repartitionById`, which needs no key, exists since Spark 4.1 only.
"""

_SEED = 42
_BITS = (1 << 32) - 1
_FACTORS = (0xC2B2AE35, 0x85EBCA6B, 5, 0x1B873593, 0xCC9E2D51)
_LAST, _MIDDLE, _FIVE, _SECOND, _FIRST = (pow(factor, -1, 1 << 32) for factor in _FACTORS)


def partition_key(partition: int) -> int:
    """The key, a Spark `int`, whose hash is this partition's number: Murmur3 in reverse."""
    value = partition ^ (partition >> 16)
    value = value * _LAST & _BITS
    value ^= (value >> 13) ^ (value >> 26)
    value = value * _MIDDLE & _BITS
    value ^= value >> 16
    value ^= 4  # A key's length in bytes.
    value = (value - 0xE6546B64) * _FIVE & _BITS
    value = _rotate(value, 32 - 13) ^ _SEED
    value = _rotate(value * _SECOND & _BITS, 32 - 15)
    value = value * _FIRST & _BITS
    return value - (1 << 32) if value >> 31 else value


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _BITS
