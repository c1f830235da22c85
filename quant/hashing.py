"""The identity of a tensor's values, whatever dtype a file holds them in."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]


class ValueHash:
    """SHA-256 of a tensor's FP32 values, fed in pieces.

    If every value is a bfloat16 (the low 16 bits of its FP32 form are zero), the high halves are hashed and the digest
    is tagged ``bf16:``, else the FP32 bytes, tagged ``fp32:``. Both are functions of the values alone, so an fp32 and a
    bf16 file that hold the same model agree, and a bf16 model costs half the hashing. Bytes are little-endian, in C
    order.
    """

    def __init__(self) -> None:
        self._narrow = hashlib.sha256()
        self._wide: hashlib._Hash | None = None
        """None as long as every value was a bfloat16."""
        self._held: list[npt.NDArray[np.uint16]] = []

    def update(self, values: Float32Array) -> None:
        """Feed the next values (C-contiguous FP32)."""
        words = values.reshape(-1).view("<u4")
        if self._wide is None:
            if not int(np.bitwise_or.reduce(_in_pairs(words), initial=0)) & 0x0000FFFF_0000FFFF:
                half = (words >> 16).astype("<u2")
                self._narrow.update(half.data)
                self._held.append(half)
                return
            self._wide = self._widened()
        self._wide.update(words.data)

    def _widened(self) -> hashlib._Hash:
        """A value that bfloat16 cannot hold: the FP32 hash of what came before."""
        wide = hashlib.sha256()
        for half in self._held:
            wide.update((half.astype("<u4") << 16).data)
        self._held.clear()
        return wide

    def digest(self) -> str:
        """``bf16:…`` or ``fp32:…`` with 64 hex digits."""
        return f"bf16:{self._narrow.hexdigest()}" if self._wide is None else f"fp32:{self._wide.hexdigest()}"


def _in_pairs(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64] | npt.NDArray[np.uint32]:
    """The same bits as half as many words where that is possible: half the work for a reduction."""
    return words.view("<u8") if words.size % 2 == 0 else words
