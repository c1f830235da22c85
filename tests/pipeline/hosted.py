"""A decoder on its way to a stand-in for Qualcomm AI Hub, and to its phone. Fixtures are imported by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from exporters.aihub.compile import AiHubCompiled
from exporters.aihub.options import AiHubOptions
from exporters.qnn.metadata import Metadata
from hvdc.artifact.decoder import Binary, BinaryGraph, Decoder, Graph
from hvdc.pipeline import decoder_trials
from hvdc.pipeline.decoder_encodings import Quantised
from hvdc.pipeline.decoder_hosted import OnPhone, compile_hosted, run_on_phone
from hvdc.pipeline.decoder_parts import BINARY
from hvdc.progress import Silent
from tests.decoders import entry_of
from tests.exporters.aihub.conftest import QUICK, described, hasty_client, home, hub
from tests.exporters.aihub.stand_in import Arrays, StandIn
from tests.pipeline.test_decoder_checks import in_this_process

__all__ = ["hasty_client", "home", "hub"]


OPTIONS = AiHubOptions()
Exact = Callable[..., Arrays]


@dataclass
class Route:
    """A decoder's graphs in a folder of their own, as a compile has them. ``told`` is what was said."""

    folder: Path
    entry: Decoder
    probe: np.ndarray
    told: list[str]
    metadata: Metadata

    @property
    def graphs(self) -> dict[str, Path]:
        return {graph.name: self.folder / f"{graph.name}.onnx" for graph in self.entry.graphs}

    @property
    def binary(self) -> Path:
        return self.folder / "binary.bin"

    @property
    def state(self) -> Path:
        return self.folder / "aihub.json"

    def accept(self, path: Path, where: str) -> Metadata:
        """In place of the real judge: the stand-in's bytes pass for a binary of these graphs."""
        return self.metadata

    def compile(self, **more: Any) -> AiHubCompiled:
        more = {"waiting": QUICK, "accept": self.accept, **more}
        return compile_hosted([*self.graphs.items()], self.binary, OPTIONS, self.state, self.told.append, **more)

    def with_binary(self, made: AiHubCompiled) -> Decoder:
        """The entry that a compile makes of it."""
        m = made.metadata
        assert m is not None
        graphs = tuple(
            BinaryGraph(graph=g.name, name_in_binary=g.name_in_binary, optimization=3, vtcm_bytes=1, spill_fill_bytes=0)
            for g in made.graphs
        )
        binary = Binary(
            binary=BINARY, build_id=m.build_id, core_api=m.core_api, backend_api=m.backend_api,
            blob_version=m.blob_version, soc=m.soc, arch=m.arch, weights_shared=True, graphs=graphs,
            predicted_graph_bytes=1, checks=("metadata",),
        )  # fmt: skip
        return self.entry.model_copy(update={"backend": "aihub", "binaries": (binary,)})

    def run(self, entry: Decoder, **more: Any) -> OnPhone:
        more = {"waiting": QUICK, "accept": self.accept, **more}
        arguments = (entry, self.folder, self.probe, OPTIONS, self.state, Silent(), self.told.append)
        return run_on_phone(*arguments, **more)


@pytest.fixture(scope="module")
def metadata(whole_artifact: Path) -> Metadata:
    """As a binary of the artifact's graphs would have it."""
    return described(**{path.stem: path for path in sorted((whole_artifact / "decoder").glob("*.onnx"))})[0]


@pytest.fixture
def route(whole_artifact: Path, metadata: Metadata, tmp_path: Path) -> Route:
    folder = tmp_path / "decoder"
    shutil.copytree(whole_artifact / "decoder", folder)
    quantised = Quantised.from_json((folder / "encodings.json").read_text())
    return Route(folder, entry_of(whole_artifact), quantised.probe, [], metadata)


@pytest.fixture(scope="module")
def exact() -> Exact:
    """`in_this_process`, which computes the same only once for all tests: they have the same graphs."""
    known: dict[tuple[str, bytes], Arrays] = {}

    def run(path: Path, inputs: Arrays, *more: Any) -> Arrays:
        key = onnx.load(path).graph.name, b"".join(name.encode() + inputs[name].tobytes() for name in sorted(inputs))
        if key not in known:
            known[key] = in_this_process(path, inputs)
        return known[key]

    return run


@pytest.fixture
def phone(hub: StandIn, route: Route, exact: Exact, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Computes what the graphs say, to the last bit."""
    monkeypatch.setattr(decoder_trials, "run_reference", exact)
    hub.compute = lambda graph, inputs: exact(route.graphs[graph], inputs)
    hub.part_bytes = 1 << 24
    return hub


def what(graph: Graph) -> str:
    """As results and findings name it: by the model's own name."""
    return f"graph decoder_{graph.name}"


def changed(phone: StandIn, change: Callable[[str, Arrays], Arrays]) -> None:
    compute = phone.compute
    phone.compute = lambda graph, inputs: change(graph, compute(graph, inputs))
