"""The C programs, built once for all tests, with AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.artifacts import make_artifact
from tests.device_runtime.builds import built
from tests.device_runtime.decoder_program import Decoded
from tests.device_runtime.gpu import Gpu, Refused, gpu_environment
from tests.device_runtime.programs import Checker
from tests.device_runtime.qnn_stand_in import build_stand_in
from tests.locks import shared_folder
from tests.malformed.registry import BASES


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> path of the programs of the preset ``host-asan``."""
    return built(tmp_path_factory, "host-asan", "the runtime is not tested")


@pytest.fixture(scope="session")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """As above of the preset ``host``: as they ship, for what is compared over whole videos. Those that compute."""
    return built(tmp_path_factory, "host", "the optimised build is not tested", ("hvdc_blocks", "hvdc_runner"))


@pytest.fixture
def checker(programs: dict[str, Path]) -> Iterator[Checker]:
    """A running ``hvdc_check``; a sanitizer's report or a leak fails the test that asked."""
    with Checker(programs["hvdc_check"]) as running:
        yield running


@pytest.fixture(scope="session")
def gpu_caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled kernels, of ours and of PoCL's own cache, which all processes of a test run share."""
    return shared_folder(tmp_path_factory, "gpu-caches")


@pytest.fixture(scope="session")
def start_gpu(
    programs: dict[str, Path], gpu_caches: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Gpu]:
    """``start_gpu(option=value, …)``: a running ``hvdc_gpu_check``; skips where there is no OpenCL device."""
    program, folder = programs["hvdc_gpu_check"], tmp_path_factory.mktemp("gpu")
    environment = gpu_environment(gpu_caches)

    def start(**options: object) -> Gpu:
        return Gpu(program, folder, environment, **{"cache": gpu_caches / "ours", **options})

    with start() as gpu:
        try:
            gpu.ask("import")
        except Refused as why:
            if ": OpenCL " not in str(why):  # which is what begins the sentences about a missing library or device
                raise
            pytest.skip(f"the GPU's engine is not tested: {why}")
    return start


@pytest.fixture(scope="session")
def gpu(start_gpu: Callable[..., Gpu]) -> Iterator[Gpu]:
    """One for single kernels, with heads of 128 channels."""
    with start_gpu(dot="plain") as running:
        running.ask("device", 128)
        yield running


@pytest.fixture(scope="session")
def stand_in(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a stand-in for QNN's libraries."""
    return build_stand_in(tmp_path_factory.mktemp("qnn"))


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    """With a decoder in tiles of 4 × 4: two graphs for each variant, of which three share a binary; caches of 8 and 16
    bits."""
    return make_artifact(tmp_path / "a.hvdc", BASES["base-decoder"])


@pytest.fixture
def run(programs: dict[str, Path], stand_in: Path, tmp_path: Path) -> Decoded:
    """The device's decoder on the stand-in."""
    return Decoded(programs["hvdc_decoder_check"], stand_in, tmp_path)
