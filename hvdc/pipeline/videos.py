"""Frames become a folder of videos that VBench finds by their names. See docs/VBENCH.md."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdc.errors import HvdcError, UsageError
from hvdc.files import replace_file

__all__ = ["Exported", "VideoFolder", "export_videos", "video_name"]

Float32Array = npt.NDArray[np.float32]
Clip = tuple[str, int, Float32Array]
"""Prompt, index of the sample, frames."""

LONGEST_NAME_BYTES = 255
"""What file systems allow for a name, in UTF-8."""

_ENCODER = "libx264"
_OPTIONS = {"crf": "10", "preset": "medium", "threads": "4"}
"""Hardly any loss: scores are to be the model's, not the encoder's. A fixed number of threads, for the same bytes."""


@dataclass(frozen=True)
class Exported:
    """What was written. ``prompts``: the file that maps each video's name to its prompt. ``renamed``: names of videos
    whose prompt cannot be a file's name.
    """

    folder: Path
    prompts: Path
    names: tuple[str, ...]
    renamed: tuple[str, ...]


def export_videos(folder: Path, clips: Iterable[Clip], fps: int = 16) -> Exported:
    """Writes each clip as ``folder/<prompt>-<index>.mp4``, the name by which VBench looks for it.

    A clip is a prompt, the index of its sample (VBench takes 0 to 4), and frames float32 ``[T, H, W, 3]``, RGB in
    [0, 1], H and W even; values outside are clipped. Videos are H.264 at nearly no loss (CRF 10), 4:2:0, BT.601.
    A prompt that cannot be a file's name (see `video_name`) is replaced by a hash of it. Beside the folder,
    ``<folder>.prompts.json`` maps every name to its prompt, as VBench's ``--prompt_file`` reads it; inside it would be
    taken for a video. Each file appears whole or not at all, the mapping after the last video.

    Raises:
        HvdcError: PyAV is not installed, or its build has no H.264 encoder; a clip with NaN or infinity.
        UsageError: the folder exists and is not empty (VBench would score what lies there too), or a prompt and index
            came twice.
        ValueError: frames of another shape or dtype, of odd height or width; a negative index; an fps below 1.
        OSError: what the file system says.
    """
    videos = VideoFolder(folder, fps)
    for prompt, index, frames in clips:
        videos.add(prompt, index, frames)
    return videos.finish()


class VideoFolder:
    """A folder that clips are added to one at a time: `export_videos` says how, and what is raised."""

    def __init__(self, folder: Path, fps: int = 16) -> None:
        require_encoder()
        if fps < 1:
            raise ValueError(f"{fps} frames a second")
        _require_empty(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._fps = folder, fps
        self._mapping: dict[str, str] = {}
        self._renamed: list[str] = []

    def add(self, prompt: str, index: int, frames: Float32Array) -> None:
        """Write one clip."""
        name, as_given = video_name(prompt, index)
        if name in self._mapping:
            raise UsageError("two clips have the same prompt and index", found=f"{prompt!r}, {index}")
        replace_file(self._folder / name, mp4_bytes(pixels_of(frames, name), self._fps))
        self._mapping[name] = prompt
        if not as_given:
            self._renamed.append(name)

    def finish(self) -> Exported:
        """Write the mapping of names to prompts beside the folder."""
        prompts = self._folder.with_name(f"{self._folder.name}.prompts.json")
        replace_file(prompts, (json.dumps(self._mapping, indent=1, ensure_ascii=False) + "\n").encode())
        return Exported(self._folder, prompts, tuple(self._mapping), tuple(self._renamed))


def _require_empty(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and next(folder.iterdir(), None) is None):
        raise UsageError(
            "the folder for videos is not empty",
            where=str(folder), expected="a new or empty folder: VBench would score what lies there too",
            fix="name another folder, or remove this one",
        )  # fmt: skip


class PathFolders:
    """A `VideoFolder` for each numeric path below one folder, named after it with ``_`` for what is not a letter or
    digit."""

    def __init__(self, root: Path) -> None:
        require_encoder()
        _require_empty(root)
        self._root = root
        self._folders: dict[str, VideoFolder] = {}

    def add(self, path: str, prompt: str, index: int, frames: Float32Array) -> None:
        """Write one clip of one path."""
        if path not in self._folders:
            name = re.sub(r"[^a-z0-9.-]+", "_", path.lower()).strip("_")
            self._folders[path] = VideoFolder(self._root / name)
        self._folders[path].add(prompt, index, frames)

    def finish(self) -> None:
        """Write each folder's mapping of names to prompts."""
        for folder in self._folders.values():
            folder.finish()


def video_name(prompt: str, index: int) -> tuple[str, bool]:
    """The file name of a sample, and whether it is the prompt as given.

    ``<prompt>-<index>.mp4``. If the prompt holds a ``/`` or a control character, or the name would be longer than 255
    bytes: ``prompt <first 16 digits of the prompt's SHA-256>-<index>.mp4``; none of VBench's prompts is such a one.

    Raises ValueError for a negative index.
    """
    if index < 0:
        raise ValueError(f"index {index}")
    name = f"{prompt}-{index}.mp4"
    encoded = prompt.encode("utf-8", "surrogatepass")
    printable = not any(c == "/" or ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in prompt)
    if printable and len(encoded) + len(name) - len(prompt) <= LONGEST_NAME_BYTES:
        return name, True
    return f"prompt {hashlib.sha256(encoded).hexdigest()[:16]}-{index}.mp4", False


def require_encoder() -> Any:
    """PyAV, whose wheels hold FFmpeg's libraries: no program is run, and none downloaded. Raises HvdcError."""
    try:
        av: Any = importlib.import_module("av")
    except ImportError as error:
        what = "writing videos needs PyAV, which is not installed"
        raise HvdcError(what, fix="pip install 'hvdc[quality]'") from error
    if _ENCODER not in av.codecs_available:
        raise HvdcError(
            "this build of PyAV cannot write H.264",
            where=f"av {av.__version__}", expected=f"the encoder {_ENCODER}",
            fix="pip install --force-reinstall --only-binary av av",
        )  # fmt: skip
    return av


def pixels_of(frames: Float32Array, name: str) -> npt.NDArray[np.uint8]:
    """uint8 ``[T, H, W, 3]``, rounded to nearest."""
    if frames.dtype != np.float32 or frames.ndim != 4 or frames.shape[3] != 3 or 0 in frames.shape:
        raise ValueError(f"a clip is float32 [T, H, W, 3], not {frames.dtype} {list(frames.shape)}")
    if frames.shape[1] % 2 or frames.shape[2] % 2:
        raise ValueError(f"4:2:0 video needs an even height and width, not {list(frames.shape[1:3])}")
    pixels = np.empty(frames.shape, np.uint8)
    for t, frame in enumerate(frames):  # a frame at a time: a whole clip in between would be as large as the clip
        if not np.isfinite(frame).all():
            raise HvdcError("a clip holds values that are not finite", where=f"{name}, frame {t}")
        pixels[t] = np.rint(np.clip(frame, 0.0, 1.0) * np.float32(255))
    return pixels


def mp4_bytes(pixels: npt.NDArray[np.uint8], fps: int) -> bytes:
    """A file of uint8 ``[T, H, W, 3]``. Raises HvdcError without PyAV, or without its H.264 encoder."""
    av = require_encoder()
    colour = importlib.import_module("av.video.reformatter")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream(_ENCODER, rate=fps, options=_OPTIONS)
        stream.height, stream.width = pixels.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.color_range = colour.ColorRange.MPEG
        stream.codec_context.colorspace = colour.Colorspace.SMPTE170M
        for picture in pixels:
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame = frame.reformat(
                format="yuv420p", dst_colorspace=colour.Colorspace.ITU601, dst_color_range=colour.ColorRange.MPEG
            )
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()
