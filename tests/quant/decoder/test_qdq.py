"""The quantised graphs: integers where they must be, equal bytes each time, frames near those of the float graphs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from quant.decoder.encodings import choose_encodings
from quant.decoder.errors import DecoderQuantError
from quant.decoder.graph import Graphs, Key, Variant, structure
from quant.decoder.ports import float_ports, named, ports
from quant.decoder.qdq import quantise, quantise_model, serialised
from quant.decoder.ranges import observe
from quant.decoder.stream import AnyArray, Streamer, decode
from tests.quant.decoder.small import (
    MIXED,
    SMALL,
    STAGES,
    behind_floats,
    clip,
    encodings,
    float_graphs,
    graphs,
    known,
    psnr_db,
    quantised,
    ranges,
)

ROOT = Path(__file__).resolve().parents[3]
NARROW: frozenset[str] = frozenset()


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


# ---- form ----


@pytest.mark.parametrize("variant", ["first", "later"])
def test_ports_are_integers_with_the_names_and_order_of_the_float_graph(variant: Variant) -> None:
    (model,), (source,) = quantised().models(variant), graphs().models(variant)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import == source.opset_import
    found = ports(model)
    for side, values in zip(found, (source.graph.input, source.graph.output), strict=True):
        assert [p.name for p in side] == [v.name for v in values]
        for port, value in zip(side, values, strict=True):
            assert list(port.shape) == [d.dim_value for d in value.type.tensor_type.shape.dim]
            assert port.encoding == encodings().stored(Key(variant, port.name))
    assert {p.encoding.dtype for p in found[1]} == {"uint8", "uint16"}


def test_what_a_call_writes_the_next_reads_in_the_same_encoding() -> None:
    read = [p for p in ports(quantised().later[0])[0] if p.name != "latent"]
    assert len(read) == 15
    for variant in ("first", "later"):
        written = {p.name: p for p in ports(quantised().models(variant)[0])[1]}  # type: ignore[arg-type]
        for p in read:
            other = written[f"next_{p.name}"]
            assert (p.encoding, p.shape) == (other.encoding, other.shape), p.name


def test_only_q_and_dq_are_added() -> None:
    for variant, model in quantised():
        (source,) = graphs().models(variant)
        rest = [n.op_type for n in model.graph.node if n.op_type not in ("QuantizeLinear", "DequantizeLinear")]
        assert sorted(rest) == sorted(n.op_type for n in source.graph.node)


def test_every_node_computes_between_q_and_dq_of_one_width() -> None:
    for _, model in quantised():
        values = constants(model)
        made = {n.output[0]: n for n in model.graph.node}
        read = {name: n for n in model.graph.node for name in n.input}
        for node in model.graph.node:
            if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                continue
            after = read[node.output[0]]
            assert after.op_type == "QuantizeLinear", node.name
            width = values[after.input[2]].dtype
            inputs = [made[name] for name in node.input if name in made]
            assert inputs, node.name
            for before in inputs[:1] if node.op_type == "Conv" else inputs:
                assert before.op_type == "DequantizeLinear", node.name
                assert values[before.input[2]].dtype == width, node.name


def test_chosen_groups_have_sixteen_bits_and_the_others_eight() -> None:
    wide = {*known().root_groups, *known().attention, *MIXED}
    for variant, model in quantised():
        values = constants(model)
        widths = {n.input[0]: values[n.input[2]].dtype for n in model.graph.node if n.op_type == "QuantizeLinear"}
        for key, group in known().group_of.items():
            source = f"{key.name}_QuantizeLinear_Input" if key.name.startswith(("next_cache.", "frames")) else key.name
            if key.variant == variant and source in widths:
                assert (widths[source] == np.uint16) == (group in wide), key
    assert all(dtype == "uint8" for dtype in (p.encoding.dtype for p in ports(quantised(NARROW).later[0])[1]))


# ---- weights and biases ----


def test_weights_are_symmetric_int8_with_a_scale_each_output_channel() -> None:
    for _, model in quantised():
        values = constants(model)
        source = constants(graphs().later[0]) | constants(graphs().first[0])
        made = {n.output[0]: n for n in model.graph.node}
        convs = [n for n in model.graph.node if n.op_type == "Conv"]
        assert len(convs) > 20
        for conv in convs:
            dq = made[conv.input[1]]
            codes, scales, zeros = (values[name] for name in dq.input)
            weight = source[dq.input[0].removesuffix("_quantized")]
            assert codes.dtype == np.int8
            assert codes.min() >= -127
            assert not zeros.any()
            assert scales.shape == weight.shape[:1]
            shape = (-1,) + (1,) * (weight.ndim - 1)
            np.testing.assert_allclose(codes * scales.reshape(shape), weight, atol=float(scales.max()) * 0.501)
            peak = np.abs(codes.reshape(len(codes), -1)).max(axis=1)
            assert (peak == 127).all(), conv.name


def test_biases_are_int32_at_the_product_of_the_scales() -> None:
    for _, model in quantised():
        values = constants(model)
        made = {n.output[0]: n for n in model.graph.node}
        for conv in (n for n in model.graph.node if n.op_type == "Conv"):
            x, weight, bias = (made[name] for name in conv.input)
            codes, scales, zeros = (values[name] for name in bias.input)
            assert codes.dtype == np.int32
            assert not zeros.any()
            np.testing.assert_allclose(scales, values[x.input[1]] * values[weight.input[1]], rtol=1e-6)
            assert np.abs(codes).max() < 2**31 - 1


def test_a_channel_of_zeros_and_a_bias_beside_tiny_weights() -> None:
    """A bias that does not fit into 32 bits at the weights' own scale makes that scale coarser."""
    changed = Graphs.of(*(onnx.ModelProto.FromString(m.SerializeToString()) for _, m in graphs()))
    for _, model in changed:
        for tensor in model.graph.initializer:
            if tensor.name == "decoder.conv_in.weight":
                value = numpy_helper.to_array(tensor).copy()
                value[0], value[1] = 0.0, value[1] * 1e-12
                tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    seen = observe(changed, [clip(1)])
    found = quantise(changed, choose_encodings(known(), seen, known().root_groups))
    for _, model in found:
        values = constants(model)
        bias = values["decoder.conv_in.bias_quantized"]
        assert np.abs(bias.astype(np.int64)).max() < 2**31 - 1
        real = bias * values["decoder.conv_in.bias_quantized_scale"].astype(np.float64)
        np.testing.assert_allclose(real, constants(changed.later[0])["decoder.conv_in.bias"], atol=1e-3)
    assert psnr_db(decode(behind_floats(found), [clip(1)])[0], decode(changed, [clip(1)])[0]) > 30


# ---- values ----


def integer_run(model: Graphs, codes: AnyArray) -> list[dict[str, AnyArray]]:
    return [dict(out) for _, out in Streamer(model).run(codes)]


def test_caches_move_without_change() -> None:
    """At one frame a call, the newer frame of a cache becomes the older one, code for code."""
    latent = named(ports(quantised().first[0])[0], "latent")
    runs = integer_run(quantised(), latent.encoding.quantise(clip(1, frames=4)))
    slow = [name for name in runs[0] if name.startswith(("next_cache.conv_in", "next_cache.mid"))]
    assert len(slow) == 5
    for name in slow:
        zero = named(ports(quantised().first[0])[1], name).encoding.zero_point
        assert (runs[0][name][:, :, 0] == zero).all()
        for before, after in pairwise(runs):
            np.testing.assert_array_equal(after[name][:, :, 0], before[name][:, :, 1])
    forgotten = named(ports(quantised().first[0])[1], "next_cache.up_blocks.0.upsamplers.0.time_conv")
    assert (runs[0][forgotten.name] == forgotten.encoding.zero_point).all()


def test_float_ports_change_no_code() -> None:
    z = clip(2)
    inputs, outputs = ports(quantised().first[0])
    exact = integer_run(quantised(), named(inputs, "latent").encoding.quantise(z))
    encoding = {p.name: p.encoding for p in outputs}
    for codes, (_, numbers) in zip(exact, Streamer(behind_floats(quantised())).run(z), strict=True):
        for name, value in numbers.items():
            np.testing.assert_array_equal(encoding[name].quantise(value), codes[name], err_msg=name)


def test_the_exporters_own_decoder_runs_them() -> None:
    from exporters.decoder.reference import StreamingDecoder

    decoder = StreamingDecoder(SMALL, lambda variant, rows, columns: [float_ports(quantised().models(variant)[0])])
    np.testing.assert_allclose(decoder.decode(clip(3)), decode(behind_floats(quantised()), [clip(3)])[0], atol=1e-6)


def test_stages_are_the_whole() -> None:
    pieces = float_graphs(groups=STAGES)
    cut = quantise(pieces, choose_encodings(structure(pieces), ranges(), known().root_groups | MIXED))
    assert [len(cut.first), len(cut.later)] == [3, 3]
    found, whole = (decode(behind_floats(g), [clip(4)])[0] for g in (cut, quantised()))
    np.testing.assert_array_equal(found, whole)


def test_another_tile_of_the_same_decoder() -> None:
    other = float_graphs(5, 2)
    found = behind_floats(quantise(other, encodings()))
    z = clip(5, rows=5, columns=2)
    assert psnr_db(decode(found, [z])[0], decode(other, [z])[0]) > 30


def test_frames_are_near_those_of_the_float_graphs() -> None:
    """Held-out latents of a random decoder, 8 bits everywhere and the mix."""
    latents = [clip(seed) for seed in (20, 21)]
    reference = np.concatenate(decode(graphs(), latents))
    assert psnr_db(np.concatenate(decode(behind_floats(quantised(NARROW)), latents)), reference) > 33
    assert psnr_db(np.concatenate(decode(behind_floats(quantised()), latents)), reference) > 35


@pytest.mark.parametrize("wide", [NARROW, None])
def test_a_mean_of_zero_divides_nothing_by_zero(wide: frozenset[str] | None) -> None:
    """A picture of one colour: everything in front of the first norm is zero, and stays zero behind it."""
    blank = Graphs.of(*(onnx.ModelProto.FromString(m.SerializeToString()) for _, m in graphs()))
    for _, model in blank:
        for tensor in model.graph.initializer:
            if tensor.name.startswith("decoder.conv_in.") or (
                tensor.name.endswith(".bias") and tensor.name.startswith("decoder.mid_block")
            ):
                zero = np.zeros_like(numpy_helper.to_array(tensor))
                tensor.CopyFrom(numpy_helper.from_array(zero, tensor.name))
    reference = decode(blank, [clip(1)])[0]
    found = quantise(blank, encodings(wide))
    for _, out in Streamer(behind_floats(found)).run(clip(1)):
        zero = out["next_cache.mid_block.resnets.0.conv1"]
        assert (zero == 0).all()
        assert all(np.isfinite(value).all() for value in out.values())
    assert psnr_db(decode(behind_floats(found), [clip(1)])[0], reference) > 25


# ---- the same each time, or an error ----


REPEAT = """
import hashlib, sys
from itertools import pairwise
from pathlib import Path
import onnx
from quant.decoder.encodings import Encodings
from quant.decoder.qdq import quantise_model, serialised
folder = Path(sys.argv[1])
encodings = Encodings.from_json((folder / "encodings.json").read_text())
model = quantise_model(onnx.load(folder / "later.onnx"), "later", encodings)
print(hashlib.sha256(serialised(model)).hexdigest())
"""


def test_bytes_are_the_same_in_another_process(tmp_path: Path) -> None:
    """Whose sets are in another order."""
    (tmp_path / "encodings.json").write_text(encodings().to_json())
    onnx.save(graphs().later[0], tmp_path / "later.onnx")
    env = {**os.environ, "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", REPEAT, str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=env, cwd=ROOT)
    assert out.stdout.strip() == hashlib.sha256(serialised(quantised().later[0])).hexdigest()


@pytest.mark.parametrize("wide", [NARROW, None])
def test_looking_up_by_name_changes_nothing(wide: frozenset[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what onnxruntime makes by looking at all that there is."""
    monkeypatch.setattr("quant.decoder.qdq.look_up_by_name", lambda held: None)
    due = quantise(graphs(), encodings(wide))
    assert [serialised(model) for _, model in quantised(wide)] == [serialised(model) for _, model in due]


def test_what_is_not_the_observed_decoder_is_refused() -> None:
    with pytest.raises(DecoderQuantError, match="no encoding"):
        quantise_model(graphs().later[0], "first", encodings())
    with pytest.raises(DecoderQuantError, match="no encoding"):
        quantise_model(quantised().first[0], "first", encodings())
    with pytest.raises(DecoderQuantError, match="not a quantised integer"):
        ports(graphs().first[0])
