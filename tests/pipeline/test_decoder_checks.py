"""Single operators of a quantised graph, and the emulator of the phone's NPU against an exact reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from exporters.qnn.available import why_not
from exporters.qnn.emulate import run_reference
from hvdc.pipeline import decoder_checks
from hvdc.pipeline.decoder_checks import Emulated, emulation_findings
from hvdc.pipeline.decoder_encodings import Quantised
from hvdc.pipeline.decoder_operators import DEQUANTISE, QUANTISE, single_operators
from quant.decoder.graph import MOVES
from quant.decoder.ports import ports
from tests.commands import hvdc
from tests.decoders import write_vae

needs_qnn = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is here")

Arrays = dict[str, np.ndarray]


# --- single operators -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first(whole_artifact: Path) -> onnx.ModelProto:
    return onnx.load(whole_artifact / "decoder" / "first.onnx")


def test_there_is_one_of_each_kind_that_computes(first: onnx.ModelProto) -> None:
    kinds = {node.op_type for node in first.graph.node} - {QUANTISE, DEQUANTISE, *MOVES}
    assert {"Conv", "MatMul", "Softmax", "Sigmoid", "Mul", "Add", "Div"} <= kinds
    assert set(single_operators(first)) == kinds


def test_each_runs_by_itself_on_integers(first: onnx.ModelProto) -> None:
    rng = np.random.default_rng(0)
    for kind, model in single_operators(first).items():
        onnx.checker.check_model(model, full_check=True)
        assert [n.op_type for n in model.graph.node if n.op_type not in (QUANTISE, DEQUANTISE)] == [kind]
        inputs, [output] = ports(model)
        codes = {p.name: rng.integers(1, 200, p.shape).astype(p.encoding.dtype) for p in inputs}
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        [found] = session.run(None, codes)
        assert (found.dtype, found.shape) == (np.dtype(output.encoding.dtype), output.shape)


def test_a_float_graph_has_none(first: onnx.ModelProto) -> None:
    bare = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"], name="r")], "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
    )  # fmt: skip
    assert single_operators(onnx.helper.make_model(bare, opset_imports=first.opset_import)) == {}


# --- the emulator -----------------------------------------------------------------------------------------------


def emulator(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str, Arrays], Arrays]) -> list[str]:
    """In place of Qualcomm's: the exact reference, changed by ``wrong(name of the graph, outputs)``. What it ran."""
    ran: list[str] = []

    def run(path: Path, inputs: Arrays, *more: Any) -> Arrays:
        name = onnx.load(path).graph.name
        ran.append(name)
        return wrong(name, run_reference(path, inputs))

    monkeypatch.setattr(decoder_checks, "why_not", lambda: "")
    monkeypatch.setattr(decoder_checks, "run_graph", run)
    monkeypatch.setattr(decoder_checks, "run_reference", in_this_process)
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
def test_what_is_exact_passes(whole_artifact: Path, first: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = emulator(monkeypatch, lambda name, outputs: outputs)
    done = hvdc("validate", whole_artifact, "--emulate", "--json")
    assert done.status == 0, done.out
    facts = done.json()
    assert facts["checks"][-1] == "emulator"
    assert len(ran) == len(single_operators(first)) + 2
    assert {row["max_lsb"] for row in facts["emulated"]} == {0.0}
    graphs = [row for row in facts["emulated"] if row["what"].startswith("graph")]
    assert {row["what"] for row in graphs} == {"graph decoder_first", "graph decoder_later"}
    assert {"frames", "next_cache.conv_in"} <= {row["output"] for row in graphs}


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("kind", "by", "share", "faults"),
    [
        ("operator_Sigmoid", 1, 0.4, False),
        ("operator_Sigmoid", 1, 0.9, True),
        ("operator_Sigmoid", 3, 0.1, True),
        ("operator_Conv", 1, 1.0, False),
        ("operator_Conv", 2 * 256, 0.4, False),
        ("operator_Conv", 256, 0.9, True),
        ("operator_Conv", 3 * 256, 0.1, True),
        ("decoder_later", 1, 1.0, False),
        ("decoder_later", 60, 0.1, True),
    ],
)
def test_bounds_are_steps_of_eight_bits(
    kind: str, by: int, share: float, faults: bool, whole_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first convolution has 16 bits, a code of which is a 256th of a step; the first sigmoid has 8."""
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


def test_options_of_the_emulator(whole_artifact: Path, vae: Path) -> None:
    done = hvdc("validate", whole_artifact, "--vae", vae)
    assert done.status == 2
    assert "--vae is for --emulate" in done.err


@needs_qnn
def test_the_emulator_computes_what_the_graphs_say(binary_artifact: Path) -> None:
    """Qualcomm's own. The largest differences are of frames and caches where a norm divides by nearly nothing."""
    done = hvdc("validate", binary_artifact, "--emulate", "--json")
    assert done.status == 0, done.json()["findings"]
    facts = done.json()
    assert facts["checks"] == ["layout", "graphs", "binaries", "emulator"]
    operators = [row for row in facts["emulated"] if row["what"].startswith("operator")]
    assert len(operators) >= 8
    assert all(row["max_lsb"] <= 2 for row in operators)


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
