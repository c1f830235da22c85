"""Whole clips through the streaming graphs: diffusers' decode, untiled and tiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from exporters.decoder.blocks import Variant
from exporters.decoder.checkpoint import DecoderCheckpoint, open_decoder
from exporters.decoder.reference import GraphError, Models, StreamingDecoder, float_models
from exporters.decoder.tiles import TileSettings
from exporters.tensor import Float32Array
from tests.exporters.decoder.vaes import GEOMETRY, autoencoder, decoded, in_memory, latent

pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/moving_shapes/model/vae"
TOLERANCE = 1e-5
"""Largest difference of a value in [-1, 1], FP32 against FP32."""


@pytest.fixture(scope="module")
def small() -> DecoderCheckpoint:
    return in_memory()


@pytest.fixture(scope="module")
def untiled(small: DecoderCheckpoint) -> StreamingDecoder:
    return StreamingDecoder(GEOMETRY, float_models(small))


def assert_same(frames: Float32Array, expected: Float32Array) -> None:
    """``frames`` in [0, 1] are ``expected`` in [-1, 1]; most of which is no clamped value, and not all the same."""
    assert frames.dtype == np.float32
    assert frames.shape == expected.shape
    assert np.abs(expected).max() > 0.2
    assert (np.abs(expected) >= 1).mean() < 0.1
    np.testing.assert_allclose(2 * frames - 1, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 13])
def test_a_clip_is_diffusers(small: DecoderCheckpoint, untiled: StreamingDecoder, count: int) -> None:
    z = latent(count, 4, 5)
    frames = untiled.decode(z)
    assert frames.shape == (4 * count - 3, 32, 40, 3)
    assert_same(frames, decoded(autoencoder(), z, small.weights))


def test_a_clip_is_diffusers_with_onnxruntime_s_optimisations(small: DecoderCheckpoint) -> None:
    z = latent(3, 4, 5)
    frames = StreamingDecoder(GEOMETRY, float_models(small), optimise=True).decode(z)
    assert_same(frames, decoded(autoencoder(), z, small.weights))


CUT = [("mid", "up0", "up1"), ("up2", "up3")]


def renamed(models: Models, where: Variant, before: str, after: str) -> Models:
    """A value called otherwise in the graphs of one variant."""

    def changed(variant: Variant, rows: int, columns: int) -> Sequence[onnx.ModelProto]:
        found = models(variant, rows, columns)
        for model in found if variant == where else ():
            for value in (*model.graph.input, *model.graph.output):
                value.name = after if value.name == before else value.name
            for node in model.graph.node:
                for names in (node.input, node.output):
                    names[:] = [after if name == before else name for name in names]
        return found

    return changed


@pytest.mark.parametrize(
    ("variant", "before", "number", "what"),
    [
        ("first", "latent", 0, "nothing writes other, which it reads"),
        ("later", "latent", 0, "nothing writes other, which it reads"),
        ("later", "frames", 1, "it writes nothing as frames"),
    ],
)
def test_graphs_that_do_not_follow_each_other(
    variant: Variant, before: str, number: int, what: str, small: DecoderCheckpoint
) -> None:
    with pytest.raises(GraphError) as caught:
        StreamingDecoder(GEOMETRY, renamed(float_models(small, CUT), variant, before, "other")).decode(latent(2, 4, 5))
    assert (caught.value.variant, caught.value.number) == (variant, number)
    assert what in caught.value.what


def test_frames_of_another_size(small: DecoderCheckpoint) -> None:
    """Two to a latent frame are due, and four are written."""
    geometry = replace(GEOMETRY, temporal_upsample=(True, False, False))
    with pytest.raises(GraphError, match=r"graph 0 of 'later': it writes \[1, 3, 4, 32, 40\] as frames, not \[1, 3, 2"):
        StreamingDecoder(geometry, float_models(small)).decode(latent(2, 4, 5))


def test_a_graph_that_onnxruntime_does_not_know(small: DecoderCheckpoint) -> None:
    def models(variant: Variant, rows: int, columns: int) -> Sequence[onnx.ModelProto]:
        models = float_models(small, CUT)(variant, rows, columns)
        models[1].graph.node[0].op_type = "Frobnicate"
        return models

    with pytest.raises(GraphError, match=r"graph 1 of 'first': .*Frobnicate"):
        StreamingDecoder(GEOMETRY, models).decode(latent(2, 4, 5))


def test_clips_do_not_see_each_other(untiled: StreamingDecoder) -> None:
    z = latent(3, 4, 5)
    first = untiled.decode(z)
    untiled.decode(latent(2, 4, 5, seed=9))
    np.testing.assert_array_equal(untiled.decode(z), first)


def test_stages_make_the_same_clip(small: DecoderCheckpoint, untiled: StreamingDecoder) -> None:
    z = latent(3, 4, 5)
    staged = StreamingDecoder(GEOMETRY, float_models(small, [("mid",), ("up0", "up1"), ("up2",), ("up3",)]))
    np.testing.assert_array_equal(staged.decode(z), untiled.decode(z))


@pytest.mark.parametrize(("rows", "columns"), [(8, 9), (6, 8), (7, 4), (4, 5)])
def test_a_tiled_clip_is_diffusers_tiled(small: DecoderCheckpoint, rows: int, columns: int) -> None:
    """In both directions, with diffusers' own tiles, which it cuts at the edges."""
    settings = TileSettings(6, 5, 2, 2, "diffusers")
    z = latent(2, rows, columns)
    frames = StreamingDecoder(GEOMETRY, float_models(small), settings).decode(z)
    assert_same(frames, tiled(z, small, settings))


@pytest.mark.parametrize("columns", [5, 8, 11])
def test_even_tiles_are_diffusers_but_for_its_last_sliver(small: DecoderCheckpoint, columns: int) -> None:
    """Where even tiles lie at multiples of the stride, as the paper's do, diffusers adds one of the overlap's width.

    That one shows in the last overlap only, which here is the last tile's own.
    """
    settings = TileSettings(6, 5, 0, 2)
    z = latent(2, 6, columns)
    frames = StreamingDecoder(GEOMETRY, float_models(small), settings).decode(z)
    expected = tiled(z, small, settings)
    shown = 8 * (columns if columns == 5 else columns - 2)
    assert_same(frames[:, :, :shown], expected[:, :, :shown])
    alone = StreamingDecoder(GEOMETRY, float_models(small)).decode(np.ascontiguousarray(z[..., columns - 5 :]))
    np.testing.assert_allclose(frames[:, :, shown:], alone[:, :, shown - 8 * columns :][:, :, : 8 * columns - shown])


def tiled(z: Float32Array, decoder: DecoderCheckpoint, settings: TileSettings) -> Float32Array:
    """diffusers' tiled decoding with the same tile and overlap."""
    from copy import deepcopy

    model: Any = deepcopy(autoencoder())
    model.enable_tiling(
        tile_sample_min_height=8 * settings.rows,
        tile_sample_min_width=8 * settings.columns,
        tile_sample_stride_height=8 * (settings.rows - settings.overlap_rows),
        tile_sample_stride_width=8 * (settings.columns - settings.overlap_columns),
    )
    return decoded(model, z, decoder.weights)


def test_progress_counts_latent_frames_of_tiles(small: DecoderCheckpoint) -> None:
    seen: list[tuple[int, int]] = []
    settings = TileSettings(4, 3, 0, 1)
    StreamingDecoder(GEOMETRY, float_models(small), settings).decode(
        latent(2, 4, 5), lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize(
    "z",
    [
        np.zeros((4, 1, 3, 4)),
        np.zeros((5, 1, 3, 4), np.float32),
        np.zeros((4, 3, 4), np.float32),
        np.zeros((4, 0, 3, 4), np.float32),
    ],
    ids=["float64", "channels", "rank", "no frame"],
)
def test_a_latent_of_another_form(untiled: StreamingDecoder, z: Any) -> None:
    with pytest.raises(ValueError, match=r"a latent is float32 \[4, T, H, W\]"):
        untiled.decode(z)


@pytest.mark.skipif(not (EXAMPLE / "config.json").is_file(), reason="the example model is not there")
def test_the_example_s_trained_decoder_is_diffusers() -> None:
    from diffusers import AutoencoderKLWan

    model = AutoencoderKLWan.from_pretrained(EXAMPLE).float().eval()
    with open_decoder(EXAMPLE) as decoder:
        z = latent(3, 6, 5, decoder.geometry)
        frames = StreamingDecoder(decoder.geometry, float_models(decoder)).decode(z)
        assert_same(frames, decoded(model, z, decoder.weights))
