"""What a person looks at after a run: a clip of each video, and one sheet with frames of all of them."""

from __future__ import annotations

import hashlib
import importlib
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdc.files import explaining, file_sha256, write_durably
from hvdc.pipeline.clip_writer import image_library, write_clip
from hvdc.pipeline.run_decoders import RunDecoder
from hvdc.pipeline.run_entries import CLIP_FORMATS
from hvdc.pipeline.run_place import Place, Run
from hvdc.pipeline.videos import pixels_of
from hvdc.progress import Progress

Float32Array = npt.NDArray[np.float32]

STRIP_FRAMES = 8
STRIP_WIDTH_PX = 1600
"""Frames of a strip are scaled down, never up, so that it is no wider than this."""

SHEET_ROWS = 50
CAPTION_PX = 16

DECODED_BY = "decoded_by"
"""Of what is kept of a clip; it decides nothing."""


@dataclass(frozen=True)
class Clip:
    """``decode_s``: seconds of decoding, or of reading what the runtime decoded; None: it was there. ``decoded_by``:
    who decoded it, as that calls itself."""

    decode_s: float | None
    decoded_by: str


def write_clips(
    place: Place, state: Run, decoder: RunDecoder, latents: Float32Array, suffix: str, fps: int, progress: Progress
) -> list[Clip]:
    """Decode each latent of ``[videos, channels, frames, rows, columns]`` into a clip and a strip of its frames.

    Those that are there already stay, if they are of this latent, decoder, format and rate, and whole. Raises as
    `RunDecoder.frames` and `write_clip`.
    """
    clips: list[Clip] = []
    for video, latent in enumerate(latents):
        clip, strip = place.clip(video, suffix), place.strip(video)
        of = {"latent": hashlib.sha256(np.ascontiguousarray(latent, "<f4").data).hexdigest(), **decoder.identity}
        _remove_others(place, state, video, suffix, of)
        held = state.clip(clip.name)
        by = held.pop(DECODED_BY, decoder.kind)  # runs that were begun before it was kept go on
        if held == of | {"fps": fps, "clip": _sha256(clip), "strip": _sha256(strip)}:
            clips.append(Clip(None, by))
            continue
        begin = time.monotonic()
        frames, by = decoder.frames(place, video, latent, progress)
        clips.append(Clip(time.monotonic() - begin, by))
        write_durably(strip, _png(strip_of(frames)))
        write_clip(clip, frames, fps)
        made = {"fps": fps, "clip": _sha256(clip), "strip": _sha256(strip), DECODED_BY: by}
        state.note_clip(clip.name, of | made)
    return clips


def _remove_others(place: Place, state: Run, video: int, suffix: str, of: dict[str, str]) -> None:
    """Clips of the same video in other formats, if they are of another latent or decoder."""
    for other in CLIP_FORMATS:
        clip = place.clip(video, other)
        made = state.clip(clip.name)
        same = {name: made[name] for name in ("latent", "decoder") if name in made} == of
        if other != suffix and clip.exists() and not same:
            with explaining(clip):
                clip.unlink()


def _sha256(path: Path) -> str | None:
    """None: no such file."""
    try:
        return file_sha256(path)
    except FileNotFoundError:
        return None


def strip_of(frames: Float32Array) -> npt.NDArray[np.uint8]:
    """Frames float32 ``[T, H, W, 3]`` → up to 8 of them side by side, first and last included: uint8 ``[h, w, 3]``."""
    count = min(STRIP_FRAMES, len(frames))
    chosen = pixels_of(frames[np.linspace(0, len(frames) - 1, count).round().astype(int)], "strip")
    height, width = chosen.shape[1:3]
    scale = min(1.0, STRIP_WIDTH_PX / (count * width))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    library = image_library()
    return np.concatenate([np.asarray(library.fromarray(frame).resize(size)) for frame in chosen], axis=1)


def write_sheet(place: Place, captions: Sequence[str]) -> None:
    """A row for each video, with its caption above: the first 50 of them."""
    library = image_library()
    drawing = importlib.import_module("PIL.ImageDraw")
    shown = captions[:SHEET_ROWS]
    strips = [library.open(place.strip(video)).convert("RGB") for video in range(len(shown))]
    width = max(strip.width for strip in strips)
    sheet = library.new("RGB", (width, sum(strip.height + CAPTION_PX for strip in strips)), (24, 24, 24))
    draw, top = drawing.Draw(sheet), 0
    for strip, caption in zip(strips, shown, strict=True):
        plain = caption.encode("ascii", "replace").decode()  # the font that Pillow brings knows few letters
        draw.text((4, top + 2), plain, fill=(230, 230, 230))
        sheet.paste(strip, (0, top + CAPTION_PX))
        top += strip.height + CAPTION_PX
    write_durably(place.sheet, _png(sheet))


def _png(image: Any) -> bytes:
    file = io.BytesIO()
    picture = image_library().fromarray(image) if isinstance(image, np.ndarray) else image
    picture.save(file, "PNG")
    return file.getvalue()
