"""What goes wrong before a phone of Qualcomm AI Hub has computed anything: what is said, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx.external_data_helper import set_external_data

from exporters.aihub.errors import AiHubError
from exporters.qnn.errors import QnnError
from exporters.qnn.metadata import Metadata
from hvdc.artifact.errors import ArtifactError
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.decoder_hosted import compile_hosted, run_on_phone
from hvdc.progress import Silent
from tests.exporters.aihub.conftest import QUICK
from tests.exporters.aihub.stand_in import StandIn
from tests.exporters.qnn import recorded
from tests.pipeline.hosted import (
    OPTIONS,
    Route,
    exact,
    hasty_client,
    home,
    hub,
    metadata,
    phone,
    route,
)

__all__ = ["exact", "hasty_client", "home", "hub", "metadata", "phone", "route"]


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
