"""Hash of a seed and an index to a number, identical in Python and Rust."""

import numpy as np


def unit(seed, n):
    """`n` numbers from 0 to below 1."""
    x = (np.arange(n, dtype=np.uint64) * 2654435761 + seed * 40503 + 12345) & 0xFFFFFFFF
    for _ in range(2):
        x = ((x ^ (x >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return ((x ^ (x >> 16)) >> 8).astype(np.float64) / 2.0**24
