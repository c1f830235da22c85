"""Running ``hvdc_decoder_check``."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


class Decoded:
    """The program, with the libraries in a folder; ``facts`` is what it printed last."""

    def __init__(self, program: Path, libraries: Path, folder: Path, *options: str, emulator: bool = False) -> None:
        self.facts: dict[str, Any] = {}
        self.libraries = libraries
        self._latent, self._output = folder / "latent.raw", folder / "frames.raw"
        self._command = [str(program), "--emulator", "yes" if emulator else "no", "--libraries", str(libraries)]
        self._command += options

    def open(self, artifact: Path, *more: str, **environment: str) -> Decoded:
        """Open an artifact, which must succeed."""
        done = self._run(*more, str(artifact), **environment)
        assert done.returncode == 0, done.stderr
        self.facts = json.loads(done.stdout)
        return self

    def refused(self, artifact: Path, *more: str, **environment: str) -> str:
        """The sentence with which an artifact, or a latent, is refused. Qualcomm's library has a line to say, too."""
        done = self._run(*more, str(artifact), **environment)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        [sentence] = [line for line in done.stderr.splitlines() if line.strip() and "# LIBNATIVE" not in line]
        return sentence

    def frames(
        self, artifact: Path, latent: npt.NDArray[np.float32], *more: str, **environment: str
    ) -> npt.NDArray[np.uint8]:
        """uint8 ``[frames, height, width, 3]`` of a latent ``[channels, frames, rows, columns]``."""
        self.open(artifact, *self.latent(latent), *more, **environment)
        pixels = np.fromfile(self._output, np.uint8)
        return pixels.reshape(-1, 8 * latent.shape[2], 8 * latent.shape[3], 3)

    def latent(self, latent: npt.NDArray[np.float32]) -> list[str]:
        """Options that decode a latent."""
        latent.astype("<f4").tofile(self._latent)
        size = "x".join(map(str, latent.shape[1:]))
        return ["--latent", str(self._latent), "--size", size, "--output", str(self._output)]

    def _run(self, *more: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("STAND_IN")}, **environment}
        return subprocess.run([*self._command, *more], capture_output=True, text=True, check=False, env=env)
