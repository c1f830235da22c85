"""Single operators of a quantised graph, and the noise that they are tried with."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from exporters.qnn.available import why_not
from hvdc.pipeline.decoder_operators import DEQUANTISE, QUANTISE, single_operators
from hvdc.pipeline.decoder_trials import noise
from quant.decoder.encodings import Encoding, shares
from quant.decoder.graph import MOVES
from quant.decoder.ports import Port, ports

needs_qnn = pytest.mark.skipif(bool(why_not()), reason=why_not() or "it is here")


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
