"""Frames become a file that a person can look at: MP4, GIF, or a folder of PNGs."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdc.errors import HvdcError, UsageError
from hvdc.files import whole_folder, write_durably
from hvdc.pipeline.videos import mp4_bytes, pixels_of, require_encoder

Float32Array = npt.NDArray[np.float32]

SUFFIXES = (".mp4", ".gif", "")


def check_clip_path(path: Path, *, force: bool) -> None:
    """Before any work. Raises UsageError for a name without a meaning, or one that is taken; HvdcError where what
    writes the format is not installed."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            "this is no format for frames", where=str(path), expected="NAME.mp4, NAME.gif, or a folder for PNG files",
            found=path.suffix, fix="choose another -o",
        )  # fmt: skip
    if not path.parent.is_dir():
        raise UsageError("the output's directory does not exist", where=str(path.parent), fix="make it first")
    if path.is_dir() and (path.suffix or not all(p.name.startswith("frame-") for p in path.iterdir())):
        raise UsageError("the output is a directory with other things in it", where=str(path), fix="choose another -o")
    if path.exists() and not force:
        raise UsageError("the output exists", where=str(path), fix="choose another name, or --force to replace it")
    if not path.suffix and path.exists() and not path.is_dir():
        raise UsageError("the output is a file, and frames become a folder", where=str(path), fix="choose another -o")
    if path.suffix.lower() == ".mp4":
        require_encoder()
    else:
        image_library()


def write_clip(path: Path, frames: Float32Array, fps: int) -> None:
    """``frames`` float32 ``[T, H, W, 3]``, RGB in [0, 1]; the file or folder appears whole or not at all.

    Raises HvdcError for NaN, a full disk, or PyAV without H.264.
    """
    pixels = pixels_of(frames, path.name)
    if path.suffix.lower() == ".mp4":
        write_durably(path, mp4_bytes(pixels, fps))
        return
    library = image_library()
    images = [library.fromarray(frame) for frame in pixels]
    if path.suffix.lower() == ".gif":
        file = io.BytesIO()
        images[0].save(file, "GIF", save_all=True, append_images=images[1:], duration=round(1000 / fps), loop=0)
        write_durably(path, file.getvalue())
        return
    with whole_folder(path, f".{path.name}.") as folder:
        for t, image in enumerate(images):
            image.save(folder / f"frame-{t:04d}.png")


def image_library() -> Any:
    """Pillow. Raises HvdcError."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        what = "writing GIF and PNG files needs Pillow, which is not installed"
        raise HvdcError(what, fix="pip install 'hvdc[quality]', or write an .mp4") from error
