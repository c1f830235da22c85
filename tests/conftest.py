"""Tiny checkpoints and artifacts that many tests read and none changes, and small file systems to fill."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from device_runtime.build import compiler
from device_runtime.sources import sources_sha256
from exporters.model import TINY
from exporters.qnn.available import why_not
from exporters.synth import write_checkpoint
from hvdc.pipeline.runtime_kept import PROGRAMS, folder_of, keep
from hvdc.pipeline.runtime_skel import SWITCH
from tests import calibrations, decoders
from tests.commands import compiled
from tests.device_runtime.builds import built
from tests.exporters.models import GEOMETRY
from tests.locks import alone, made_once, shared_folder

RAGGED = replace(GEOMETRY, width=140, ffn_width=200, rank=5, text_width=40)
"""No size of a weight is a multiple of 32, so every tensor is padded."""


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preset ``tiny`` as DCM's single file, bf16."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.safetensors"
    return write_checkpoint(path, TINY, layout="dcm", dtype="bf16").path


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees what commands of this user kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVDC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv(SWITCH, "0")  # compiling builds no library for a phone's DSP, which takes long
        yield


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """A background job of a script ignores Ctrl-C, and all that it starts does; tests interrupt what they start."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _nothing_kept(factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty cache for what many tests share: the test that asks first may have one in which programs are kept, which
    would travel with an artifact."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVDC_CACHE_DIR", str(factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_artifact(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with _nothing_kept(tmp_path_factory):
        return compiled(tiny_checkpoint, tiny_checkpoint.with_name("tiny.hvdc"))


@pytest.fixture(scope="session")
def ragged_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose every size pads, as DCM's single file, fp32."""
    path = tmp_path_factory.mktemp("ragged") / "ragged.safetensors"
    return write_checkpoint(path, RAGGED, layout="dcm", dtype="f32").path


@pytest.fixture(scope="session")
def ragged_artifact(ragged_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with _nothing_kept(tmp_path_factory):
        return compiled(ragged_checkpoint, ragged_checkpoint.with_name("ragged.hvdc"))


@pytest.fixture(scope="session")
def slow_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-four blocks: enough files that a compile can be stopped in the middle."""
    path = tmp_path_factory.mktemp("slow") / "slow.safetensors"
    return write_checkpoint(path, replace(TINY, layers=24, width=128, heads=1), layout="dcm", dtype="bf16").path


@pytest.fixture(scope="session")
def watched_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `tests.calibrations`, with both experts in one file."""
    return made_once(tmp_path_factory, "watched", lambda folder: calibrations.write_model(folder / "model"))


@pytest.fixture(scope="session")
def embeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three prompts for it."""
    return made_once(
        tmp_path_factory, "embeds", lambda folder: calibrations.write_embeds(folder / "embeds.safetensors")
    )


@pytest.fixture(scope="session")
def calibration(watched_checkpoint: Path, embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrated with all prompts, seed 0 and DCM's six steps."""

    def make(folder: Path) -> Path:
        return calibrations.calibrated(watched_checkpoint, embeds, folder / "c.safetensors")

    return made_once(tmp_path_factory, "calibration", make)


@pytest.fixture
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrating does not measure the CPU, which takes longer than the calibrations of tests."""
    monkeypatch.setattr("hvdc.pipeline.cost._cpu_flops", lambda: 1e12)


@pytest.fixture
def calibration_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `compile --prompts` keeps calibrations: a folder that is not there yet."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("HVDC_CACHE_DIR", str(folder))
    return folder / "calibrations"


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """``mounted(size_bytes, *options)`` mounts an empty tmpfs; skips where mounting is not permitted."""
    places: list[Path] = []

    def mount(size_bytes: int, *options: str) -> Path:
        place = tmp_path / f"mount-{len(places)}"
        place.mkdir()
        what = ",".join([f"size={size_bytes}", *options])
        if os.geteuid() != 0 or shutil.which("mount") is None:
            pytest.skip("mounting a small file system needs root and the program mount")
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", what, "none", place], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"mounting a small file system is not permitted here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", place], check=True)


@pytest.fixture(scope="session")
def vae(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(tmp_path_factory, "vae", lambda folder: decoders.write_vae(folder / "vae"))


@pytest.fixture(scope="session")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clips."""

    def make(folder: Path) -> Path:
        return decoders.write_latents(folder / "l.safetensors", decoders.random_latents())

    return made_once(tmp_path_factory, "latents", make)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of cached decoders, which all processes of a test run share: measuring takes a quarter of a minute."""
    return shared_folder(tmp_path_factory, "measured")


@pytest.fixture(scope="session")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that all processes of a test run share, in which the runtime is kept as `hvdc runtime build` keeps it. It
    is of the tests' one optimised build. Skips where it cannot be built."""
    programs = built(tmp_path_factory, "host", "the runtime is not built", PROGRAMS)
    cache = shared_folder(tmp_path_factory, "runtimes")
    with alone(cache / "lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVDC_CACHE_DIR", str(cache))
        version, sources = compiler("host"), sources_sha256()
        folder = folder_of("host", version, sources)
        if not folder.exists():
            folder.mkdir(parents=True)
            keep(folder, programs, "host", version, sources)
    return cache


@pytest.fixture(scope="session")
def with_decoder(
    watched_checkpoint: Path, vae: Path, latents: Path, measured: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """``with_decoder(name, *options, backend="onnx")``: an artifact with a decoder, made once for all processes."""

    def make(name: str, *options: object, backend: str = "onnx") -> Path:
        def compiled(folder: Path) -> Path:
            with alone(measured / "lock"), pytest.MonkeyPatch.context() as patch:
                patch.setenv("HVDC_CACHE_DIR", str(measured))
                given = ("--vae", vae, "--latents", latents, *options)
                return decoders.compiled_decoder(watched_checkpoint, folder / f"{name}.hvdc", *given, backend=backend)

        return made_once(tmp_path_factory, name, compiled)

    return make


@pytest.fixture(scope="session")
def tiled_artifact(with_decoder: Callable[..., Path]) -> Path:
    """With a decoder in two by two tiles, as ONNX graphs alone."""
    return with_decoder("tiled", "--decoder-tile", decoders.TILED)


@pytest.fixture(scope="session")
def whole_artifact(with_decoder: Callable[..., Path]) -> Path:
    """With a decoder in one tile, as ONNX graphs alone."""
    return with_decoder("whole")


@pytest.fixture(scope="session")
def binary_artifact(with_decoder: Callable[..., Path]) -> Path:
    """With a decoder in one tile, compiled for the phone's NPU; skips where that is not possible."""
    if why := why_not():
        pytest.skip(why)
    return with_decoder("binary", backend="qnn")


@pytest.fixture(scope="session")
def runnable_artifact(with_decoder: Callable[..., Path], calibration: Path) -> Path:
    """With a decoder in two by two tiles, and activation scales."""
    scales = ("--calibration", calibration, "--allow-geometry")
    return with_decoder("runnable", "--decoder-tile", decoders.TILED, *scales)


@pytest.fixture
def decoder_cache(tiled_artifact: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A test's own cache: encodings that were measured are in it, no graphs and no binaries."""
    folder = tmp_path / "cache" / "decoders"
    folder.mkdir(parents=True)
    for path in (measured / "decoders").glob("*.json"):
        shutil.copy(path, folder)
    monkeypatch.setenv("HVDC_CACHE_DIR", str(folder.parent))
    return folder


@pytest.fixture
def graphs_cache(measured: Path, decoder_cache: Path) -> Path:
    """With the graphs of `tiled_artifact` in it too; returns their folder."""
    for entry in (measured / "decoders").glob("*/entry.json"):
        if f'"rows":{decoders.TILED.partition("x")[0]},' in entry.read_text():
            return Path(shutil.copytree(entry.parent, decoder_cache / entry.parent.name))
    raise AssertionError("no such graphs")
