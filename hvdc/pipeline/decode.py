"""Final latents become frames, by Wan's own decoder in FP32: `AutoencoderKLWan` of diffusers."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from exporters.config import read_json
from exporters.errors import CheckpointError
from exporters.files import open_store, shorten
from exporters.tensor import check_finite

__all__ = ["Decoder"]

Float32Array = npt.NDArray[np.float32]

KIND = "AutoencoderKLWan"
INDEX = "diffusion_pytorch_model.safetensors.index.json"
SINGLE = "diffusion_pytorch_model.safetensors"
CHANNELS = 16
"""Channels of the latents of Wan2.1."""

LARGEST_TILE_PX = 512
"""A clip that is taller or wider than this is decoded in tiles."""
OVERLAP_PX = 64
"""What two tiles share, and over which they are blended: the overlap of diffusers' own setting."""

_FIX = "give the vae folder of a diffusers pipeline, such as that of Wan-AI/Wan2.1-T2V-1.3B-Diffusers"


class Decoder:
    """An opened decoder.

    ``path``: a folder with config.json and safetensors, or a pipeline's folder with such a folder ``vae``. Weights
    become FP32, whatever they are stored as, and are computed with in FP32. ``channels``: those of the latents to come.

    A clip above 512 pixels in height or width is decoded in tiles of at most 512 + 64 pixels, as even as can be, by
    diffusers' tiled decoding. Attention in the middle of the decoder sees one tile, so a tiled clip is not the
    untiled one; compare clips that were decoded alike.

    Raises:
        CheckpointError: nothing there, another model, weights missing, left over or of another shape or not finite,
            latents of another number of channels, a setting that the installed diffusers does not know.
    """

    def __init__(self, path: Path, device: torch.device, *, channels: int = CHANNELS) -> None:
        self.folder = _folder(path)
        config = _config(self.folder / "config.json", channels)
        self._model = _model(self.folder, config).to(device)
        self._device = device
        shape = (1, channels, 1, 1, 1)
        self._mean = torch.tensor(config["latents_mean"], dtype=torch.float32, device=device).reshape(shape)
        self._std = torch.tensor(config["latents_std"], dtype=torch.float32, device=device).reshape(shape)
        self._channels = channels

    @torch.inference_mode()
    def decode(self, latent: Tensor) -> Float32Array:
        """``latent``, float32 ``[C, T, H, W]`` as the transformer leaves it -> frames float32
        ``[1 + 4 (T - 1), 8 H, 8 W, 3]``, RGB in [0, 1].

        The transformer's latents are normalised; the decoder gets ``latent · latents_std + latents_mean`` (as
        diffusers' WanPipeline). Values that are not finite come out as NaN, or as black or white.

        Raises ValueError for a latent of another dtype or shape.
        """
        if latent.dtype != torch.float32 or latent.ndim != 4 or latent.shape[0] != self._channels or 0 in latent.shape:
            found = f"{latent.dtype} {list(latent.shape)}"
            raise ValueError(f"a latent is torch.float32 [{self._channels}, T, H, W], not {found}")
        self._set_tiles(int(latent.shape[2]), int(latent.shape[3]))
        z = latent.to(self._device)[None] * self._std + self._mean
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            sample = self._model.decode(z, return_dict=False)[0][0]
        frames: Float32Array = sample.permute(1, 2, 3, 0).add(1.0).mul(0.5).clamp(0.0, 1.0).cpu().numpy()
        return np.ascontiguousarray(frames)

    def _set_tiles(self, rows: int, columns: int) -> None:
        """Tells diffusers how to tile a latent of ``rows`` × ``columns``.

        Its loop starts a tile at every stride, however little is left: strides that divide the latent evenly leave no
        narrow last tile, which would see next to nothing of the picture.
        """
        ratio = int(self._model.spatial_compression_ratio)
        largest, overlap = LARGEST_TILE_PX // ratio, OVERLAP_PX // ratio
        self._model.use_tiling = max(rows, columns) > largest
        if not self._model.use_tiling:
            return
        height, width = (math.ceil(side / math.ceil(side / largest)) for side in (rows, columns))
        self._model.enable_tiling(
            tile_sample_min_height=(height + overlap) * ratio,
            tile_sample_min_width=(width + overlap) * ratio,
            tile_sample_stride_height=height * ratio,
            tile_sample_stride_width=width * ratio,
        )


def _folder(path: Path) -> Path:
    """The folder of the autoencoder itself."""
    if not path.exists():
        raise CheckpointError("there is no such folder", where=str(path), fix="check the path")
    if path.is_file():
        what = "the decoder is read from a diffusers folder, not from a file such as the official Wan2.1_VAE.pth"
        raise CheckpointError(what, where=str(path), fix=_FIX)
    folder = path / "vae" if (path / "vae").is_dir() else path
    if not (folder / "config.json").is_file():
        found = shorten(sorted(p.name for p in folder.iterdir())) or "an empty folder"
        what = "this folder holds no autoencoder in the diffusers layout"
        raise CheckpointError(what, where=str(folder), expected=f"config.json of an {KIND}", found=found, fix=_FIX)
    return folder


def _kind() -> Any:
    """diffusers' class; imported when needed, for it takes seconds."""
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan


def _config(path: Path, channels: int) -> dict[str, Any]:
    """The constructor's arguments: those in the file over diffusers' defaults."""
    content = read_json(path) or {}
    kind = content.get("_class_name")
    if kind != KIND:
        what = f"this is not the autoencoder of Wan ({KIND})"
        raise CheckpointError(what, where=str(path), expected=f"'_class_name': {KIND!r}", found=repr(kind), fix=_FIX)
    parameters = list(inspect.signature(_kind().__init__).parameters.values())[1:]
    config = {p.name: p.default for p in parameters}
    given = {name: value for name, value in content.items() if not name.startswith("_")}
    if unknown := sorted(set(given) - set(config)):
        raise CheckpointError(
            "config.json has settings that the installed diffusers does not know",
            where=str(path), found=shorten(unknown), fix="pip install --upgrade diffusers",
        )  # fmt: skip
    config |= given
    if config["z_dim"] != channels:
        raise CheckpointError(
            "this autoencoder has latents of another number of channels than the model",
            where=str(path), expected=f"'z_dim': {channels}", found=repr(config["z_dim"]),
            fix="give the autoencoder that the model was trained with: Wan2.1's, not Wan2.2's",
        )  # fmt: skip
    for name in ("latents_mean", "latents_std"):
        values = config[name]
        numbers = isinstance(values, list) and all(type(v) in (int, float) and math.isfinite(v) for v in values)
        if not numbers or len(values) != channels or (name == "latents_std" and min(values) <= 0):
            kind_of = "positive numbers" if name == "latents_std" else "finite numbers"
            raise CheckpointError(
                f"{name} cannot be used", where=str(path), expected=f"{channels} {kind_of}", found=repr(values)[:200]
            )
    return config


def _model(folder: Path, config: dict[str, Any]) -> Any:
    """The autoencoder with its weights, in FP32, on the CPU."""
    try:
        with torch.device("meta"):
            model = _kind()(**config)
    except Exception as error:  # whatever the constructor makes of strange settings
        what = f"no autoencoder can be made of config.json: {error}"
        raise CheckpointError(what, where=str(folder / "config.json"), fix=_FIX) from error
    return _load(model, folder).eval().requires_grad_(False)


def _load(model: Any, folder: Path) -> Any:
    """Fills a model without memory; every weight is used, and every parameter gets one."""
    path = next((folder / name for name in (INDEX, SINGLE) if (folder / name).is_file()), None)
    if path is None:
        found = shorten(sorted(p.name for p in folder.iterdir()))
        what = "this folder holds no safetensors weights"
        raise CheckpointError(what, where=str(folder), expected=f"{SINGLE}, or {INDEX}", found=found, fix=_FIX)
    store = open_store(path)
    try:
        expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        if unused := sorted(set(store.tensors) - set(expected)):
            raise CheckpointError(
                f"{len(unused)} tensors are no part of the autoencoder that config.json describes",
                where=str(path), found=shorten(unused), fix=_FIX,
            )  # fmt: skip
        if missing := sorted(set(expected) - set(store.tensors)):
            raise CheckpointError(
                f"{len(missing)} of the {len(expected)} weights of the autoencoder are missing",
                where=str(path), found="missing " + shorten(missing), fix=_FIX,
            )  # fmt: skip
        state = {}
        for name, shape in expected.items():
            tensor = store.tensors[name]
            if tensor.shape != shape:
                raise CheckpointError(
                    f"the tensor {name!r} has another shape than config.json asks for",
                    where=tensor.origin, expected=str(list(shape)), found=str(list(tensor.shape)), fix=_FIX,
                )  # fmt: skip
            state[name] = torch.from_numpy(np.array(check_finite(tensor, tensor.read()), np.float32))
    finally:
        store.close()
    model.load_state_dict(state, strict=True, assign=True)
    return model
