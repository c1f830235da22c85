"""The library of a phone's DSP, for an artifact that is about to be compiled."""

from __future__ import annotations

import os
from collections.abc import Callable

from device_runtime.build import HEXAGON_DEVICES, SKEL, why_not
from hvdc.errors import HvdcError
from hvdc.pipeline.runtime_build import find_runtime, kept_runtime
from hvdc.pipeline.runtime_kept import HEXAGON
from hvdc.progress import Progress
from hvdc.targets import TargetDescription

SWITCH = "HVDC_BUILD_SKEL"
"""Environment variable: ``0`` takes only what the cache holds."""


def provide_skel(target: TargetDescription, progress: Progress, say: Callable[[str], None]) -> str:
    """Have the library in the cache, from which compiling takes it: build it where its compiler is installed.

    Returns why the artifact will lack it, with what to do; ``""`` if it will not. No failure of this build is one of
    the compilation: the library can be put into an artifact later.
    """
    if target.hexagon_arch not in HEXAGON_DEVICES:
        return f"{SKEL} is built for {', '.join(HEXAGON_DEVICES)}, not for {target.name}'s {target.hexagon_arch}"
    if kept_runtime(HEXAGON) is not None:
        return ""
    problem = f"{SWITCH} is 0" if os.environ.get(SWITCH) == "0" else why_not(HEXAGON)
    if not problem:
        try:
            find_runtime(HEXAGON, progress, say)
        except HvdcError as error:
            problem = f"it does not build: {error.found}"
    if not problem:
        return ""
    return (
        f"the artifact holds no {SKEL}, which a phone's DSP loads ({problem}); "
        f"`hvdc runtime build --target {HEXAGON} --into ARTIFACT` adds it"
    )
