"""Who calls a tensor what: official Wan, diffusers, and DCM's PEFT-wrapped spelling, as data.

Canonical names are diffusers' (see `exporters.model`). The tables below are the only place that knows the
other spellings; `spell` writes them, `canonical` and `canonical_stem` read them.

Beware the norm swap: a Wan block has three LayerNorms and only the one before cross-attention has
parameters. Official Wan calls it ``norm3``; diffusers calls it ``norm2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from exporters.errors import CheckpointError
from exporters.model import ATTENTION_LINEARS, EMBEDDER, HEAD

Layout = Literal["dcm", "wan", "diffusers"]
LAYOUTS: tuple[Layout, ...] = ("dcm", "wan", "diffusers")

DCM_ADAPTER_NAME = "lora1"
"""The adapter name in DCM's own file: ``….lora_A.lora1.weight``."""

_LINEAR = ("weight", "bias")

# (official stem, canonical stem, its parameters). An empty parameter means that the stem is the tensor itself.
_OUTSIDE_BLOCKS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("patch_embedding", "patch_embedding", _LINEAR),
    ("time_embedding.0", "condition_embedder.time_embedder.linear_1", _LINEAR),
    ("time_embedding.2", "condition_embedder.time_embedder.linear_2", _LINEAR),
    ("time_projection.1", "condition_embedder.time_proj", _LINEAR),
    ("text_embedding.0", "condition_embedder.text_embedder.linear_1", _LINEAR),
    ("text_embedding.2", "condition_embedder.text_embedder.linear_2", _LINEAR),
    ("head.head", "proj_out", _LINEAR),
    ("head.modulation", "scale_shift_table", ("",)),
)
_IN_A_BLOCK: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("modulation", "scale_shift_table", ("",)),
    ("self_attn.q", "attn1.to_q", _LINEAR),
    ("self_attn.k", "attn1.to_k", _LINEAR),
    ("self_attn.v", "attn1.to_v", _LINEAR),
    ("self_attn.o", "attn1.to_out.0", _LINEAR),
    ("self_attn.norm_q", "attn1.norm_q", ("weight",)),
    ("self_attn.norm_k", "attn1.norm_k", ("weight",)),
    ("cross_attn.q", "attn2.to_q", _LINEAR),
    ("cross_attn.k", "attn2.to_k", _LINEAR),
    ("cross_attn.v", "attn2.to_v", _LINEAR),
    ("cross_attn.o", "attn2.to_out.0", _LINEAR),
    ("cross_attn.norm_q", "attn2.norm_q", ("weight",)),
    ("cross_attn.norm_k", "attn2.norm_k", ("weight",)),
    ("norm3", "norm2", _LINEAR),
    ("ffn.0", "ffn.net.0.proj", _LINEAR),
    ("ffn.2", "ffn.net.2", _LINEAR),
)

PREFIXES = (
    "model.diffusion_model.",
    "diffusion_model.",
    "base_model.model.",
    "base_model.",
    "pipe.dit.",
    "dit.",
    "unet.",
    "generator.",
    "transformer.",
    "module.",
    "model.",
)
"""What trainers and user interfaces put in front of every key. They stack, in any order."""

WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What torch.compile, FSDP and activation checkpointing put in front of any module's name, so anywhere in a key."""


def _expand(rows: tuple[tuple[str, str, tuple[str, ...]], ...]) -> dict[str, str]:
    """Official tensor name -> canonical tensor name, of rows of (official stem, canonical stem, parameters)."""
    return {
        (f"{wan}.{p}" if p else wan): (f"{canon}.{p}" if p else canon) for wan, canon, params in rows for p in params
    }


_OUTSIDE_NAMES, _BLOCK_NAMES = _expand(_OUTSIDE_BLOCKS), _expand(_IN_A_BLOCK)
_OUTSIDE_NAMES_BACK = {canon: wan for wan, canon in _OUTSIDE_NAMES.items()}
_BLOCK_NAMES_BACK = {canon: wan for wan, canon in _BLOCK_NAMES.items()}
_BLOCK_STEMS = {wan: canon for wan, canon, _ in _IN_A_BLOCK}
_BLOCK_STEMS_BACK = {canon: wan for wan, canon in _BLOCK_STEMS.items()}
_OUTSIDE_STEMS = {wan: canon for wan, canon, _ in _OUTSIDE_BLOCKS}

# The detail expert's embedding block and head. Only DCM has them, so its names hold in every layout.
_DETAIL_NAMES = {
    name.replace(EMBEDDER["semantic"], EMBEDDER["detail"], 1).replace(HEAD["semantic"], HEAD["detail"], 1)
    for name in _OUTSIDE_NAMES_BACK
    if name.startswith((f"{EMBEDDER['semantic']}.", f"{HEAD['semantic']}."))
}

_BLOCK = re.compile(r"blocks\.(0|[1-9][0-9]{0,4})\.(.+)")
_FACTOR = re.compile(r"(.+)\.(lora_[AB])\.weight")


def spell(name: str, layout: Layout) -> str:
    """The key that ``layout`` uses for a canonical tensor name.

    ``dcm`` is the PEFT-wrapped spelling of DCM's file. ``wan`` has official names for the base; what only
    DCM has keeps DCM's names on official stems (``blocks.0.self_attn.q.lora_A.weight``,
    ``condition_embedder_lora.…``).

    Raises:
        CheckpointError: ``name`` is not canonical.
    """
    factor = _FACTOR.fullmatch(name)
    stem = factor.group(1) if factor else name
    block = _BLOCK.fullmatch(stem)
    if factor:
        linear = block.group(2) if block else ""
        if block is None or linear not in ATTENTION_LINEARS:
            raise CheckpointError(f"{name!r} is not a canonical tensor name")
        part = factor.group(2)
        if layout == "dcm":
            return f"{stem}.{part}.{DCM_ADAPTER_NAME}.weight"
        if layout == "wan":
            return f"blocks.{block.group(1)}.{_BLOCK_STEMS_BACK[linear]}.{part}.weight"
        return name
    if block:
        inner = block.group(2)
        if inner not in _BLOCK_NAMES_BACK:
            raise CheckpointError(f"{name!r} is not a canonical tensor name")
        if layout == "wan":
            return f"blocks.{block.group(1)}.{_BLOCK_NAMES_BACK[inner]}"
        linear, _, parameter = inner.rpartition(".")
        if layout == "dcm" and linear in ATTENTION_LINEARS:
            return f"blocks.{block.group(1)}.{linear}.base_layer.{parameter}"
        return name
    if name in _DETAIL_NAMES:
        return name
    if name not in _OUTSIDE_NAMES_BACK:
        raise CheckpointError(f"{name!r} is not a canonical tensor name")
    return _OUTSIDE_NAMES_BACK[name] if layout == "wan" else name


def strip_prefixes(key: str) -> tuple[str, str]:
    """``(prefix, rest)`` of a raw key: every known prefix in front, wrappers anywhere.

    Example: ``"module._orig_mod.model.blocks.0.ffn.0.bias"`` gives
    ``("module._orig_mod.model.", "blocks.0.ffn.0.bias")``.
    """
    rest, seen = key, ""
    while True:
        prefix = next((p for p in (*PREFIXES, *WRAPPERS) if rest.startswith(p) and len(rest) > len(p)), None)
        if prefix is None:
            break
        seen += prefix
        rest = rest[len(prefix) :]
    for wrapper in WRAPPERS:
        rest = rest.replace(f".{wrapper}", ".")
    return seen, rest


def detect_layout(keys: Iterable[str], where: str = "") -> Layout | None:
    """Which layout these keys (prefixes stripped) are in; None when they aren't a Wan transformer's.

    Raises:
        CheckpointError: keys of both official Wan and diffusers are present.
    """
    wan = diffusers = wrapped = ""
    for key in keys:
        plain = key.replace(".base_layer.", ".")
        if canonical(plain, "wan") and not canonical(plain, "diffusers"):
            wan = wan or key
        elif canonical(plain, "diffusers") and not canonical(plain, "wan"):
            diffusers = diffusers or key
        if plain != key:
            wrapped = key
    if wan and diffusers:
        raise CheckpointError(
            "this checkpoint mixes official Wan names and diffusers names",
            where=where,
            expected="one naming scheme for the whole file",
            found=f"{wan!r} (official) and {diffusers!r} (diffusers)",
            fix="convert the file to one scheme, or give the two models apart (--adapter takes the detail expert)",
        )
    if wan:
        return "wan"
    if diffusers:
        return "dcm" if wrapped else "diffusers"
    return None


@lru_cache(maxsize=16384)
def canonical(key: str, layout: Layout) -> str | None:
    """The canonical name of a base or detail tensor's key (prefix stripped, no factor); None if unknown.

    PEFT's ``.base_layer.`` is accepted in every layout, because any model can be wrapped.
    """
    key = key.replace(".base_layer.", ".")
    if key in _DETAIL_NAMES:
        return key
    block = _BLOCK.fullmatch(key)
    names, back = (_BLOCK_NAMES, _BLOCK_NAMES_BACK) if block else (_OUTSIDE_NAMES, _OUTSIDE_NAMES_BACK)
    inner = block.group(2) if block else key
    found = names.get(inner) if layout == "wan" else (inner if inner in back else None)
    return f"blocks.{block.group(1)}.{found}" if block and found else found


def canonical_stem(stem: str) -> str | None:
    """The canonical name of a module (``blocks.0.self_attn.q`` -> ``blocks.0.attn1.to_q``) in any layout, or None."""
    stem = stem.removesuffix(".base_layer")
    block = _BLOCK.fullmatch(stem)
    if block:
        inner = block.group(2)
        inner = _BLOCK_STEMS.get(inner, inner)
        return f"blocks.{block.group(1)}.{inner}" if inner in _BLOCK_STEMS_BACK else None
    stem = _OUTSIDE_STEMS.get(stem, stem)
    return stem if f"{stem}.weight" in _OUTSIDE_NAMES_BACK or f"{stem}.weight" in _DETAIL_NAMES else None


_FLAT_BLOCK = re.compile(r"blocks_(0|[1-9][0-9]{0,4})_(.+)")
_FLAT_STEMS = {stem.replace(".", "_"): stem for pair in _BLOCK_STEMS.items() for stem in pair}
_FLAT_OUTSIDE = {
    stem.replace(".", "_"): stem
    for stem in (*_OUTSIDE_STEMS, *_OUTSIDE_STEMS.values(), *(n.rpartition(".")[0] for n in _DETAIL_NAMES))
}


def unflatten(flat: str) -> str | None:
    """The dotted module name of kohya's underscored one: ``blocks_0_self_attn_q`` -> ``blocks.0.self_attn.q``."""
    block = _FLAT_BLOCK.fullmatch(flat)
    if block:
        stem = _FLAT_STEMS.get(block.group(2))
        return f"blocks.{block.group(1)}.{stem}" if stem else None
    return _FLAT_OUTSIDE.get(flat)
