"""The decoder's structure: what diffusers builds, and the sizes of Wan 2.1's own."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from exporters.decoder.geometry import DecoderGeometry, caches, stages, tensor_shapes
from tests.exporters.decoder.vaes import FULL, GEOMETRY, OTHERS, config

ALL = {"small": GEOMETRY, "full": FULL} | OTHERS


def on_meta(geometry: DecoderGeometry) -> torch.nn.Module:
    """diffusers' autoencoder without memory."""
    from diffusers import AutoencoderKLWan

    with torch.device("meta"):
        return AutoencoderKLWan(**{k: v for k, v in config(geometry).items() if not k.startswith("_")})


@pytest.mark.parametrize("name", ALL)
def test_tensors_are_those_of_diffusers(name: str) -> None:
    expected = {
        key: tuple(value.shape)
        for key, value in on_meta(ALL[name]).state_dict().items()
        if key.startswith(("decoder.", "post_quant_conv."))
    }
    assert tensor_shapes(ALL[name]) == expected


@pytest.mark.parametrize("name", ALL)
def test_every_convolution_over_three_frames_has_a_cache(name: str) -> None:
    model = on_meta(ALL[name])
    expected = {
        module.removeprefix("decoder."): conv.weight.shape[1]
        for module, conv in model.named_modules()
        if module.startswith("decoder.") and getattr(conv, "kernel_size", (1,))[0] == 3 and conv.weight.ndim == 5
    }
    found = {cache.name: cache.shape[1] for cache in caches(ALL[name], 6, 5)}
    assert found == expected


def test_wan_2_1_has_the_caches_of_its_full_size_tile() -> None:
    """Shapes and bytes of a tile of 60 × 40, group by group."""
    found = caches(FULL, 60, 40)
    shapes = [cache.shape for cache in found]
    assert len(found) == 32
    assert sum(cache.values for cache in found) == 363_187_200
    assert round(2 * sum(cache.values for cache in found) / 2**20, 1) == 692.7  # in FP16
    assert {shape: shapes.count(shape) for shape in shapes} == {
        (1, 16, 2, 60, 40): 1,
        (1, 384, 2, 60, 40): 11,
        (1, 192, 2, 120, 80): 1,
        (1, 384, 2, 120, 80): 6,
        (1, 192, 2, 240, 160): 6,
        (1, 96, 2, 480, 320): 7,
    }


def test_cache_names_are_modules_in_the_order_of_the_computation() -> None:
    names = [cache.name for cache in caches(GEOMETRY, 6, 5)]
    assert names[:5] == [
        "conv_in",
        "mid_block.resnets.0.conv1",
        "mid_block.resnets.0.conv2",
        "mid_block.resnets.1.conv1",
        "mid_block.resnets.1.conv2",
    ]
    assert names[5:10] == [
        "up_blocks.0.resnets.0.conv1",
        "up_blocks.0.resnets.0.conv2",
        "up_blocks.0.resnets.1.conv1",
        "up_blocks.0.resnets.1.conv2",
        "up_blocks.0.upsamplers.0.time_conv",
    ]
    assert names[-1] == "conv_out"
    first = caches(GEOMETRY, 6, 5)[1]
    assert (first.input_name, first.output_name) == (
        "cache.mid_block.resnets.0.conv1",
        "next_cache.mid_block.resnets.0.conv1",
    )


def test_wan_2_1_has_the_parameters_of_its_decoder() -> None:
    assert sum(math.prod(shape) for shape in tensor_shapes(FULL).values()) == sum(
        value.numel()
        for key, value in on_meta(FULL).state_dict().items()
        if key.startswith(("decoder.", "post_quant_conv."))
    )
    assert (FULL.spatial_scale, FULL.temporal_scale) == (8, 4)
    assert [FULL.frames(n) for n in (0, 1, 2, 13, 21)] == [0, 1, 5, 49, 81]
    assert [(s.name, s.scale, s.frames) for s in stages(FULL)] == [
        ("mid", 1, 1), ("up0", 1, 1), ("up1", 2, 2), ("up2", 4, 4), ("up3", 8, 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"base_dim": 0},
        {"z_dim": -1},
        {"num_res_blocks": 0},
        {"dim_mult": ()},
        {"dim_mult": (1, 0, 4, 4)},
        {"temporal_upsample": (True,)},
        {"base_dim": 5, "dim_mult": (1, 1, 1, 1)},
    ],
)
def test_sizes_that_make_no_decoder_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"not|flags|halve"):
        replace(GEOMETRY, **change)
