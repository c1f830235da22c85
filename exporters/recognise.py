"""What a set of keys is: a Wan transformer, an adapter, or something else, and then what."""

from __future__ import annotations

import re
from collections.abc import Iterable

from exporters.errors import CheckpointError
from exporters.lora_keys import parse_factor, unusable
from exporters.names import canonical, strip_prefixes

MODEL_OF_WIDTH = {1536: "Wan 1.3B", 3072: "Wan2.2 5B", 5120: "Wan 14B"}
"""Channels of the published models, for messages only."""

_GIVE_TRANSFORMER = "give the transformer's file (in a diffusers pipeline: the folder 'transformer')"

# (pattern over prefix-stripped keys, what the file is). The first match wins.
_FOREIGN: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"^(vae\.|first_stage_model\.)?((decoder|encoder)\.(conv1|conv_in|middle|upsamples|downsamples|mid_block"
            r"|up_blocks|down_blocks|mid|up|down)\.|post_quant_conv\.|quant_conv\.)"
        ),
        "a VAE, which turns latents into frames",
    ),
    (
        re.compile(
            r"^(encoder\.block\.\d+\.layer\.|shared\.weight$|token_embedding\.weight$|blocks\.\d+\.attn\.q\."
            r"|blocks\.\d+\.ffn\.gate\.0\.|encoder\.final_layer_norm\.)"
        ),
        "a T5 text encoder",
    ),
    (
        re.compile(r"^(text_model|vision_model|visual|textual|log_scale|visual_projection|text_projection)\b"),
        "a CLIP encoder",
    ),
    (re.compile(r"^(layers\.\d+\.|embed_tokens\.|lm_head\.)"), "a language model"),
    (re.compile(r"^(double_blocks|single_blocks)\."), "a Flux or HunyuanVideo transformer"),
    (
        re.compile(r"^(transformer_blocks|single_transformer_blocks)\."),
        "another kind of diffusion transformer",
    ),
    (re.compile(r"^joint_blocks\."), "a Stable Diffusion 3 transformer"),
    (re.compile(r"^(input_blocks|output_blocks|middle_block|down_blocks|up_blocks|mid_block)\."), "a U-Net"),
)

# Wan variants that aren't the text-to-video model: (pattern, what, fix).
_TEXT_TO_VIDEO = "give a text-to-video checkpoint: hvdc compiles Wan2.1-T2V-shaped models"
_VARIANTS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"(^|[._])(qkv|to_qkv|to_kv|kv|qkv_proj|in_proj_weight|in_proj_bias|Wqkv)(\.|$)"),
        "this checkpoint has its q, k and v projections fused into one matrix",
        "split the fused projections into q, k and v (each [width, width]) and save them under their own names",
    ),
    (
        re.compile(r"(img_emb\.|[kv]_img\b|norm_k_img|image_embedder|add_[kv]_proj|norm_added_[kq])"),
        "this is an image-to-video model: it has an image branch in cross-attention",
        _TEXT_TO_VIDEO,
    ),
    (re.compile(r"(^|\.)vace_(blocks|patch_embedding)"), "this is a VACE (video editing) model", _TEXT_TO_VIDEO),
    (
        re.compile(r"(control_adapter|ref_conv|motion_encoder|face_adapter)"),
        "this is a Wan control or animation model",
        _TEXT_TO_VIDEO,
    ),
    (re.compile(r"(audio|trainable_cond_mask)"), "this is a Wan speech or audio model", _TEXT_TO_VIDEO),
    (re.compile(r"(guidance_embedder|guidance_in)\."), "this model takes a guidance value as an input", _TEXT_TO_VIDEO),
    (
        re.compile(
            r"(\.SCB$|weight_format$|\.absmax$|quant_map$|quant_state|\.qweight$|\.qzeros$|\.scales$|_packed$|\.svd_)"
        ),
        "this checkpoint is already quantised",
        "give the checkpoint before it was quantised",
    ),
)


def what_is(keys: Iterable[str]) -> str:
    """``"transformer"``, ``"adapter"``, or a phrase such as ``"a VAE, which turns latents into frames"``."""
    adapter = False
    plain: list[str] = []
    for key in keys:
        if parse_factor(key) or unusable(key):
            adapter = True
            continue
        stripped = strip_prefixes(key)[1]
        # An adapter may carry its own embedder and head: only what blocks hold tells a transformer.
        if stripped.startswith("blocks.") and (canonical(stripped, "wan") or canonical(stripped, "diffusers")):
            return "transformer"
        plain.append(stripped)
    if adapter:
        return "adapter"
    return next(
        (what for pattern, what in _FOREIGN for key in plain if pattern.search(key)),
        "no model that hvdc knows",
    )


def foreign_error(keys: Iterable[str], where: str) -> CheckpointError:
    """The error for a file that holds neither a Wan transformer nor an adapter."""
    keys = list(keys)
    for pattern, what, fix in _VARIANTS[:1]:  # fused projections can hide every name by which Wan is known
        hit = next((k for k in keys if pattern.search(k)), None)
        if hit and any(k.startswith("blocks.") for k in (strip_prefixes(k)[1] for k in keys)):
            return CheckpointError(what, where=where, found=repr(hit), fix=fix)
    what = what_is(keys)
    shown = ", ".join(repr(k) for k in keys[:4]) or "no tensors at all"
    return CheckpointError(
        f"this file holds {what}, not the Wan transformer" if keys else "this file holds no tensors",
        where=where,
        expected="tensors such as 'blocks.0.self_attn.q.weight' (official Wan) "
        "or 'blocks.0.attn1.to_q.weight' (diffusers)",
        found=f"{len(keys):,} tensors: {shown}" if keys else shown,
        fix=_GIVE_TRANSFORMER,
    )


def variant_error(unknown: Iterable[str], where: str) -> CheckpointError | None:
    """The error for keys that a known variant of the model has and hvdc cannot compile; None if none is known."""
    unknown = list(unknown)
    for pattern, what, fix in _VARIANTS:
        hits = [k for k in unknown if pattern.search(k)]
        if hits:
            return CheckpointError(what, where=where, found=f"{len(hits):,} such tensors, first {hits[0]!r}", fix=fix)
    return None


def channels_error(in_channels: int, out_channels: int, where: str) -> CheckpointError:
    """The error for a patch embedding that takes more than the latent."""
    what = {
        36: "this is an image-to-video model: its patch embedding takes 36 channels (16 latent, 4 mask, 16 image)",
        33: "this is a variant with a 33-channel patch embedding (16 latent, 16 reference, 1 mask)",
        32: "this is a control or reference variant with a 32-channel patch embedding (16 latent, 16 condition)",
        48: "this is a control variant with a 48-channel patch embedding (16 latent, 32 condition)",
        52: "this is a control and inpainting variant with a 52-channel patch embedding",
    }.get(in_channels, f"the patch embedding takes {in_channels} channels but the head makes {out_channels}")
    return CheckpointError(
        what,
        where=where,
        expected=f"as many input channels as output channels ({out_channels})",
        found=f"{in_channels} input channels",
        fix=_TEXT_TO_VIDEO,
    )
