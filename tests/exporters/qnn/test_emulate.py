"""The emulator against the reference, to the last bit."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from exporters.qnn.available import Toolchain
from exporters.qnn.compile import Compiled
from exporters.qnn.emulate import Difference, Runs, compare, run_graph, run_reference
from exporters.qnn.errors import QnnError
from exporters.qnn.graphs import write_wrapper
from exporters.qnn.options import Limits, QnnOptions
from tests.exporters.qnn import build
from tests.exporters.qnn.conftest import QUICK

MOST_LSB = 2


@pytest.fixture(scope="module")
def inputs() -> dict[str, np.ndarray]:
    return build.values(build.CAUSAL)


@pytest.fixture(scope="module")
def reference(backend: Toolchain, graphs: Path, inputs: dict) -> dict[str, np.ndarray]:
    return run_reference(graphs / "causal.onnx", inputs, QUICK)


@pytest.fixture(scope="module")
def emulated(causal: Compiled, inputs: dict) -> dict[str, np.ndarray]:
    return run_graph(causal.path, inputs, limits=QUICK)


def test_a_binary_against_the_reference(reference: dict, emulated: dict) -> None:
    found = compare(reference, emulated)
    assert found["y"].max_lsb <= MOST_LSB
    assert found["y"].mean_lsb < 0.1
    assert emulated["y"].std() > 10, "the outputs say something"


def test_the_cache_is_exact(inputs: dict, reference: dict, emulated: dict) -> None:
    """It is handed from chunk to chunk: an error of one step would grow."""
    assert compare(reference, emulated)["cache_out"] == Difference(0, 0.0, 0.0)
    np.testing.assert_array_equal(emulated["cache_out"], inputs["x"])


def test_another_cache_gives_another_output(causal: Compiled, inputs: dict, emulated: dict) -> None:
    """The control: the cache that goes in is used."""
    other = run_graph(causal.path, {**inputs, "cache_in": inputs["cache_in"] ^ 0x40}, limits=QUICK)
    assert compare(emulated, other)["y"].share > 0.5


def test_a_graph_runs_as_its_binary_does(graphs: Path, inputs: dict, emulated: dict) -> None:
    direct = run_graph(graphs / "causal.onnx", inputs, limits=QUICK)
    assert {d.max_lsb for d in compare(direct, emulated).values()} == {0}


def test_a_wrapper_runs_its_binary(causal: Compiled, inputs: dict, emulated: dict, tmp_path: Path) -> None:
    shutil.copy(causal.path, tmp_path / "b.bin")
    write_wrapper(tmp_path / "w.onnx", "b.bin", causal.graphs[0].info)
    found = run_graph(tmp_path / "w.onnx", inputs, limits=QUICK)
    assert {d.max_lsb for d in compare(found, emulated).values()} == {0}


def test_sixteen_bits(backend: Toolchain, tmp_path: Path) -> None:
    graph = build.causal(tmp_path / "g.onnx", np.uint16)
    values = build.values(build.CAUSAL, np.uint16)
    found = compare(run_reference(graph, values, QUICK), run_graph(graph, values, QnnOptions(optimization=1), QUICK))
    assert found["cache_out"].max_lsb == 0
    assert found["y"].mean_lsb < 2


def test_binaries_that_share_weights_are_never_loaded(shared: Compiled, inputs: dict, watched) -> None:
    watched("emulate", lambda pid: pytest.fail("the emulator was started"))
    with pytest.raises(QnnError, match="binaries with one graph only") as caught:
        run_graph(shared.path, inputs)
    assert "crashes the library" in caught.value.found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda a: a.pop("cache_in"), "'cache_in' does not fit"),
        (lambda a: a.update(more=a["x"]), "'more' does not fit"),
        (lambda a: a.update(x=a["x"].astype(np.uint16)), "'x' does not fit"),
        (lambda a: a.update(x=a["x"][..., :-1]), "'x' does not fit"),
    ],
    ids=["missing", "unknown", "dtype", "shape"],
)
def test_inputs_that_do_not_fit_never_reach_the_library(causal: Compiled, graphs: Path, inputs, change, said) -> None:
    changed = dict(inputs)
    change(changed)
    for run in (
        lambda: run_graph(causal.path, changed),
        lambda: run_graph(graphs / "causal.onnx", changed),
        lambda: run_reference(graphs / "causal.onnx", changed),
    ):
        with pytest.raises(QnnError, match=said):
            run()


def test_the_time_limit(causal: Compiled, inputs: dict) -> None:
    with pytest.raises(QnnError, match="running on the emulator took too long"):
        run_graph(causal.path, inputs, limits=Limits(seconds=0.1))


def test_a_run_in_another_thread_can_be_ended(backend: Toolchain, causal: Compiled, inputs: dict) -> None:
    """As Ctrl-C wants it: no process is left that is waited for. What begins later is ended too."""
    runs = Runs()
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(run_graph, causal.path, inputs, limits=QUICK, runs=runs)
        deadline = time.monotonic() + 60
        while not runs._processes and not begun.done() and time.monotonic() < deadline:
            time.sleep(0.001)
        runs.end()
        with pytest.raises(QnnError, match="was killed from outside"):
            begun.result(timeout=60)
    with pytest.raises(QnnError, match="was killed from outside"):
        run_graph(causal.path, inputs, limits=QUICK, runs=runs)
    assert not runs._processes


def test_a_damaged_blob_is_an_error(causal: Compiled, inputs: dict, tmp_path: Path) -> None:
    """The description is whole, the rest is zeros: the metadata reads, loading fails."""
    data = causal.path.read_bytes()
    path = tmp_path / "x.bin"
    path.write_bytes(data[:4096] + bytes(len(data) - 4096))
    with pytest.raises(QnnError) as caught:
        run_graph(path, inputs, limits=QUICK)
    assert caught.value.where == str(path)


# --- comparing ------------------------------------------------------------------------------------------------------


def test_differences_are_counted_in_steps() -> None:
    left, right = np.array([[0, 255, 7, 8]], np.uint8), np.array([[1, 255, 4, 8]], np.uint8)
    assert compare({"y": left}, {"y": right}) == {"y": Difference(3, 1.0, 0.5)}
    assert compare({"y": right}, {"y": left}) == {"y": Difference(3, 1.0, 0.5)}


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"z": np.zeros(2, np.uint8)},
        {"y": np.zeros(3, np.uint8)},
        {"y": np.zeros(2, np.uint16)},
        {"y": np.zeros(2, np.float32)},
    ],
    ids=["none", "name", "shape", "dtype", "float"],
)
def test_what_cannot_be_compared_is_refused(other: dict) -> None:
    with pytest.raises(QnnError):
        compare({"y": np.zeros(2, np.uint8)}, other)
