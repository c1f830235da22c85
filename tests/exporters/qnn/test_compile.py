"""Graphs become one binary that is what was asked for, or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from exporters.qnn import compile as compiling
from exporters.qnn.available import Toolchain
from exporters.qnn.compile import Compiled, compile_graphs
from exporters.qnn.errors import QnnError
from exporters.qnn.options import Limits, QnnOptions
from tests.exporters.qnn import build
from tests.exporters.qnn.conftest import QUICK

FAST = QnnOptions(optimization=1)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output in a folder of its own."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "x.bin"


def refused(graph: Path, output: Path, said: str, options: QnnOptions = FAST, limits: Limits = QUICK) -> QnnError:
    """Compiling fails with these words and leaves nothing behind."""
    with pytest.raises(QnnError, match=said) as caught:
        compile_graphs([("g", graph)], output, options, limits)
    assert list(output.parent.iterdir()) == [], "nothing is left behind"
    return caught.value


# --- what comes out ---------------------------------------------------------------------------------------------


def test_conv2d(backend: Toolchain, graphs: Path, output: Path) -> None:
    made = compile_graphs([("flat", graphs / "conv2d.onnx")], output, limits=QUICK)
    assert [p.name for p in output.parent.iterdir()] == ["x.bin"], "one file and nothing else"
    assert made.size_bytes == output.stat().st_size
    assert made.sha256 == hashlib.sha256(output.read_bytes()).hexdigest()
    assert made.toolchain == backend
    assert (made.metadata.soc, made.metadata.arch) == (69, 79)
    assert made.seconds > 0
    assert made.peak_rss_bytes > 50 << 20
    [graph] = made.graphs
    assert graph.name == "flat"
    assert graph.info.inputs[0].dims == build.CONV2D["x"]
    assert json.loads(json.dumps(made.to_json()))["path"] == "x.bin"


def test_causal_conv3d_with_its_cache(causal: Compiled) -> None:
    [graph] = causal.graphs
    assert graph.name == "later"
    assert graph.name_in_binary == causal.metadata.graphs[0].name
    assert {t.name for t in graph.info.inputs} == {"x", "cache_in"}
    assert {t.name for t in graph.info.outputs} == {"y", "cache_out"}


def test_sixteen_bit_activations(backend: Toolchain, tmp_path: Path, output: Path) -> None:
    graph = build.causal(tmp_path / "g.onnx", np.uint16)
    made = compile_graphs([("g", graph)], output, FAST, QUICK)
    assert {t.dtype for t in made.graphs[0].info.inputs} == {"ufixed16"}
    assert {t.offset for t in made.graphs[0].info.inputs} == {-32768}


@pytest.mark.parametrize(
    "options",
    [
        QnnOptions(soc=57, arch=75),
        QnnOptions(soc=87, arch=81, optimization=2),
        QnnOptions(vtcm_mb=4),
        QnnOptions(optimization=1, vtcm_mb=2),
    ],
    ids=str,
)
def test_the_binary_follows_the_options(backend: Toolchain, graphs: Path, output: Path, options: QnnOptions) -> None:
    found = compile_graphs([("g", graphs / "conv2d.onnx")], output, options, QUICK).metadata
    assert (found.soc, found.arch) == (options.soc, options.arch)
    assert found.graphs[0].vtcm_bytes == options.vtcm_mb << 20
    assert found.graphs[0].optimization == options.optimization


def test_the_same_bytes_wherever_it_is_done(causal: Compiled, graphs: Path, output: Path, tmp_path: Path) -> None:
    moved = tmp_path / "renamed.onnx"
    moved.write_bytes((graphs / "causal.onnx").read_bytes())
    again = compile_graphs([("later", moved)], output, causal.options, QUICK)
    assert again.sha256 == causal.sha256
    assert output.read_bytes() == causal.path.read_bytes()


def test_the_same_bytes_of_a_graph_with_an_address_in_it(backend: Toolchain, output: Path, tmp_path: Path) -> None:
    """The library writes an address of its own into this graph's binary."""
    graph = build.channel_mean(tmp_path / "g.onnx")
    made = [compile_graphs([("g", graph)], output, FAST, QUICK) for _ in range(3)]
    if not made[0].reproducible:
        pytest.skip("the kernel does not permit fixed addresses here (personality(2) is refused)")
    assert len({m.sha256 for m in made}) == 1


def test_two_graphs_share_their_weights(shared: Compiled, causal: Compiled) -> None:
    assert [g.name for g in shared.graphs] == ["first", "later"]
    assert len({g.name_in_binary for g in shared.graphs}) == 2
    assert {g.name for g in shared.metadata.graphs} == {g.name_in_binary for g in shared.graphs}
    first, later = (g.info for g in shared.graphs)
    assert {t.name for t in first.inputs} == {"x"}
    assert {t.name for t in later.inputs} == {"x", "cache_in"}
    assert shared.size_bytes < 2 * causal.size_bytes


def test_an_earlier_file_is_replaced_only_by_a_complete_one(
    backend: Toolchain, graphs: Path, output: Path, tmp_path: Path
) -> None:
    output.write_bytes(b"earlier")
    bad = build.unary(tmp_path / "bad.onnx", "Sqrt", (1, 8, 2, 8, 8))
    with pytest.raises(QnnError):
        compile_graphs([("g", bad)], output, FAST, QUICK)
    assert output.read_bytes() == b"earlier"
    compile_graphs([("g", graphs / "conv2d.onnx")], output, FAST, QUICK)
    assert output.read_bytes() != b"earlier"
    assert [p.name for p in output.parent.iterdir()] == ["x.bin"]


# --- graphs that the toolchain refuses ---------------------------------------------------------------------------


def test_an_operator_of_a_rank_that_is_not_supported(backend: Toolchain, output: Path, tmp_path: Path) -> None:
    error = refused(build.unary(tmp_path / "g.onnx", "Sqrt", (1, 8, 2, 8, 8)), output, "operator Sqrt in this form")
    assert "Sqrt_1" in error.where
    assert "rank 5 on [1, 8, 2, 8, 8]" in error.where
    assert "3110" in error.found
    assert any("QnnBackend_validateOpConfig failed 3110" in line for line in error.log)


def test_an_operator_that_does_not_exist(backend: Toolchain, output: Path, tmp_path: Path) -> None:
    error = refused(build.unary(tmp_path / "g.onnx", "Det", (1, 8, 8, 8), (1, 8)), output, "have the operator Det")
    assert "Det_1" in error.where


def test_an_operator_above_vtcm(backend: Toolchain, output: Path, tmp_path: Path) -> None:
    """At optimisation 3; the same graph compiles at 1, so the error names that way out too."""
    graph = build.above_vtcm(tmp_path / "g.onnx")
    error = refused(graph, output, "cannot be cut into pieces that fit into VTCM", QnnOptions())
    assert "another optimisation level" in error.fix
    assert "153,354,240 bytes" in error.found
    assert "of rank 5 on [1, 96, 4, 480, 832]" in error.where


def test_a_graph_above_the_limit_of_its_memory(backend: Toolchain, output: Path, tmp_path: Path) -> None:
    error = refused(build.above_the_graph_limit(tmp_path / "g.onnx"), output, "more memory than one graph may have")
    assert error.expected == "at most 3,670,016 KB"
    assert error.found == "3,932,168 KB estimated"


def test_a_graph_above_what_can_be_addressed(backend: Toolchain, output: Path, tmp_path: Path) -> None:
    refused(build.above_four_gib(tmp_path / "g.onnx"), output, "more memory than one graph can address")


# --- processes that are stopped ------------------------------------------------------------------------------------


def test_the_time_limit(backend: Toolchain, graphs: Path, output: Path) -> None:
    limits = replace(QUICK, seconds=0.1)
    error = refused(graphs / "conv2d.onnx", output, "took too long and was stopped", limits=limits)
    assert error.expected == "at most 0.1 s"


def test_the_memory_limit(backend: Toolchain, graphs: Path, output: Path) -> None:
    limits = replace(QUICK, memory_bytes=60 << 20)
    error = refused(graphs / "conv2d.onnx", output, "took too much memory and was stopped", limits=limits)
    assert error.expected == "at most 62,914,560 bytes resident"


def test_a_kill_from_outside(backend: Toolchain, graphs: Path, output: Path, watched) -> None:
    watched("compile", lambda pid: os.kill(pid, signal.SIGKILL))
    refused(graphs / "conv2d.onnx", output, "killed from outside")


def test_a_crash(backend: Toolchain, graphs: Path, output: Path, watched) -> None:
    watched("compile", lambda pid: os.kill(pid, signal.SIGSEGV))
    refused(graphs / "conv2d.onnx", output, "library crashed while compiling")


def test_an_interrupt_leaves_nothing(backend: Toolchain, graphs: Path, output: Path, watched) -> None:
    def interrupt(pid: int) -> None:
        raise KeyboardInterrupt

    watched("compile", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compile_graphs([("g", graphs / "conv2d.onnx")], output, FAST, QUICK)
    assert list(output.parent.iterdir()) == []


def test_a_binary_that_is_not_what_was_asked_for(
    backend: Toolchain, causal: Compiled, graphs: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library takes options that it does not follow, so the binary itself is asked."""
    monkeypatch.setattr(compiling, "read_metadata", lambda path: replace(causal.metadata, soc=57))
    error = refused(graphs / "causal.onnx", output, "not what was asked for: SoC", causal.options)
    assert (error.expected, error.found) == ("69", "57")


# --- what is refused before the toolchain starts --------------------------------------------------------------------


@pytest.fixture
def no_toolchain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compiling that gets as far as starting the toolchain fails the test."""
    monkeypatch.setattr(compiling, "library_folder", lambda: tmp_path)
    monkeypatch.setattr(compiling, "toolchain", lambda: pytest.fail("the toolchain was started"))


def edited(graphs: Path, path: Path, edit) -> Path:
    model = onnx.load(graphs / "conv2d.onnx")
    edit(model)
    onnx.save(model, path)
    return path


def float_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT


def symbolic(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"


def integer_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT32


@pytest.mark.parametrize(
    ("edit", "said", "found"),
    [
        (float_input, "'x' is not a quantised integer", "float"),
        (integer_output, "'y' is not a quantised integer", "int32"),
        (symbolic, "shape of 'x' is not fixed", "batch"),
        (lambda model: model.graph.ClearField("node"), "holds no graph", ""),
    ],
    ids=["float", "int32", "symbolic", "no nodes"],
)
@pytest.mark.usefixtures("no_toolchain")
def test_a_graph_that_cannot_be_compiled(graphs: Path, output: Path, tmp_path: Path, edit, said, found) -> None:
    error = refused(edited(graphs, tmp_path / "g.onnx", edit), output, said)
    assert found in error.found
    assert error.fix


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x08"])
@pytest.mark.usefixtures("no_toolchain")
def test_a_file_that_is_no_model(output: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "g.onnx"
    path.write_bytes(content)
    refused(path, output, "not a readable ONNX model|holds no graph")


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        ([], FAST, "there is no graph to compile"),
        (["../g"], FAST, "name cannot be used"),
        ([""], FAST, "name cannot be used"),
        (["a", "a"], QnnOptions(share_weights=True), "the same name"),
        (["a", "b"], FAST, "always share their weights"),
        (["a"], QnnOptions(share_weights=True), "nobody to share"),
    ],
)
@pytest.mark.usefixtures("no_toolchain")
def test_graphs_that_cannot_stand_together(
    graphs: Path, output: Path, names: list[str], options: QnnOptions, said: str
) -> None:
    with pytest.raises(QnnError, match=said):
        compile_graphs([(name, graphs / "conv2d.onnx") for name in names], output, options)
    assert list(output.parent.iterdir()) == []


@pytest.mark.usefixtures("no_toolchain")
def test_a_missing_graph(output: Path, tmp_path: Path) -> None:
    refused(tmp_path / "none.onnx", output, "there is no such file")


def test_an_output_that_cannot_be_written(backend: Toolchain, graphs: Path, tmp_path: Path) -> None:
    with pytest.raises(QnnError, match="output's folder does not exist"):
        compile_graphs([("g", graphs / "conv2d.onnx")], tmp_path / "none" / "x.bin")
    with pytest.raises(QnnError, match="the output is a folder"):
        compile_graphs([("g", graphs / "conv2d.onnx")], tmp_path)


def test_a_full_disk(backend: Toolchain, graphs: Path, mounted) -> None:
    """Too small for the copy of the graph, and for the binary."""
    for size in (8 << 10, 32 << 10):
        folder = mounted(size)
        with pytest.raises(QnnError, match=r"cannot be written|could not write") as caught:
            compile_graphs([("g", graphs / "causal.onnx")], folder / "x.bin", FAST, QUICK)
        assert list(folder.iterdir()) == []
        assert "free space" in caught.value.fix
