"""Results of `hvdc_runner` become latents. device_runtime/coordinator/include/hvdc/result.h describes the file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from exporters.errors import CheckpointError
from exporters.safetensors_file import SafetensorsFile
from hvdc.artifact.reader import Artifact
from hvdc.errors import HvdcError
from hvdc.pipeline.sources import ArtifactSource

Float32Array = npt.NDArray[np.float32]

FORMAT = "hvdc-result-1"


def read_result(path: Path, artifact: Artifact) -> Float32Array:
    """A video's final latent, float32 ``[channels, frames, rows, columns]``.

    Raises HvdcError: no such file, damaged, of another artifact, or with a value that is not finite.
    """
    return _read(path, artifact)[0]


def verified_result(path: Path, artifact: Artifact, key: Mapping[str, object]) -> Float32Array | None:
    """The same, of a result that is whole and of this ``key``: metadata by name, as text but for ``gpu_share``; else
    None. What is verified is what is returned: the file is read once."""
    try:
        latent, metadata, header = _read(path, artifact)
        share = float(metadata["gpu_share"])
    except (HvdcError, ValueError, KeyError, TypeError):
        return None
    before_check = header.partition(b',"check":"')[0]
    found = {**metadata, "gpu_share": share}
    is_due = hashlib.sha256(before_check).hexdigest() == metadata.get("check") and all(
        found.get(name) == value for name, value in key.items()
    )
    return latent if is_due else None


def _read(path: Path, artifact: Artifact) -> tuple[Float32Array, dict[str, str], bytes]:
    """The latent, and its file's metadata and whole header."""
    shape, latent = ArtifactSource(artifact).shape, artifact.manifest.video.latent
    try:
        file = SafetensorsFile(path)
        try:
            metadata, header, tokens = file.metadata, file.header, file.tensors["tokens"].read()
        finally:
            file.close()
    except (CheckpointError, KeyError) as error:
        raise _refused(path, str(error)) from error
    digest = hashlib.sha256(np.ascontiguousarray(tokens, "<f4").data).hexdigest()
    own = artifact.index.header["index_sha256"].tobytes().hex()
    if metadata.get("format") != FORMAT or metadata.get("artifact") != own:
        raise _refused(path, "it is of another artifact, or of another version of the runtime")
    if metadata.get("sha256") != digest:
        raise _refused(path, "its values are not those that were written")
    if not np.isfinite(tokens).all():
        raise HvdcError(
            "a video's latent holds values that are not finite", where=str(path),
            fix="compile the artifact again, with activation scales of prompts like these",
        )  # fmt: skip
    import torch  # here: hvdc run says first what is wrong with what it was given

    from quant.paths.host import to_latent, token_grid

    grid = token_grid(latent, shape)
    values: Float32Array = to_latent(torch.from_numpy(tokens), grid, shape).contiguous().numpy()
    return values, metadata, header


def tokens_sha256(path: Path) -> str:
    """SHA-256 of a result's values, as its metadata has it. Raises HvdcError."""
    try:
        file = SafetensorsFile(path)
        try:
            return str(file.metadata["sha256"])
        finally:
            file.close()
    except (CheckpointError, KeyError) as error:
        raise _refused(path, str(error)) from error


def read_results(paths: Sequence[Path], artifact: Artifact) -> Float32Array:
    """Of several videos, float32 ``[videos, channels, frames, rows, columns]``. Raises as `read_result`."""
    return np.stack([read_result(path, artifact) for path in paths])


def _refused(path: Path, found: str) -> HvdcError:
    what = "a video's result cannot be used"
    return HvdcError(what, where=str(path), found=found, fix="remove it and run the same command with --resume")
