"""A roofline of one block on the NPU: what each stage has to compute and to move, and how long its units take at least.

Work follows from the model's sizes and from how the executor goes about it (device_runtime/npu/src: block.c, gemm.c,
attention.c). Packets of the vector unit are those that were counted (`hexagon_kernels`); tiles that the matrix unit
fetches are what the plan of VTCM says (``hvdc_vtcm plans``). Rates are measured by others or assumed, and say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.hexagon_kernels import Counted
from quant.source import Shape

TILE = 32
ROW_TILES = 32
"""Of a call of the matrix unit: hmx.h, HVDC_HMX_ROW_TILES."""
COL_TILES = 8
"""HVDC_HMX_COL_TILES."""
KEY_TILES = 16
"""Of a piece of attention: hvx.h, HVDC_HVX_KEY_TILES."""
QUERY_TILES = 16
"""Query rows of attention in one call: hmx.h, HVDC_HMX_QUERY_TILES."""
TILE_BYTES = 2048


@dataclass(frozen=True)
class Rate:
    value: float
    source: str


@dataclass(frozen=True)
class Rates:
    """Peak rates of the units: multiply-adds, bytes and packets a second."""

    multiply_adds: Rate
    memory_bytes: Rate
    contexts: Rate
    clock_hz: Rate

    @property
    def packets(self) -> float:
        """Each context starts one a cycle, which is the most it can."""
        return self.contexts.value * self.clock_hz.value


def rates(clock_ghz: float) -> Rates:
    """For V79. No clock of its vector unit is published, so that it is the caller's."""
    return Rates(
        Rate(12.03e12 / 2, "12.03 TFLOP/s, FP16, 1024³ in VTCM, measured on V75 (arXiv 2509.23324, table 2)"),
        Rate(60e9, "60 GB/s by DMA, measured on V75 (the same table); the SM8750's DRAM has a peak of 84.8"),
        Rate(6, "a V79 says of itself: hvx_support_128b 6 (log in llama.cpp pull request 26373)"),
        Rate(clock_ghz * 1e9, f"{clock_ghz:g} GHz, an assumption (`--clock-ghz`): no figure is published"),
    )


PAPER_BLOCK_S = 3.35
"""The paper's NPU, one block at M = 20,280 on a Galaxy S25."""

Call = tuple[int, int, int, int]
"""One call of the matrix unit: tiles of rows, of columns, of k, and parts of a sum."""


@dataclass(frozen=True)
class Stage:
    """``least_bytes``: inputs and outputs once each. ``vector_bytes``: what vector kernels load and store."""

    name: str
    multiply_adds: int = 0
    calls: tuple[tuple[Call, int], ...] = ()
    least_bytes: int = 0
    vector_bytes: int = 0
    packets: float = 0.0

    def moved_bytes(self, fetched_tiles: Callable[[Call], int]) -> int:
        """Outside VTCM, as if no cache kept anything. ``fetched_tiles``: of a call, by its plan."""
        tiles = sum(times * (fetched_tiles(call) + call[0] * call[1] * call[3]) for call, times in self.calls)
        return self.vector_bytes + tiles * TILE_BYTES

    @property
    def vtcm_bytes(self) -> int:
        """What the matrix unit reads and writes."""
        return TILE_BYTES * sum(
            times * (2 * rows * columns * k + rows * columns * parts) for (rows, columns, k, parts), times in self.calls
        )

    def seconds(self, at: Rates) -> dict[str, float]:
        """What each unit takes if it never waits."""
        return {
            "matrix": self.multiply_adds / at.multiply_adds.value,
            "memory": self.least_bytes / at.memory_bytes.value,
            "vector": self.packets / at.packets,
        }


def tiles(count: int) -> int:
    return -(-count // TILE)


def _parts(count: int, most: int) -> Iterable[int]:
    """``count`` in parts of ``most`` and a smaller last one."""
    yield from (min(most, count - first) for first in range(0, count, most))


def _counted(calls: Iterable[Call], times: int = 1) -> tuple[tuple[Call, int], ...]:
    found: dict[Call, int] = {}
    for call in calls:
        found[call] = found.get(call, 0) + times
    return tuple(found.items())


def gemm_calls(m: int, n: int, k: int, threads: int) -> tuple[tuple[Call, int], ...]:
    """gemm.c, npu_multiply: columns of tiles are shared among threads, rows pass by 1024 at a time."""
    columns = max(1, min(COL_TILES, tiles(n) // (2 * threads)))
    return _counted(
        (rows, part, tiles(k), 1) for part in _parts(tiles(n), columns) for rows in _parts(tiles(m), ROW_TILES)
    )


def attention_calls(m: int, keys: int, heads: int, dim: int) -> tuple[tuple[tuple[Call, int], ...], ...]:
    """attention.c: scores of 16 tiles of keys at a time, by 8; then their values, in two parts."""
    queries, d = list(_parts(tiles(m), QUERY_TILES)), tiles(dim)
    pieces = list(_parts(tiles(keys), KEY_TILES))
    scores = _counted(
        ((rows, part, d, 1) for rows in queries for piece in pieces for part in _parts(piece, COL_TILES)), heads
    )
    values = _counted(((rows, d, piece, 2) for rows in queries for piece in pieces), heads)
    return scores, values


class Packets:
    """Packets of the vector unit for so many elements of a pass."""

    def __init__(self, counted: Iterable[Counted]) -> None:
        self._per_element = {(c.of.kernel, c.of.what): c.per_element for c in counted}

    def __call__(self, elements: int, kernel: str, *leave_out: str) -> float:
        """All passes of a kernel, without some."""
        names = {what for name, what in self._per_element if name == kernel}
        assert names, f"no kernel {kernel}"
        assert set(leave_out) <= names, f"{kernel} has {names}"
        return elements * sum(self._per_element[kernel, what] for what in names - set(leave_out))


def block(shape: Shape, m: int, expert_has_adapter: bool, packets: Packets, threads: int = 6) -> list[Stage]:
    """The stages of one block with ``m`` tokens, keys and values of the text at hand. ``threads``: of the executor."""
    w, f, heads, r = shape.width, shape.ffn_width, shape.heads, shape.rank
    dim, text, x = w // heads, shape.text_tokens, m * w
    linears = 6  # q, k, v, out; and q, out of cross-attention, whose keys and values are the prompt's
    codes = linears * w * w + 2 * w * f + (linears * 2 * w * r if expert_has_adapter else 0)
    scores, values = attention_calls(m, m, heads, dim)
    text_scores, text_values = attention_calls(m, text, heads, dim)
    pieces = -(-tiles(m) // KEY_TILES)
    stages = [
        Stage("widening the weights", least_bytes=3 * codes, vector_bytes=3 * codes, packets=packets(codes, "widen")),
        Stage(
            "norms and modulation, to operands", least_bytes=3 * 6 * x, vector_bytes=3 * (4 + 2 + 4) * x,
            packets=3 * (packets(x, "layer_norm") + packets(x, "pack_rows")),
        ),
        Stage(
            "RMS norms, RoPE, to operands", least_bytes=6 * 4 * x, vector_bytes=(3 * 8 + 3 * 4) * x,
            packets=2 * packets(x, "rms_norm") + packets(x, "rms_norm", "RoPE") + packets(x, "pack_columns")
            + 5 * packets(x, "pack_rows"),
        ),
        Stage(
            "q, k, v, o of both attentions", linears * m * w * w, _times(gemm_calls(m, w, w, threads), linears),
            linears * (4 * x + 2 * w * w), linears * 4 * x, linears * packets(x, "add_bias"),
        ),
    ]  # fmt: skip
    if expert_has_adapter:
        a, b = gemm_calls(m, r, w, threads), gemm_calls(m, w, r, threads)
        stages.append(
            Stage(
                "adapters of these",
                linears * 2 * m * w * r,
                _times(a, linears) + _times(b, linears),
                linears * (2 * x + 4 * x + 4 * m * r + 4 * w * r),
                linears * 6 * x,
                linears * packets(x, "add"),
            )
        )
    stages += [
        Stage("QKᵀ", m * m * w, scores, 4 * x),
        Stage("softmax", vector_bytes=6 * m * m * heads, packets=packets(m * m * heads, "weigh")),
        Stage(
            "PV", m * m * w, values, 4 * x, 3 * 4 * x * pieces,
            packets(x * pieces, "carry") + packets(x, "divide"),
        ),
        Stage(
            "cross-attention", 2 * m * text * w, text_scores + text_values, 4 * x + 4 * text * w,
            6 * m * text * heads + 12 * x,
            packets(m * text * heads, "weigh") + packets(x, "carry") + packets(x, "divide"),
        ),
        Stage(
            "feed-forward pair", 2 * m * w * f, gemm_calls(m, f, w, threads) + gemm_calls(m, w, f, threads),
            4 * x + 2 * 2 * w * f, 4 * x + 4 * m * f, packets(m * f, "add_bias_gelu") + packets(x, "add_bias"),
        ),
        Stage(
            "residual stream", least_bytes=3 * 10 * x, vector_bytes=3 * 10 * x,
            packets=2 * packets(x, "residual", "without a gate") + packets(x, "residual", "gated"),
        ),
    ]  # fmt: skip
    return stages


def _times(calls: tuple[tuple[Call, int], ...], times: int) -> tuple[tuple[Call, int], ...]:
    return tuple((call, count * times) for call, count in calls)
