"""Times and outputs of a hosted phone, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from exporters.aihub.compile import AiHubCompiled, AiHubGraph
from exporters.aihub.device import KeptBinary, infer, profile
from exporters.aihub.errors import AiHubError
from exporters.aihub.options import AiHubOptions
from exporters.qnn.metadata import GraphInfo, TensorInfo
from tests.exporters.aihub.conftest import QUICK, Compiler
from tests.exporters.aihub.stand_in import DEVICE, Drop, StandIn

MORE = {"options": AiHubOptions(), "waiting": QUICK}
INPUTS = {"x": np.arange(6, dtype=np.uint8).reshape(2, 3), "cache_in": np.full((4,), 250, np.uint8)}


@pytest.fixture
def both(hub: StandIn, compiler: Compiler) -> AiHubCompiled:
    """Two graphs, "compiled" by the stand-in."""
    return compiler.unchecked("first", "later")


def test_profiles(hub: StandIn, both: AiHubCompiled, tmp_path: Path) -> None:
    one, two = profile(both, state=tmp_path / "p.json", **MORE)
    assert (one.graph, two.graph) == ("first", "later")
    assert (one.inference_us, one.peak_bytes, one.first_load_us, one.warm_load_us) == (1234, 56 << 20, 9000, 800)
    assert one.times_us == (1234, 1300)
    assert one.layers == {"NPU": 2, "CPU": 1}
    assert one.device == DEVICE
    assert one.url == f"{hub.url}/jobs/{one.job_id}/"
    assert json.loads(json.dumps(one.to_json()))["graph"] == "first"
    jobs = hub.of("inference_job")
    assert [job.options for job in jobs] == [f"--qnn_options context_enable_graphs={n}" for n in ("first", "later")]
    assert {job.model.model_id for job in jobs} == {both.model_id}, "nothing is uploaded again"
    assert profile(both, state=tmp_path / "p.json", **MORE) == (one, two)
    assert len(hub.of("inference_job")) == 2


def test_inference(hub: StandIn, both: AiHubCompiled, tmp_path: Path) -> None:
    found = infer(both, INPUTS, state=tmp_path / "i.json", graph="later", **MORE)
    assert set(found.outputs) == {"out_x", "out_cache_in"}
    for name, value in INPUTS.items():
        np.testing.assert_array_equal(found.outputs[f"out_{name}"], 255 - value)
        assert found.outputs[f"out_{name}"].dtype == np.uint8
    [job] = hub.of("inference_job")
    assert not job.is_profiling_on
    assert job.options.endswith("=later")
    infer(both, INPUTS, state=tmp_path / "i.json", graph="later", **MORE)
    assert len(hub.of("inference_job")) == 1
    infer(both, {**INPUTS, "x": INPUTS["x"] + 1}, state=tmp_path / "i.json", graph="later", **MORE)
    assert len(hub.of("inference_job")) == 2, "other inputs, another job"


def test_a_lost_answer(hub: StandIn, both: AiHubCompiled, tmp_path: Path) -> None:
    hub.drops += [Drop("POST", "/jobs/", after=True), Drop("GET", r"/jobs/\w+/result/"), Drop("POST", r"/form/\w+")]
    infer(both, INPUTS, state=tmp_path / "i.json", graph="first", **MORE)
    assert hub.drops == []
    assert len(hub.of("inference_job")) == 1


def test_a_failed_job(hub: StandIn, both: AiHubCompiled, tmp_path: Path) -> None:
    hub.fail["inference_job"] = "the phone caught fire"
    with pytest.raises(AiHubError, match="job failed: profile first") as caught:
        profile(both, state=tmp_path / "p.json", **MORE)
    assert caught.value.found == "the phone caught fire"
    with pytest.raises(AiHubError, match="job failed: infer first"):
        infer(both, INPUTS, state=tmp_path / "p.json", graph="first", **MORE)


def test_a_profile_without_times(hub: StandIn, both: AiHubCompiled, tmp_path: Path) -> None:
    hub.detail.Clear()
    with pytest.raises(AiHubError, match="no inference time"):
        profile(both, state=tmp_path / "p.json", **MORE)


@pytest.mark.parametrize("graph", ["", "other"])
def test_no_such_graph(hub: StandIn, both: AiHubCompiled, tmp_path: Path, graph: str) -> None:
    with pytest.raises(AiHubError, match="no such graph") as caught:
        infer(both, INPUTS, state=tmp_path / "i.json", graph=graph, **MORE)
    assert caught.value.expected == "first, later"


def test_a_local_binary_is_uploaded_once(hub: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "local.bin"
    path.write_bytes(hub.made)
    local = KeptBinary(path, "s" * 64, (AiHubGraph("one", "g_17", None), AiHubGraph("two", "g_18", None)))
    one, _ = profile(local, state=tmp_path / "p.json", **MORE)
    assert one.graph == "one"
    assert hub.count("POST", "/models/") == 1
    [model, _] = [job.model.model_id for job in hub.of("inference_job")]
    assert hub.files[model] == hub.made
    alone = replace(local, graphs=local.graphs[:1])
    infer(alone, INPUTS, state=tmp_path / "i.json", **MORE)
    assert hub.of("inference_job")[-1].options == "", "a single graph needs no choice"
    infer(alone, {"x": INPUTS["x"]}, state=tmp_path / "p.json", **MORE)
    assert hub.count("POST", "/models/") == 2, "once for each file of submitted jobs"
    hub.models.clear()
    infer(alone, {"x": INPUTS["x"] + 1}, state=tmp_path / "p.json", **MORE)
    assert hub.count("POST", "/models/") == 3, "the service had it no more"


def test_a_binary_that_the_service_made_is_not_uploaded(hub: StandIn, both: AiHubCompiled, compiler: Compiler) -> None:
    """Also where only its file is left of it."""
    before = hub.count("POST", "/models/")
    kept = KeptBinary(both.path, both.sha256, both.graphs)
    profile(kept, state=compiler.state, **MORE)
    infer(kept, INPUTS, state=compiler.state, graph="later", **MORE)
    assert hub.count("POST", "/models/") == before
    assert {job.model.model_id for job in hub.of("inference_job")} == {both.model_id}


@pytest.mark.parametrize(
    ("inputs", "fits"),
    [
        ({"b": np.zeros((2,), np.uint16), "a": np.zeros((1, 2), np.uint8)}, True),
        ({"a": np.zeros((1, 2), np.uint8)}, False),
        ({"a": np.zeros((1, 2), np.float32), "b": np.zeros((2,), np.uint16)}, False),
        ({"a": np.zeros((2, 1), np.uint8), "b": np.zeros((2,), np.uint16)}, False),
    ],
)
def test_inputs_of_a_binary_that_was_read(
    hub: StandIn, tmp_path: Path, inputs: Mapping[str, np.ndarray], fits: bool
) -> None:
    path = tmp_path / "local.bin"
    path.write_bytes(hub.made)
    tensors = (TensorInfo("a", "ufixed8", (1, 2), 1.0, 0), TensorInfo("b", "ufixed16", (2,), 1.0, 0))
    info = GraphInfo("g", tensors, (), 0, 3, 0)
    local = KeptBinary(path, "s" * 64, (AiHubGraph("one", "g", info),))
    if fits:
        found = infer(local, inputs, state=tmp_path / "i.json", **MORE)
        assert list(found.outputs) == ["out_a", "out_b"], "in the binary's order"
    else:
        with pytest.raises(AiHubError, match="not the inputs"):
            infer(local, inputs, state=tmp_path / "i.json", **MORE)
        assert hub.asked == []


def test_a_failed_job_is_submitted_again(hub: StandIn, both: AiHubCompiled, tmp_path: Path) -> None:
    hub.fail["inference_job"] = "the phone caught fire"
    with pytest.raises(AiHubError):
        profile(both, state=tmp_path / "p.json", **MORE)
    hub.fail.clear()
    profile(both, state=tmp_path / "p.json", **MORE)
    assert len(hub.of("inference_job")) == 3, "the second graph's job was taken up"
