"""The identity of a tensor's values, whatever dtype a file holds them in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]


class ValueHash:
    """SHA-256 of a tensor's FP32 values, fed as rows (slices of its first axis) in order.

    A row whose values are all bfloat16 (the low 16 bits of their FP32 forms are zero) is *narrow*: its high halves are
    hashed; of any other row the FP32 words are. At the end follows a byte for each row, 1 if narrow, else 0. So the
    hash is a function of the values alone: an fp32 and a bf16 file that hold the same model agree, and a bf16 model
    costs half the hashing. All numbers are little-endian, in C order.
    """

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._narrow: list[bytes] = []

    def update(self, rows: Float32Array) -> None:
        """Feed the next rows: C-contiguous FP32 ``[n, …]``."""
        if rows.size == 0:
            return
        words = rows.reshape(rows.shape[0], -1).view("<u4")
        narrow = _low_halves(words) == 0
        for start, stop in _runs(narrow):
            part = words[start:stop]
            self._sha256.update((part >> 16).astype("<u2").data if narrow[start] else part.data)
        self._narrow.append(narrow.tobytes())

    def hexdigest(self) -> str:
        """64 hex digits."""
        whole = self._sha256.copy()
        whole.update(b"".join(self._narrow))
        return whole.hexdigest()


def _low_halves(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Of each row, the bits that are set in the low half of any word. Two words at a time where that is possible."""
    pairs = words.shape[1] % 2 == 0
    seen: npt.NDArray[np.uint64] = np.bitwise_or.reduce(words.view("<u8") if pairs else words, axis=1).astype(np.uint64)
    return seen & np.uint64(0x0000FFFF_0000FFFF)


def _runs(flags: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """``(start, stop)`` of the maximal runs of equal flags."""
    edges = [0, *(np.flatnonzero(flags[1:] != flags[:-1]) + 1).tolist(), len(flags)]
    return ((start, stop) for start, stop in pairwise(edges) if start < stop)
