"""The frames of an artifact's decoder on this machine: exactly those of its graphs, tile by tile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from exporters.decoder.checkpoint import open_decoder
from exporters.decoder.reference import StreamingDecoder, float_models
from exporters.decoder.tiles import TileSettings, plan_tiles
from hvdc.artifact.reader import open_artifact
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.decoder_tiles import Attempt, TilePlanner
from hvdc.pipeline.host_decoder import HostDecoder
from hvdc.pipeline.latents_file import read_latents
from hvdc.progress import Silent
from quant.decoder.graph import Graphs
from quant.decoder.ports import float_ports
from quant.decoder.stream import decode
from tests.decoders import COLUMNS, ROWS, VAE, compiled_decoder, entry_of, random_latents, write_vae

TILES = TileSettings(4, 6, 2, 3)


def frames_of(artifact: Path, latent: np.ndarray, vae: Path | None = None) -> np.ndarray:
    with open_artifact(artifact) as opened, HostDecoder(opened, vae) as decoder:
        return decoder.decode(latent, Silent())


def graphs_of(artifact: Path) -> Graphs:
    """As any program finds them."""
    models = {
        variant: tuple(
            float_ports(onnx.load(artifact / "decoder" / f"{graph.model.removeprefix('decoder.')}.onnx"))
            for graph in entry_of(artifact).variant(variant)
        )
        for variant in ("first", "later")
    }
    return Graphs(models["first"], models["later"])


@pytest.fixture(scope="module")
def latent(latents: Path) -> np.ndarray:
    return read_latents(latents).values[0]


def test_one_tile(whole_artifact: Path, latent: np.ndarray) -> None:
    found = frames_of(whole_artifact, latent)
    assert found.shape == (5, 8 * ROWS, 8 * COLUMNS, 3)
    assert found.dtype == np.float32
    [due] = decode(graphs_of(whole_artifact), [latent])
    np.testing.assert_array_equal(found, due)


def test_several_tiles(tiled_artifact: Path, latent: np.ndarray) -> None:
    assert len(plan_tiles(ROWS, COLUMNS, TILES)) == 4
    found, graphs = frames_of(tiled_artifact, latent), graphs_of(tiled_artifact)
    due = StreamingDecoder(VAE, lambda variant, rows, columns: graphs.models(variant), TILES).decode(latent)
    np.testing.assert_array_equal(found, due)
    [first] = decode(graphs, [latent[:, :, :4, :6].copy()])
    [last] = decode(graphs, [latent[:, :, -4:, -6:].copy()])
    np.testing.assert_array_equal(found[:, :16, :16], first[:, :16, :16], "no neighbour fades into the corner")
    np.testing.assert_array_equal(found[:, -16:, -24:], last[:, -16:, -24:])


def test_int8_frames_are_near_those_of_float32(tiled_artifact: Path, vae: Path, latent: np.ndarray) -> None:
    found, due = frames_of(tiled_artifact, latent), frames_of(tiled_artifact, latent, vae)
    psnr = -10 * np.log10(np.square(found.astype(np.float64) - due).mean())
    assert psnr > 30
    assert found.min() >= 0
    assert found.max() <= 1
    assert found.std() > 0.05


def test_float32_is_the_autoencoder_in_the_artifacts_tiles(tiled_artifact: Path, vae: Path, latent: np.ndarray) -> None:
    with open_decoder(vae) as checkpoint:
        decoder = StreamingDecoder(checkpoint.geometry, float_models(checkpoint), TILES, optimise=True)
        due = decoder.decode(latent)
    np.testing.assert_array_equal(frames_of(tiled_artifact, latent, vae), due)


def test_stages_in_two_graphs_give_the_same_frames(
    watched_checkpoint: Path, vae: Path, latents: Path, latent: np.ndarray, whole_artifact: Path, decoder_cache: Path,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What one graph hands to the next are the integers that it would have gone on with."""
    tile = TileSettings(ROWS, COLUMNS, 3, 4)
    split = Attempt(tile, (("mid", "up0"), ("up1", "up2", "up3")))
    monkeypatch.setattr(TilePlanner, "attempts", lambda self: iter([split]))
    artifact = tmp_path / "a.hvdc"
    compiled_decoder(watched_checkpoint, artifact, "--vae", vae, "--latents", latents)
    entry = entry_of(artifact)
    assert [graph.stages for graph in entry.graphs] == 2 * [("mid", "up0"), ("up1", "up2", "up3")]
    for variant in ("first", "later"):
        before, after = entry.variant(variant)
        assert before.outputs[0] == after.inputs[0]
    np.testing.assert_array_equal(frames_of(artifact, latent), frames_of(whole_artifact, latent))


def test_more_frames_than_it_was_compiled_for(whole_artifact: Path) -> None:
    """The number of frames is no size of a graph."""
    latent = random_latents(1, frames=4)[0]
    found = frames_of(whole_artifact, latent)
    assert len(found) == 13
    np.testing.assert_array_equal(found[:1], frames_of(whole_artifact, latent[:, :1].copy()))
    np.testing.assert_array_equal(found[:5], frames_of(whole_artifact, latent[:, :2].copy()))


def test_a_larger_picture_has_more_tiles(whole_artifact: Path) -> None:
    found = frames_of(whole_artifact, random_latents(1, rows=9, columns=8)[0])
    assert found.shape == (5, 72, 64, 3)


@pytest.mark.parametrize("shape", [(16, 2, 3, 8), (16, 2, 4, 5), (4, 2, 6, 8)], ids=str)
def test_a_latent_that_does_not_fit(shape: tuple[int, ...], tiled_artifact: Path) -> None:
    with pytest.raises(UsageError, match="does not fit these latents") as caught:
        frames_of(tiled_artifact, np.zeros(shape, np.float32))
    assert caught.value.expected == "16 channels, at least 4 × 6 latent pixels"
    assert caught.value.found == f"{shape[0]} channels, {shape[2]} × {shape[3]}"


def test_another_autoencoder(tiled_artifact: Path, vae: Path, latent: np.ndarray, tmp_path: Path) -> None:
    other = write_vae(tmp_path / "other", seed=1)
    with pytest.raises(HvdcError, match="not the autoencoder that the artifact was compiled with") as caught:
        frames_of(tiled_artifact, latent, other)
    assert caught.value.expected == entry_of(tiled_artifact).vae_sha256
    assert caught.value.found != caught.value.expected


def test_an_artifact_without_a_decoder(tiny_artifact: Path, latent: np.ndarray) -> None:
    with pytest.raises(UsageError, match="holds no decoder") as caught:
        frames_of(tiny_artifact, latent)
    assert caught.value.fix == "compile it with --vae PATH --latents FILE"
