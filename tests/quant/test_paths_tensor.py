"""The split of every linear by columns: each part is its engine's own, and everything else the NPU's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from quant.gemms import LINEARS, gemm_inputs
from quant.paths.arithmetic import At
from quant.paths.gpu import GpuArithmetic
from quant.paths.npu import NpuArithmetic
from quant.paths.tensor import TensorArithmetic, gpu_columns
from quant.paths.trajectory import hetero_tensor, npu
from quant.paths.weights import Weights
from quant.scales import Scales
from tests.quant.blocks import PLACES
from tests.quant.models import generated

SHARE = 0.4


def test_the_split_is_at_the_nearest_edge() -> None:
    """A half goes upwards; a last tile that is not full is a tile."""
    assert [gpu_columns(64, share) for share in (0.0, 0.24, 0.25, 0.5, 0.74, 0.75, 1.0)] == [0, 0, 32, 32, 32, 64, 64]
    assert [gpu_columns(70, share) for share in (0.16, 0.17, 0.5, 0.83, 0.84)] == [0, 32, 64, 64, 70]
    for share in (-0.1, 1.01, float("nan")):
        with pytest.raises(ValueError, match="it is 0 to 1"):
            gpu_columns(64, share)


@pytest.mark.parametrize("at", PLACES, ids=str)
@pytest.mark.parametrize("linear", LINEARS)
def test_each_part_is_its_engines(at: At, linear: str, weights: Weights, scales: Scales) -> None:
    [entering] = [x for x in gemm_inputs(weights.shape) if linear in x.linears]
    x = torch.randn(9, entering.channels, generator=torch.manual_seed(1))
    shared, on_gpu, on_npu = (
        TensorArithmetic(weights, scales, SHARE),
        GpuArithmetic(weights, scales),
        NpuArithmetic(weights),
    )
    found = shared.linear(at, linear, shared.operand(at, entering.name, x))
    ours = on_gpu.linear(at, linear, on_gpu.operand(at, entering.name, x.half()))
    theirs = on_npu.linear(at, linear, on_npu.operand(at, entering.name, x))
    columns = gpu_columns(ours.shape[1], SHARE)
    assert 0 < columns < ours.shape[1]
    assert columns % 32 == 0
    assert found.dtype == torch.float16
    assert torch.equal(found[:, :columns], ours[:, :columns].half())
    assert torch.equal(found[:, columns:], theirs[:, columns:])


def test_no_share_is_the_npus_path(weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor) -> None:
    due = generated(npu(weights), embeds, noise)
    assert torch.equal(generated(hetero_tensor(weights, scales, 0.0), embeds, noise), due)
    assert torch.equal(generated(hetero_tensor(weights, scales, SHARE, cut=0), embeds, noise), due)


def test_every_share_is_another_path(weights: Weights, scales: Scales, embeds: Tensor, noise: Tensor) -> None:
    paths = [hetero_tensor(weights, scales, share) for share in (0.0, 0.25, 0.5, 1.0)]
    paths.append(hetero_tensor(weights, scales, 0.5, cut=6))
    latents = [generated(path, embeds, noise) for path in paths]
    assert len({path.name for path in paths}) == len(paths)
    assert not any(torch.equal(a, b) for i, a in enumerate(latents) for b in latents[:i])
    with pytest.raises(ValueError, match="it is 0 to 1"):
        hetero_tensor(weights, scales, 2.0)
