"""The backend, or the exact reason why it is not here; small graphs and binaries that many tests read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exporters.qnn import process
from exporters.qnn.available import Toolchain, toolchain
from exporters.qnn.compile import Compiled, compile_graphs
from exporters.qnn.errors import QnnError
from exporters.qnn.options import Limits, QnnOptions
from tests.exporters.qnn import build

QUICK = Limits(seconds=60, memory_bytes=4 << 30)


@pytest.fixture(scope="session")
def backend() -> Toolchain:
    """Versions of the toolchain; skips where context binaries cannot be made."""
    try:
        return toolchain()
    except QnnError as error:
        pytest.skip(" | ".join(str(error).splitlines()))


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `conv2d.onnx`, `causal.onnx` and `first.onnx`."""
    folder = tmp_path_factory.mktemp("graphs")
    build.conv2d(folder / "conv2d.onnx")
    build.causal(folder / "causal.onnx")
    build.first_chunk(folder / "first.onnx")
    return folder


@pytest.fixture(scope="session")
def causal(backend: Toolchain, graphs: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The causal convolution with its cache, compiled for V79."""
    output = tmp_path_factory.mktemp("causal") / "causal.bin"
    return compile_graphs([("later", graphs / "causal.onnx")], output, limits=QUICK)


@pytest.fixture(scope="session")
def shared(backend: Toolchain, graphs: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Two graphs in one binary."""
    output = tmp_path_factory.mktemp("shared") / "both.bin"
    both = [("first", graphs / "first.onnx"), ("later", graphs / "causal.onnx")]
    return compile_graphs(both, output, QnnOptions(share_weights=True), QUICK)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[int], None]], None]:
    """``watched(task, started)``: ``started`` is given the process id of each worker that does this task."""
    real = process.run

    def watch(task: str, started: Callable[[int], None]) -> None:
        def run(name, arguments, limits, **more):
            return real(name, arguments, limits, **more, **({"started": started} if name == task else {}))

        monkeypatch.setattr(process, "run", run)

    return watch
