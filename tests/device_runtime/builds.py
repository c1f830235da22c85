"""Programs of the runtime, built once for all processes of a test run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from device_runtime.build import build_host, why_not
from tests.locks import alone, shared_folder

STRICT = {"CFLAGS": "-Werror", "CXXFLAGS": "-Werror"}
"""For the preset ``host``: only an optimising compiler sees all that it warns of. The preset itself does without, for
people have other compilers."""


def built(factory: pytest.TempPathFactory, preset: str, what: str, programs: Sequence[str] = ()) -> dict[str, Path]:
    """Name -> path of all programs of a preset, or of some. Skips, saying that ``what``, where it cannot be built."""
    if reason := why_not(preset):
        pytest.skip(f"{what}: {reason}")
    folder = shared_folder(factory, "builds")
    with alone(folder / f"{preset}.lock"), pytest.MonkeyPatch.context() as patch:
        for name, flag in STRICT.items() if preset == "host" else ():
            patch.setenv(name, f"{os.environ.get(name, '')} {flag}".strip())
        return build_host(preset, folder / preset, programs)
