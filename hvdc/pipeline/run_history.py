"""What earlier starts of a run have left: figures of finished videos, and whether anything is left for the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from exporters.prompts import Prompts
from hvdc.artifact.reader import Artifact
from hvdc.pipeline.run_decoders import RunDecoder
from hvdc.pipeline.run_place import Place, Run
from hvdc.pipeline.run_results import Float32Array, verified_result
from hvdc.pipeline.stream_file import StreamVideo, input_sha256


def merged(report: dict[str, Any], state: Run) -> dict[str, Any]:
    """A report in which a video that was skipped, or only decoded, has the figures of the start that made it."""
    videos = []
    for record in report["videos"]:
        earlier = state.video(record["video"]) if record["skipped"] or record["kept"] else {}
        whole = earlier.keys() == record.keys()
        blocks = {name: record[name] for name in ("gpu_blocks", "recovered", "skipped", "kept")}
        videos.append(earlier | blocks if whole else record)
    return report | {"videos": videos}


def finished_run(
    state: Run,
    place: Place,
    artifact: Artifact,
    prompts: Prompts,
    videos: Sequence[StreamVideo],
    decoder: RunDecoder | None,
) -> tuple[dict[str, Any], Float32Array] | None:
    """The report of a run of which every result is there and verified, and decoded if the runtime decodes, and their
    latents, float32 ``[videos, channels, frames, rows, columns]``; None if the runtime has something to do."""
    report = state.report
    records = report.get("videos")
    if not isinstance(records, list) or [_number(record) for record in records] != list(range(len(videos))):
        return None
    if not all(state.video(video) for video in range(len(videos))):
        return None
    policy = report.get("policy", "static")
    alone = report.get("mode") in ("gpu", "dp")  # whose results say that the GPU may take every block
    latents: list[Float32Array] = []
    for video, planned in enumerate(videos):
        if not place.result(video).exists():
            return None
        key = {
            "video": str(video),
            "mode": str(report.get("mode")),
            "cut": str(_cut(report, state.video(video), alone=alone)),
            "policy": None if policy == "static" else str(policy),
            "gpu_share": report.get("gpu_share"),
            "npu_sums": str(report.get("npu_sums")),
            "input": input_sha256(artifact, prompts, planned),
        }
        latent = verified_result(place.result(video), artifact, key)
        if latent is None:
            return None
        if decoder is not None and not decoder.is_done(place, video):
            return None
        latents.append(latent)
    were_there = [state.video(video) | {"skipped": True, "kept": False} for video in range(len(videos))]
    return report | {"finished": 0, "skipped": len(videos), "stopped": False, "videos": were_there}, np.stack(latents)


def _cut(report: dict[str, Any], record: dict[str, Any], *, alone: bool) -> Any:
    """As the result has it: under a policy each video has its own."""
    if report.get("policy", "static") != "static":
        return record.get("cut")
    return report.get("executions" if alone else "cut")


def _number(record: Any) -> Any:
    return record.get("video") if isinstance(record, dict) else None
