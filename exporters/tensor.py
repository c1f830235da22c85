"""A tensor that stays in its file until rows of it are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from exporters.errors import CheckpointError

Float32Array = npt.NDArray[np.float32]
RowReader = Callable[[int, int], Float32Array]
"""``read(start, stop)`` returns rows ``[start, stop)`` of the first axis as float32, exactly the stored values."""


@dataclass(frozen=True)
class Tensor:
    """A named tensor, read lazily.

    ``shape`` is the logical shape; rows are slices of its first axis. ``stored_dtype`` is the
    dtype in the file in safetensors' spelling (``F32``, ``F16``, ``BF16``, ``F8_E4M3``, ``F8_E5M2``,
    ``F64``), for messages only: readers always get float32. ``origin`` names file and key, for messages.
    ``reader`` must be safe to call from several threads.
    """

    name: str
    shape: tuple[int, ...]
    stored_dtype: str
    origin: str
    reader: RowReader

    def rows(self, start: int, stop: int) -> Float32Array:
        """Rows ``[start, stop)`` of the first axis: float32, C-contiguous, ``(stop - start, *shape[1:])``.

        The array may be a read-only view; callers don't write into it.
        """
        return self.reader(start, stop)

    def read(self) -> Float32Array:
        """The whole tensor: float32, C-contiguous, of ``shape``."""
        if not self.shape:
            return self.reader(0, 1).reshape(())
        return self.reader(0, self.shape[0])

    def renamed(self, name: str) -> Tensor:
        """The same tensor under another name."""
        return replace(self, name=name)


def from_array(name: str, array: Float32Array, origin: str = "memory") -> Tensor:
    """A `Tensor` over a float32 array that is already in memory."""
    data = np.ascontiguousarray(array, dtype=np.float32)
    flat = data.reshape(1) if data.ndim == 0 else data
    return Tensor(name, data.shape, "F32", origin, lambda start, stop: flat[start:stop])


def check_finite(tensor: Tensor, rows: Float32Array, first_row: int = 0) -> Float32Array:
    """``rows`` (of ``tensor``, from ``first_row`` on), unless one of them is NaN or infinite.

    Raises:
        CheckpointError: names the tensor and the index of the first offender.
    """
    # Maximum and minimum pass NaN on, and write nothing: several times faster than isfinite on the whole array.
    if rows.size == 0 or (np.isfinite(rows.max()) and np.isfinite(rows.min())):
        return rows
    index = [int(i) for i in np.argwhere(~np.isfinite(rows))[0]]
    value = float(rows[tuple(index)])
    index[0] += first_row
    raise CheckpointError(
        f"the tensor {tensor.name!r} holds {value} at {index}",
        where=tensor.origin,
        expected="finite values",
        found=str(value),
        fix="the file is damaged or the training diverged: give another checkpoint",
    )
