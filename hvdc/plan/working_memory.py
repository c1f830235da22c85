"""Working memory: what a stream of videos needs beside the weights, from the sizes of a model and a clip.

Two views. `working_buffers` counts what the paper counts (HeteroVDiff, section 6.3). `npu_engine`, `gpu_engine`,
`slot_bytes` and `exchange_bytes` are what device_runtime allocates, buffer by buffer; `hvdc_runner` forecasts the same
before it reads a weight, and tests compare both to the byte. All in bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hvdc.artifact.manifest import Manifest
from hvdc.config import FRAMES_MAX
from hvdc.errors import UsageError
from hvdc.plan.gemms import FFN_CHUNK_TOKENS, TILE

FP16, FP32, INT32 = 2, 4, 4
SLOT_ALIGN = 4096
GPU_ROWS = 1024
"""Rows that the GPU's executor computes of a linear at once, at most."""
GPU_ATTENTION_ROWS = 256
"""Queries whose scores it holds at once."""
GPU_SLACK_ROWS = 16
"""Rows behind the last that its kernels may read."""
GPU_LARGEST_BUFFER = (1 << 30) - 4096


@dataclass(frozen=True)
class ClipSizes:
    """What working memory follows from, in tokens, channels and values. ``latent_values``: of a token."""

    tokens: int
    text_tokens: int
    text_width: int
    width: int
    ffn_width: int
    heads: int
    rank: int
    layers: int
    latent_values: int
    experts: int

    @classmethod
    def of(cls, manifest: Manifest, frames: int | None = None) -> ClipSizes:
        """Of an artifact, with clips of its own length or of ``frames``.

        Raises UsageError for a number of frames that no latent has, as it is a multiple of the temporal scale, plus 1,
        and for more than `hvdc compile` takes.
        """
        g, video = manifest.geometry, manifest.video
        sizes = cls(
            video.tokens, g.text_tokens, g.text_width, g.width, g.ffn_width, g.heads, g.rank, g.layers,
            g.out_channels * math.prod(g.patch), len({step.expert for step in manifest.steps}),
        )  # fmt: skip
        return sizes if frames is None else replace(sizes, tokens=_tokens(manifest, frames))

    @property
    def head(self) -> int:
        """Channels of a head."""
        return self.width // self.heads


def _tokens(manifest: Manifest, frames: int) -> int:
    scale = 4  # of Wan's VAE, in time; the patch is one latent frame
    if frames < 1 or frames % scale != 1:
        raise UsageError(
            "there is no latent of so many frames", where="--frames", expected="1, 5, 9, …: 4 n + 1", found=str(frames)
        )
    if frames > FRAMES_MAX:
        raise UsageError(
            "the clip is longer than hvdc compiles for", where="--frames", expected=f"at most {FRAMES_MAX:,} frames",
            found=f"{frames:,}"[:40],
        )  # fmt: skip
    latent_frames = (frames - 1) // scale + 1
    return latent_frames * manifest.video.tokens // manifest.video.latent[0]


@dataclass(frozen=True)
class Buffer:
    """Memory with a purpose."""

    name: str
    bytes: int
    note: str = ""


def text_keys_bytes(c: ClipSizes) -> int:
    """Cross-attention's keys and values of one prompt for one expert, in FP16: 2 · layers · text tokens · width."""
    return 2 * c.layers * c.text_tokens * c.width * FP16


def carrier_bytes(c: ClipSizes) -> int:
    """One hidden state in FP16."""
    return c.tokens * c.width * FP16


def scores_bytes(c: ClipSizes) -> int:
    """One block of attention on the GPU: FP16 scores and INT8 probabilities of 256 queries of all heads."""
    return GPU_ATTENTION_ROWS * c.heads * c.tokens * (FP16 + 1)


def handoff_bytes(c: ClipSizes) -> int:
    """What crosses at the cut: hidden state and running latent, both FP32."""
    return c.tokens * (c.width + c.latent_values) * FP32


def working_buffers(c: ClipSizes) -> list[Buffer]:
    """What the paper counts beside the weights, and the keys and values that stay for a prompt."""
    return [
        Buffer("hidden state, first carrier", carrier_bytes(c), "tokens × width × FP16"),
        Buffer("hidden state, second carrier", carrier_bytes(c), "tokens × width × FP16"),
        Buffer("scores and probabilities", scores_bytes(c), "256 queries × heads × tokens × (FP16 + INT8)"),
        Buffer("handoff", handoff_bytes(c), "tokens × (width + latent values) × FP32"),
        Buffer(
            "cross-attention keys and values", c.experts * text_keys_bytes(c),
            f"{c.experts} live expert{'s' if c.experts > 1 else ''} × 2 × blocks × text tokens × width × FP16",
        ),
    ]  # fmt: skip


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def slot_bytes(c: ClipSizes) -> int:
    """A video in flight: a head, the running latent twice, the prompt's embeds, the hidden state, all FP32."""
    latent = _up(c.tokens * c.latent_values * FP32, SLOT_ALIGN)
    embeds = _up(c.text_tokens * c.text_width * FP32, SLOT_ALIGN)
    return SLOT_ALIGN + 2 * latent + embeds + _up(c.tokens * c.width * FP32, SLOT_ALIGN)


def rotations_bytes(c: ClipSizes) -> int:
    """RoPE's rotations, a sine and a cosine of each pair of a head's channels, in FP32: the CPU computes them for the
    NPU, which maps them."""
    return c.tokens * c.head * FP32


def exchange_bytes(c: ClipSizes) -> int:
    """Of mode hetero-tensor: what enters the largest linear in FP16, what leaves it in FP32."""
    outside = max(c.tokens, c.text_tokens) * _up(c.width, TILE)
    inside = min(c.tokens, FFN_CHUNK_TOKENS) * _up(c.ffn_width, TILE)
    values = max(outside, inside)
    return _up(values * FP16, SLOT_ALIGN) + values * FP32


def npu_engine(c: ClipSizes) -> list[Buffer]:
    """What the NPU's executor holds, without each thread's scratch, which is VTCM's part on a phone.

    Everything in FP16 tiles of 32 × 32, padded; see device_runtime/npu/src/buffers.c.
    """
    rows = _up(max(c.tokens, c.text_tokens), TILE)
    width, ffn, rank = _up(c.width, TILE), _up(c.ffn_width, TILE), _up(c.rank, TILE)
    heads = c.heads * _up(c.head, TILE)

    def keys(tokens: int) -> int:
        return 2 * heads * _up(tokens, TILE) * FP16

    return [
        Buffer("what enters and leaves a linear", 2 * rows * width * FP16),
        Buffer("queries", rows * heads * FP16),
        Buffer("keys and values of the tokens", keys(c.tokens)),
        Buffer("keys and values of the text", c.experts * c.layers * keys(c.text_tokens), "each live expert's"),
        Buffer("a block's feed-forward pair", 2 * width * ffn * FP16, "widened to FP16: the paper's transient"),
        Buffer("between the pair", min(rows, FFN_CHUNK_TOKENS) * ffn * FP16),
        Buffer("an adapter's hidden", rows * rank * FP16),
        Buffer("rotations", rotations_bytes(c) + _up(c.width * FP32, 128), "and a modulation"),
    ]


def gpu_engine(c: ClipSizes) -> list[Buffer]:
    """What the GPU's executor holds where it imports the weights; see device_runtime/gpu/src/prepare.c."""
    width, ffn, rank = _up(c.width, TILE), _up(c.ffn_width, TILE), _up(c.rank, TILE)
    stored, text = _up(c.tokens, TILE), _up(c.text_tokens, TILE)
    heads, widest = c.heads * _up(c.head, TILE), max(width, ffn)
    rows = _gpu_rows(c)
    queries = _attention_rows(c, min(rows, c.tokens), max(stored, text))
    elements, slack = c.heads * queries * max(stored, text), rows + GPU_SLACK_ROWS
    scores = elements * (FP16 + 1) + GPU_SLACK_ROWS * max(stored, text) + c.heads * queries * INT32
    return [
        Buffer("hidden state", c.tokens * width * FP16),
        Buffer("keys and values of the tokens", 2 * heads * stored, "INT8"),
        Buffer("keys and values of the text", c.experts * c.layers * 2 * heads * text, "INT8, each expert's"),
        Buffer("scores and probabilities", scores, f"of {queries} queries"),
        Buffer("a block's feed-forward pair", 2 * width * ffn, "staged in INT8: the paper's transient"),
        Buffer("codes of activations", slack * (widest + heads + rank)),
        Buffer("outputs of a linear", rows * (widest + rank) * FP32),
        Buffer("rotations", 2 * c.tokens * (c.head // 2) * FP32 + 6 * width * FP32, "and a block's modulation"),
        Buffer("staging on the CPU", max(rows, 6) * width * FP32),
    ]


def gpu_largest_bytes(c: ClipSizes) -> int:
    """The largest single buffer of the GPU's executor."""
    width, ffn, stored = _up(c.width, TILE), _up(c.ffn_width, TILE), _up(max(c.tokens, c.text_tokens), TILE)
    rows = _gpu_rows(c)
    scores = c.heads * _attention_rows(c, min(rows, c.tokens), stored) * stored * FP16
    return max(c.tokens * width * FP16, c.heads * _up(c.head, TILE) * stored, scores, rows * max(width, ffn) * FP32,
               2 * width * ffn)  # fmt: skip


def _gpu_rows(c: ClipSizes) -> int:
    """Rows of a linear that are computed at once: fewer where outputs of more would not fit a buffer."""
    rows = min(GPU_ROWS, _up(max(c.tokens, c.text_tokens), TILE))
    widest = _up(max(c.width, c.ffn_width), TILE)
    while rows > TILE and rows * widest * FP32 > GPU_LARGEST_BUFFER:
        rows -= TILE
    return rows


def _attention_rows(c: ClipSizes, most: int, stored: int) -> int:
    rows = min(most, GPU_ATTENTION_ROWS)
    fitting = GPU_LARGEST_BUFFER // (c.heads * stored * FP16)
    return rows if fitting > rows else max(fitting - 1, 1)


def total_bytes(buffers: list[Buffer]) -> int:
    """Their sum."""
    return sum(buffer.bytes for buffer in buffers)
