"""Graphs go to the service once and come back as one file, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace

import onnx
import pytest

from exporters.aihub.check import FAKE
from exporters.aihub.errors import AiHubError
from exporters.aihub.options import AiHubOptions
from exporters.aihub.progress import Progress
from exporters.qnn.errors import QnnError
from tests.exporters.aihub.conftest import QUICK, Compiler
from tests.exporters.aihub.stand_in import ATTRIBUTES, DEVICE, Drop, StandIn
from tests.exporters.qnn import recorded


def submitted(hub: StandIn) -> int:
    """Jobs that the service has."""
    return len(hub.jobs)


# --- what is asked for and what comes back ----------------------------------------------------------------------


def test_one_graph(hub: StandIn, compiler: Compiler) -> None:
    made = compiler.unchecked("flat")
    assert compiler.left() == ["x.bin"]
    assert compiler.output.read_bytes() == hub.made
    assert made.sha256 == hashlib.sha256(hub.made).hexdigest()
    assert made.metadata is None
    [job] = hub.of("compile_job")
    assert job.options == (
        "--target_runtime qnn_context_binary --output_names y --qnn_options "
        "context_enable_graphs=flat;default_graph_htp_optimizations=O=3;default_graph_htp_vtcm_size=8"
    )
    assert [device.name for device in job.devices.devices] == [DEVICE]
    assert onnx.load_from_string(hub.files[job.model.model_id]) == onnx.load(compiler.graphs["flat"])
    assert [(j.name, j.job_id, j.url) for j in made.jobs] == [
        ("compile flat", job.compile_job_id, f"{hub.url}/jobs/{job.compile_job_id}/")
    ]
    assert made.model_id == job.target_model.model_id
    assert json.loads(json.dumps(made.to_json()))["path"] == "x.bin"


def test_two_graphs_are_linked(hub: StandIn, compiler: Compiler) -> None:
    made = compiler.unchecked("first", "later", options=AiHubOptions(qairt="2.45"))
    first, later = hub.of("compile_job")
    [link] = hub.of("link_job")
    assert first.options == (
        "--target_runtime qnn_dlc --output_names y --qnn_options context_enable_graphs=first --qairt_version 2.45"
    )
    assert "--output_names y,cache_out " in later.options
    assert link.options == (
        "--qnn_options default_graph_htp_optimizations=O=3;default_graph_htp_vtcm_size=8 --qairt_version 2.45"
    )
    assert [m.model_id for m in link.models.models] == [first.target_model.model_id, later.target_model.model_id]
    assert made.model_id == link.target_model.model_id
    assert [graph.name for graph in made.graphs] == ["first", "later"]
    assert [job.name for job in made.jobs] == ["compile first", "compile later", "link first later"]


def test_one_graph_as_a_dlc(hub: StandIn, compiler: Compiler) -> None:
    compiler.unchecked("flat", options=AiHubOptions(runtime="qnn_dlc"))
    assert len(hub.of("link_job")) == 1


def test_a_phone_by_its_chipset(hub: StandIn, compiler: Compiler) -> None:
    compiler.unchecked("flat", options=AiHubOptions(device="", attributes=(ATTRIBUTES[0],)))
    assert [device.name for device in hub.of("compile_job")[0].devices.devices] == [DEVICE]


def test_progress(hub: StandIn, compiler: Compiler) -> None:
    hub.polls = 6
    compiler.unchecked("first", "later")
    steps = [told.step for told in compiler.told]
    assert sorted(set(steps), key=steps.index) == ["upload", "compile", "link", "download", "check"]
    waits = [told for told in compiler.told if told.step == "compile"]
    assert [job.state for job in waits[-1].jobs] == ["SUCCESS", "SUCCESS"]
    assert {job.state for told in waits for job in told.jobs} >= {"OPTIMIZING_MODEL", "SUCCESS"}
    assert waits[-1].waited_s > waits[0].waited_s
    pauses = [told.next_poll_s for told in waits[:-1]]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] <= QUICK.poll_max_s
    assert waits[0].jobs[0].url in {f"{hub.url}/jobs/{job}/" for job in hub.jobs}
    assert "OPTIMIZING_MODEL" in str(waits[-2])


def test_the_client_prints_nothing(hub: StandIn, compiler: Compiler, capsys: pytest.CaptureFixture[str]) -> None:
    compiler.unchecked("flat")
    assert capsys.readouterr() == ("", "")


# --- the second run ---------------------------------------------------------------------------------------------


def test_the_same_call_submits_nothing_again(hub: StandIn, compiler: Compiler) -> None:
    one = compiler.unchecked("first", "later")
    compiler.output.unlink()
    two = compiler.unchecked("first", "later")
    assert two.jobs == one.jobs
    assert submitted(hub) == 3
    assert compiler.left() == ["x.bin"]


def test_other_graphs_or_options_are_other_jobs(hub: StandIn, compiler: Compiler) -> None:
    compiler.unchecked("flat")
    compiler.unchecked("flat", options=AiHubOptions(optimization=1))
    assert submitted(hub) == 2
    compiler.graphs["flat"] = compiler.graphs["first"]
    compiler.unchecked("flat")
    assert submitted(hub) == 3
    runs = json.loads(compiler.state.read_text())["runs"].values()
    assert len([run for run in runs if "graphs" in run["about"]]) == 3


def test_an_interrupt_keeps_the_jobs(hub: StandIn, compiler: Compiler) -> None:
    def stop(told: Progress) -> None:
        if told.step == "compile" and told.jobs:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiler.unchecked("first", "later", progress=stop)
    assert compiler.left() == []
    assert submitted(hub) == 2
    compiler.unchecked("first", "later")
    assert submitted(hub) == 3
    assert hub.count("POST", "/models/") == 2


def test_an_interrupt_between_upload_and_submission(hub: StandIn, compiler: Compiler) -> None:
    hub.refuse["compile_job"] = "closed for lunch"
    with pytest.raises(AiHubError, match="refused while submitting compile flat") as caught:
        compiler.unchecked("flat")
    assert caught.value.found == "closed for lunch"
    hub.refuse.clear()
    compiler.unchecked("flat")
    assert hub.count("POST", "/models/") == 1, "uploaded once"


def test_a_job_that_the_service_lost(hub: StandIn, compiler: Compiler) -> None:
    compiler.unchecked("flat")
    hub.jobs.clear()
    compiler.unchecked("flat")
    assert submitted(hub) == 1
    assert any("is gone" in told.note for told in compiler.told)


def test_another_service_has_other_jobs(hub: StandIn, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.unchecked("flat")
    with StandIn() as other:
        ini = compiler.folder / "other.ini"
        ini.write_text(other.ini())
        monkeypatch.setenv("QAIHUB_CLIENT_INI", str(ini))
        compiler.unchecked("flat")
        assert submitted(other) == 1
        assert other.count("GET", "/job_summaries/") == 0
    assert not any("is gone" in told.note for told in compiler.told), "the first one's job was not asked for"


# --- what goes wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "slot"), [("compile_job", "compile first"), ("link_job", "link first later")])
def test_a_failed_job(hub: StandIn, compiler: Compiler, kind: str, slot: str) -> None:
    hub.fail[kind] = "Op GridSample is not supported"
    with pytest.raises(AiHubError, match=f"job failed: {slot}") as caught:
        compiler.unchecked("first", "later")
    failed = next(job for job in hub.of(kind))
    assert caught.value.found == "Op GridSample is not supported"
    assert f"{hub.url}/jobs/{getattr(failed, kind + '_id')}/" in caught.value.where
    assert compiler.left() == []
    before = submitted(hub)
    hub.fail.clear()
    compiler.unchecked("first", "later")
    assert submitted(hub) - before == (2 if kind == "compile_job" else 1), "only what failed or was missing"


@pytest.mark.parametrize("kind", ["compile_job", "link_job"])
@pytest.mark.parametrize(
    ("lines", "said", "found"),
    [
        (recorded.GRAPH_LIMIT, "more memory than one graph may have", "3,932,168 KB estimated"),
        (recorded.POOL, "more memory than one graph can address", "4,534,567,424 bytes"),
        (recorded.SPILL, "spill-fill", "4 GB or more"),
        (recorded.TILING, "pieces that fit into VTCM", "needs 153,354,240 bytes"),
    ],
)
def test_a_job_whose_graph_is_too_large(
    hub: StandIn, compiler: Compiler, kind: str, lines: tuple[str, ...], said: str, found: str
) -> None:
    """The service's message holds the toolchain's lines, after its own."""
    hub.fail[kind] = "\n".join(["Failed to build the context binary:", *lines])
    with pytest.raises(AiHubError, match="Qualcomm AI Hub's job failed") as caught:
        compiler.unchecked("first", "later")
    error = caught.value
    assert error.too_large
    assert said in error.what
    assert found in error.found
    assert f"{hub.url}/jobs/" in error.where
    assert "smaller tile" in error.fix
    assert error.log[1:-1] == lines
    hub.fail.clear()
    compiler.unchecked("first", "later")


def test_a_job_whose_log_says_that_the_graph_is_too_large(hub: StandIn, compiler: Compiler) -> None:
    hub.fail["link_job"] = "Failed to link. See the log."
    hub.logs["link_job"] = "\n".join(["hub: linking", *recorded.GRAPH_LIMIT, "hub: over"])
    with pytest.raises(AiHubError, match="more memory than one graph may have") as caught:
        compiler.unchecked("first", "later")
    assert caught.value.too_large
    assert "Failed to link. See the log." in caught.value.log


@pytest.mark.parametrize("after", [False, True])
def test_a_log_that_cannot_be_had(hub: StandIn, compiler: Compiler, after: bool) -> None:
    hub.fail["compile_job"] = "out of luck"
    hub.logs["compile_job"] = "why it was"
    hub.drops += [Drop("GET", r"/artifact_list/5/", after) for _ in range(QUICK.tries)]
    with pytest.raises(AiHubError, match="job failed: compile flat") as caught:
        compiler.unchecked("flat")
    assert (caught.value.found, caught.value.log) == ("out of luck", ())
    assert "no log of job" in compiler.told[-1].note
    with pytest.raises(AiHubError, match="job failed: compile flat") as caught:
        compiler.unchecked("flat")
    assert caught.value.log == ("why it was",)


def test_a_job_that_fails_otherwise_is_not_too_large(hub: StandIn, compiler: Compiler) -> None:
    hub.fail["compile_job"] = "the memory of an elephant"
    with pytest.raises(AiHubError, match="job failed: compile flat") as caught:
        compiler.unchecked("flat")
    assert not caught.value.too_large
    assert caught.value.log == ()


def test_a_job_that_never_ends(hub: StandIn, compiler: Compiler) -> None:
    hub.never.add("compile_job")
    begun = time.monotonic()
    with pytest.raises(AiHubError, match="did not finish in time") as caught:
        compiler.unchecked("flat", waiting=replace(QUICK, limit_s=0.3))
    assert 0.3 <= time.monotonic() - begun < 10
    [job] = hub.jobs
    assert f"job {job}, {hub.url}/jobs/{job}/" in caught.value.where
    assert "OPTIMIZING_MODEL" in caught.value.found
    assert "same command again" in caught.value.fix
    hub.never.clear()
    compiler.unchecked("flat")
    assert submitted(hub) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", r"/devices/"),
        ("POST", r"/models/"),
        ("PUT", r"/parts/\w+/0"),
        ("POST", r"/jobs/"),
        ("GET", r"/jobs/\w+/"),
        ("GET", r"/models/\w+/download/"),
        ("GET", r"/files/\w+"),
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_dropped_connections(hub: StandIn, compiler: Compiler, method: str, path: str, after: bool) -> None:
    hub.drops += [Drop(method, path, after)]
    compiler.unchecked("first", "later")
    assert hub.drops == []
    assert submitted(hub) == 3, "a job whose answer was lost is found again"


def test_a_lost_answer_and_an_interrupt(hub: StandIn, compiler: Compiler) -> None:
    hub.drops += [Drop("POST", "/jobs/", after=True)]

    def stop(told: Progress) -> None:
        if "no connection" in told.note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiler.unchecked("flat", progress=stop)
    compiler.unchecked("flat")
    assert submitted(hub) == 1


@pytest.mark.parametrize("after", [False, True])
def test_a_dropped_submission_after_a_failed_job(hub: StandIn, compiler: Compiler, after: bool) -> None:
    hub.fail["compile_job"] = "out of luck"
    with pytest.raises(AiHubError, match="out of luck"):
        compiler.unchecked("flat")
    hub.fail.clear()
    hub.drops += [Drop("POST", "/jobs/", after)]
    compiler.unchecked("flat")
    assert submitted(hub) == 2, "the failed job of the same name is not taken for it"


def test_a_service_that_stays_away(hub: StandIn, compiler: Compiler) -> None:
    hub.drops += [Drop("GET", r"/jobs/\w+/") for _ in range(3)]
    with pytest.raises(AiHubError, match="could not be reached") as caught:
        compiler.unchecked("flat")
    assert "Could not connect" in caught.value.found
    assert "─" not in caught.value.found, "without the client's box"
    assert "goes on with the same jobs" in caught.value.fix
    pauses = [told.next_poll_s for told in compiler.told if "no connection" in told.note]
    assert len(pauses) == QUICK.tries - 1
    assert pauses[0] < pauses[-1]
    compiler.unchecked("flat")
    assert submitted(hub) == 1


def test_a_service_that_asks_to_slow_down(hub: StandIn, compiler: Compiler) -> None:
    hub.busy = 2
    compiler.unchecked("flat")
    assert any("slow down" in told.note for told in compiler.told)


def test_a_truncated_download(hub: StandIn, compiler: Compiler) -> None:
    hub.truncate = 2
    compiler.unchecked("flat")
    assert compiler.output.read_bytes() == hub.made


def test_downloads_that_stay_truncated(hub: StandIn, compiler: Compiler) -> None:
    compiler.output.write_bytes(b"the one before")
    hub.truncate = 1000
    with pytest.raises(AiHubError, match="could not be reached while downloading"):
        compiler.unchecked("flat")
    assert compiler.left() == ["x.bin"]
    assert compiler.output.read_bytes() == b"the one before"
    hub.truncate = 0
    compiler.unchecked("flat")
    assert compiler.output.read_bytes() == hub.made
    assert submitted(hub) == 1


def test_an_unknown_device(hub: StandIn, compiler: Compiler) -> None:
    with pytest.raises(AiHubError, match="no such device") as caught:
        compiler.unchecked("flat", options=AiHubOptions(device="Nokia 3310", os="7"))
    assert caught.value.found == "Nokia 3310, OS 7"
    assert hub.count("POST", "/models/") == 0, "nothing was uploaded for it"


def test_the_stand_in_never_becomes_a_binary(hub: StandIn, compiler: Compiler) -> None:
    assert hub.made.startswith(FAKE)
    with pytest.raises(AiHubError, match="this is not a QNN context binary") as caught:
        compiler("first", "later")
    assert "stand-in" in caught.value.found
    assert hub.of("link_job")[0].link_job_id in caught.value.where
    assert compiler.left() == []


# --- refused before anything is sent ----------------------------------------------------------------------------


def test_refused_before_anything_is_sent(hub: StandIn, compiler: Compiler) -> None:
    compiler.graphs |= {"a-b": compiler.graphs["flat"], "Flat": compiler.graphs["flat"]}
    compiler.graphs["broken"] = compiler.folder / "broken.onnx"
    compiler.graphs["broken"].write_bytes(b"no model")
    for names, said in (
        ((), "there is no graph"),
        (("a-b",), "cannot be used for a graph"),
        (("flat", "Flat"), "the same name"),
        (("broken",), "not a readable ONNX model"),
    ):
        with pytest.raises(QnnError, match=said):
            compiler(*names)
    compiler.output.mkdir()
    with pytest.raises(AiHubError, match="the output is a folder"):
        compiler("flat")
    compiler.output.rmdir()
    compiler.output.parent.rmdir()
    with pytest.raises(AiHubError, match="folder does not exist"):
        compiler("flat")
    assert hub.asked == []
    assert not compiler.state.exists()
