"""From the shapes of a checkpoint's tensors to a `Geometry`. Nothing here knows any particular size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from exporters.config import ModelConfig
from exporters.errors import CheckpointError
from exporters.files import shorten
from exporters.model import HEAD_DIM, Geometry, base_tensors
from exporters.recognise import channels_error
from exporters.tensor import Tensor

_BLOCK = re.compile(r"blocks\.(\d+)\.")


def geometry_of(
    base: Mapping[str, Tensor],
    config: ModelConfig,
    where: str,
    *,
    heads: int | None = None,
    text_tokens: int | None = None,
    eps: float | None = None,
) -> tuple[Geometry, list[str]]:
    """``(geometry, notes)`` of the base tensors, rank 0; explicit arguments win over the configuration.

    Raises:
        CheckpointError: a tensor is missing or of a wrong shape, blocks are missing in between, the patch
            embedding takes more than the latent, or the configuration describes another model.
    """
    patch = _shape(base, "patch_embedding.weight", 5, where)
    ffn_width = _shape(base, "blocks.0.ffn.net.0.proj.weight", 2, where)[0]
    text_width = _shape(base, "condition_embedder.text_embedder.linear_1.weight", 2, where)[1]
    freq_dim = _shape(base, "condition_embedder.time_embedder.linear_1.weight", 2, where)[1]
    head_rows = _shape(base, "proj_out.weight", 2, where)[0]
    width, in_channels, patch_size = patch[0], patch[1], (patch[2], patch[3], patch[4])
    volume = patch_size[0] * patch_size[1] * patch_size[2]
    if volume == 0 or head_rows % volume or head_rows == 0:
        raise CheckpointError(
            "the output head does not fit the patch size",
            where=f"{where}: proj_out.weight",
            expected=f"a multiple of {volume} rows",
            found=f"{head_rows} rows",
        )
    if in_channels != head_rows // volume:
        raise channels_error(in_channels, head_rows // volume, f"{where}: patch_embedding.weight")
    count, notes = _heads(width, config, heads, where)
    if text_tokens is None and config.text_tokens is None:
        notes.append("no configuration gives the number of text tokens: 512, as for every published Wan model")
    geometry = Geometry(
        layers=_layers(base, where), width=width, ffn_width=ffn_width, heads=count, text_width=text_width,
        in_channels=in_channels, out_channels=head_rows // volume, patch=patch_size, freq_dim=freq_dim,
        cross_attn_norm=any(".norm2." in name for name in base),
        text_tokens=text_tokens or config.text_tokens or 512,
        eps=eps or config.eps or 1e-6,
        rope_max_positions=config.rope_max_positions or 1024,
    )  # fmt: skip
    _check_config(geometry, config)
    expected = base_tensors(geometry)
    check_shapes(base, expected, where)
    surplus = [name for name in base if name not in expected]
    if surplus:
        raise CheckpointError(
            f"{len(surplus)} tensors have no place in a model of this size",
            where=where,
            found=shorten(surplus),
            fix="give an unmodified checkpoint",
        )
    return geometry, notes


def _shape(base: Mapping[str, Tensor], name: str, ndim: int, where: str) -> tuple[int, ...]:
    if name not in base:
        raise CheckpointError(
            f"the checkpoint lacks {name!r}",
            where=where,
            expected="every tensor of the Wan transformer",
            found=f"{len(base):,} of its tensors",
            fix="give the whole model: if it is sharded, give the folder with its index",
        )
    shape = base[name].shape
    if len(shape) != ndim or 0 in shape:
        raise CheckpointError(
            f"{name!r} has a shape that no Wan transformer has",
            where=base[name].origin,
            expected=f"{ndim} dimensions",
            found=_spell(shape),
        )
    return shape


def _spell(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def _layers(base: Mapping[str, Tensor], where: str) -> int:
    blocks = {int(m.group(1)) for m in map(_BLOCK.match, base) if m}
    layers = max(blocks) + 1
    if len(blocks) != layers:
        missing = [i for i in range(layers) if i not in blocks][:8]
        raise CheckpointError(
            f"{layers - len(blocks)} blocks are missing in between",
            where=where,
            expected=f"blocks 0 to {layers - 1}",
            found=f"no tensors of block {', '.join(map(str, missing))}",
            fix="give the whole model: a shard or an extraction is incomplete",
        )
    return layers


def _heads(width: int, config: ModelConfig, heads: int | None, where: str) -> tuple[int, list[str]]:
    notes: list[str] = []
    if heads is not None:
        count, source = max(1, heads), "the argument"
    elif config.heads:
        count, source = config.heads, config.source
    elif config.head_dim:
        count, source = max(1, width // config.head_dim), config.source
    else:
        count, source = max(1, width // HEAD_DIM), f"{HEAD_DIM}-channel heads"
        notes.append(f"no configuration gives the number of heads: {count} of {HEAD_DIM} channels, as in every Wan")
    if width % count or (width // count) % 2 or (config.head_dim and not heads and width // count != config.head_dim):
        raise CheckpointError(
            f"{count} heads do not divide {width} channels into heads of one even size",
            where=where,
            expected=f"heads of {config.head_dim or HEAD_DIM} channels",
            found=f"{count} heads, from {source}",
            fix="give the number of heads, or the model's own config.json beside the checkpoint",
        )
    return count, notes


def _check_config(geometry: Geometry, config: ModelConfig) -> None:
    for what, said, found in (
        ("layers", config.layers, geometry.layers),
        ("feed-forward width", config.ffn_width, geometry.ffn_width),
        ("input channels", config.in_channels, geometry.in_channels),
        ("output channels", config.out_channels, geometry.out_channels),
        ("channels of a prompt embedding", config.text_width, geometry.text_width),
        ("channels of the time embedding", config.freq_dim, geometry.freq_dim),
    ):
        if said is not None and said != found:
            raise CheckpointError(
                "the configuration beside the checkpoint describes another model",
                where=config.source,
                expected=f"{what}: {said}, by {Path(config.source).name}",
                found=f"{found} in the weights",
                fix="keep each model and its config.json in a folder of their own",
            )


def check_shapes(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Every expected tensor is there and has its shape.

    Raises:
        CheckpointError: names up to eight that are missing, or the first that has another shape.
    """
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise CheckpointError(
            f"the checkpoint lacks {len(missing)} of {len(expected):,} tensors",
            where=where,
            expected="every tensor of the model",
            found=f"missing {shorten(missing)}",
            fix="give the whole model: if it is sharded, give the folder with its index",
        )
    wrong = [name for name, shape in expected.items() if tensors[name].shape != shape]
    if wrong:
        first = wrong[0]
        raise CheckpointError(
            f"{len(wrong)} tensors have a shape that does not fit the rest of the model",
            where=tensors[first].origin,
            expected=f"{first}: {_spell(expected[first])}",
            found=_spell(tensors[first].shape) + (f"; also {shorten(wrong[1:])}" if wrong[1:] else ""),
        )
