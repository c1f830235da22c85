"""PSNR, SSIM and LPIPS of clips."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from quant.frames import Lpips, LpipsMetric, MissingLibraryError, load_lpips, psnr_db, ssim

CPU = torch.device("cpu")


def clip(seed: int = 0, shape: tuple[int, ...] = (3, 24, 20, 3)) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, np.float32)


def test_psnr_is_of_the_whole_clip() -> None:
    reference = np.full((2, 16, 16, 3), 0.5, np.float32)
    frames = reference.copy()
    frames[1] += np.float32(0.25)  # MSE of the clip: 0.0625 / 2; a mean over frames would be infinite
    assert psnr_db(frames, reference) == pytest.approx(10 * math.log10(32))


def test_equal_clips_are_infinitely_close() -> None:
    assert psnr_db(clip(), clip()) == math.inf
    assert ssim(clip(), clip()) == pytest.approx(1.0)


def test_both_are_symmetric_and_worse_with_more_noise() -> None:
    reference = clip()
    little, much = (np.clip(reference + np.float32(a) * (clip(1) - 0.5), 0, 1) for a in (0.1, 0.5))
    for metric in (psnr_db, ssim):
        assert metric(little, reference) == pytest.approx(metric(reference, little))
        assert metric(little, reference) > metric(much, reference)


def ssim_of_the_paper(a: np.ndarray, b: np.ndarray) -> float:
    """Wang et al. 2004, equation 13, of one channel, where the window lies inside."""
    axis = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    window = np.outer(axis, axis) / np.outer(axis, axis).sum()
    views = [np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (11, 11)) for x in (a, b)]

    def mean(x: np.ndarray) -> np.ndarray:
        return (x * window).sum(axis=(-2, -1))

    mu_a, mu_b = map(mean, views)
    var_a, var_b = (mean(v * v) - mu * mu for v, mu in zip(views, (mu_a, mu_b), strict=True))
    covariance = mean(views[0] * views[1]) - mu_a * mu_b
    c1, c2 = 0.01**2, 0.03**2
    values = (2 * mu_a * mu_b + c1) * (2 * covariance + c2) / ((mu_a**2 + mu_b**2 + c1) * (var_a + var_b + c2))
    return float(values.mean())


def test_ssim_is_the_papers() -> None:
    a, b = clip(0), np.clip(clip(0) + np.float32(0.3) * clip(1), 0, 1)
    expected = np.mean([ssim_of_the_paper(a[t, :, :, c], b[t, :, :, c]) for t in range(3) for c in range(3)])
    assert ssim(a, b) == pytest.approx(expected, abs=1e-9)


def test_what_is_no_number_stays_visible() -> None:
    broken = clip()
    broken[0, 10, 10, 0] = np.nan
    assert math.isnan(psnr_db(broken, clip()))
    assert math.isnan(ssim(broken, clip()))


@pytest.mark.parametrize("metric", [psnr_db, ssim])
@pytest.mark.parametrize("other", [clip(shape=(2, 24, 20, 3)), clip().astype(np.float64), clip()[..., :1], clip()[:0]])
def test_clips_that_are_not_alike_are_refused(metric, other) -> None:
    with pytest.raises(ValueError, match="clip"):
        metric(clip(), other)


def test_frames_smaller_than_the_window_are_refused() -> None:
    small = clip(shape=(1, 10, 40, 3))
    with pytest.raises(ValueError, match="11 × 11"):
        ssim(small, small)


def test_without_scikit_image_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage.metrics", None)
    with pytest.raises(MissingLibraryError, match=r"scikit-image is not installed: pip install 'hvdc\[quality\]'"):
        ssim(clip(), clip())


# ---- LPIPS: the package and its weights are stood in for ----


class Network(torch.nn.Module):
    """Called as lpips.LPIPS is; the mean absolute difference."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        assert options == {"net": "alex", "version": "0.1", "verbose": False}

    def forward(self, a: torch.Tensor, b: torch.Tensor, normalize: bool) -> torch.Tensor:
        assert normalize
        assert a.shape == (1, 3, 64, 80)
        return (a - b).abs().mean().reshape(1, 1, 1, 1)


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch, tmp_path) -> SimpleNamespace:
    weights = SimpleNamespace(IMAGENET1K_V1=SimpleNamespace(url="https://example.org/models/alexnet-1.pth"))
    models = SimpleNamespace(AlexNet_Weights=weights)
    monkeypatch.setitem(sys.modules, "lpips", SimpleNamespace(LPIPS=Network))
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    return SimpleNamespace(weights=tmp_path / "checkpoints" / "alexnet-1.pth")


def test_lpips_is_the_mean_over_frames(packages) -> None:
    packages.weights.touch()
    found = load_lpips()
    lpips = found.metric
    assert isinstance(lpips, LpipsMetric)
    assert found.reason == ""
    a, b = clip(0, (2, 64, 80, 3)), clip(1, (2, 64, 80, 3))
    assert lpips(a, b) == pytest.approx(np.abs(a - b).mean(), rel=1e-5)
    with pytest.raises(ValueError, match="64 pixels"):
        lpips(clip(), clip())


def test_lpips_never_downloads(packages) -> None:
    assert load_lpips(CPU) == Lpips(None, "the weights alexnet-1.pth are not in torch's hub cache")


@pytest.mark.parametrize("missing", ["lpips", "torchvision"])
def test_without_its_packages_there_is_a_reason(packages, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setitem(sys.modules, "lpips" if missing == "lpips" else "torchvision.models", None)
    assert load_lpips() == Lpips(None, f"the package {missing} is not installed")


def test_damaged_weights_are_a_reason(packages, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(**_: object) -> None:
        raise RuntimeError("PytorchStreamReader failed\nat length")

    packages.weights.touch()
    monkeypatch.setitem(sys.modules, "lpips", SimpleNamespace(LPIPS=damaged))
    reason = "the weights alexnet-1.pth cannot be loaded: PytorchStreamReader failed"
    assert load_lpips() == Lpips(None, reason)
