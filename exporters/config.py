"""What the small JSON files beside a checkpoint say: the model's `config.json`, an adapter's alpha and rank."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.errors import CheckpointError

_LIMIT_BYTES = 8 << 20


@dataclass(frozen=True)
class ModelConfig:
    """What shapes cannot tell, and what they can be checked against. None: the file doesn't say."""

    source: str = ""
    heads: int | None = None
    head_dim: int | None = None
    layers: int | None = None
    ffn_width: int | None = None
    in_channels: int | None = None
    out_channels: int | None = None
    text_width: int | None = None
    freq_dim: int | None = None
    eps: float | None = None
    text_tokens: int | None = None
    rope_max_positions: int | None = None


@dataclass(frozen=True)
class AlphaConfig:
    """An adapter's ``alpha`` and, where given, its ``rank``; ``rank_stabilised`` divides by its root."""

    source: str
    alpha: float
    rank: int | None
    rank_stabilised: bool = False


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in ``path``; None when there is no such file.

    Raises:
        CheckpointError: the file is there but holds no JSON object.
    """
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise ValueError(f"larger than {_LIMIT_BYTES:,} bytes")
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} cannot be used: {error}",
            where=str(path),
            fix="repair the file, or move it away so that hvdc goes by the shapes alone",
        ) from error
    return content


def _number(content: Mapping[str, Any], path: Path, *names: str) -> float | None:
    for name in names:
        value = content.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise CheckpointError(
                f"{path.name} gives {name!r} a value that cannot be",
                where=str(path),
                expected="a positive number",
                found=repr(value)[:80],
                fix="repair the file, or move it away so that hvdc goes by the shapes alone",
            )
        return float(value)
    return None


def _count(content: Mapping[str, Any], path: Path, *names: str) -> int | None:
    value = _number(content, path, *names)
    if value is None:
        return None
    if value != int(value):
        raise CheckpointError(
            f"{path.name} gives {names[0]!r} a fraction",
            where=str(path),
            expected="a whole number",
            found=str(value),
        )
    return int(value)


def model_config(folder: Path) -> ModelConfig:
    """`config.json` of diffusers (`num_attention_heads`, …) or official Wan (`num_heads`, …), if it is a Wan's.

    Raises:
        CheckpointError: the file describes a Wan model that hvdc doesn't compute as described.
    """
    path = folder / "config.json"
    content = read_json(path)
    if content is None:
        return ModelConfig()
    name = str(content.get("_class_name", ""))
    if not (
        "Wan" in name or {"num_attention_heads", "ffn_dim"} <= set(content) or {"num_heads", "dim"} <= set(content)
    ):
        return ModelConfig()  # some other program's config.json
    _check_model_config(content, path)
    return ModelConfig(
        source=str(path),
        heads=_count(content, path, "num_attention_heads", "num_heads"),
        head_dim=_count(content, path, "attention_head_dim"),
        layers=_count(content, path, "num_layers"),
        ffn_width=_count(content, path, "ffn_dim"),
        in_channels=_count(content, path, "in_channels", "in_dim"),
        out_channels=_count(content, path, "out_channels", "out_dim"),
        text_width=_count(content, path, "text_dim"),
        freq_dim=_count(content, path, "freq_dim"),
        eps=_number(content, path, "eps"),
        text_tokens=_count(content, path, "text_len", "max_text_tokens"),
        rope_max_positions=_count(content, path, "rope_max_seq_len"),
    )


def _check_model_config(content: Mapping[str, Any], path: Path) -> None:
    """Refuses settings under which the same tensors would compute something else."""
    allowed: dict[str, tuple[object, ...]] = {
        "qk_norm": ("rms_norm_across_heads", True),
        "image_dim": (None,),
        "added_kv_proj_dim": (None,),
        "model_type": ("t2v",),
        "window_size": ([-1, -1],),
    }
    for key, values in allowed.items():
        if key in content and content[key] not in values:
            raise CheckpointError(
                f"this model's configuration sets {key!r} to something that hvdc doesn't compute",
                where=str(path),
                expected=" or ".join(repr(v) for v in values),
                found=repr(content[key])[:80],
                fix="give a Wan2.1 text-to-video checkpoint",
            )


def alpha_config(folder: Path, metadata: Mapping[str, str]) -> AlphaConfig | None:
    """Alpha from safetensors metadata (kohya, diffusers), `adapter_config.json` (PEFT), or `lora_config.json` (DCM).

    What a file says of itself comes first: a configuration in its folder may be another adapter's.

    Raises:
        CheckpointError: the configuration asks for DoRA, or for an alpha or rank of its own per layer.
    """
    own = _from_metadata(metadata, folder)
    if own:
        return own
    for name in ("adapter_config.json", "lora_config.json"):
        content = read_json(folder / name)
        if content is None:
            continue
        inner = content.get("lora_params", content)
        found = _from_mapping(inner if isinstance(inner, dict) else {}, folder / name, str(folder / name))
        if found:
            return found
    return None


def _from_mapping(content: Mapping[str, Any], path: Path, source: str) -> AlphaConfig | None:
    for key, what in (
        ("use_dora", "DoRA"),
        ("alpha_pattern", "an alpha for each layer"),
        ("bias", "trained biases"),
    ):
        if content.get(key) not in (None, False, {}, "none"):
            raise CheckpointError(
                f"this adapter uses {what}, which hvdc's detail expert cannot express",
                where=source,
                found=f"{key} = {content[key]!r}"[:120],
                fix="export the adapter as plain LoRA with one alpha",
            )
    alpha = _number(content, path, "lora_alpha", "alpha", "network_alpha")
    if alpha is None:
        return None
    rank = _count(content, path, "r", "lora_rank", "rank")
    if content.get("rank_pattern"):
        rank = None  # each factor's own shape decides
    return AlphaConfig(source, alpha, rank, bool(content.get("use_rslora", False)))


def _from_metadata(metadata: Mapping[str, str], folder: Path) -> AlphaConfig | None:
    source = "the file's metadata"
    try:
        if "lora_adapter_metadata" in metadata:  # diffusers: {"transformer.r": 128, "transformer.lora_alpha": 256, …}
            content = json.loads(metadata["lora_adapter_metadata"])
            if isinstance(content, dict):
                plain = {str(k).rpartition(".")[2]: v for k, v in content.items()}
                return _from_mapping(plain, folder / "lora_adapter_metadata", f"{source} (lora_adapter_metadata)")
        if "ss_network_alpha" in metadata:
            alpha, rank = float(metadata["ss_network_alpha"]), metadata.get("ss_network_dim")
            if math.isfinite(alpha) and alpha > 0:
                whole = int(rank) if rank and rank.isdigit() else None
                return AlphaConfig(f"{source} (ss_network_alpha)", alpha, whole)
    except (ValueError, RecursionError):
        return None  # metadata is free text; what cannot be read is as good as absent
    return None
