"""Artifacts and streams of full width for the runtime's benchmarks: constant weights and constant activation scales.

What is timed and counted does not depend on values; nobody should mistake these artifacts for calibrated ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from exporters.model import DCM_WAN21_1_3B, Geometry
from exporters.prompts import read_prompts, write_prompts
from hvdc.artifact.calibration import Clip, GemmInput
from hvdc.artifact.reader import open_artifact
from hvdc.config import CompileConfig
from hvdc.pipeline.activation_scales import ActivationScales
from hvdc.pipeline.build import build
from hvdc.pipeline.prepare import Request, decide, schedule_of, video_of
from hvdc.pipeline.splat import splat_checkpoint
from hvdc.pipeline.stream_file import StreamVideo, write_stream
from hvdc.progress import Silent
from quant.gemms import gemm_inputs

WEIGHT, ACTIVATION_SCALE = 0.01, 0.05


def full_width(layers: int) -> Geometry:
    """DCM-Wan2.1's sizes with so many blocks."""
    return replace(DCM_WAN21_1_3B, layers=layers)


def write_artifact(output: Path, layers: int, frames: int, side: int) -> Path:
    """For clips of ``frames`` × ``side`` × ``side`` pixels; one that is there is taken."""
    if output.exists():
        return output
    geometry = full_width(layers)
    config = CompileConfig(frames=frames, height=side, width=side)
    steps, video = schedule_of(config, geometry), video_of(config, geometry)
    inputs = gemm_inputs(geometry)
    exists = np.array([[step.expert in i.experts for i in inputs] for step in steps])[:, None, :]
    table = np.where(exists, np.float32(ACTIVATION_SCALE), np.float32(0)).repeat(layers, axis=1).astype(np.float32)
    activations = ActivationScales(
        table=table,
        inputs=tuple(
            GemmInput(
                name=i.name, per=i.per, experts=tuple("detail" if e == "detail" else "semantic" for e in i.experts)
            )
            for i in inputs
        ),
        mode="global", statistics_sha256="0" * 64, prompts=1, seeds=(0,), dtype="fp32",
        video=Clip(frames=video.frames, height=video.height, width=video.width),
    )  # fmt: skip
    request = Request(None, output, config=config, jobs=2, activations=activations)
    build(decide(request, splat_checkpoint(geometry, WEIGHT)), Silent())
    return output


def write_streams(folder: Path, artifact: Path, videos: int) -> Path:
    """Noise for so many videos of one prompt of zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_artifact(artifact) as opened:
        g = opened.manifest.geometry
        embeds = folder / "embeds.safetensors"
        write_prompts(embeds, ["nothing"], [np.zeros((g.text_tokens, g.text_width), np.float32)])
        with read_prompts(embeds) as prompts:
            write_stream(folder, opened, prompts, [StreamVideo(0, seed) for seed in range(videos)])
    return folder
