"""The roofline's work: what the model's sizes ask for, however the executor cuts it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.hexagon_kernels import PASSES, Counted
from benchmarks.npu_roofline import (
    COL_TILES,
    KEY_TILES,
    QUERY_TILES,
    ROW_TILES,
    TILE,
    TILE_BYTES,
    Packets,
    attention_calls,
    block,
    gemm_calls,
    rates,
    tiles,
)
from device_runtime.build import SOURCE
from exporters.model import DCM_WAN21_1_3B, TINY
from quant.gemms import ADAPTED, LINEARS, gemm_inputs
from quant.source import Shape

PACKETS = Packets(Counted(of, 1.0, 1.0, True) for of in PASSES)


def linears_of(shape: Shape) -> dict[str, tuple[int, int]]:
    """Name -> (outputs, inputs) of the linears that a block computes for every token."""
    inputs = {linear: x.channels for x in gemm_inputs(shape) for linear in x.linears if x.per == "step"}
    outputs = {"ffn.net.0.proj": shape.ffn_width}
    return {linear: (outputs.get(linear, shape.width), k) for linear, k in inputs.items()}


@pytest.mark.parametrize("shape", [DCM_WAN21_1_3B, TINY])
@pytest.mark.parametrize("m", [1, 56, 20_280])
def test_multiply_adds_are_those_of_the_model_s_gemms(shape: Shape, m: int) -> None:
    linears = linears_of(shape)
    assert len(linears) == len(LINEARS) - 2  # keys and values of the text are made once for a prompt
    due = m * sum(n * k for n, k in linears.values()) + 2 * m * (m + shape.text_tokens) * shape.width
    assert sum(s.multiply_adds for s in block(shape, m, False, PACKETS)) == due
    adapted = m * sum((n + k) * shape.rank for name, (n, k) in linears.items() if name in ADAPTED)
    assert sum(s.multiply_adds for s in block(shape, m, True, PACKETS)) == due + adapted


@pytest.mark.parametrize("threads", [1, 2, 6])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (56, 70, 200), (1025, 1536, 8960), (20_280, 8960, 1536)])
def test_calls_cover_a_product_once(m: int, n: int, k: int, threads: int) -> None:
    calls = gemm_calls(m, n, k, threads)
    assert sum(rows * cols * depth * times for (rows, cols, depth, _), times in calls) == tiles(m) * tiles(n) * tiles(k)
    assert all(rows <= ROW_TILES and cols <= COL_TILES for (rows, cols, _, _), _ in calls)


@pytest.mark.parametrize(("m", "keys"), [(1, 1), (24, 520), (20_280, 20_280), (20_280, 512)])
def test_calls_cover_attention_once(m: int, keys: int) -> None:
    scores, values = attention_calls(m, keys, 12, 128)
    for calls in scores, values:
        pairs = sum(rows * cols * depth * times for (rows, cols, depth, _), times in calls)
        assert pairs == 12 * tiles(m) * tiles(keys) * 4
    assert all(rows <= QUERY_TILES and cols <= COL_TILES and parts == 1 for (rows, cols, _, parts), _ in scores)
    assert all(depth <= KEY_TILES and parts == 2 for (_, _, depth, parts), _ in values)


def test_a_unit_reads_two_tiles_for_a_pair() -> None:
    stage = next(s for s in block(DCM_WAN21_1_3B, 20_280, False, PACKETS) if s.name == "QKᵀ")
    pairs = 12 * 634 * 634 * 4
    assert stage.vtcm_bytes == (2 * pairs + pairs // 4) * TILE_BYTES
    assert stage.moved_bytes(lambda call: 0) == pairs // 4 * TILE_BYTES


def test_twice_the_tokens_are_four_times_the_attention() -> None:
    one, two = (block(DCM_WAN21_1_3B, m, False, PACKETS) for m in (10_240, 20_480))
    for a, b in zip(one, two, strict=True):
        times = 1 if a.name.startswith("widening") else 4 if a.name in ("QKᵀ", "softmax", "PV") else 2
        if a.multiply_adds:
            assert b.multiply_adds == times * a.multiply_adds
        if a.packets and a.name != "PV":
            assert b.packets == pytest.approx(times * a.packets)


def test_no_pass_is_free_and_names_are_checked() -> None:
    assert PACKETS(64, "layer_norm") == pytest.approx(2 + 2 + 2 + 1)
    assert PACKETS(64, "residual", "gated") == pytest.approx(1)
    for wrong in (("nothing",), ("residual", "nothing")):
        with pytest.raises(AssertionError):
            PACKETS(1, *wrong)


def test_rates_say_where_they_are_from() -> None:
    at = rates(clock_ghz=1.5)
    assert at.packets == 6 * 1.5e9
    assert "assumption" in at.clock_hz.source
    assert all(len(rate.source) > 20 for rate in (at.multiply_adds, at.memory_bytes, at.contexts))
    faster = replace(at, multiply_adds=replace(at.multiply_adds, value=2 * at.multiply_adds.value))
    stage = block(DCM_WAN21_1_3B, 20_280, False, PACKETS)[3]
    assert stage.seconds(faster)["matrix"] == pytest.approx(stage.seconds(at)["matrix"] / 2)


@pytest.mark.parametrize(
    ("header", "name", "value"),
    [
        ("npu/src/hmx.h", "HVDC_HMX_ROW_TILES", ROW_TILES),
        ("npu/src/hmx.h", "HVDC_HMX_COL_TILES", COL_TILES),
        ("npu/src/hvx.h", "HVDC_HVX_KEY_TILES", KEY_TILES),
        ("npu/src/hmx.h", "HVDC_HMX_QUERY_TILES", QUERY_TILES),
    ],
)
def test_limits_are_the_executor_s(header: str, name: str, value: int) -> None:
    (line,) = (x for x in (SOURCE / header).read_text().splitlines() if x.startswith(f"#define {name} "))
    assert int(line.split()[2].rstrip("u")) == value
    assert TILE == 32
