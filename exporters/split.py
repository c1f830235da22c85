"""A fully merged detail checkpoint becomes factors again: a truncated SVD of the weight difference.

    W_detail - W_base = ΔW ≈ B A,    B = U √S [out, r],    A = √S Vᵀ [r, in],    alpha / rank = 1

Each linear is split when its factors are first read, in float64, and the share of energy that rank r leaves out,
``‖ΔW - B A‖² / ‖ΔW‖²`` (Frobenius), is recorded and limited. Whatever else differs between the two
checkpoints cannot be expressed by the adapter, so it is compared as it is read and refused.
This is the one route whose bytes may differ between machines: it runs on BLAS.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from exporters.adapters import Detail
from exporters.dtypes import FP8, RELATIVE_STEP
from exporters.errors import CheckpointError
from exporters.model import ATTENTION_LINEARS, EMBEDDER, HEAD, Geometry, base_tensors, detail_tensors
from exporters.tensor import Float32Array, Tensor

DEFAULT_RANK = 128
"""DCM's own rank."""

DEFAULT_MAX_LEFT_OUT_ENERGY = 1e-3
"""The adapter's error stays below 3.2 % of its norm. Factors merged in fp32 come back at 1e-9 and below. A merge in
bf16 passes only where ΔW is large (from about 7 % of W's norm): below that, its rounding hides too much of ΔW."""

_OVERSAMPLE, _POWER_ITERATIONS, _SEED = 16, 2, 0
_KEPT_LINEARS = 4
_SAMPLED_ITEMS = 1 << 14

Float64Array = npt.NDArray[np.float64]


def truncated_svd(delta: Float64Array, rank: int) -> tuple[Float64Array, Float64Array, float]:
    """``(B [out, rank], A [rank, in], share of energy left out)`` of a float64 matrix.

    Subspace iteration with oversampling (Halko, Martinsson, Tropp 2011, algorithm 4.4) where the rank is a small
    part of the matrix, the full SVD otherwise. The share is of the factors that are returned, not of the best ones.
    """
    out, inner = delta.shape
    total = float(np.vdot(delta, delta))
    kept = min(rank, out, inner)
    B, A = np.zeros((out, rank)), np.zeros((rank, inner))
    if total == 0:
        return B, A, 0.0
    width = kept + _OVERSAMPLE
    if 2 * width >= min(out, inner):
        U, S, Vt = np.linalg.svd(delta, full_matrices=False)
    else:
        Q = np.linalg.qr(delta @ np.random.default_rng(_SEED).standard_normal((inner, width)))[0]
        for _ in range(_POWER_ITERATIONS):
            Q = np.linalg.qr(delta.T @ Q)[0]
            Q = np.linalg.qr(delta @ Q)[0]
        U, S, Vt = np.linalg.svd(Q.T @ delta, full_matrices=False)
        U = Q @ U
    root = np.sqrt(S[:kept])
    B[:, :kept], A[:kept] = U[:, :kept] * root, root[:, None] * Vt[:kept]
    rest = delta - B @ A
    return B, A, float(np.vdot(rest, rest)) / total


class _Splitter:
    """Splits linears on demand. One at a time, so that memory holds one ΔW; the last few results are kept."""

    def __init__(self, base: Mapping[str, Tensor], merged: Mapping[str, Tensor], rank: int, limit: float) -> None:
        self._base, self._merged, self._rank, self._limit = base, merged, rank, limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Float32Array, Float32Array]] = OrderedDict()
        self.left_out_energy: dict[str, float] = {}

    def factors(self, linear: str) -> tuple[Float32Array, Float32Array]:
        """``(A, B)`` in float32.

        Raises:
            CheckpointError: the rank leaves out more energy than the limit, or a weight is not finite.
        """
        with self._lock:
            if linear in self._kept:
                self._kept.move_to_end(linear)
                return self._kept[linear]
            name = f"{linear}.weight"
            delta = self._merged[name].read().astype(np.float64)
            delta -= self._base[name].read()
            if not np.isfinite(delta).all():
                raise CheckpointError("a weight is not finite, so its difference cannot be split", where=name)
            B, A, left_out = truncated_svd(delta, self._rank)
            self.left_out_energy[linear] = left_out
            if left_out > self._limit:
                raise CheckpointError(
                    f"rank {self._rank} leaves out too much of the difference between the two checkpoints",
                    where=self._merged[name].origin,
                    expected=f"at most {self._limit:g} of the energy of the weight difference",
                    found=f"{left_out:.3g}",
                    fix="give a higher rank, an fp32 merge (bf16 rounding can hide the difference), "
                    "the adapter itself, or a higher limit",
                )
            result = (A.astype(np.float32), B.astype(np.float32))
            self._kept[linear] = result
            while len(self._kept) > _KEPT_LINEARS:
                self._kept.popitem(last=False)
            return result

    def tensor(self, linear: str, part: str, shape: tuple[int, ...]) -> Tensor:
        index = 0 if part == "lora_A" else 1
        origin = f"split from {self._merged[f'{linear}.weight'].origin}"
        return Tensor(f"{linear}.{part}.weight", shape, "F32", origin, lambda a, b: self.factors(linear)[index][a:b])


def split_merged(
    base: Mapping[str, Tensor],
    merged: Mapping[str, Tensor],
    geometry: Geometry,
    *,
    rank: int | None,
    max_left_out_energy: float,
) -> tuple[dict[str, Tensor], Detail]:
    """``(base tensors that check themselves against the merged ones while read, the detail expert)``.

    Raises:
        CheckpointError: the rank is not a rank of these linears, or a shared tensor differs (a sample of each is
            compared here, the rest when it is read).
    """
    chosen = DEFAULT_RANK if rank is None else rank
    if not 0 < chosen <= geometry.width:
        raise CheckpointError(
            "the rank does not fit the attention linears",
            expected=f"1 to {geometry.width}",
            found=str(chosen),
            fix=f"give a rank (--rank), at most {geometry.width}"
            + ("" if rank else f"; the default is {DEFAULT_RANK}"),
        )
    splitter = _Splitter(base, merged, chosen, max_left_out_energy)
    expected = detail_tensors(replace(geometry, rank=chosen, alpha_over_rank=1.0))
    tensors: dict[str, Tensor] = {}
    for name, shape in expected.items():
        stem, _, part = name.removesuffix(".weight").rpartition(".")
        if part in ("lora_A", "lora_B"):
            tensors[name] = splitter.tensor(stem, part, shape)
        else:
            source = name.replace(EMBEDDER["detail"], EMBEDDER["semantic"]).replace(HEAD["detail"], HEAD["semantic"])
            tensors[name] = merged[source].renamed(name)
    checked = {name: _checked(name, base[name], merged[name]) for name in base_tensors(geometry)}
    for tensor in checked.values():
        items = max(1, int(np.prod(tensor.shape[1:], dtype=np.int64)))
        tensor.rows(0, min(tensor.shape[0], max(1, _SAMPLED_ITEMS // items)))
    linears = [f"blocks.{b}.{linear}.weight" for b in range(geometry.layers) for linear in ATTENTION_LINEARS]
    if all(_same_sample(base[name], merged[name]) for name in linears):
        raise CheckpointError(
            "the merged checkpoint's attention weights are those of the base: it holds no detail expert",
            where=merged[linears[0]].origin,
            fix="give the checkpoint that the adapter was merged into, or leave --adapter out",
        )
    source_note = f"factors split from a merged checkpoint at rank {chosen}" + ("" if rank else " (the default)")
    return checked, Detail(
        tensors, chosen, 1.0, "the split itself: B A is the whole difference", (source_note,), splitter.left_out_energy
    )


def _same_sample(a: Tensor, b: Tensor) -> bool:
    """Do the first rows of two tensors agree? A merged adapter moves every value."""
    rows = min(a.shape[0], max(1, _SAMPLED_ITEMS // a.shape[1]))
    return bool(np.array_equal(a.rows(0, rows), b.rows(0, rows)))


def _is_expected_to_differ(name: str) -> bool:
    own = name.startswith((f"{EMBEDDER['semantic']}.", f"{HEAD['semantic']}."))
    return own or (name.endswith(".weight") and name.removesuffix(".weight").split(".", 2)[-1] in ATTENTION_LINEARS)


def _checked(name: str, base: Tensor, merged: Tensor) -> Tensor:
    """``base``, comparing each row with ``merged``'s as it is read, up to the coarser dtype's rounding."""
    if _is_expected_to_differ(name):
        return base
    dtypes = {base.stored_dtype, merged.stored_dtype}
    fp8 = bool(dtypes & set(FP8))
    # Two files of one plain dtype hold the same bits; otherwise each may have rounded on its own.
    step = 0.0 if len(dtypes) == 1 and not fp8 else sum(RELATIVE_STEP.get(d, 0.0) for d in dtypes)

    def read(start: int, stop: int) -> Float32Array:
        ours, theirs = base.rows(start, stop), merged.rows(start, stop)
        # Below the normal range a dtype's step is absolute: 2^-24 in fp16, 2^-9 times a scale in fp8.
        slack = 2.0**-24 if step else 0.0
        if fp8:
            slack = max(2.0**-9, float(np.abs(ours).max(initial=0.0)) * 2.0**-16)
        differs = ~(np.abs(ours - theirs) <= np.abs(ours) * step + slack)
        if differs.any():
            at = tuple(int(i) for i in np.argwhere(differs)[0])
            raise CheckpointError(
                f"the merged checkpoint differs from the base in {name!r}, which both experts share",
                where=merged.origin,
                expected=f"{ours[at]:.9g} at {[at[0] + start, *at[1:]]}, as in the base",
                found=f"{theirs[at]:.9g}",
                fix="give the base that the detail expert was trained on; it may differ in the attention "
                "projections' weights, the embedding block and the head only",
            )
        return ours

    return replace(base, reader=read)
