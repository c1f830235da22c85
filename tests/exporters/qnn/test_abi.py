"""The declared structures against the sizes and offsets that were checked with the libraries, and other versions."""

from __future__ import annotations

import ctypes

import pytest

from exporters.qnn import abi
from exporters.qnn.errors import QnnError

SIZES = {
    abi.Quant: 40,
    abi.TensorBody: 136,
    abi.Tensor: 144,
    abi.GraphInfo: 88,
    abi.InfoV3: 136,
    abi.BinaryInfo: 144,
}
OFFSETS = {
    (abi.TensorBody, "quant"): 32,
    (abi.TensorBody, "dims"): 80,
    (abi.TensorBody, "memory"): 96,
    (abi.Provider, "table"): 40,
    (abi.SystemProvider, "table"): 32,
}


@pytest.mark.parametrize("kind", SIZES, ids=lambda kind: kind.__name__)
def test_sizes(kind: type[ctypes.Structure]) -> None:
    assert ctypes.sizeof(kind) == SIZES[kind]


@pytest.mark.parametrize("place", OFFSETS, ids=lambda place: f"{place[0].__name__}.{place[1]}")
def test_offsets(place: tuple[type[ctypes.Structure], str]) -> None:
    assert getattr(place[0], place[1]).offset == OFFSETS[place]


@pytest.mark.parametrize("version", [0, 1, 2, 4])
def test_another_version_of_the_info_is_refused(version: int) -> None:
    """It is laid out differently, so nothing else of it may be read."""
    with pytest.raises(QnnError, match="in a version that is not understood") as caught:
        abi._info(abi.BinaryInfo(version=version), "old.bin")
    assert caught.value.found == f"version {version}"


def good() -> abi.BinaryInfo:
    info = abi.BinaryInfo(version=3)
    context, graph, blob = abi.HtpContext(1, 79), abi.GraphInfo(version=3, name=b"g"), abi.HtpGraph(vtcm_bytes=8 << 20)
    graph.blob, graph.blob_size = ctypes.addressof(blob), ctypes.sizeof(blob)
    v3 = info.v3
    v3.backend_id, v3.graphs_count, v3.graphs = abi.HTP_BACKEND_ID, 1, ctypes.pointer(graph)
    v3.metadata, v3.metadata_size = ctypes.addressof(context), ctypes.sizeof(context)
    info.keep = (context, graph, blob)
    return info


def test_a_good_one() -> None:
    assert abi._info(good(), "x.bin")["graphs"][0]["vtcm_bytes"] == 8 << 20


@pytest.mark.parametrize(
    ("field", "value"), [("backend_id", 4), ("graphs_count", 0), ("graphs_count", 1 << 31), ("metadata_size", 0)]
)
def test_counts_that_make_no_sense_are_not_followed(field: str, value: int) -> None:
    info = good()
    setattr(info.v3, field, value)
    with pytest.raises(QnnError, match="makes no sense"):
        abi._info(info, "x.bin")


@pytest.mark.parametrize(("field", "value"), [("version", 2), ("blob_size", 8), ("inputs_count", 1 << 30)])
def test_a_graph_that_makes_no_sense_is_not_followed(field: str, value: int) -> None:
    info = good()
    setattr(info.v3.graphs[0], field, value)
    with pytest.raises(QnnError, match="makes no sense"):
        abi._info(info, "x.bin")
