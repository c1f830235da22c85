"""A decoder on its way through Qualcomm AI Hub and onto a hosted phone, both played by the stand-in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.external_data_helper import set_external_data

from exporters.aihub.compile import AiHubCompiled
from exporters.aihub.errors import AiHubError
from exporters.aihub.options import AiHubOptions
from exporters.qnn.errors import QnnError
from exporters.qnn.metadata import Metadata
from hvdc.artifact.decoder import Binary, BinaryGraph, Decoder, Graph
from hvdc.artifact.errors import ArtifactError
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline import decoder_trials
from hvdc.pipeline.decoder_checks import emulation_findings
from hvdc.pipeline.decoder_encodings import Quantised
from hvdc.pipeline.decoder_hosted import OnPhone, compile_hosted, kept_binary, run_on_phone
from hvdc.pipeline.decoder_parts import BINARY
from hvdc.pipeline.decoder_trials import FRAMES_PSNR_DB, GRAPH_LSB
from hvdc.pipeline.progress import Silent
from tests.decoders import entry_of
from tests.exporters.aihub.conftest import QUICK, described, hasty_client, home, hub
from tests.exporters.aihub.stand_in import Arrays, StandIn
from tests.exporters.qnn import recorded
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


# --- the whole way ----------------------------------------------------------------------------------------------


def test_compiled_timed_and_compared(phone: StandIn, route: Route) -> None:
    names = [graph.name for graph in route.entry.graphs]
    made = route.compile()
    assert route.binary.read_bytes() == phone.made
    assert [graph.name for graph in made.graphs] == names
    uploads = len(names)
    assert phone.count("POST", "/models/") == uploads
    found = route.run(route.with_binary(made))
    assert phone.count("POST", "/models/") == uploads, "the service made the binary: it has it"
    assert [one.graph for one in found.profiles] == names
    assert found.profiles[0].inference_us == 1234
    due = [(what(g), port.name) for g in route.entry.graphs for port in g.outputs]
    assert sorted((row.what, row.output) for row in found.compared) == sorted(due)
    assert {(row.max_lsb, row.bound) for row in found.compared} == {(0.0, GRAPH_LSB)}
    assert found.passed
    assert found.checks == ("device",)
    facts = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert facts["passed"]
    assert [row["graph"] for row in facts["profiles"]] == names
    assert len(facts["compared"]) == len(due)
    frames = [row for row in facts["compared"] if row["output"] == "frames"]
    assert [(row["psnr_db"], row["bounds"]["psnr_db"]) for row in frames] == [("inf", FRAMES_PSNR_DB)] * 2
    assert any("SUCCESS" in line for line in route.told)


def test_the_second_time_nothing_is_submitted(phone: StandIn, route: Route) -> None:
    entry = route.with_binary(route.compile())
    one = route.run(entry)
    jobs = len(phone.jobs)
    route.compile()
    assert route.run(entry) == one
    assert len(phone.jobs) == jobs


def test_a_binary_that_the_service_did_not_make(phone: StandIn, route: Route) -> None:
    """As this machine's compiler leaves it in the cache: uploaded once for all jobs."""
    entry = route.with_binary(route.compile())
    route.state.unlink()
    before = phone.count("POST", "/models/")
    assert route.run(entry).passed
    assert phone.count("POST", "/models/") == before + 1
    [kept] = [kept_binary(binary, route.binary, route.accept) for binary in entry.binaries]
    assert [graph.info is not None for graph in kept.graphs] == [True] * len(route.entry.graphs)


def test_later_gets_the_second_latent_frame_and_the_caches_of_first(phone: StandIn, route: Route, exact: Exact) -> None:
    seen: dict[str, Arrays] = {}

    def note(graph: str, inputs: Arrays) -> Arrays:
        seen[graph] = inputs
        return exact(route.graphs[graph], inputs)

    phone.compute = note
    assert route.run(route.with_binary(route.compile())).passed
    [first], [later] = route.entry.variant("first"), route.entry.variant("later")
    for t, graph in enumerate((first, later)):
        port = graph.inputs[0]
        held = (seen[graph.name][port.name].astype(np.float64) - port.zero_point) * port.scale
        np.testing.assert_allclose(held[0, :, 0], route.probe[:, t], atol=port.scale)
    wrote = exact(route.graphs[first.name], seen[first.name])
    caches = {name.removeprefix("next_"): value for name, value in wrote.items() if name.startswith("next_")}
    assert caches
    for name, value in caches.items():
        np.testing.assert_array_equal(seen[later.name][name], value)


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (20, 30), (3, 30)])
def test_a_probe_of_another_size_than_the_tile(
    phone: StandIn, route: Route, exact: Exact, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tile's is 6 × 8: a smaller probe goes on with its last pixels, of a larger one the beginning is taken."""
    route.probe = np.random.default_rng(0).standard_normal((16, 2, rows, columns)).astype(np.float32)
    entry = route.with_binary(route.compile())
    latents = []

    def note(path: Path, inputs: Arrays, *more: Any) -> Arrays:
        latents.append(inputs["latent"][0, :, 0])
        return exact(path, inputs, *more)

    monkeypatch.setattr(decoder_trials, "run_reference", note)
    assert route.run(entry).passed
    assert [latent.shape for latent in latents] == [(16, 6, 8)] * 2
    if columns < 8:
        np.testing.assert_array_equal(latents[0][:, 2:, 4:], np.broadcast_to(latents[0][:, 2:3, 4:5], (16, 4, 4)))


# --- a phone that computes something else -----------------------------------------------------------------------


def test_wrong_values_do_not_pass(phone: StandIn, route: Route) -> None:
    entry = route.with_binary(route.compile())
    last = entry.graphs[-1]

    def wrong(graph: str, outputs: Arrays) -> Arrays:
        return outputs | ({"frames": 255 - outputs["frames"]} if graph == last.name else {})

    changed(phone, wrong)
    found = route.run(entry)
    assert not found.passed
    assert found.checks == ()
    [row] = [row for row in found.compared if not row.passed]
    assert (row.what, row.output) == (what(last), "frames")
    assert row.mean_lsb > GRAPH_LSB
    [finding] = emulation_findings(found.compared)
    assert finding.where == f"{what(last)}, frames"
    assert not found.to_json()["passed"]


def test_a_patch_of_wrong_pixels_is_seen_where_the_mean_is_not(phone: StandIn, route: Route) -> None:
    """As on the emulator: one pixel in a hundred that is 100 steps off."""

    def wrong(graph: str, outputs: Arrays) -> Arrays:
        flat = outputs["frames"].astype(np.int64).reshape(-1)
        patch = flat[: flat.size // 100]
        patch += np.where(patch > 127, -100, 100)
        return outputs | {"frames": flat.reshape(outputs["frames"].shape).astype(np.uint8)}

    changed(phone, wrong)
    found = route.run(route.with_binary(route.compile()))
    assert not found.passed
    assert {row.output for row in found.compared if not row.passed} == {"frames"}
    assert all(row.mean_lsb < GRAPH_LSB for row in found.compared)
    assert all(row.psnr_db is not None and row.psnr_db < FRAMES_PSNR_DB for row in found.compared if not row.passed)


def test_steps_of_sixteen_bits_are_small(phone: StandIn, route: Route) -> None:
    """Every value is 100 of its own codes off: of 8 bits that is far too much, of 16 bits nothing."""

    def wrong(graph: str, outputs: Arrays) -> Arrays:
        return {
            name: np.where(value > np.iinfo(value.dtype).max // 2, value - 100, value + 100).astype(value.dtype)
            for name, value in outputs.items()
        }

    changed(phone, wrong)
    found = route.run(route.with_binary(route.compile()))
    dtypes = {(what(g), port.name): port.dtype for g in route.entry.graphs for port in g.outputs}
    assert set(dtypes.values()) == {"uint8", "uint16"}
    for row in found.compared:
        wide = dtypes[row.what, row.output] == "uint16"
        assert (row.passed, row.max_lsb) == ((True, 100 / 256) if wide else (False, 100.0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda outputs: {f"output_{i}": value for i, value in enumerate(outputs.values())}, "other outputs"),
        (lambda outputs: {n: v.astype(np.float32) for n, v in outputs.items()}, "cannot be compared"),
        (lambda outputs: {n: v[..., :-1] for n, v in outputs.items()}, "cannot be compared"),
    ],
    ids=["names", "dtypes", "shapes"],
)
def test_outputs_that_are_not_the_graphs(
    phone: StandIn, route: Route, change: Callable[[Arrays], Arrays], said: str
) -> None:
    changed(phone, lambda graph, outputs: change(outputs))
    entry = route.with_binary(route.compile())
    with pytest.raises(AiHubError, match=f"what the phone returned is not what the graph gives: .*{said}") as caught:
        route.run(entry)
    assert caught.value.where.startswith("graph decoder_first, job ")
    assert f"{phone.url}/jobs/" in caught.value.where
    assert caught.value.expected != caught.value.found


def test_nothing_compared_is_not_passed() -> None:
    assert not OnPhone((), ()).passed


# --- what goes wrong before -------------------------------------------------------------------------------------


def test_a_decoder_without_a_binary(hub: StandIn, route: Route) -> None:
    with pytest.raises(UsageError, match="no binary to run on a phone"):
        route.run(route.entry)
    assert hub.asked == []


def test_a_graph_that_is_not_what_the_entry_says(phone: StandIn, route: Route) -> None:
    """No file that a model names is opened, and no job begins."""
    entry = route.with_binary(route.compile())
    path = route.graphs["later"]
    model = onnx.load(path)
    set_external_data(model.graph.initializer[-1], "../manifest.json")
    model.graph.initializer[-1].ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    jobs = len(phone.jobs)
    with pytest.raises(ArtifactError, match="refers to external data") as caught:
        route.run(entry)
    assert caught.value.where == "later"
    assert len(phone.jobs) == jobs


def test_the_real_judge_lets_the_stand_in_through_nowhere(phone: StandIn, route: Route) -> None:
    with pytest.raises(AiHubError, match="not a QNN context binary") as caught:
        compile_hosted([*route.graphs.items()], route.binary, OPTIONS, route.state, route.told.append, QUICK)
    assert "stand-in" in caught.value.found
    assert not route.binary.exists()
    entry = route.with_binary(route.compile())
    jobs = len(phone.jobs)
    with pytest.raises(AiHubError, match="not a QNN context binary"):
        run_on_phone(entry, route.folder, route.probe, OPTIONS, route.state, Silent(), route.told.append, QUICK)
    assert len(phone.jobs) == jobs


def test_a_binary_that_cannot_be_read_here(hub: StandIn, route: Route) -> None:
    with pytest.raises(HvdcError, match="could not be read back") as caught:
        route.compile(accept=lambda path, where: None)
    assert "hvdc[qnn]" in caught.value.fix
    assert not route.binary.exists()


def test_a_binary_of_another_level(hub: StandIn, route: Route) -> None:
    """Which the artifact's own rules would refuse later, and less clearly."""

    def accept(path: Path, where: str) -> Metadata:
        metadata = route.accept(path, where)
        return replace(metadata, graphs=tuple(replace(graph, optimization=0) for graph in metadata.graphs))

    with pytest.raises(AiHubError, match="not what was asked for: optimisation level of first"):
        route.compile(accept=accept)
    assert not route.binary.exists()


def test_a_rejected_job(hub: StandIn, route: Route) -> None:
    hub.refuse["compile_job"] = "no quota is left"
    with pytest.raises(AiHubError, match="refused while submitting") as caught:
        route.compile()
    assert caught.value.found == "no quota is left"
    assert not caught.value.too_large


@pytest.mark.parametrize("kind", ["compile_job", "link_job"])
def test_graphs_that_are_too_large(hub: StandIn, route: Route, kind: str) -> None:
    """A planner sees a `QnnError` that says so, as of this machine's compiler."""
    hub.fail[kind] = "\n".join(recorded.GRAPH_LIMIT)
    with pytest.raises(QnnError, match="more memory than one graph may have") as caught:
        route.compile()
    assert caught.value.too_large
    assert not route.binary.exists()


@pytest.mark.parametrize("kind", ["compile_job", "inference_job"])
def test_a_job_that_never_ends(phone: StandIn, route: Route, kind: str) -> None:
    phone.never.add(kind)
    short = {"waiting": replace(QUICK, limit_s=0.05)}
    with pytest.raises(AiHubError, match="did not finish in time") as caught:
        route.run(route.with_binary(route.compile(**short if kind == "compile_job" else {})), **short)
    assert "goes on waiting for the same jobs" in caught.value.fix
    jobs = len(phone.of(kind))
    phone.never.clear()
    assert route.run(route.with_binary(route.compile())).passed
    assert len(phone.of(kind)) == (jobs if kind == "compile_job" else jobs + len(route.entry.graphs))


def test_a_job_on_the_phone_that_fails(phone: StandIn, route: Route) -> None:
    entry = route.with_binary(route.compile())
    phone.fail["inference_job"] = "the graph does not load"
    with pytest.raises(AiHubError, match="job failed: profile first") as caught:
        route.run(entry)
    assert caught.value.found == "the graph does not load"
    phone.fail.clear()
    assert route.run(entry).passed


def test_without_a_token(route: Route) -> None:
    with pytest.raises(AiHubError, match="no API token of Qualcomm AI Hub is configured") as caught:
        route.compile()
    assert "qai-hub configure --api_token TOKEN" in caught.value.fix
    assert not route.state.exists()
