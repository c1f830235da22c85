"""Frames that `hvdc_runner` decoded. device_runtime/coordinator/include/hvdc/frames_file.h describes the file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hvdc.artifact.reader import Artifact
from hvdc.errors import HvdcError
from hvdc.files import explaining

FORMAT = "hvdc-frames-1"
CHANNELS = 3
_COMMENT = b"P6\n# "


@dataclass(frozen=True)
class Frames:
    """``pixels``: uint8 ``[T, height, width, 3]``, RGB. ``decoder``: who decoded them. ``latent``: SHA-256 of what, in
    the order of the runtime's results."""

    pixels: npt.NDArray[np.uint8]
    decoder: str
    latent: str


def read_frames(path: Path, artifact: Artifact) -> Frames:
    """A video's frames, after all checksums.

    Raises HvdcError: no such file, damaged, or of another artifact.
    """
    with explaining(path):
        data = path.read_bytes()
    comment, _, rest = data.removeprefix(_COMMENT).partition(b"\n")
    size, _, images = rest.partition(b"\n255\n")
    try:
        if not data.startswith(_COMMENT):
            raise ValueError("no comment")
        said = json.loads(comment)
        count, height, width = (int(said[name]) for name in ("frames", "height", "width"))
        before_check = comment.partition(b',"check":"')[0]
        whole = (
            hashlib.sha256(before_check).hexdigest() == said["check"]
            and hashlib.sha256(images).hexdigest() == said["sha256"]
            and size == f"{width} {height}".encode()
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _refused(path, f"it is no file of frames: {error}") from error
    if not whole:
        raise _refused(path, "its bytes are not those that were written")
    own = artifact.index.header["index_sha256"].tobytes().hex()
    if said.get("format") != FORMAT or said.get("artifact") != own:
        raise _refused(path, "it is of another artifact, or of another version of the runtime")
    header, frame_bytes = b"P6\n" + size + b"\n255\n", CHANNELS * height * width
    rows = np.frombuffer(header + images, np.uint8)
    if rows.size != count * (len(header) + frame_bytes):
        raise _refused(path, f"{count} frames of {height} × {width} have another size")
    rows = rows.reshape(count, -1)
    if any(row[: len(header)].tobytes() != header for row in rows):
        raise _refused(path, "an image in it has another size")
    pixels = rows[:, len(header) :].reshape(count, height, width, CHANNELS)
    return Frames(pixels, str(said["decoder"]), str(said["latent"]))


def _refused(path: Path, found: str) -> HvdcError:
    what = "a video's frames cannot be used"
    return HvdcError(what, where=str(path), found=found, fix="remove the file and run the same command with --resume")
