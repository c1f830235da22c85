"""The shipped example's decoder on clips of its own model that calibration has not seen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from examples.moving_shapes.generate import MODEL, denoise, load_transformer, seeded_noise
from examples.moving_shapes.shapes import load_prompts
from exporters.decoder.checkpoint import open_decoder
from exporters.decoder.graphs import first_graph, later_graph
from quant.decoder.encodings import choose_encodings
from quant.decoder.graph import Graphs, Structure, structure
from quant.decoder.qdq import quantise
from quant.decoder.ranges import Ranges, observe
from quant.decoder.stream import Float32Array, decode
from quant.frames import psnr_db
from tests.quant.decoder.small import behind_floats

SIDE = 6
"""Latent pixels of a tile from the middle of the clip, 48 pixels each way."""


@pytest.fixture(scope="module")
def clips() -> list[Float32Array]:
    """Five latents of different prompts, float32 [16, 2, 6, 6]."""
    prompts, text = load_prompts(MODEL / "prompts.safetensors")
    rows = [0, 70, 140, 210, 280]
    assert len({prompts[row] for row in rows}) == 5
    latents = denoise(load_transformer(MODEL / "transformer"), seeded_noise(range(5)), text[rows])
    start = (latents.shape[-1] - SIDE) // 2
    cut = latents[:, :, :2, start : start + SIDE, start : start + SIDE]
    assert cut.dtype == torch.float32
    return [np.ascontiguousarray(z) for z in cut.numpy()]


@pytest.fixture(scope="module")
def graphs() -> Iterator[Graphs]:
    with open_decoder(MODEL / "vae") as decoder:
        yield Graphs.of(first_graph(decoder, SIDE, SIDE).model(), later_graph(decoder, SIDE, SIDE).model())


@pytest.fixture(scope="module")
def known(graphs: Graphs) -> Structure:
    return structure(graphs)


@pytest.fixture(scope="module")
def ranges(graphs: Graphs, known: Structure, clips: list[Float32Array]) -> Ranges:
    return observe(graphs, clips[:4], known)


def test_frames_are_near_fp32(graphs: Graphs, known: Structure, ranges: Ranges, clips: list[Float32Array]) -> None:
    """16 bits only under the square roots of the norms. The goal is 38 dB; the bound is near what it reaches."""
    found = quantise(graphs, choose_encodings(known, ranges, known.root_groups))
    (reference,), (frames,) = decode(graphs, clips[4:]), decode(behind_floats(found), clips[4:])
    assert frames.shape == reference.shape == (5, 8 * SIDE, 8 * SIDE, 3)
    assert psnr_db(frames, reference) > 42
