"""The GPU's OpenCL, and who compiles the decoder: Qualcomm's tools here, its service elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from ctypes.util import find_library
from importlib import metadata
from pathlib import Path

from hvdc.doctor.check import Check, Probe

_GPU = "hvdc run in modes hetero, gpu and dp"


def probes() -> list[Probe]:
    return [
        Probe("OpenCL", _GPU, _opencl),
        Probe("qnn", "compiling and emulating the decoder", _qnn),
        Probe("AI Hub token", "compiling the decoder in Qualcomm's cloud", _token),
    ]


def _opencl() -> Iterator[Check]:
    """The loader and the drivers that it is told of are looked for, not loaded."""
    folder = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    drivers = sorted(path.name for path in folder.glob("*.icd")) if folder.is_dir() else []
    fix = "apt-get install pocl-opencl-icd, or your GPU's driver"
    if find_library("OpenCL") is None:
        yield Check("OpenCL", "missing", "there is no libOpenCL", _GPU, fix)
    elif not drivers:
        yield Check("OpenCL", "missing", f"there is no driver in {folder}", _GPU, fix)
    else:
        yield Check("OpenCL", "ok", ", ".join(drivers))


def _qnn() -> Iterator[Check]:
    """The libraries are looked for, not loaded."""
    from exporters.qnn.available import problems  # here, because another program's folder may hide ours

    found = problems()
    if not found:
        yield Check("qnn", "ok", f"onnxruntime-qnn {metadata.version('onnxruntime-qnn')}", "compiling the decoder")
        return
    yield Check("qnn", "missing", str(found[0]), "compiling and emulating the decoder", "pip install 'hvdc[qnn]'")


def _token() -> Iterator[Check]:
    """Whether one is configured: it is neither shown nor tried."""
    from exporters.aihub.service import SIGN_IN, why_not

    problem, needed_for = why_not(), "compiling the decoder in Qualcomm's cloud (--decoder-backend aihub)"
    if not problem:
        yield Check("AI Hub token", "ok", "configured (not shown, and not tried)")
        return
    what, _, fix = problem.partition(": ")
    if "cannot be used" in what:  # a reader's error quotes the line it stumbled over, which may be the token's
        what, fix = "its configuration cannot be read (not shown: the token may be in it)", SIGN_IN
    yield Check("AI Hub token", "missing", what, needed_for, fix)
