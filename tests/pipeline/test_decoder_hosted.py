"""A decoder on its way through Qualcomm AI Hub and onto a hosted phone, both played by the stand-in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.aihub.errors import AiHubError
from hvdc.pipeline import decoder_trials
from hvdc.pipeline.decoder_checks import emulation_findings
from hvdc.pipeline.decoder_hosted import OnPhone, kept_binary
from hvdc.pipeline.decoder_trials import FRAMES_PSNR_DB, GRAPH_LSB
from tests.exporters.aihub.stand_in import Arrays, StandIn
from tests.pipeline.hosted import (
    Exact,
    Route,
    changed,
    exact,
    hasty_client,
    home,
    hub,
    metadata,
    phone,
    route,
    what,
)

__all__ = ["exact", "hasty_client", "home", "hub", "metadata", "phone", "route"]


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
