"""A stream as `hvdc_runner` takes it: ``stream.bin`` for the program, ``stream.json`` beside it for people.

Layout: `hvdc.artifact.stream_records`. The same artifact, prompts and videos give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from exporters.prompts import Prompts
from hvdc.artifact.manifest import Manifest
from hvdc.artifact.reader import Artifact
from hvdc.artifact.stream_records import ALIGN_BYTES, HEADER, MAGIC, MAX_VIDEOS, STREAM_NAME, VERSION, VIDEO
from hvdc.errors import UsageError
from hvdc.files import durable, write_durably
from hvdc.pipeline.sources import ArtifactSource
from layouts.regions import align_up

DESCRIPTION_NAME = "stream.json"
ZEROS = bytes(ALIGN_BYTES)
FLOAT_BYTES = 4


@dataclass(frozen=True)
class StreamVideo:
    """A video to make. ``prompt``: index into the prompts of the stream."""

    prompt: int
    seed: int


def planned_videos(prompts: int, seeds: Sequence[int], count: int | None) -> tuple[StreamVideo, ...]:
    """Every prompt with the first seed, then with the next; the first ``count`` of these. Raises UsageError."""
    every = tuple(StreamVideo(prompt, seed) for seed in seeds for prompt in range(prompts))
    if len(every) > MAX_VIDEOS:
        raise UsageError("these are too many videos", expected=f"at most {MAX_VIDEOS:,}", found=f"{len(every):,}")
    if count is not None and count > len(every):
        raise UsageError(
            "there are fewer videos than were asked for", where="--count",
            expected=f"at most {len(every)}: {prompts} prompts × {len(seeds)} seeds", found=str(count),
            fix="give more --seeds",
        )  # fmt: skip
    return every[:count]


def write_stream(folder: Path, artifact: Artifact, prompts: Prompts, videos: Sequence[StreamVideo]) -> str:
    """Write both files into an existing folder, each whole or not at all; returns the SHA-256 in the header.

    ``prompts`` has the artifact's text tokens and width. Takes the memory of one latent or one prompt at a time.
    Raises HvdcError when the disk refuses.
    """
    manifest, used = artifact.manifest, sorted({video.prompt for video in videos})
    header = _header(artifact, len(videos), len(used))
    table = np.zeros(len(videos), VIDEO.dtype)
    table["prompt"] = [used.index(video.prompt) for video in videos]
    table["seed"] = [video.seed for video in videos]
    path = folder / STREAM_NAME
    with durable(path) as file:
        digest = hashlib.sha256(header.tobytes())
        file.seek(HEADER.bytes)
        for part in _payload(artifact, table, prompts, used, videos):
            digest.update(part)
            file.write(part)
        header["sha256"][0] = np.frombuffer(digest.digest(), np.uint8)
        file.seek(0)
        file.write(header.tobytes())
    described = _description(manifest, digest.hexdigest(), prompts, videos)
    write_durably(folder / DESCRIPTION_NAME, (json.dumps(described, indent=1, ensure_ascii=False) + "\n").encode())
    return digest.hexdigest()


def input_sha256(artifact: Artifact, prompts: Prompts, video: StreamVideo) -> str:
    """Of a video's initial latent and then its embeddings: how a result names what it was made from."""
    digest = hashlib.sha256(_latent_bytes(artifact, video))
    digest.update(_embeds_bytes(prompts, video.prompt))
    return digest.hexdigest()


def _latent_bytes(artifact: Artifact, video: StreamVideo) -> bytes:
    shape, latent = ArtifactSource(artifact).shape, artifact.manifest.video.latent
    grid = (latent[0], latent[1], latent[2])
    from quant.paths.host import initial_noise, to_tokens  # here: it imports PyTorch, and most names of this need none

    tokens = to_tokens(initial_noise(video.seed, shape.in_channels, grid), shape).numpy()
    return np.ascontiguousarray(tokens, "<f4").tobytes()


def _embeds_bytes(prompts: Prompts, prompt: int) -> bytes:
    return np.ascontiguousarray(prompts.embeds[prompt], "<f4").tobytes()


def _header(artifact: Artifact, videos: int, prompts: int) -> npt.NDArray[np.void]:
    g, video = artifact.manifest.geometry, artifact.manifest.video
    header = np.zeros(1, HEADER.dtype)
    sizes = {
        "videos": videos,
        "prompts": prompts,
        "tokens": video.tokens,
        "latent_values": int(np.prod(g.patch)) * g.in_channels,
        "text_tokens": g.text_tokens,
        "text_width": g.text_width,
    }
    for name, value in sizes.items():
        header[name] = value
    sections = {
        "videos_offset": HEADER.bytes,
        "latents_offset": videos * VIDEO.bytes,
        "embeds_offset": videos * sizes["tokens"] * sizes["latent_values"] * FLOAT_BYTES,
        "total_bytes": prompts * sizes["text_tokens"] * sizes["text_width"] * FLOAT_BYTES,
    }
    at = 0
    for name, before in sections.items():  # each section starts where the one before it ends
        at = align_up(at + before, ALIGN_BYTES)
        header[name] = at
    header["magic"][0] = np.frombuffer(MAGIC, np.uint8)
    header["version"], header["header_bytes"] = VERSION, HEADER.bytes
    header["artifact_sha256"][0] = artifact.index.header["index_sha256"]
    return header


def _payload(
    artifact: Artifact,
    table: npt.NDArray[np.void],
    prompts: Prompts,
    used: Sequence[int],
    videos: Sequence[StreamVideo],
) -> Iterator[bytes]:
    """All behind the header, sections padded."""
    yield _gap(HEADER.bytes)
    yield table.tobytes() + _gap(table.nbytes)
    written = 0
    for video in videos:
        latent = _latent_bytes(artifact, video)
        written += len(latent)
        yield latent
    yield _gap(written)
    written = 0
    for prompt in used:
        rows = _embeds_bytes(prompts, prompt)
        written += len(rows)
        yield rows
    yield _gap(written)


def _gap(size: int) -> bytes:
    return ZEROS[: align_up(size, ALIGN_BYTES) - size]


def _description(manifest: Manifest, sha256: str, prompts: Prompts, videos: Sequence[StreamVideo]) -> dict[str, Any]:
    return {
        "stream_sha256": sha256,
        "model_sha256": manifest.model_sha256,
        "videos": [asdict(video) | {"text": prompts.texts[video.prompt]} for video in videos],
    }
