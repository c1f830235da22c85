"""Who decodes a run's latents: onnxruntime after the stream, or the runtime within it, by the artifact's binaries.

The second is what a phone does. On this machine the libraries that it loads are Qualcomm's emulator of the NPU for x86,
which computes what the NPU computes, and says nothing about time or about whether a phone loads the binaries.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from exporters.qnn.available import library_folder
from hvdc.artifact.decoder import Decoder
from hvdc.artifact.reader import Artifact
from hvdc.errors import HvdcError, UsageError
from hvdc.pipeline.decoder_checks import other_build, why_not_read
from hvdc.pipeline.host_decoder import HostDecoder
from hvdc.pipeline.run_frames import Frames, read_frames
from hvdc.pipeline.run_place import Place
from hvdc.pipeline.run_results import tokens_sha256
from hvdc.progress import Progress

Float32Array = npt.NDArray[np.float32]

HOST_DECODERS = ("onnxruntime", "emulator")
"""What decodes on this machine: the artifact's graphs, or its binaries on Qualcomm's emulator."""
EMULATOR, ON_DEVICE = HOST_DECODERS[1], "device"
"""The latter: the artifact's binaries, by the runtime on the phone that makes the latents."""
DECODERS = (*HOST_DECODERS, ON_DEVICE)

_APART = "--decoder-backend qnn --set decoder_share_weights=false"


class RunDecoder(Protocol):
    """What clips are made with."""

    @property
    def identity(self) -> dict[str, str]:
        """What tells its clips from those of another decoder."""

    @property
    def libraries(self) -> Path | None:
        """Of QNN, with which the runtime decodes; None: it makes latents only."""

    @property
    def kind(self) -> str:
        """One of DECODERS."""

    def is_done(self, place: Place, video: int) -> bool:
        """Whether the runtime has nothing to decode of a finished video."""

    def frames(self, place: Place, video: int, latent: Float32Array, progress: Progress) -> tuple[Float32Array, str]:
        """``latent`` float32 ``[z, T, rows, columns]`` → frames float32 ``[T', height, width, 3]``, RGB in [0, 1], and
        who has decoded them, as that calls itself."""


class AfterStream:
    """onnxruntime, on the artifact's graphs. Raises as `HostDecoder`."""

    libraries = None
    kind = DECODERS[0]

    def __init__(self, decoder: HostDecoder) -> None:
        self._decoder = decoder

    @property
    def identity(self) -> dict[str, str]:
        return {}

    def is_done(self, place: Place, video: int) -> bool:
        return True

    def frames(self, place: Place, video: int, latent: Float32Array, progress: Progress) -> tuple[Float32Array, str]:
        return self._decoder.decode(latent, progress), f"onnxruntime {version('onnxruntime')}"


class InStream:
    """The runtime, through the emulator. Raises UsageError for an artifact that the emulator cannot decode, and where
    there is none."""

    kind = DECODERS[1]

    def __init__(self, artifact: Artifact) -> None:
        self._artifact = artifact
        self.libraries: Path | None = self._found_libraries()

    def _found_libraries(self) -> Path:
        _require_emulated(self._artifact, self._artifact.manifest.decoder)
        return library_folder()

    @property
    def identity(self) -> dict[str, str]:
        return {"decoder": self.kind}

    def is_done(self, place: Place, video: int) -> bool:
        try:
            self._read(place, video)
        except HvdcError:
            return False
        return True

    def frames(self, place: Place, video: int, latent: Float32Array, progress: Progress) -> tuple[Float32Array, str]:
        """Those that the runtime has written. Raises HvdcError: they are damaged, or of another latent."""
        found = self._read(place, video)
        return found.pixels.astype(np.float32) / np.float32(255), found.decoder

    def _read(self, place: Place, video: int) -> Frames:
        found = read_frames(place.frames(video), self._artifact)
        if found.latent != tokens_sha256(place.result(video)):
            raise HvdcError(
                "a video's frames are not those of its latent", where=str(place.frames(video)),
                fix="remove the file and run the same command with --resume",
            )  # fmt: skip
        return found


class OnDevice(InStream):
    """The runtime on a device, with the libraries that were deployed there (``hvdc deploy --qairt``).

    ``libraries`` says that there are some; their place is the device's. Raises UsageError where something is missing.
    """

    kind = ON_DEVICE

    def __init__(self, artifact: Artifact, *, has_libraries: bool) -> None:
        self._has_libraries = has_libraries
        super().__init__(artifact)

    def _found_libraries(self) -> Path:
        entry, where = self._artifact.manifest.decoder, f"{self._artifact.path}, --decode-with {ON_DEVICE}"
        if entry is None or not entry.binaries:
            raise UsageError(
                "the artifact's decoder was not compiled for the NPU", where=where,
                fix="compile it with --vae PATH --latents FILE, or leave --decode-with out",
            )  # fmt: skip
        if not self._has_libraries:
            raise UsageError(
                "the libraries that the decoder needs were not deployed", where=where,
                fix="hvdc deploy --qairt DIR ARTIFACT, or leave --decode-with out",
            )  # fmt: skip
        return Path()


def _require_emulated(artifact: Artifact, entry: Decoder | None) -> None:
    where, or_else = f"{artifact.path}, --decode-with emulator", ", or leave --decode-with out"
    if entry is None:
        raise UsageError(
            "the artifact holds no decoder", where=where, fix=f"compile it with --vae PATH --latents FILE {_APART}"
        )
    if not entry.binaries:
        raise UsageError(
            "the artifact's decoder was not compiled for the NPU: it decodes in onnxruntime only", where=where,
            fix=f"compile it with {_APART}{or_else}",
        )  # fmt: skip
    shared = [binary.binary for binary in entry.binaries if binary.weights_shared or len(binary.graphs) > 1]
    if shared:
        raise UsageError(
            "the artifact's binaries are for a phone: their graphs share weights, and the emulator crashes on such",
            where=where, expected="a binary of each graph", found=f"shared weights in {', '.join(shared)}",
            fix=f"compile it with {_APART}{or_else}",
        )  # fmt: skip
    if why := why_not_read():
        raise UsageError(
            "the emulator is not available on this machine", where="--decode-with emulator", found=why,
            fix="pip install 'hvdc[qnn]' on x86-64 Linux, or leave --decode-with out",
        )  # fmt: skip
    if other := other_build(entry):
        raise UsageError(
            "the emulator is of another build than the artifact's binaries", where=where, found=f"it {other}",
            fix=f"compile it again on this machine, with {_APART}{or_else}",
        )  # fmt: skip
