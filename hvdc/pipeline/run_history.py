"""What earlier starts of a run have left: figures of finished videos, and whether anything is left for the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exporters.prompts import Prompts
from hvdc.artifact.reader import Artifact
from hvdc.pipeline.run_place import Place, Run
from hvdc.pipeline.run_results import is_verified
from hvdc.pipeline.stream_file import StreamVideo, input_sha256


def merged(report: dict[str, Any], state: Run) -> dict[str, Any]:
    """A report in which a video that was skipped has the figures of the start that made it."""
    videos = []
    for record in report["videos"]:
        earlier = state.video(record["video"]) if record["skipped"] else {}
        whole = earlier.keys() == record.keys()
        blocks = {name: record[name] for name in ("gpu_blocks", "recovered", "skipped")}
        videos.append(earlier | blocks if whole else record)
    return report | {"videos": videos}


def finished_report(
    state: Run, place: Place, artifact: Artifact, prompts: Prompts, videos: Sequence[StreamVideo]
) -> dict[str, Any] | None:
    """The report of a run of which every result is there and verified; None if the runtime has something to do."""
    report = state.report
    records = report.get("videos")
    if not isinstance(records, list) or [_number(record) for record in records] != list(range(len(videos))):
        return None
    if not all(state.video(video) for video in range(len(videos))):
        return None
    alone = report.get("mode") in ("gpu", "dp")  # whose results say that the GPU may take every block
    for video, planned in enumerate(videos):
        if not place.result(video).exists():
            return None
        key = {
            "video": str(video),
            "mode": str(report.get("mode")),
            "cut": str(report.get("executions" if alone else "cut")),
            "gpu_share": report.get("gpu_share"),
            "npu_sums": str(report.get("npu_sums")),
            "input": input_sha256(artifact, prompts, planned),
        }
        if not is_verified(place.result(video), artifact, key):
            return None
    were_there = [state.video(video) | {"skipped": True} for video in range(len(videos))]
    return report | {"finished": 0, "skipped": len(videos), "stopped": False, "videos": were_there}


def _number(record: Any) -> Any:
    return record.get("video") if isinstance(record, dict) else None
