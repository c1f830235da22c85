"""Single operators of a quantised graph, and the emulator of the phone's NPU against an exact reference."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from exporters.qnn.available import why_not
from exporters.qnn.emulate import Runs, run_reference
from exporters.qnn.errors import QnnError
from exporters.qnn.options import Limits, QnnOptions
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline import decoder_checks, decoder_trials
from hvdc.pipeline.decoder_checks import emulation_findings, read_encodings
from hvdc.pipeline.decoder_encodings import Quantised
from hvdc.pipeline.decoder_operators import DEQUANTISE, QUANTISE, single_operators
from hvdc.pipeline.decoder_trials import Emulated, compared, graph_trials, noise
from quant.decoder.encodings import Encoding, shares
from quant.decoder.graph import LATENT, MOVES, Graphs
from quant.decoder.ports import Port, named, ports
from tests.artifacts import replace_opaque
from tests.commands import hvdc
from tests.decoders import entry_of, write_vae

needs_qnn = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is here")

Arrays = dict[str, np.ndarray]


# --- single operators -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(whole_artifact: Path) -> list[onnx.ModelProto]:
    return [onnx.load(whole_artifact / "decoder" / f"{name}.onnx") for name in ("first", "later")]


def test_there_is_one_of_each_kind_that_computes(models: list[onnx.ModelProto]) -> None:
    kinds = {node.op_type for model in models for node in model.graph.node} - {QUANTISE, DEQUANTISE, *MOVES}
    assert {"Conv", "MatMul", "Softmax", "Sigmoid", "Mul", "Add", "Div"} <= kinds
    found = single_operators(models)
    assert {kind.split()[0] for kind in found} == kinds
    assert {"Conv uint8→uint8", "Conv uint16→uint16", "Softmax uint16→uint16"} <= set(found)


def test_a_kind_is_an_operator_with_the_dtypes_around_it(models: list[onnx.ModelProto]) -> None:
    for kind, model in single_operators(models).items():
        operator, dtypes = kind.split()
        reads, writes = dtypes.split("→")
        inputs, [output] = ports(model)
        assert model.graph.name == f"operator_{operator}_{reads}_{writes}"
        assert {port.encoding.dtype for port in inputs} == set(reads.split("+"))
        assert output.encoding.dtype == writes


def test_what_only_the_second_graph_has_is_found_too(models: list[onnx.ModelProto]) -> None:
    first, later = ({*single_operators([model])} for model in models)
    assert set(single_operators(models)) == first | later
    assert first - later, "the control: `later` has no zeros to subtract"
    assert set(single_operators(reversed(models))) == first | later


def test_each_runs_by_itself_on_integers(models: list[onnx.ModelProto]) -> None:
    rng = np.random.default_rng(0)
    for kind, model in single_operators(models).items():
        onnx.checker.check_model(model, full_check=True)
        assert [n.op_type for n in model.graph.node if n.op_type not in (QUANTISE, DEQUANTISE)] == [kind.split()[0]]
        inputs, [output] = ports(model)
        codes = {p.name: rng.integers(1, 200, p.shape).astype(p.encoding.dtype) for p in inputs}
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        [found] = session.run(None, codes)
        assert (found.dtype, found.shape) == (np.dtype(output.encoding.dtype), output.shape)


def test_a_float_graph_has_none(models: list[onnx.ModelProto]) -> None:
    bare = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"], name="r")], "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )  # fmt: skip
    assert single_operators([onnx.helper.make_model(bare, opset_imports=models[0].opset_import)]) == {}


def test_the_shares_that_an_attention_weighs_with_sum_to_one() -> None:
    """Uniform codes would sum to dozens, and every sum of them would be clipped."""
    rng = np.random.default_rng(0)
    shared = noise(rng, Port("shares", (1, 1, 40, 60), shares("uint16")), "MatMul")
    np.testing.assert_allclose(shared.sum(axis=-1) / 65536, 1, atol=1e-3)
    assert shared.std() > 100
    other = noise(rng, Port("q", (1, 1, 40, 60), Encoding(0.1, 9000, "uint16")), "MatMul")
    assert other.max() > 60000


def test_a_division_gets_nothing_near_zero() -> None:
    rng = np.random.default_rng(0)
    for dtype, zero in (("uint8", 100), ("uint16", 3000), ("uint8", 255)):
        port = Port("rms", (50, 50), Encoding(0.5, zero, dtype))
        assert noise(rng, port, "Div").min() >= min(zero + np.iinfo(dtype).max // 8, 255 if dtype == "uint8" else 65535)
        assert noise(rng, port, "Mul").min() < zero


# --- the emulator -----------------------------------------------------------------------------------------------


def emulator(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str, Arrays], Arrays]) -> list[str]:
    """In place of Qualcomm's: the exact reference, changed by ``wrong(name of the graph, outputs)``. What it ran."""
    ran: list[str] = []

    def run(path: Path, inputs: Arrays, *more: Any) -> Arrays:
        name = onnx.load(path).graph.name
        ran.append(name)
        return wrong(name, run_reference(path, inputs))

    monkeypatch.setattr(decoder_checks, "why_not", lambda: "")
    monkeypatch.setattr(decoder_checks, "toolchain", lambda: None)
    monkeypatch.setattr(decoder_checks, "run_graph", run)
    monkeypatch.setattr(decoder_trials, "run_reference", in_this_process)
    return ran


def in_this_process(path: Path, inputs: Arrays, *more: Any) -> Arrays:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.run_reference", in_this_process)


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


@pytest.mark.usefixtures("exact")
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


@pytest.mark.usefixtures("exact")
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


@pytest.mark.usefixtures("exact")
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


@pytest.mark.usefixtures("exact")
def test_people_see_verdicts_and_what_was_allowed(whole_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emulator(monkeypatch, moved("operator_Sigmoid_uint8", 3))
    done = hvdc("validate", whole_artifact, "--emulate", "-q")
    said = {line[: line.index("→")]: line for line in done.out.splitlines() if line.startswith("operator ")}
    assert said["operator Sigmoid uint8"].endswith("too far off")
    assert said["operator Sub uint16"].rstrip().endswith("ok")
    assert "allowed of frames: at most 2 steps in the mean, 40 dB or more" in done.out
    assert "allowed of operators: at most 2 steps, 50% of the values by one or more" in done.out


@pytest.mark.usefixtures("exact")
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


@pytest.mark.usefixtures("exact")
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


@pytest.mark.usefixtures("exact")
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


@pytest.mark.usefixtures("exact")
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


@pytest.mark.usefixtures("exact")
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


@pytest.mark.usefixtures("exact")
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
    assert (facts["checks"], facts["emulated"]) == (["layout", "graphs"], [])
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
    assert facts["checks"] == ["layout", "graphs", "binaries", "emulator"]
    operators = [row for row in facts["emulated"] if row["what"].startswith("operator")]
    assert len(operators) >= 15
    assert all(row["max_lsb"] <= 2 for row in operators)
    assert all(row["psnr_db"] > 40 for row in facts["emulated"] if row["output"] == "frames")


# --- what the encodings' file keeps -----------------------------------------------------------------------------


def test_encodings_and_probe_come_back_from_their_text(whole_artifact: Path) -> None:
    text = (whole_artifact / "decoder" / "encodings.json").read_text()
    held = Quantised.from_json(text)
    assert held.to_json() == text
    assert held.probe.dtype == np.float32
    assert np.isfinite(held.probe).all()
    for damaged in ("", "{}", "[]", text[: len(text) // 2]):
        with pytest.raises((ValueError, KeyError, TypeError)):
            Quantised.from_json(damaged)


def changed(text: str, change: Callable[[dict[str, Any]], None]) -> bytes:
    held = json.loads(text)
    change(held)
    return json.dumps(held).encode()


def probe_of(*shape: int, value: float = 0.0) -> dict[str, Any]:
    data = np.full(shape, value, "<f4").tobytes()
    return {"shape": list(shape), "float32": base64.b64encode(data).decode("ascii")}


def first_group(held: dict[str, Any]) -> list[dict[str, Any]]:
    group = next(name for variant, tensor, name in held["encodings"]["tensors"] if tensor == LATENT)
    return held["encodings"]["groups"][group]


@pytest.mark.parametrize(
    ("change", "where", "found"),
    [
        (lambda held: held.pop("probe"), "", "KeyError"),
        (lambda held: held.update(encodings=[]), "", "TypeError"),
        (lambda held: held["encodings"].update(groups=[]), "", "AttributeError"),
        (lambda held: held["probe"].update(float32="%"), "", "Error"),
        (lambda held: held["encodings"].update(groups={}), "", "KeyError"),
        (lambda held: held["encodings"].update(tensors=[]), "", "there is no encoding for a tensor"),
        (lambda held: first_group(held)[0].update(scale="1"), "", "TypeError"),
        (lambda held: first_group(held)[0].update(dtype="int4"), "", "KeyError"),
        (lambda held: first_group(held)[0].update(scale=0.0), ": latent", "scale=0.0"),
        (lambda held: first_group(held)[0].update(scale=0.25), ": first.latent", "scale=0.25"),
        (lambda held: first_group(held)[1].update(zero_point=-1), ": latent", "zero_point=-1"),
        (lambda held: held.update(probe=probe_of(15, 2, 6, 8)), ": probe", "[15, 2, 6, 8]"),
        (lambda held: held.update(probe=probe_of(16, 1, 6, 8)), ": probe", "[16, 1, 6, 8]"),
        (lambda held: held.update(probe=probe_of(16, 2, 0, 8)), ": probe", "[16, 2, 0, 8]"),
        (lambda held: held.update(probe=probe_of(16, 2, 6, 8, value=np.nan)), ": probe", "NaN or Inf"),
        (lambda held: held.update(probe=probe_of(32)), ": probe", "[32]"),
    ],
)  # fmt: skip
def test_encodings_that_cannot_be_used_are_a_finding(
    change: Callable[[dict[str, Any]], None], where: str, found: str, whole_artifact: Path, tmp_path: Path
) -> None:
    """Of an artifact whose hashes are right: somebody else may have written it."""
    copy = Path(shutil.copytree(whole_artifact, tmp_path / "copy.hvdc"))
    text = (copy / "decoder" / "encodings.json").read_text()
    replace_opaque(copy, "decoder/encodings.json", changed(text, change))
    with open_artifact(copy) as artifact, pytest.raises(ArtifactError) as raised:
        read_encodings(artifact, entry_of(whole_artifact))
    assert raised.value.code == Code.DATA_DECODER
    assert raised.value.where == f"decoder.encodings{where}"
    assert found in raised.value.found


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("data", [b" ", b"\xff\xfe", b"[" * 100_000, b"{}"], ids=["nothing", "bytes", "deep", "empty"])
def test_validate_reports_them_as_the_emulators_check(
    data: bytes, whole_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(whole_artifact, tmp_path / "copy.hvdc"))
    replace_opaque(copy, "decoder/encodings.json", data)
    ran = emulator(monkeypatch, lambda name, outputs: outputs)
    done = hvdc("validate", copy, "--emulate", "--json")
    assert done.status == 4
    [finding] = done.json()["findings"]
    assert (finding["check"], finding["code"], finding["where"]) == ("emulator", "DATA_DECODER", "decoder.encodings")
    assert ran == []
