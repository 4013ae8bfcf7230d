"""Random permutations that are evaluated where they are needed, in memory that does not grow with their length."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elflow._checks import check_count

__all__ = ["MAX_STORED", "Permutation", "scramble"]

MAX_STORED = 2**22
"""Length up to which permutations are stored: 32 MB."""
N_ROUNDS = 8
"""Number of rounds of the Feistel network."""


class Permutation:
    """Random permutation of the integers from 0 to n - 1.

    Up to `MAX_STORED` integers, it is the one of `torch.randperm`. A longer one is a bijection that is computed at the
    positions asked for.

    Arguments:
        n: Number of integers.
        seed: Seed of the permutation.

    Example:
        >>> sorted(Permutation(5, seed=0).take(0, 5).tolist())
        [0, 1, 2, 3, 4]
        >>> Permutation(10**12, seed=0).take(10**12 - 3, 10**12).shape
        torch.Size([3])
    """

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = check_count("n", n), seed
        self._stored: Tensor | None = None
        if n <= MAX_STORED:
            self._stored = torch.randperm(n, generator=torch.Generator().manual_seed(seed))

    def take(self, start: int, stop: int) -> Tensor:
        """The integers at the positions from `start` to `stop` - 1, or to the last one, `(positions,)`."""
        if self._stored is not None:
            return self._stored[start:stop]
        return torch.from_numpy(scramble(np.arange(start, min(stop, self.n)), self.n, self.seed))


def scramble(integers: NDArray[np.int64], n: int, seed: int) -> NDArray[np.int64]:
    """Map integers from 0 to n - 1 to different ones of the same range, in an order that looks random.

    The map is a Feistel network, which permutes the integers below a power of four. It is repeated where the result
    is n or more, until all results are below.

    Arguments:
        integers: The integers, `(N,)`.
        n: Number of integers in the range.
        seed: Seed of the map.

    Example:
        >>> sorted(scramble(np.arange(6), 6, seed=1).tolist())
        [0, 1, 2, 3, 4, 5]
    """
    n_bits = max(1, -(-(int(n) - 1).bit_length() // 2))  # of each half
    keys = np.random.RandomState(seed % 2**32).randint(2**62, size=N_ROUNDS, dtype=np.int64).astype(np.uint64)
    result = _apply_rounds(integers.astype(np.uint64), np.uint64(n_bits), keys)
    while (is_beyond := result >= n).any():
        result[is_beyond] = _apply_rounds(result[is_beyond], np.uint64(n_bits), keys)
    return result.astype(np.int64)


def _apply_rounds(values: NDArray[np.uint64], n_bits: np.uint64, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Feistel network over two halves of `n_bits` bits each."""
    mask = np.uint64((1 << int(n_bits)) - 1)
    left, right = values >> n_bits, values & mask
    for key in keys:
        # The finaliser of MurmurHash3: products modulo 2^64, whose high bits are folded into the low ones.
        mixed = (right ^ key) * np.uint64(0xFF51AFD7ED558CCD)
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        left, right = right, left ^ ((mixed ^ (mixed >> np.uint64(33))) & mask)
    return (left << n_bits) | right
