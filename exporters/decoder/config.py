"""What the config.json of an ``AutoencoderKLWan`` says about the decoder, and the constants where there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.config import read_json
from exporters.decoder.geometry import FRAME_CHANNELS, DecoderGeometry
from exporters.errors import CheckpointError
from exporters.files import shorten

KIND = "AutoencoderKLWan"

LATENTS_MEAN = (
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
    0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
)  # fmt: skip
"""Mean of the latents of Wan 2.1's released VAE, a channel each; wan/modules/vae.py, ``WanVAE.__init__``."""

LATENTS_STD = (
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
    3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
)  # fmt: skip
"""Their standard deviation; from the same place."""

FIX = (
    "give the vae folder of a diffusers pipeline, such as that of Wan-AI/Wan2.1-T2V-1.3B-Diffusers, "
    "or the official Wan2.1_VAE.pth"
)

# diffusers' own defaults for what a config.json leaves out: AutoencoderKLWan.__init__.
_DEFAULTS: dict[str, Any] = {
    "base_dim": 96,
    "decoder_base_dim": None,
    "z_dim": 16,
    "dim_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "temperal_downsample": [False, True, True],
    "latents_mean": list(LATENTS_MEAN),
    "latents_std": list(LATENTS_STD),
}
# Settings under which the same tensors would compute something else, and the values that are computed here.
_REQUIRED: dict[str, tuple[object, str]] = {
    "is_residual": (False, "the residual up and down path of Wan 2.2's VAE"),
    "patch_size": (None, "the patches of Wan 2.2's VAE"),
    "out_channels": (FRAME_CHANNELS, "frames that are not RGB"),
}
# Of the encoder only (attn_scales, in_channels), for training only (dropout), or facts that follow from the others.
_WITHOUT_EFFECT = {"attn_scales", "dropout", "in_channels", "scale_factor_spatial", "scale_factor_temporal"}


@dataclass(frozen=True)
class VaeConfig:
    """What config.json says: the decoder's geometry and the latents' statistics, one value a channel."""

    source: Path
    geometry: DecoderGeometry
    mean: tuple[float, ...]
    std: tuple[float, ...]


def is_vae_config(path: Path) -> bool:
    """Whether ``path`` is there and describes a Wan autoencoder; not if it is a transformer's or another program's.

    Raises:
        CheckpointError: it holds no JSON object, or describes another autoencoder.
    """
    kind = (read_json(path) or {}).get("_class_name")
    if isinstance(kind, str) and kind.startswith("Autoencoder") and kind != KIND:
        expected, found = f"'_class_name': {KIND!r}", repr(kind)
        raise _error(path, "this is not the autoencoder of Wan 2.1", expected, found, FIX)
    return kind == KIND


def vae_config(path: Path) -> VaeConfig:
    """Reads a config.json that `is_vae_config`.

    Raises:
        CheckpointError: a setting that is unknown, impossible, or of an autoencoder that works otherwise.
    """
    content = {k: v for k, v in (read_json(path) or {}).items() if not k.startswith("_")}
    unknown = sorted(set(content) - set(_DEFAULTS) - set(_REQUIRED) - _WITHOUT_EFFECT)
    if unknown:
        raise _error(path, "config.json has settings that are not known here", "", shorten(unknown))
    for key, (value, what) in _REQUIRED.items():
        if content.get(key, value) != value:
            expected, found = f"{key!r}: {value!r}", f"{key!r}: {content[key]!r}"
            raise _error(path, f"this autoencoder uses {what}", expected, found, FIX)
    settings = _DEFAULTS | content
    geometry = _geometry(settings, path)
    mean = _statistics(settings, "latents_mean", geometry.z_dim, path)
    std = _statistics(settings, "latents_std", geometry.z_dim, path)
    if min(std) <= 0:
        raise _error(path, "latents_std cannot be used", "positive numbers", f"{min(std):g} among them")
    return VaeConfig(path, geometry, mean, std)


def official_statistics(z_dim: int, where: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the latents of a file without a configuration: those of Wan 2.1's release.

    Raises:
        CheckpointError: ``z_dim`` is not Wan 2.1's.
    """
    if z_dim != len(LATENTS_MEAN):
        raise CheckpointError(
            "this autoencoder has no config.json, and its latents are not Wan 2.1's, whose mean and standard deviation "
            "are known",
            where=where,
            expected=f"{len(LATENTS_MEAN)} latent channels, or a config.json with latents_mean and latents_std",
            found=f"{z_dim} latent channels",
            fix="put the autoencoder's config.json beside it",
        )
    return LATENTS_MEAN, LATENTS_STD


def _geometry(settings: Mapping[str, Any], path: Path) -> DecoderGeometry:
    base = "base_dim" if settings["decoder_base_dim"] is None else "decoder_base_dim"
    flags = settings["temperal_downsample"]
    if not isinstance(flags, list) or not all(isinstance(flag, bool) for flag in flags):
        raise _error(path, "temperal_downsample cannot be used", "a list of true and false", repr(flags)[:200])
    multiples = settings["dim_mult"]
    if not isinstance(multiples, list) or not all(_is_count(m) for m in multiples):
        raise _error(path, "dim_mult cannot be used", "a list of positive whole numbers", repr(multiples)[:200])
    for name in (base, "z_dim", "num_res_blocks"):
        if not _is_count(settings[name]):
            raise _error(path, f"{name} cannot be used", "a positive whole number", repr(settings[name])[:200])
    try:
        return DecoderGeometry(
            base_dim=settings[base],
            z_dim=settings["z_dim"],
            dim_mult=tuple(multiples),
            num_res_blocks=settings["num_res_blocks"],
            temporal_upsample=tuple(reversed(flags)),
        )
    except ValueError as error:
        raise _error(path, f"config.json describes no decoder: {error}", "", "") from error


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**20


def _statistics(settings: Mapping[str, Any], name: str, count: int, path: Path) -> tuple[float, ...]:
    values = settings[name]
    if (
        not isinstance(values, list)
        or len(values) != count
        or not all(type(v) in (int, float) and math.isfinite(v) for v in values)
    ):
        raise _error(path, f"{name} cannot be used", f"{count} finite numbers", repr(values)[:200])
    return tuple(float(v) for v in values)


def _error(path: Path, what: str, expected: str, found: str, fix: str = "") -> CheckpointError:
    return CheckpointError(
        what,
        where=str(path),
        expected=expected,
        found=found,
        fix=fix or "repair config.json, or download it again from where the weights come from",
    )
