"""What runs otherwise on a GPU than on a CPU: the same integers, and floats within their rounding."""

from __future__ import annotations

import pytest
import torch

from quant.calibration.watch import count
from quant.integer import int8_matmul, quantize_activations
from quant.paths import exact, gpu, npu

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA GPU here")


def codes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)


@pytest.mark.parametrize(("m", "n", "k"), [(320, 256, 768), (1, 8, 8), (5, 13, 20), (33, 100, 1537), (17, 512, 8960)])
def test_int8_products_are_the_same_integers(m: int, n: int, k: int) -> None:
    a, b = codes(m, k), codes(n, k, seed=1)
    due = a.double() @ b.double().T
    assert torch.equal(int8_matmul(a, b).double(), due)
    assert torch.equal(int8_matmul(a.cuda(), b.cuda()).cpu().double(), due)


def test_activations_get_the_same_codes() -> None:
    x = torch.randn((640, 256), generator=torch.Generator().manual_seed(0)) * 3
    for dtype in (torch.float32, torch.float16):
        scale = torch.tensor(0.0371)
        here = quantize_activations(x.to(dtype), scale)
        assert torch.equal(quantize_activations(x.to(dtype).cuda(), scale.cuda()).cpu(), here)


def test_histograms_are_the_same() -> None:
    x = torch.randn((640, 256), generator=torch.Generator().manual_seed(0)) * 3
    assert torch.equal(count(x.cuda()).cpu().long(), count(x))


def test_probabilities_keep_the_rounding_to_fp16_when_compiled() -> None:
    """A compiler that kept the scores in FP32 would change thousands of codes, not a few."""
    acc = torch.randint(-200_000, 200_000, (2, 64, 1000), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    factor = torch.tensor(1e-4)
    here = gpu._probabilities(gpu._scores(acc, factor)).int()
    there = gpu._probabilities(gpu._scores(acc.cuda(), factor.cuda())).cpu().int()
    assert (here - there).abs().max() <= 1
    assert (here != there).float().mean() < 1e-3


def test_fp16_products_are_rounded_once() -> None:
    a, b = (torch.randn((64, 1536), generator=torch.Generator().manual_seed(s)).half() for s in (0, 1))
    here, there = npu.fp16_matmul(a, b).float(), npu.fp16_matmul(a.cuda(), b.cuda()).cpu().float()
    assert ((here - there).abs() <= here.abs() * 2.0**-10 + 1e-3).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", [0.01, 1.0, 50.0])
def test_exact_sums_have_no_order(size: float, dtype: torch.dtype) -> None:
    """To the bit, whatever a library does inside."""
    a, b = ((torch.randn((96, 1536), generator=torch.Generator().manual_seed(s)) * size).half() for s in (0, 1))
    assert torch.equal(exact.exact_matmul(a.cuda(), b.cuda(), dtype).cpu(), exact.exact_matmul(a, b, dtype))


def test_exact_attention_and_gelu_are_the_same() -> None:
    q, k, v = (
        torch.randn((3, rows, 128), generator=torch.Generator().manual_seed(seed)).half()
        for seed, rows in enumerate((70, 1100, 1100))
    )
    assert torch.equal(exact.attention(q.cuda(), k.cuda(), v.cuda()).cpu(), exact.attention(q, k, v))
    x = torch.linspace(-12, 12, 1_000_001)
    assert torch.equal(exact.gelu(x.cuda()).cpu(), exact.gelu(x))
