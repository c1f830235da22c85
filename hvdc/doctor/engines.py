"""The GPU's OpenCL, and who compiles the decoder: Qualcomm's tools here, its service elsewhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from ctypes.util import find_library
from importlib import metadata
from pathlib import Path

from hvdc.doctor.check import Check, Probe
from hvdc.errors import HvdcError
from hvdc.measure.platform_facts import GpuFacts, PlatformFacts
from hvdc.measure.probe import PROGRAM

_GPU = "hvdc run in modes hetero, gpu and dp"
_DRIVER = "apt-get install pocl-opencl-icd, or your GPU's driver"
SELF_TEST_S = 4.5
"""Kernels are compiled; PoCL takes two seconds for that."""


def probes() -> list[Probe]:
    return [
        Probe("OpenCL", _GPU, _opencl),
        Probe("OpenCL devices", _GPU, devices),
        Probe("qnn", "compiling and emulating the decoder", _qnn),
        Probe("AI Hub token", "compiling the decoder in Qualcomm's cloud", _token),
    ]


def _opencl() -> Iterator[Check]:
    """The loader and the drivers that it is told of are looked for, not loaded."""
    folder = Path(os.environ.get("OCL_ICD_VENDORS") or "/etc/OpenCL/vendors")
    drivers = sorted(path.name for path in folder.glob("*.icd")) if folder.is_dir() else []
    fix = _DRIVER
    if find_library("OpenCL") is None:
        yield Check("OpenCL", "missing", "there is no libOpenCL", _GPU, fix)
    elif not drivers:
        yield Check("OpenCL", "missing", f"there is no driver in {folder}", _GPU, fix)
    else:
        yield Check("OpenCL", "ok", ", ".join(drivers))


def devices() -> Iterator[Check]:
    """Every OpenCL device, and whether it multiplies INT8 numbers rightly: the runtime's own kernels, its own program.

    A driver that crashes or hangs takes that program down, and its last words say what it was trying.
    """
    from hvdc.pipeline.runtime_build import kept_runtime  # here, because another program's folder may hide ours

    if find_library("OpenCL") is None:
        return
    kept = kept_runtime("host")
    if kept is None or PROGRAM not in kept.programs:
        why = "not tried: the runtime is not built yet"
        yield Check("OpenCL devices", "missing", why, "knowing whether a GPU computes rightly", "hvdc runtime build")
        return
    facts, ended = _asked([str(kept.folder / PROGRAM), "--only", "gpu"])
    if not facts.gpus and not ended:
        yield Check("OpenCL devices", "missing", facts.no_gpu or "there is none", _GPU, _DRIVER)
    for i, gpu in enumerate(facts.gpus):
        yield _device(i, gpu)
    if ended:
        trying = f", while it tried {facts.trying[0]}" if facts.trying else ""
        yield Check("OpenCL self-test", "unknown", f"{ended}{trying}", _GPU, "take another driver, or --device")


def _device(i: int, gpu: GpuFacts) -> Check:
    name = f"OpenCL device {i}"
    about = f"{gpu.device} ({gpu.platform}, driver {gpu.driver})"
    wrong = [form for form, why in gpu.dots.items() if why]
    if not gpu.right_dots:
        found = f"{about}: no dot product of INT8 numbers is right" if gpu.dots else f"{about}: not tried"
        return Check(name, "missing" if gpu.dots else "unknown", found, _GPU, _DRIVER)
    not_there = f", not there: {', '.join(wrong)}" if wrong else ""
    return Check(name, "ok", f"{about}: INT8 dot products {', '.join(gpu.right_dots)} give the right sums{not_there}")


def _asked(command: list[str]) -> tuple[PlatformFacts, str]:
    """What the program says, and how it ended too early; ``""``: it did not."""
    facts, ended = PlatformFacts(), ""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SELF_TEST_S, check=False)
        said = done.stdout
        if done.returncode < 0:
            ended = f"the driver crashed (signal {-done.returncode})"
        elif done.returncode:
            ended = f"the self-test ended with status {done.returncode}"
    except subprocess.TimeoutExpired as late:
        said, ended = late.stdout or b"", f"the driver did not answer within {SELF_TEST_S:g} s"
    except OSError as error:
        said, ended = b"", f"the self-test cannot be started: {error}"
    try:
        for line in said.decode("utf-8", "replace").splitlines():
            facts.take(line)
    except HvdcError as error:
        ended = error.what
    return facts, ended


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
