"""The device's decoder on Qualcomm's own library, which emulates the NPU on x86: the example's decoder on small tiles.

The emulator says nothing about time, and takes a binary of any architecture. It loads no binary with shared weights, so
each graph has a binary of its own here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from exporters.qnn.available import library_folder, toolchain, why_not
from exporters.qnn.emulate import run_graph
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.decoder_trials import FRAMES_PSNR_DB, GRAPH_LSB
from hvdc.pipeline.host_decoder import HostDecoder
from hvdc.pipeline.run_frames import read_frames
from hvdc.pipeline.run_results import read_result
from hvdc.pipeline.stream_file import StreamVideo
from hvdc.pipeline.videos import pixels_of
from hvdc.progress import Silent
from quant.frames import psnr_db
from tests.commands import ROOT
from tests.decoders import compiled_decoder, entry_of, random_latents, write_latents
from tests.device_runtime.decoder_program import Decoded
from tests.device_runtime.qnn_stand_in import Codes, dequantise, quantise
from tests.device_runtime.runs import Runner, stream_of

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is here")

VAE = ROOT / "examples" / "moving_shapes" / "model" / "vae"
APART = ("--set", "decoder_share_weights=false")
CLIP = ("--height", 32, "--width", 48)
Float32Array = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def artifact(watched_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the example's decoder in tiles of 4 × 4 latent pixels, of which its clips have two."""
    folder = tmp_path_factory.mktemp("emulated")
    latents = write_latents(folder / "latents.safetensors", random_latents(1))
    given = ("--vae", VAE, "--latents", latents, "--decoder-tile", "4x4", *APART, *CLIP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVDC_CACHE_DIR", str(folder / "cache"))
        return compiled_decoder(watched_checkpoint, folder / "a.hvdc", *given, backend="qnn")


@pytest.fixture
def run(programs: dict[str, Path], tmp_path: Path) -> Decoded:
    return Decoded(programs["hvdc_decoder_check"], library_folder(), tmp_path, emulator=True)


def pixels(frames: Float32Array) -> npt.NDArray[np.uint8]:
    return pixels_of(frames, "clip")


def test_what_it_was_opened_with(artifact: Path, run: Decoded) -> None:
    facts = run.open(artifact, "--soc", "69", "--arch", "79").facts
    assert facts["backend_build"] == facts["binary_build"] == toolchain().build_id
    assert facts["core_api"] == toolchain().core_api
    assert (facts["soc"], facts["arch"], facts["contexts"], facts["contexts_loaded"]) == (69, 79, 2, 2)
    assert facts["memory"].startswith("client buffers: error 1000 ("), "the emulator registers no memory"


def test_a_clip_is_the_exact_references_within_the_bounds_of_one_graph(artifact: Path, run: Decoded) -> None:
    """ONNX Runtime on the artifact's graphs, in the same tiles. The bounds are those that `hvdc validate --emulate` has
    for a graph on the reference's caches; here the emulator's own caches go on. The latent is noise of half the usual
    deviation: 47 dB; of all of it, which no model gives, 38 dB."""
    latent = random_latents(1, frames=2, rows=4, columns=6)[0] / np.float32(2)
    found = run.frames(artifact, latent)
    with open_artifact(artifact) as opened, HostDecoder(opened) as decoder:
        due = pixels(decoder.decode(latent, Silent()))
        other = pixels(decoder.decode(latent[:, ::-1].copy(), Silent()))
    assert found.shape == due.shape == (5, 32, 48, 3)

    def near(reference: npt.NDArray[np.uint8]) -> bool:
        apart = np.abs(found.astype(np.int64) - reference).mean()
        unit = [array.astype(np.float32) / np.float32(255) for array in (found, reference)]
        return bool(apart <= GRAPH_LSB) and psnr_db(unit[0], unit[1]) >= FRAMES_PSNR_DB

    assert near(due)
    assert not near(other), "the control: a clip in another order"


def test_frames_and_caches_are_those_of_onnx_runtime_on_the_same_binaries(artifact: Path, run: Decoded) -> None:
    """To the last bit, over three latent frames: its execution provider drives the same library through other code."""
    entry, latent = entry_of(artifact), random_latents(1, frames=3, rows=4, columns=4)[0]
    frames: list[Float32Array] = []
    caches: dict[str, Codes] = {}
    for t in range(3):
        [graph] = entry.variant("later" if t else "first")
        codes = quantise(latent[None, :, t : t + 1], graph.inputs[0])
        path = artifact / "decoder" / f"{graph.name}.bin"
        written = run_graph(path, {**caches, "latent": codes})
        frames.append(dequantise(written["frames"], graph.outputs[0])[0].transpose(1, 2, 3, 0))
        caches = {name.removeprefix("next_"): value for name, value in written.items() if name.startswith("next_")}
    due = pixels(np.clip((np.concatenate(frames) + np.float32(1)) * np.float32(0.5), 0, 1))
    assert due.std() > 10
    np.testing.assert_array_equal(run.frames(artifact, latent), due)


def test_another_device_is_refused_which_the_library_would_take(artifact: Path, run: Decoded) -> None:
    said = run.refused(artifact, "--arch", "75")
    assert "is compiled for SoC 69, architecture V79; this device is SoC 69, architecture V75" in said


def test_the_runner_decodes_a_stream_with_it(
    artifact: Path, run: Decoded, programs: dict[str, Path], embeds: Path, tmp_path: Path
) -> None:
    """To the bit as `hvdc_decoder_check` decodes the same latent, in two tiles. What the library prints is not in the
    report."""
    stream = stream_of(tmp_path / "stream", artifact, embeds, [StreamVideo(0, 1)])
    runner = Runner(programs["hvdc_runner"], artifact, stream, tmp_path)
    done = runner.finished(tmp_path / "out", "npu", "--qnn-libraries", library_folder(), "--soc", 69, "--arch", 79)
    assert done.report["decoder"]["name"] == f"QNN {toolchain().build_id} on the x86 emulator of the NPU"
    assert done.report["videos"][0]["decode_s"] > 0
    with open_artifact(artifact) as opened:
        latent = read_result(tmp_path / "out" / "video-000000.safetensors", opened)
        found = read_frames(tmp_path / "out" / "video-000000.ppm", opened).pixels
    assert found.shape == (5, 32, 48, 3)
    assert found.std() > 10
    np.testing.assert_array_equal(found, run.frames(artifact, latent))
