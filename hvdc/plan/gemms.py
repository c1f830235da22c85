"""GEMMs and what they take: the linears of a block, profiled times, and times of parts estimated from them.

A GEMM is ``[tokens, in_features] x [in_features, out_features]``. How times are estimated follows HeteroInfer (Chen et
al., 2025), which profiles a model's own weights at a few sequence lengths: a GPU's time is linear in the tokens, an
NPU's a staircase, because it computes a sequence of a standard length and pads others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hvdc.errors import UsageError

if TYPE_CHECKING:  # it needs NumPy, and arithmetic doesn't
    from hvdc.artifact.manifest import Manifest

Engine = Literal["gpu", "npu"]
TILE = 32
"""Rows and columns of a tile of the weights, in every tile order."""
FFN_CHUNK_TOKENS = 1024
"""The NPU's executor computes the feed-forward pair for so many tokens at a time (`NPU_FFN_ROWS` there)."""


@dataclass(frozen=True)
class Gemm:
    """A linear and its tokens. ``exchanges``: how often both engines meet in it where they share it.
    ``once_per_prompt``: not of every block execution, as cross-attention's keys and values are of the text alone."""

    name: str
    tokens: int
    in_features: int
    out_features: int
    exchanges: int = 1
    once_per_prompt: bool = False


@dataclass(frozen=True)
class GemmTime:
    """Seconds that a whole GEMM took on one engine."""

    engine: Engine
    tokens: int
    in_features: int
    out_features: int
    seconds: float


@dataclass(frozen=True)
class BlockSizes:
    """What the linears of a block follow from, in tokens and channels."""

    tokens: int
    text_tokens: int
    width: int
    ffn_width: int

    @classmethod
    def of(cls, manifest: Manifest) -> BlockSizes:
        """Those of an artifact."""
        g = manifest.geometry
        return cls(manifest.video.tokens, g.text_tokens, g.width, g.ffn_width)


DCM_WAN21_49_FRAMES = BlockSizes(tokens=20_280, text_tokens=512, width=1536, ffn_width=8960)
"""DCM-Wan2.1 at 832 x 480."""


def block_gemms(sizes: BlockSizes) -> tuple[Gemm, ...]:
    """The ten linears of a block, by their names in diffusers and in order of execution.

    An exchange takes the rows that a linear is computed for at once: all tokens, or `FFN_CHUNK_TOKENS`.
    """
    m, w, f = sizes.tokens, sizes.width, sizes.ffn_width
    chunks = -(-m // FFN_CHUNK_TOKENS)
    of_tokens = ("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "attn2.to_q", "attn2.to_out.0")
    of_text = ("attn2.to_k", "attn2.to_v")
    return (
        *(Gemm(name, m, w, w) for name in of_tokens),
        *(Gemm(name, sizes.text_tokens, w, w, once_per_prompt=True) for name in of_text),
        Gemm("ffn.net.0.proj", m, w, f, exchanges=chunks),
        Gemm("ffn.net.2", m, f, w, exchanges=chunks),
    )


@dataclass(frozen=True)
class Profile:
    """What one engine was measured to take, and what follows for parts of a GEMM.

    ``standard_tokens``, ascending: the engine computes sequences of these lengths and of multiples of the last, and
    pads others. ``(1,)``: it pads nothing.
    """

    engine: Engine
    standard_tokens: tuple[int, ...] = (1,)
    _widths: dict[int, dict[int, list[tuple[int, float]]]] = field(default_factory=dict)
    """in_features -> out_features -> (tokens, seconds), ascending."""

    @classmethod
    def of(cls, engine: Engine, times: Iterable[GemmTime], standard_tokens: tuple[int, ...] = (1,)) -> Profile:
        """From the times of this engine. What was measured of a padded length is of the length that was computed; of
        several such the longest time counts. Raises UsageError where one GEMM has two times."""
        profile, seen = cls(engine, standard_tokens), set()
        longest: dict[tuple[int, int, int], float] = {}
        for time in times:
            if time.engine != engine:
                continue
            shape = (time.in_features, time.out_features, time.tokens)
            if shape in seen:
                raise UsageError(
                    f"the rate table has two times of one GEMM on the {engine}",
                    where=f"{time.tokens} tokens, {time.in_features} to {time.out_features} channels",
                    fix="keep the one that was measured under the table's conditions",
                )
            seen.add(shape)
            computed = (time.in_features, time.out_features, profile.computed(time.tokens))
            longest[computed] = max(time.seconds, longest.get(computed, 0.0))
        for (k, n, tokens), seconds in sorted(longest.items()):
            profile._widths.setdefault(k, {}).setdefault(n, []).append((tokens, seconds))
        return profile

    def knows(self, in_features: int, out_features: int) -> bool:
        """Whether a weight of these sizes was measured at any number of tokens."""
        return out_features in self._widths.get(in_features, {})

    def computed(self, tokens: int) -> int:
        """``tokens`` with the padding that this engine computes too."""
        last = self.standard_tokens[-1]
        return next((s for s in self.standard_tokens if s >= tokens), -(-tokens // last) * last)

    def unpadded_below(self, tokens: int) -> Iterator[int]:
        """Lengths of less than ``tokens`` that it does not pad, ascending."""
        *others, last = self.standard_tokens
        yield from (s for s in others if s < tokens)
        yield from range(last, tokens, last)

    def seconds(self, tokens: int, in_features: int, out_features: int) -> float:
        """Of a GEMM, or of a part of one whose widest measured form is at least as wide; 0 for an empty one.

        Linear between measured columns and, from none to the narrowest measured ones, in proportion to them.
        Raises UsageError for one that is wider than any measured one.
        """
        widths = self._widths.get(in_features, {})
        if not widths or out_features > max(widths):
            raise UsageError(
                f"the rate table has no time of {in_features} to {out_features} channels on the {self.engine}",
                fix="measure this GEMM, or take another table",
            )
        if tokens == 0 or out_features == 0:
            return 0.0
        known = [(0, 0.0), *((width, self._whole(widths[width], tokens)) for width in sorted(widths))]
        return _between(known, out_features)

    def _whole(self, points: list[tuple[int, float]], tokens: int) -> float:
        """Of a measured weight: linear between measured lengths of sequence. Beyond them along the last line; never
        less than the largest measured, nor, below the smallest, than in proportion to it."""
        tokens = self.computed(tokens)
        (first, first_s), (last, last_s) = points[0], points[-1]
        if len(points) == 1:
            return first_s * tokens / first
        if tokens < first:
            return max(_line(points[0], points[1], tokens), first_s * tokens / first)
        if tokens > last:
            return max(_line(points[-2], points[-1], tokens), last_s)
        return _between(points, tokens)


def _between(points: list[tuple[int, float]], at: int) -> float:
    """On the line between the neighbours of ``at``, which lies within ``points``."""
    above = bisect_left(points, (at, 0.0))
    return points[above][1] if points[above][0] == at else _line(points[above - 1], points[above], at)


def _line(a: tuple[int, float], b: tuple[int, float], at: int) -> float:
    return a[1] + (b[1] - a[1]) * (at - a[0]) / (b[0] - a[0])
