"""What a run of the float model takes: time on a CPU, memory on a GPU, and which smaller clip would fit."""

from __future__ import annotations

import math
import time

import torch

from exporters.model import ATTENTION_LINEARS, FFN_LINEARS, Geometry, canonical_tensors
from hvdc.artifact.calibration import CalibrationDType
from hvdc.artifact.manifest import Video
from hvdc.errors import HvdcError
from hvdc.pipeline.machine import memory_bytes
from hvdc.pipeline.prepare import tokens_of
from hvdc.pipeline.ranks import Ranks

LONG_RUN_S = 600.0
"""From here on a CPU run is worth a word, and a proposal."""

_SIZES = ((49, 480, 832), (49, 240, 416), (17, 240, 416), (17, 128, 224), (9, 128, 128), (5, 64, 64))
"""Clips that are proposed, (frames, rows, columns), largest first."""


def block_flops(g: Geometry, tokens: int) -> float:
    """Floating point operations of one block: linears, self-attention, cross-attention."""
    linears = [*ATTENTION_LINEARS, *FFN_LINEARS]
    weights = sum(math.prod(g.linear_shape(linear)) for linear in linears if not linear.startswith("attn2.to_"))
    weights += 2 * math.prod(g.linear_shape("attn2.to_q"))  # to_k and to_v are run once per prompt
    return 2.0 * tokens * weights + 4.0 * tokens * (tokens + g.text_tokens) * g.width


def activation_bytes(g: Geometry, tokens: int, dtype: CalibrationDType) -> int:
    """An upper estimate of what the GPU holds beside the weights: residual, queries, keys, values, and one widest
    tensor going into GELU and out of it, some of them in FP32."""
    narrow = 4 if dtype == "fp32" else 2
    return tokens * (g.width * (4 * 4 + 6 * narrow) + g.ffn_width * 2 * narrow)


def weight_bytes(g: Geometry, dtype: CalibrationDType) -> int:
    """All tensors on the device."""
    return sum(math.prod(shape) for shape in canonical_tensors(g).values()) * (4 if dtype == "fp32" else 2)


def check_memory(g: Geometry, video: Video, steps: int, dtype: CalibrationDType, ranks: Ranks) -> list[str]:
    """Sentences about time and memory. ``steps``: of all trajectories. Raises HvdcError where a GPU cannot hold it."""
    if ranks.device.type == "cuda":
        if weight_bytes(g, dtype) + activation_bytes(g, video.tokens, dtype) > free_bytes(ranks.device):
            raise out_of_memory(g, video, dtype, ranks.device)
        return []
    notes = []
    have = memory_bytes()
    need = weight_bytes(g, dtype) + activation_bytes(g, video.tokens, dtype)
    if need > have:
        notes.append(f"this takes about {need / 2**30:.1f} GiB of memory, and the machine has {have / 2**30:.1f}")
    rate = _cpu_flops() * ranks.world
    duration_s = steps * g.layers * block_flops(g, video.tokens) / rate
    if duration_s > LONG_RUN_S:
        notes.append(f"on this CPU it takes about {in_words(duration_s)}; --device cuda is some hundred times faster")
        for frames, height, width in _SIZES:
            tokens = tokens_of(g, frames, height, width)
            shorter_s = steps * g.layers * block_flops(g, tokens) / rate
            if tokens < video.tokens and shorter_s < duration_s / 4:
                notes.append(
                    f"a smaller clip takes about {in_words(shorter_s)}: --frames {frames} --height {height} "
                    f"--width {width}; compiling with its scales then needs --allow-geometry"
                )
                break
    return notes


def cpu_duration_s(g: Geometry, video: Video, steps: int) -> float:
    """About how long so many steps take on this CPU, which is measured."""
    return steps * g.layers * block_flops(g, video.tokens) / _cpu_flops()


def free_bytes(device: torch.device) -> int:
    """GPU memory that this process can have: what nobody uses, and what its own allocator holds."""
    free: int = torch.cuda.mem_get_info(device)[0]
    return free + torch.cuda.memory_reserved(device)


def out_of_memory(g: Geometry, video: Video, dtype: CalibrationDType, device: torch.device) -> HvdcError:
    """The message, with the largest clip that would fit into what is free."""
    have = free_bytes(device) if device.type == "cuda" else memory_bytes()
    fix = "use a machine with more memory"
    if device.type == "cuda":
        fix = f"use a GPU with more free memory{', or --dtype bf16' if dtype == 'fp32' else ''}"
    for frames, height, width in _SIZES:
        tokens = tokens_of(g, frames, height, width)
        if tokens < video.tokens and weight_bytes(g, dtype) + activation_bytes(g, tokens, dtype) <= 0.9 * have:
            fix = f"this would fit: --frames {frames} --height {height} --width {width}"
            break
    need = weight_bytes(g, dtype) + activation_bytes(g, video.tokens, dtype)
    return HvdcError(
        "the device's memory is too small for this clip",
        where=f"{device}: {video.frames} frames of {video.width} × {video.height}, {dtype}",
        expected=f"about {need / 2**30:.1f} GiB free",
        found=f"{have / 2**30:.1f} GiB {'free' if device.type == 'cuda' else 'in all'}",
        fix=fix,
    )


def _cpu_flops() -> float:
    """Measured on a matrix product of a tenth of a second."""
    a = torch.ones((768, 768))
    a @ a
    begin, runs = time.perf_counter(), 0
    while time.perf_counter() - begin < 0.1:
        a @ a
        runs += 1
    return 2.0 * 768**3 * runs / (time.perf_counter() - begin)


def in_words(duration_s: float) -> str:
    """``90 s``, ``12 min``, ``3 h``."""
    if duration_s < 120:
        return f"{duration_s:.0f} s"
    return f"{duration_s / 60:.0f} min" if duration_s < 7200 else f"{duration_s / 3600:.0f} h"
