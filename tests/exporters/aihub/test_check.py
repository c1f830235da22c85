"""Only a context binary of what was asked for gets through; real ones come from the QNN compiler, where it is here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exporters.aihub import check
from exporters.aihub.errors import AiHubError
from exporters.aihub.options import AiHubOptions
from exporters.qnn import available
from exporters.qnn import graphs as qdq
from exporters.qnn.compile import compile_graphs
from exporters.qnn.metadata import Metadata
from exporters.qnn.options import QnnOptions
from tests.exporters.aihub.conftest import Compiler
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
    with pytest.raises(AiHubError, match="not what was asked for: inputs of flat, x"):
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
    compiler("flat", options=AiHubOptions(soc=87, arch=81))


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


def described(path: Path, name: str) -> tuple[Metadata, dict[str, qdq.Signature]]:
    """Metadata as a binary of exactly this graph would have it."""
    signature = qdq.signature(qdq.load(path), "")
    tensors = {
        kind: tuple(
            check.TensorInfo(p.name, p.dtype.replace("uint", "ufixed"), p.dims, p.scale, -(p.zero_point or 0))
            for p in ports
        )
        for kind, ports in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }
    graph = check.GraphInfo(name, **tensors, vtcm_bytes=8 << 20, optimization=3, spill_fill_bytes=0)
    return Metadata("b", "1", "1", "1", 69, 79, (graph,)), {name: signature}


def test_graphs_are_paired_by_name(graphs: dict[str, Path]) -> None:
    first, asked = described(graphs["first"], "first")
    later, more = described(graphs["later"], "later")
    both = replace(first, graphs=(*later.graphs, *first.graphs))
    found = check.pair(both, asked | more, AiHubOptions(), "")
    assert [info.name for info in found.values()] == ["first", "later"]
    swapped = replace(first, graphs=tuple(replace(g, name=f"g{i}") for i, g in enumerate(both.graphs)))
    with pytest.raises(AiHubError, match="asked for: graphs"):
        check.pair(swapped, asked | more, AiHubOptions(), "")
    with pytest.raises(AiHubError, match="asked for: graphs"):
        check.pair(first, asked | more, AiHubOptions(), "")


def test_one_graph_may_have_any_name(graphs: dict[str, Path]) -> None:
    metadata, asked = described(graphs["flat"], "flat")
    metadata = replace(metadata, graphs=(replace(metadata.graphs[0], name="graph_x7"),))
    assert check.pair(metadata, asked, AiHubOptions(), "")["flat"].name == "graph_x7"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "float32"}, "outputs of flat, y"),
        ({"dims": (1, 16, 16, 17)}, "outputs of flat, y"),
        ({"name": "output_0"}, "outputs of flat, y"),
        ({"scale": 0.5}, "outputs of flat, y"),
        ({"offset": 0}, "outputs of flat, y"),
        ({"scale": None, "offset": None}, "outputs of flat, y"),
    ],
)
def test_another_output(graphs: dict[str, Path], change: dict[str, object], said: str) -> None:
    metadata, asked = described(graphs["flat"], "flat")
    [graph] = metadata.graphs
    changed = replace(graph, outputs=(replace(graph.outputs[0], **change),))
    with pytest.raises(AiHubError, match=said) as caught:
        check.pair(replace(metadata, graphs=(changed,)), asked, AiHubOptions(), "job j1")
    assert caught.value.where == "job j1"


def test_more_than_was_asked_for(graphs: dict[str, Path]) -> None:
    metadata, asked = described(graphs["flat"], "flat")
    [graph] = metadata.graphs
    more = replace(graph, outputs=(*graph.outputs, replace(graph.outputs[0], name="z")))
    with pytest.raises(AiHubError, match="outputs of flat"):
        check.pair(replace(metadata, graphs=(more,)), asked, AiHubOptions(), "")
    with pytest.raises(AiHubError, match="VTCM of flat"):
        check.pair(metadata, asked, AiHubOptions(vtcm_mb=4), "")
