"""A decoder's graphs on the emulator of the phone's NPU against an exact reference."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from exporters.qnn.available import why_not
from exporters.qnn.emulate import Runs, run_reference
from exporters.qnn.errors import QnnError
from exporters.qnn.options import Limits, QnnOptions
from hvdc.pipeline import decoder_checks, decoder_trials
from hvdc.pipeline.decoder_checks import emulation_findings
from hvdc.pipeline.decoder_operators import single_operators
from hvdc.pipeline.decoder_trials import Emulated, compared, graph_trials
from quant.decoder.graph import LATENT, Graphs
from quant.decoder.ports import named, ports
from tests.artifacts import replace_opaque
from tests.commands import hvdc
from tests.decoders import write_vae
from tests.emulators import Arrays, emulator, in_this_process

needs_qnn = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is here")

# --- the emulator -----------------------------------------------------------------------------------------------


def moved(kind: str, by: int, share: float = 1.0) -> Callable[[str, Arrays], Arrays]:
    """Some values of the graphs whose names hold ``kind`` are a number of codes off."""

    def wrong(name: str, outputs: Arrays) -> Arrays:
        if kind not in name:
            return outputs
        changed = {}
        for output, codes in outputs.items():
            flat = codes.astype(np.int64).reshape(-1)
            count = int(share * flat.size)
            flat[:count] += np.where(flat[:count] > np.iinfo(codes.dtype).max // 2, -by, by)
            changed[output] = flat.reshape(codes.shape).astype(codes.dtype)
        return changed

    return wrong


def test_what_is_exact_passes(
    whole_artifact: Path, models: list[onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = emulator(monkeypatch, lambda name, outputs: outputs)
    done = hvdc("validate", whole_artifact, "--emulate", "--json")
    assert done.status == 0, done.out
    facts = done.json()
    assert facts["checks"][-1] == "emulator"
    assert len(ran) == len(single_operators(models)) + 2
    assert {row["max_lsb"] for row in facts["emulated"]} == {0.0}
    graphs = [row for row in facts["emulated"] if row["what"].startswith("graph")]
    assert {row["what"] for row in graphs} == {"graph decoder_first", "graph decoder_later"}
    assert {"frames", "next_cache.conv_in"} <= {row["output"] for row in graphs}


def test_each_row_of_json_has_what_was_measured_allowed_and_found(
    whole_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator(monkeypatch, moved("operator_Sigmoid_uint8", 1, 0.4))
    rows = hvdc("validate", whole_artifact, "--emulate", "--json").json()["emulated"]
    by_name = {(row["what"], row["output"]): row for row in rows}
    sigmoid = next(row for row in rows if row["what"] == "operator Sigmoid uint8→uint8")
    assert sigmoid["max_lsb"] == 1.0
    assert sigmoid["share"] == pytest.approx(0.4, abs=0.01)
    assert sigmoid["bounds"] == {"max_lsb": 2, "share": 0.5}
    frames = by_name["graph decoder_later", "frames"]
    assert frames["psnr_db"] == "inf"
    assert frames["bounds"] == {"mean_lsb": 2.0, "psnr_db": 40.0}
    cache = by_name["graph decoder_later", "next_cache.conv_in"]
    assert (cache["psnr_db"], cache["bounds"]) == (None, {"mean_lsb": 2.0})
    assert all(row["passed"] for row in rows)


def test_progress_names_what_was_run(
    whole_artifact: Path, models: list[onnx.ModelProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator(monkeypatch, lambda name, outputs: outputs)
    done = hvdc("validate", whole_artifact, "--emulate")
    lines = [line.split("  ")[0] for line in done.err.splitlines() if line.startswith("emulating")]
    count = len(single_operators(models)) + 2
    assert [line.split()[1] for line in lines] == [f"{i + 1}/{count}" for i in range(count)]
    names = {line.split(" ", 2)[2] for line in lines}
    assert {"graph decoder_first", "graph decoder_later", "operator Conv uint16→uint16"} <= names


def test_people_see_verdicts_and_what_was_allowed(whole_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator(monkeypatch, moved("operator_Sigmoid_uint8", 3))
    done = hvdc("validate", whole_artifact, "--emulate", "-q")
    said = {line[: line.index("→")]: line for line in done.out.splitlines() if line.startswith("operator ")}
    assert said["operator Sigmoid uint8"].endswith("too far off")
    assert said["operator Sub uint16"].rstrip().endswith("ok")
    assert "allowed of frames: at most 2 steps in the mean, 40 dB or more" in done.out
    assert "allowed of operators: at most 2 steps, 50% of the values by one or more" in done.out


def test_a_patch_of_wrong_pixels_is_seen_where_the_mean_is_not(
    whole_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pixel in a hundred that is 100 steps off: one step in the mean, 28 dB."""
    emulator(monkeypatch, moved("decoder_first", 100, 0.01))
    done = hvdc("validate", whole_artifact, "--emulate", "--json")
    assert done.status == 4
    [finding] = done.json()["findings"]
    assert finding["where"] == "graph decoder_first, frames"
    assert finding["expected"] == "at most 2 steps in the mean, 40 dB or more"
    assert finding["found"].startswith("100.00 at most, ")
    assert finding["found"].endswith(" dB")
    [row] = [r for r in done.json()["emulated"] if not r["passed"]]
    assert row["mean_lsb"] < 1.1
    assert 27 < row["psnr_db"] < 29.5


@pytest.mark.parametrize(
    ("kind", "by", "share", "faults"),
    [
        ("operator_Sigmoid_uint8", 1, 0.4, False),
        ("operator_Sigmoid_uint8", 1, 0.9, True),
        ("operator_Sigmoid_uint8", 3, 0.1, True),
        ("operator_Conv_uint8", 1, 0.4, False),
        ("operator_Conv_uint8", 3, 0.1, True),
        ("operator_Conv_uint16", 1, 1.0, False),
        ("operator_Conv_uint16", 2 * 256, 0.4, False),
        ("operator_Conv_uint16", 256, 0.9, True),
        ("operator_Conv_uint16", 3 * 256, 0.1, True),
        ("decoder_later", 1, 1.0, False),
        ("decoder_later", 60, 0.1, True),
    ],
)
def test_bounds_are_steps_of_eight_bits(
    kind: str, by: int, share: float, faults: bool, whole_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code of 16 bits is a 256th of a step."""
    emulator(monkeypatch, moved(kind, by, share))
    done = hvdc("validate", whole_artifact, "--emulate", "-q")
    assert done.status == (4 if faults else 0), done.out
    assert ("emulator ok" in done.out) is not faults
    assert done.out.splitlines()[-1].endswith("NOT sound" if faults else ": sound")


def test_findings_name_output_bound_and_error() -> None:
    good = Emulated("operator Conv", "y", 1.0, 0.1, 2.0, True)
    bad = Emulated("graph decoder_later", "frames", 77.0, 3.25, 2.0, False)
    [finding] = emulation_findings([good, bad])
    assert finding.code.name == "DATA_DECODER"
    assert finding.where == "graph decoder_later, frames"
    assert (finding.expected, finding.found) == ("at most 2 steps in the mean", "77.00 at most, 3.250 in the mean")


def test_with_the_autoencoder_graphs_of_a_small_tile_are_made(
    whole_artifact: Path, vae: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As of an artifact whose own are too large for the emulator."""
    monkeypatch.setattr(decoder_checks, "LARGEST_EMULATED_SIDE", 5)
    emulator(monkeypatch, lambda name, outputs: outputs)
    done = hvdc("validate", whole_artifact, "--emulate")
    assert done.status == 2
    assert "too large for the emulator" in done.err
    assert "--vae PATH" in done.err
    done = hvdc("validate", whole_artifact, "--emulate", "--vae", vae, "-q")
    assert done.status == 0, done.out
    other = write_vae(tmp_path / "other", seed=1)
    done = hvdc("validate", whole_artifact, "--emulate", "--vae", other)
    assert done.status == 1
    assert "not the autoencoder that the artifact was compiled with" in done.err


def test_without_the_libraries_that_is_said_before_anything_is_read(
    whole_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_checks, "why_not", lambda: "this is a Mac")
    done = hvdc("validate", whole_artifact, "--deep", "--emulate")
    assert done.status == 2
    assert "the emulator is not available on this machine" in done.err
    assert "this is a Mac" in done.err
    assert "leave --emulate out" in done.err
    assert "validating" not in done.err


def test_libraries_that_do_not_load_are_no_emulator(whole_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise QnnError("QNN's libraries are there but do not load", found="libc++.so.1: no such file")

    monkeypatch.setattr(decoder_checks, "why_not", lambda: "")
    monkeypatch.setattr(decoder_checks, "toolchain", broken)
    done = hvdc("validate", whole_artifact, "--emulate", "-q")
    assert done.status == 2
    assert "libc++.so.1" in done.err


def test_a_run_that_fails_ends_the_others(whole_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute of emulation is not waited for; and no file is named that is gone."""

    def run(path: Path, inputs: Arrays, options: QnnOptions, limits: Limits, runs: Runs) -> Arrays:
        name = onnx.load(path).graph.name
        if name == "decoder_later":
            while not runs.ended:
                time.sleep(0.01)
        if name != "decoder_first":
            return in_this_process(path, inputs)
        raise QnnError("Qualcomm's library crashed while running on the emulator", where=f"{path}, 'a node'")

    emulator(monkeypatch, lambda name, outputs: outputs)
    monkeypatch.setattr(decoder_checks, "run_graph", run)
    done = hvdc("validate", whole_artifact, "--emulate", "-q")
    assert done.status == 1
    assert "Qualcomm's library crashed" in done.err
    assert "graph decoder_first, 'a node'" in done.err
    assert "graph.onnx" not in done.err


def test_the_end_of_a_log_is_shown_to_who_asks(whole_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error may say "see the log"."""
    log = tuple(f"<E> line {i}" for i in range(100))

    def run(*arguments: Any) -> Arrays:
        raise QnnError("the emulator failed", fix="see the log", log=log)

    emulator(monkeypatch, lambda name, outputs: outputs)
    monkeypatch.setattr(decoder_checks, "run_graph", run)
    arguments = ("validate", whole_artifact, "--emulate", "-q")
    done = hvdc(*arguments)
    assert done.status == 1
    assert "  log:       100 lines, the last 40; run again as `hvdc -v …` to see them" in done.err.splitlines()
    assert "<E> line" not in done.err
    for more in ((), ("--json",)):
        done = hvdc("-v", *arguments, *more)
        lines = done.err.splitlines()
        at = lines.index("  log:       100 lines, the last 40:")
        assert [line.strip() for line in lines[at + 1 :]] == list(log[-40:])


def test_graphs_with_faults_are_not_emulated_and_validate_says_so(
    whole_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = emulator(monkeypatch, lambda name, outputs: outputs)
    copy = Path(shutil.copytree(whole_artifact, tmp_path / "copy.hvdc"))
    replace_opaque(copy, "decoder/later.onnx", b"\xff" * 1000)
    done = hvdc("validate", copy, "--emulate", "-q")
    assert done.status == 4
    assert "emulator  not run: the decoder's graphs have faults" in done.out.splitlines()
    facts = hvdc("validate", copy, "--emulate", "--json").json()
    assert (facts["checks"], facts["emulated"]) == (["layout", "runtime", "graphs"], [])
    assert facts["not_emulated"] == "the decoder's graphs have faults"
    assert hvdc("validate", copy, "--deep", "--json").json()["not_emulated"] is None, "nobody asked"
    assert ran == []


@needs_qnn
def test_graphs_are_compiled_as_the_binary_was(binary_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(path: Path, inputs: Arrays, options: QnnOptions, *more: Any) -> Arrays:
        given.append(options)
        return in_this_process(path, inputs)

    given: list[QnnOptions] = []
    emulator(monkeypatch, lambda name, outputs: outputs)
    monkeypatch.setattr(decoder_checks, "run_graph", run)
    assert hvdc("validate", binary_artifact, "--emulate", "-q").status == 0
    assert set(given) == {QnnOptions(soc=69, arch=79, vtcm_mb=8, optimization=1)}


def test_options_of_the_emulator(whole_artifact: Path, vae: Path) -> None:
    done = hvdc("validate", whole_artifact, "--vae", vae)
    assert done.status == 2
    assert "--vae is for --emulate" in done.err


# --- any other machine -------------------------------------------------------------------------------------------


@pytest.fixture
def graphs(models: list[onnx.ModelProto], monkeypatch: pytest.MonkeyPatch) -> Graphs:
    monkeypatch.setattr(decoder_trials, "run_reference", in_this_process)
    return Graphs.of(*models)


def test_a_probe_that_is_smaller_than_the_tile_goes_on_at_its_edges(graphs: Graphs) -> None:
    probe = np.random.default_rng(0).standard_normal((16, 2, 4, 5)).astype(np.float32)
    first, later = graph_trials(graphs, probe)
    for t, trial in enumerate((first, later)):
        encoding = named(ports(trial.model)[0], LATENT).encoding
        due = np.pad(probe[None, :, t : t + 1], [(0, 0)] * 3 + [(0, 2), (0, 3)], mode="edge")
        np.testing.assert_array_equal(trial.inputs[LATENT], encoding.quantise(due))
    assert later.inputs["cache.conv_in"] is first.due["next_cache.conv_in"]


def test_a_larger_one_is_cut(graphs: Graphs) -> None:
    probe = np.random.default_rng(0).standard_normal((16, 3, 9, 20)).astype(np.float32)
    [trial, _] = graph_trials(graphs, probe)
    assert trial.inputs[LATENT].shape == (1, 16, 1, 6, 8)


@pytest.mark.parametrize("shape", [(15, 2, 6, 8), (17, 2, 6, 8), (16, 1, 6, 8)])
def test_a_probe_of_something_else_is_refused(
    shape: tuple[int, ...], graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_trials, "run_reference", run_reference)
    with pytest.raises(QnnError, match="'latent' does not fit the graph"):
        list(graph_trials(graphs, np.zeros(shape, np.float32)))


def test_each_graph_is_run_on_what_the_reference_of_the_one_before_wrote(graphs: Graphs) -> None:
    """So that no graph is blamed for another: here `first` is wrong, and `later` still is exact."""

    def run(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
        [due] = [trial.due for trial in trials if trial.model.graph.name == model.graph.name]
        ran.append(model.graph.name)
        return {n: codes ^ 1 for n, codes in due.items()} if model.graph.name == "decoder_first" else due

    ran: list[str] = []
    trials = list(graph_trials(graphs, np.ones((16, 2, 6, 8), np.float32)))
    rows = [row for trial in trials for row in compared(trial, run(trial.model, trial.inputs))]
    told = [trial.what for trial in trials]
    assert ran == ["decoder_first", "decoder_later"]
    assert told == ["graph decoder_first", "graph decoder_later"]
    assert {row.max_lsb > 0 for row in rows if row.what == told[0]} == {True}
    assert {row.max_lsb for row in rows if row.what == told[1]} == {0.0}
    assert [row.psnr_db is not None for row in rows if row.output == "frames"] == [True, True]


def test_outputs_of_another_shape_are_no_comparison(graphs: Graphs) -> None:
    with pytest.raises(QnnError, match="other outputs"):
        compared(next(graph_trials(graphs, np.zeros((16, 2, 6, 8), np.float32))), {})


# --- Qualcomm's own ----------------------------------------------------------------------------------------------


@needs_qnn
def test_the_emulator_computes_what_the_graphs_say(binary_artifact: Path) -> None:
    """Qualcomm's own. The largest differences are of frames and caches where a norm divides by nearly nothing."""
    done = hvdc("validate", binary_artifact, "--emulate", "--json")
    assert done.status == 0, done.json()["findings"]
    facts = done.json()
    assert facts["checks"] == ["layout", "runtime", "graphs", "binaries", "emulator"]
    operators = [row for row in facts["emulated"] if row["what"].startswith("operator")]
    assert len(operators) >= 15
    assert all(row["max_lsb"] <= 2 for row in operators)
    assert all(row["psnr_db"] > 40 for row in facts["emulated"] if row["output"] == "frames")
