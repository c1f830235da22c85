"""Who calls a decoder's tensor what: diffusers' names, which are canonical here, and official Wan's.

Source of the map: diffusers' scripts/convert_wan_to_diffusers.py and Wan2.1's wan/modules/vae.py. Official Wan numbers
the up path through, ``decoder.upsamples.K``, residual blocks and upsamplings alike; which is which is in the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from exporters.errors import CheckpointError
from exporters.files import shorten
from exporters.names import strip_prefixes

VaeLayout = Literal["diffusers", "wan"]

PREFIXES = ("first_stage_model.", "vae.", "autoencoder.")
"""What bundles put in front of a VAE's keys, beside what `exporters.names` knows."""

_OUTSIDE = {
    "conv2": "post_quant_conv",
    "decoder.conv1": "decoder.conv_in",
    "decoder.middle.1": "decoder.mid_block.attentions.0",
    "decoder.head.0": "decoder.norm_out",
    "decoder.head.2": "decoder.conv_out",
}
_RESIDUAL = {
    "residual.0": "norm1",
    "residual.2": "conv1",
    "residual.3": "norm2",
    "residual.6": "conv2",
    "shortcut": "conv_shortcut",
}
_MIDDLE = {"decoder.middle.0": "decoder.mid_block.resnets.0", "decoder.middle.2": "decoder.mid_block.resnets.1"}

_OFFICIAL_KEY = re.compile(r"(decoder\.(conv1|middle|upsamples|head)\.|conv2\.)")
_DIFFUSERS_KEY = re.compile(r"(decoder\.(conv_in|mid_block|up_blocks|norm_out|conv_out)\.|post_quant_conv\.)")
_UPSAMPLE = re.compile(r"decoder\.upsamples\.(0|[1-9][0-9]{0,3})\.(.+)")

OTHER_HALF: dict[VaeLayout, tuple[str, ...]] = {"wan": ("encoder.", "conv1."), "diffusers": ("encoder.", "quant_conv.")}
"""How the keys of the encoder's half begin: official ``conv1`` is diffusers' ``quant_conv``."""


def strip(key: str) -> str:
    """A key without the prefixes that trainers, bundles and compilers put in front."""
    rest = key
    while True:
        before = rest
        # Only what is no VAE's own name is a prefix of trainers: 'model.' and the like.
        rest = strip_prefixes(rest)[1]
        rest = next((rest.removeprefix(p) for p in PREFIXES if rest.startswith(p) and len(rest) > len(p)), rest)
        if rest == before:
            return rest


def detect_layout(keys: Iterable[str], where: str) -> VaeLayout | None:
    """Whose names the keys (prefixes stripped) are; None if they are no decoder's of Wan.

    Raises:
        CheckpointError: they are both's.
    """
    official = diffusers = ""
    for key in keys:
        if _OFFICIAL_KEY.match(key):
            official = official or key
        elif _DIFFUSERS_KEY.match(key):
            diffusers = diffusers or key
    if official and diffusers:
        raise CheckpointError(
            "this autoencoder mixes official Wan names and diffusers names",
            where=where,
            expected="one naming scheme for the whole file",
            found=f"{official!r} (official) and {diffusers!r} (diffusers)",
            fix="convert the file to one scheme",
        )
    return "wan" if official else "diffusers" if diffusers else None


def canonical_names(keys: Iterable[str], layout: VaeLayout) -> dict[str, str]:
    """Key -> canonical name, of the keys that have one; a key that is nowhere in the decoder is left out.

    Keys of the diffusers layout stay as they are: whether each belongs is known once the geometry is.
    """
    keys = list(keys)
    if layout == "diffusers":
        return {key: key for key in keys if _DIFFUSERS_KEY.match(key)}
    places = _up_places(keys)
    found: dict[str, str] = {}
    for key in keys:
        name = _canonical(key, places)
        if name is not None:
            found[key] = name
    return found


def official_names(canonical: Iterable[str], resnets_per_block: int) -> dict[str, str]:
    """Canonical name -> official key: the inverse of `canonical_names`, for a geometry's names."""
    outside = {canon: wan for wan, canon in (_OUTSIDE | _MIDDLE).items()}
    residual = {canon: wan for wan, canon in _RESIDUAL.items()}
    found: dict[str, str] = {}
    for name in canonical:
        match = re.fullmatch(r"decoder\.up_blocks\.(\d+)\.(resnets|upsamplers)\.(\d+)\.(.+)", name)
        if match:
            block, kind, index, inner = int(match[1]), match[2], int(match[3]), match[4]
            number = block * (resnets_per_block + 1) + (index if kind == "resnets" else resnets_per_block)
            found[name] = f"decoder.upsamples.{number}.{_swap(inner, residual) if kind == 'resnets' else inner}"
            continue
        stem = next((s for s in outside if name.startswith(f"{s}.")), None)
        if stem is None:
            raise ValueError(f"{name!r} is not a canonical name of the decoder")
        inner = name.removeprefix(f"{stem}.")
        found[name] = f"{outside[stem]}.{_swap(inner, residual) if 'resnets' in stem else inner}"
    return found


def _up_places(keys: Iterable[str]) -> Mapping[int, str]:
    """Number in ``decoder.upsamples`` -> canonical module: an upsampling ends its up block."""
    kinds: dict[int, bool] = {}
    for key in keys:
        match = _UPSAMPLE.fullmatch(key)
        if match:
            number = int(match[1])
            kinds[number] = kinds.get(number, False) or match[2].startswith(("resample.", "time_conv."))
    places: dict[int, str] = {}
    block = index = 0
    for number in range(max(kinds, default=-1) + 1):
        if kinds.get(number, False):
            places[number] = f"decoder.up_blocks.{block}.upsamplers.0"
            block, index = block + 1, 0
        else:
            places[number] = f"decoder.up_blocks.{block}.resnets.{index}"
            index += 1
    return places


def _canonical(key: str, places: Mapping[int, str]) -> str | None:
    match = _UPSAMPLE.fullmatch(key)
    if match:
        place, inner = places[int(match[1])], match[2]
        swapped = _swap(inner, _RESIDUAL) if ".resnets." in place else inner
        return f"{place}.{swapped}" if swapped else None
    for stem, canon in _MIDDLE.items():
        if key.startswith(f"{stem}."):
            inner = _swap(key.removeprefix(f"{stem}."), _RESIDUAL)
            return f"{canon}.{inner}" if inner else None
    for stem, canon in _OUTSIDE.items():
        if key.startswith(f"{stem}."):
            return f"{canon}.{key.removeprefix(f'{stem}.')}"
    return None


def _swap(inner: str, table: Mapping[str, str]) -> str:
    """``inner`` with the module in front renamed by ``table``; empty if it is none of them."""
    return next((inner.replace(old, new, 1) for old, new in table.items() if inner.startswith(f"{old}.")), "")


def unknown_error(unknown: list[str], where: str) -> CheckpointError:
    """The error for tensors that belong to neither half of the autoencoder."""
    return CheckpointError(
        f"{len(unknown)} tensors of this file belong to no part of Wan 2.1's autoencoder: "
        "leaving them out would change silently what it computes",
        where=where,
        expected="the tensors of Wan 2.1's VAE in the official or the diffusers layout",
        found=shorten(unknown),
        fix="give an unmodified autoencoder, or remove these tensors if you know that it runs without them",
    )
