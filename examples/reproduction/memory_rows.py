"""Sizes: sections 2.1, 3.2, 6.1 and 6.3 of the paper. They follow from the model's shapes; nothing is measured."""

from __future__ import annotations

import math
from collections.abc import Callable

from examples.rates.derive import Said
from examples.reproduction.row import SHAPES, Kind, Row
from examples.reproduction.said import (
    ADDING,
    BUFFERS,
    EACH_BLOCK,
    FP16_COPY,
    HOLDS,
    PARAMETERS,
    PARTS,
    PRIVATE,
    TOKENS,
)
from exporters.model import DCM_WAN21_1_3B as MODEL
from exporters.model import EMBEDDER, canonical_tensors
from exporters.schedule import make_schedule
from hvdc.pipeline.artifact_plan import plan_artifact
from hvdc.pipeline.prepare import parameters, tokens_of
from hvdc.plan.memory import FP16_BYTES, GIB, MIB, WeightBytes, memory_table
from hvdc.plan.working_memory import (
    ClipSizes,
    carrier_bytes,
    handoff_bytes,
    scores_bytes,
    text_keys_bytes,
    working_buffers,
)
from hvdc.targets import load_target

GB, MB, MILLION = 1e9, 1e6, 1e6
FRAMES, HEIGHT, WIDTH, STEPS = 49, 480, 832, 6


def weights() -> WeightBytes:
    """Of the full-size model, as `hvdc compile --dry-run` plans it."""
    cap = load_target("sm8750").region_cap_bytes.value
    return WeightBytes(plan_artifact(MODEL, STEPS, cap).totals(), parameters(MODEL))


def memory_rows() -> list[Row]:
    """In the order of the paper."""
    w = weights()
    return [*_counts(), *_weights(w), *_configurations(w), *_working(w)]


def clip_sizes() -> ClipSizes:
    """Of the full-size model with clips of 49 frames."""
    tokens = tokens_of(MODEL, FRAMES, HEIGHT, WIDTH)
    latent_values = MODEL.out_channels * math.prod(MODEL.patch)
    experts = len({step.expert for step in make_schedule()})
    return ClipSizes(
        tokens=tokens,
        text_tokens=MODEL.text_tokens,
        text_width=MODEL.text_width,
        width=MODEL.width,
        ffn_width=MODEL.ffn_width,
        heads=MODEL.heads,
        rank=MODEL.rank,
        layers=MODEL.layers,
        latent_values=latent_values,
        experts=experts,
    )


def _counts() -> list[Row]:
    adapter = _elements(lambda name: ".lora_A." in name or ".lora_B." in name)
    own = _elements(lambda name: name.startswith(EMBEDDER["detail"]))
    tokens = [
        Row(
            f"tokens of a step, {frames} frames",
            TOKENS,
            stated,
            "",
            tokens_of(MODEL, frames, HEIGHT, WIDTH),
            "prediction",
            SHAPES,
        )
        for frames, stated in ((49, "20,280"), (33, "14,040"), (25, "10,920"), (17, "7,800"))
    ]
    return [
        Row(
            "parameters of the shared base",
            PARAMETERS,
            "1,419",
            "M",
            parameters(MODEL).base / MILLION,
            "prediction",
            SHAPES,
        ),
        Row("parameters of the adapter", PARAMETERS, "94.4", "M", adapter / MILLION, "prediction", SHAPES),
        Row(
            "parameters of the detail expert's embedding block",
            PARAMETERS,
            "25.6",
            "M",
            own / MILLION,
            "prediction",
            SHAPES,
            "With its text projection, without its output head.",
        ),
        *tokens,
    ]


def _weights(w: WeightBytes) -> list[Row]:
    t, p = w.totals, w.parameters
    merged = w.base_bytes + t.attention_base_bytes
    fp16 = FP16_BYTES * (p.base - p.text_embedder)
    no_scales = (w.artifact_bytes - t.base_scale_bytes) / MODEL.layers
    return [
        Row("FP16 copy of one engine", FP16_COPY, "2.82", "GB", fp16 / GB, "input", SHAPES, _fp16_why(w)),
        Row("two of them", FP16_COPY, "5.64", "GB", 2 * fp16 / GB, "follows", SHAPES),
        Row("attention base", PARTS, "541.4", "MiB", t.attention_base_bytes / MIB, "prediction", SHAPES),
        Row("feed-forward pair", PARTS, "787.5", "MiB", t.ffn_base_bytes / MIB, "prediction", SHAPES),
        Row("scales", PARTS, "2.6", "MiB", t.base_scale_bytes / MIB, "prediction", SHAPES),
        Row("rank-128 factors", PARTS, "91.5", "MiB", t.adapter_bytes / MIB, "prediction", SHAPES),
        Row("all of them", PARTS, "1,423", "MiB", w.artifact_bytes / MIB, "prediction", SHAPES),
        Row(
            "a block, both experts",
            EACH_BLOCK,
            "47.3",
            "MiB",
            w.artifact_bytes / MODEL.layers / MIB,
            "prediction",
            SHAPES,
            f"{no_scales / MIB:.2f} MiB without its scales.",
        ),
        Row(
            "NPU's FP16 feed-forward pair of a block",
            PARTS,
            "52.5",
            "MiB",
            w.npu_transient_bytes / MIB,
            "prediction",
            SHAPES,
        ),
        Row(
            "what the GPU adds: its staged pair",
            ADDING,
            "26.3",
            "MiB",
            w.gpu_transient_bytes / MIB,
            "prediction",
            SHAPES,
        ),
        Row(
            "the attention base once more",
            PRIVATE,
            "540",
            "MB",
            t.attention_base_bytes / MB,
            "prediction",
            SHAPES,
            f"{t.attention_base_bytes / MIB:.0f} MiB: the paper's MB are MiB here.",
        ),
        Row(
            "detail expert merged into a second attention copy",
            PARTS,
            "1.83",
            "GiB",
            merged / GIB,
            "prediction",
            SHAPES,
        ),
    ]


def _configurations(w: WeightBytes) -> list[Row]:
    total = {row.name: row.total_bytes for row in memory_table(w)}

    def with_staging(name: str) -> str:
        return (
            "How it is counted was chosen because it gives this figure: without the GPU's staged pair, with which it "
            f"is {(total[name] + w.gpu_transient_bytes) / GIB:.2f} GiB."
        )

    dp, merged = "data parallel", "one merged INT8 copy per engine"
    stated: tuple[tuple[str, Said, str, Kind, str], ...] = (
        ("artifact", EACH_BLOCK, "1.39", "prediction", ""),
        ("two engines, one copy", HOLDS, "1.47", "prediction", ""),
        (dp, HOLDS, "2.83", "input", with_staging(dp)),
        (merged, HOLDS, "3.71", "input", with_staging(merged)),
        ("one FP16 copy per engine", HOLDS, "5.25", "follows", "As the FP16 copy above."),
    )
    return [
        Row(name, said, text, "GiB", total[name] / GIB, kind, SHAPES, why) for name, said, text, kind, why in stated
    ]


def _fp16_why(w: WeightBytes) -> str:
    return (
        "What is counted was chosen because it gives this figure: the base without the text projection; with it, it is "
        f"{FP16_BYTES * w.parameters.base / GB:.2f} GB."
    )


def _working(w: WeightBytes) -> list[Row]:
    """The paper's working buffers, and the prompt's keys and values, which it does not mention."""
    c = clip_sizes()
    keys = c.experts * text_keys_bytes(c)
    stated = sum(b.bytes for b in working_buffers(c)) - keys
    weights = next(r.total_bytes for r in memory_table(w) if r.name == "two engines, one copy")
    why = f"Without the keys and values of cross-attention, {keys / MIB:.0f} MiB, which the paper does not mention."
    return [
        Row("a hidden-state carrier", BUFFERS, "59.4", "MiB", carrier_bytes(c) / MIB, "prediction", SHAPES),
        Row("scores and probabilities", BUFFERS, "178", "MiB", scores_bytes(c) / MIB, "prediction", SHAPES),
        Row("the hand-off", BUFFERS, "130", "MB", handoff_bytes(c) / MB, "prediction", SHAPES),
        Row("working buffers", BUFFERS, "0.4", "GiB", stated / GIB, "prediction", SHAPES, why),
        Row("needed at steady state", BUFFERS, "1.9", "GiB", (weights + stated) / GIB, "prediction", SHAPES, why),
    ]


def _elements(keep: Callable[[str], bool]) -> int:
    return sum(math.prod(shape) for name, shape in canonical_tensors(MODEL).items() if keep(name))
