"""The keys of adapter files: PEFT, diffusers and kohya spellings of one thing, taken apart.

base_model.model.blocks.0.attn1.to_q.lora_A.default.weight        PEFT
transformer.blocks.0.attn1.to_q.lora_A.weight                     diffusers
diffusion_model.blocks.0.self_attn.q.lora_down.weight             official names, kohya's words
lora_unet_blocks_0_self_attn_q.lora_down.weight                   kohya
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from exporters.names import canonical, canonical_stem, strip_prefixes, unflatten

Part = Literal["lora_A", "lora_B", "alpha"]

_FACTOR = re.compile(
    r"(?P<stem>.+?)\.(?:lora_(?P<ab>A|B|down|up)|lora\.(?P<du>down|up))(?:\.(?P<adapter>[^.]+))?\.weight"
)
_ALPHA = re.compile(r"(?P<stem>.+?)\.(?:lora_)?alpha(?:\.(?P<adapter>[^.]+))?")
_PARTS: dict[str, Part] = {"A": "lora_A", "down": "lora_A", "B": "lora_B", "up": "lora_B"}

_KOHYA_PREFIXES = ("lora_unet_", "lora_transformer_", "lycoris_")

# What adapters may also hold and hvdc's detail expert cannot express: (pattern, what it is).
_UNUSABLE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"^lora_te[0-9]?_|(^|\.)text_encoders?\."),
        "adapts the text encoder, which is not part of this model",
    ),
    (re.compile(r"(norm_k_img|k_img|v_img|img_emb|add_[kv]_proj)"), "belongs to an image-to-video model"),
    (re.compile(r"\.diff(_[bm])?$"), "a whole weight or bias difference, which factors cannot carry"),
    (
        re.compile(r"\.(dora_scale|lora_magnitude_vector(\..+)?)$"),
        "DoRA rescales the merged weight, which is never built",
    ),
    (re.compile(r"\.lora_mid\.|\.(hada|lokr|oft|boft|lora_embedding)_"), "another kind of adapter than LoRA"),
    (re.compile(r"\.lora_(A|B|down|up)(\.[^.]+)?\.bias$"), "a bias inside an adapter"),
    (re.compile(r"\.[qkvo]_loras\."), "a Stand-In identity adapter, another kind than LoRA"),
)


@dataclass(frozen=True)
class FactorKey:
    """``stem`` is the canonical module (``blocks.0.attn1.to_q``), or as spelled when ``known`` is False."""

    stem: str
    known: bool
    part: Part
    adapter: str
    prefix: str


def unusable(key: str) -> str | None:
    """Why this adapter key cannot be used; None when it can or isn't an adapter's."""
    return next((why for pattern, why in _UNUSABLE if pattern.search(key)), None)


def parse_factor(key: str) -> FactorKey | None:
    """Takes a raw adapter key apart; None when it is neither a factor nor an alpha."""
    match = _FACTOR.fullmatch(key) or _ALPHA.fullmatch(key)
    if match is None:
        return None
    groups = match.groupdict()
    word = groups.get("ab") or groups.get("du")
    part: Part = _PARTS[word] if word else "alpha"
    prefix, stem = strip_prefixes(match["stem"])
    kohya = next((p for p in _KOHYA_PREFIXES if stem.startswith(p)), None)
    if kohya:
        prefix += kohya
        stem = unflatten(stem.removeprefix(kohya)) or stem
    found = canonical_stem(stem)
    return FactorKey(found or stem, found is not None, part, groups.get("adapter") or "", prefix)


_SAVED_MODULE = re.compile(r"\.modules_to_save(\.[^.]+)?(?=\.)")


def detail_name(key: str) -> str | None:
    """The canonical ``…_lora`` name of an embedder or head tensor in an adapter file, or None.

    Besides DCM's own names an adapter may hold a trained copy under the base's names, in either layout or
    under PEFT's ``modules_to_save``: in a file without a base it can only be the detail expert's.
    """
    _, key = strip_prefixes(key)
    key = _SAVED_MODULE.sub("", key)
    name = canonical(key, "diffusers") or canonical(key, "wan")
    if name is None:
        return None
    root = name.split(".", 1)[0]
    if root in ("condition_embedder", "proj_out"):
        return name.replace(root, f"{root}_lora", 1)
    return name if root in ("condition_embedder_lora", "proj_out_lora") else None
