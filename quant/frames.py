"""How close decoded frames are to reference frames: PSNR, SSIM, and LPIPS where its weights are at hand.

A clip is float32 ``[T, H, W, 3]``, RGB in [0, 1]. Nothing is downloaded here.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # LPIPS alone needs it, and commands that compare no frames start without
    import torch
    from torch import Tensor

Float32Array = npt.NDArray[np.float32]

SSIM_WINDOW = 11
"""Width in pixels of SSIM's Gaussian window: σ = 1.5, cut at 3.5 σ."""

LPIPS_SMALLEST = 64
"""Smallest side in pixels for LPIPS: below, AlexNet's poolings leave nothing."""


class MissingLibraryError(Exception):
    """An optional library is not installed. ``library``: its name on PyPI; ``fix``: the command that installs it."""

    def __init__(self, library: str) -> None:
        self.library = library
        self.fix = "pip install 'hvdc[quality]'"
        super().__init__(f"{library} is not installed: {self.fix}")


def require_libraries() -> None:
    """Whether the libraries of the metrics are here, before a long run needs them. Raises MissingLibraryError."""
    if importlib.util.find_spec("skimage") is None:
        raise MissingLibraryError("scikit-image")


def psnr_db(frames: Float32Array, reference: Float32Array) -> float:
    """Peak signal-to-noise ratio in dB, 10 · log10(1 / MSE), the MSE over all values of the clip; inf for equal clips.

    NaN if a value of either is. Raises ValueError for clips of different or unsuitable shape or dtype.
    """
    _check(frames, reference)
    noise = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(frames, reference, strict=True))
    if noise == 0.0:
        return math.inf
    return -10.0 * math.log10(noise / frames.size)


def ssim(frames: Float32Array, reference: Float32Array) -> float:
    """Structural similarity, at most 1: the mean over frames of the mean over pixels and the channels R, G, B.

    As in Wang, Bovik, Sheikh, Simoncelli, "Image Quality Assessment: From Error Visibility to Structural Similarity",
    2004: an 11 × 11 Gaussian window of σ = 1.5, population covariances, K1 = 0.01, K2 = 0.03, data range 1; computed
    by scikit-image in float64, without the border of 5 pixels in which the window leaves the frame. NaN if a value of
    either is.

    Raises:
        ValueError: clips of different or unsuitable shape or dtype, or frames smaller than the window.
        MissingLibraryError: scikit-image is not installed.
    """
    _check(frames, reference)
    if min(frames.shape[1:3]) < SSIM_WINDOW:
        raise ValueError(f"SSIM needs frames of at least {SSIM_WINDOW} × {SSIM_WINDOW} pixels, not {frames.shape[1:3]}")
    try:
        metrics: Any = importlib.import_module("skimage.metrics")
    except ImportError as error:
        raise MissingLibraryError("scikit-image") from error
    values = [
        metrics.structural_similarity(
            a.astype(np.float64),
            b.astype(np.float64),
            data_range=1.0,
            channel_axis=-1,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        for a, b in zip(frames, reference, strict=True)
    ]
    return float(np.mean(values))


@dataclass(frozen=True)
class Lpips:
    """``metric``: the mean LPIPS over the frames of a clip and its reference, as `LpipsMetric`; None where it is not
    available, and ``reason`` says why: a phrase for a table.
    """

    metric: LpipsMetric | None
    reason: str = ""


class LpipsMetric:
    """LPIPS, version 0.1 with AlexNet (Zhang, Isola, Efros, Shechtman, Wang, "The Unreasonable Effectiveness of Deep
    Features as a Perceptual Metric", 2018), by the package ``lpips``. Made by `load_lpips`.
    """

    def __init__(self, network: Any, device: torch.device) -> None:
        self._network = network
        self._device = device

    def __call__(self, frames: Float32Array, reference: Float32Array) -> float:
        """The mean distance over frames: 0 for equal clips, larger for less alike. NaN if a value of either is.

        Raises ValueError for clips of different or unsuitable shape or dtype, or frames below 64 pixels a side.
        """
        _check(frames, reference)
        if min(frames.shape[1:3]) < LPIPS_SMALLEST:
            raise ValueError(f"LPIPS needs frames of at least {LPIPS_SMALLEST} pixels a side, not {frames.shape[1:3]}")
        import torch

        with torch.no_grad():
            distances = [
                float(self._network(self._input(a), self._input(b), normalize=True))
                for a, b in zip(frames, reference, strict=True)
            ]
        return float(np.mean(distances))

    def _input(self, frame: Float32Array) -> Tensor:
        """``[H, W, 3]`` -> ``[1, 3, H, W]`` on the device."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(frame.transpose(2, 0, 1)))[None].to(self._device)


def load_lpips(device: torch.device | None = None) -> Lpips:
    """LPIPS on a device, the CPU if None; or why it is not available. Never raises for what is missing or damaged.

    The package carries the weights of LPIPS itself. Those of AlexNet are torchvision's: they have to lie in torch's hub
    cache (``$TORCH_HOME/hub/checkpoints``, by default below ``~/.cache/torch``) already, for they are not downloaded.
    """
    try:
        package: Any = importlib.import_module("lpips")
        models: Any = importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision made for another torch
        name = getattr(error, "name", None)
        if name is not None and name.split(".")[0] in ("lpips", "torchvision"):
            return Lpips(None, f"the package {name.split('.')[0]} is not installed")
        return Lpips(None, f"the package lpips cannot be imported: {_first_line(error)}")
    import torch

    file = os.path.basename(models.AlexNet_Weights.IMAGENET1K_V1.url)  # noqa: PTH119 - of a URL
    weights = Path(torch.hub.get_dir()) / "checkpoints" / file
    if not weights.is_file():
        return Lpips(None, f"the weights {file} are not in torch's hub cache")
    try:
        with warnings.catch_warnings():  # lpips calls torchvision's models by deprecated arguments
            warnings.simplefilter("ignore")
            network = package.LPIPS(net="alex", version="0.1", verbose=False)
    except Exception as error:  # whatever a damaged file makes torch raise
        return Lpips(None, f"the weights {file} cannot be loaded: {_first_line(error)}")
    device = torch.device("cpu") if device is None else device
    return Lpips(LpipsMetric(network.eval().requires_grad_(False).to(device), device))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check(frames: Float32Array, reference: Float32Array) -> None:
    for clip in (frames, reference):
        if clip.dtype != np.float32 or clip.ndim != 4 or clip.shape[3] != 3 or 0 in clip.shape:
            raise ValueError(f"a clip is float32 [T, H, W, 3], not {clip.dtype} {list(clip.shape)}")
    if frames.shape != reference.shape:
        raise ValueError(f"clips of different shape: {list(frames.shape)} and {list(reference.shape)}")
