"""Only a context binary of what was asked for gets through; real ones come from the QNN compiler, where it is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exporters.aihub import check
from exporters.aihub.errors import AiHubError
from exporters.aihub.options import AiHubOptions
from exporters.qnn import available
from exporters.qnn.compile import compile_graphs
from exporters.qnn.options import QnnOptions
from tests.exporters.aihub.conftest import Compiler, described
from tests.exporters.aihub.stand_in import StandIn
from tests.exporters.qnn.conftest import QUICK, backend

__all__ = ["backend"]


@pytest.fixture(scope="session")
def real(backend: object, graphs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A binary of the later graph for V79."""
    path = tmp_path_factory.mktemp("real") / "later.bin"
    compile_graphs([("later", graphs["later"])], path, limits=QUICK)
    return path.read_bytes()


@pytest.fixture
def no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "why_not", lambda: "not here")


def refused(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(AiHubError, match="this is not a QNN context binary") as caught:
        check.is_binary(path, "job j1")
    assert caught.value.where == "job j1"
    return caught.value.found


# --- the whole way ----------------------------------------------------------------------------------------------


def test_a_real_binary_is_accepted(hub: StandIn, compiler: Compiler, real: bytes) -> None:
    hub.made = real
    made = compiler("later")
    assert compiler.output.read_bytes() == real
    assert made.metadata is not None
    assert (made.metadata.soc, made.metadata.arch) == (69, 79)
    [graph] = made.graphs
    assert graph.info is not None
    assert (graph.name, graph.name_in_binary) == ("later", graph.info.name)
    assert {tensor.name for tensor in graph.info.outputs} == {"y", "cache_out"}


def test_a_binary_of_another_graph(hub: StandIn, compiler: Compiler, real: bytes) -> None:
    hub.made = real
    with pytest.raises(AiHubError, match="not what was asked for: inputs of flat"):
        compiler("flat")
    assert compiler.left() == []


def test_a_binary_for_another_phone(
    hub: StandIn, compiler: Compiler, backend: object, graphs: dict[str, Path], tmp_path: Path
) -> None:
    compile_graphs([("flat", graphs["flat"])], tmp_path / "v81.bin", QnnOptions(87, 81, optimization=1), QUICK)
    hub.made = (tmp_path / "v81.bin").read_bytes()
    with pytest.raises(AiHubError, match="asked for: SoC") as caught:
        compiler("flat")
    assert (caught.value.expected, caught.value.found) == ("69", "87")
    compiler("flat", options=AiHubOptions(soc=87, arch=81, optimization=1))


def test_a_binary_that_was_cut_on_the_way(hub: StandIn, compiler: Compiler, real: bytes) -> None:
    """The download itself is whole: the service's file is not."""
    hub.made = real[:-4096]
    with pytest.raises(AiHubError, match="not a QNN context binary") as caught:
        compiler("later")
    assert f"{len(real) - 4096} bytes of {len(real)}: it is truncated" in caught.value.found
    assert compiler.left() == []
    hub.files = {key: real if value == hub.made else value for key, value in hub.files.items()}
    compiler("later")
    assert compiler.output.read_bytes() == real


def test_without_the_libraries(hub: StandIn, compiler: Compiler, real: bytes, no_libraries: None) -> None:
    hub.made = real
    made = compiler("later")
    assert made.metadata is None
    assert [(g.name, g.name_in_binary, g.info) for g in made.graphs] == [("later", "later", None)]


# --- the first bytes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("libraries", [True, False])
def test_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, libraries: bool) -> None:
    if not libraries:
        monkeypatch.setattr(available, "why_not", lambda: "not here")
    assert refused(tmp_path, b"") == "0 bytes, the first are missing"
    assert "stand-in" in refused(tmp_path, check.FAKE)
    assert "50 4b 03 04" in refused(tmp_path, b"PK\x03\x04" + bytes(100))
    assert "first are 00 00 00 02" in refused(tmp_path, bytes([0, 0, 0, 2, 0, 0, 0, 3]))


def test_a_damaged_head(tmp_path: Path, real: bytes) -> None:
    assert refused(tmp_path, real[:64] + bytes(512) + real[576:])


def test_another_blob_version_passes_the_first_look(tmp_path: Path, no_libraries: None) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(bytes([0, 0, 0, 2, 0, 0, 0, 9]) + bytes(100))
    assert check.is_binary(path, "") is None


# --- what a binary says of itself -------------------------------------------------------------------------------


def test_graphs_are_paired_by_name(graphs: dict[str, Path]) -> None:
    first, asked = described(first=graphs["first"])
    later, more = described(later=graphs["later"])
    both = replace(first, graphs=(*later.graphs, *first.graphs))
    found = check.pair(both, asked | more, AiHubOptions(), "")
    assert [info.name for info in found.values()] == ["first", "later"]
    swapped = replace(first, graphs=tuple(replace(g, name=f"g{i}") for i, g in enumerate(both.graphs)))
    with pytest.raises(AiHubError, match="asked for: graphs"):
        check.pair(swapped, asked | more, AiHubOptions(), "")
    with pytest.raises(AiHubError, match="asked for: graphs"):
        check.pair(first, asked | more, AiHubOptions(), "")


def test_one_graph_may_have_any_name(graphs: dict[str, Path]) -> None:
    metadata, asked = described(flat=graphs["flat"])
    metadata = replace(metadata, graphs=(replace(metadata.graphs[0], name="graph_x7"),))
    assert check.pair(metadata, asked, AiHubOptions(), "")["flat"].name == "graph_x7"


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float32"},
        {"dims": (1, 16, 16, 17)},
        {"name": "output_0"},
        {"scale": 0.5},
        {"offset": 0},
        {"scale": None, "offset": None},
    ],
)
def test_another_output(graphs: dict[str, Path], change: dict[str, object]) -> None:
    metadata, asked = described(flat=graphs["flat"])
    [graph] = metadata.graphs
    changed = replace(graph, outputs=(replace(graph.outputs[0], **change),))
    with pytest.raises(AiHubError, match="not what was asked for: outputs of flat") as caught:
        check.pair(replace(metadata, graphs=(changed,)), asked, AiHubOptions(), "job j1")
    assert caught.value.where == "job j1"
    assert caught.value.expected != caught.value.found
    assert caught.value.fix


def test_a_scale_that_is_nearly_the_same(graphs: dict[str, Path]) -> None:
    """The artifact holds the FP32 number, and so does a binary: nothing rounds on the way."""
    metadata, asked = described(flat=graphs["flat"])
    [graph] = metadata.graphs
    [output] = graph.outputs
    nearly = float(np.nextafter(np.float32(output.scale), np.float32(1)))
    changed = replace(graph, outputs=(replace(output, scale=nearly),))
    with pytest.raises(AiHubError, match="outputs of flat") as caught:
        check.pair(replace(metadata, graphs=(changed,)), asked, AiHubOptions(), "")
    assert str(output.scale) in caught.value.expected
    assert str(nearly) in caught.value.found


@pytest.mark.parametrize("level", [0, 1, 4])
def test_another_optimisation_level(graphs: dict[str, Path], level: int) -> None:
    metadata, asked = described(flat=graphs["flat"])
    other = replace(metadata, graphs=(replace(metadata.graphs[0], optimization=level),))
    with pytest.raises(AiHubError, match="optimisation level of flat") as caught:
        check.pair(other, asked, AiHubOptions(), "")
    assert (caught.value.expected, caught.value.found) == ("3", str(level))
    assert "another optimisation level" in caught.value.fix


def test_more_than_was_asked_for(graphs: dict[str, Path]) -> None:
    metadata, asked = described(flat=graphs["flat"])
    [graph] = metadata.graphs
    more = replace(graph, outputs=(*graph.outputs, replace(graph.outputs[0], name="z")))
    with pytest.raises(AiHubError, match="outputs of flat"):
        check.pair(replace(metadata, graphs=(more,)), asked, AiHubOptions(), "")
    with pytest.raises(AiHubError, match="VTCM bytes of flat"):
        check.pair(metadata, asked, AiHubOptions(vtcm_mb=4), "")
