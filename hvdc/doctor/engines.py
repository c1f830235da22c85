"""The GPU's OpenCL, and who compiles the decoder: Qualcomm's tools here, its service elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from ctypes.util import find_library
from importlib import metadata
from pathlib import Path

from hvdc.doctor import opencl_child
from hvdc.doctor.check import Check, Probe
from hvdc.errors import HvdcError
from hvdc.measure.platform_facts import GpuFacts, PlatformFacts
from hvdc.measure.probe import PROGRAM

_GPU = "hvdc run in modes hetero, gpu and dp"
_DRIVER = "apt-get install pocl-opencl-icd, or your GPU's driver"
WRONG = "multiplies wrongly"
"""In what is said of a form that compiles and gives other sums: device_runtime/gpu/src/gemm_choice.c."""
SELF_TEST_S = 7.5
"""Kernels are compiled; PoCL takes two seconds for that, the first time."""


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
    """Every OpenCL device, and whether it multiplies INT8 numbers rightly: by the runtime's own program and kernels
    where it is built, else by its dot products alone, which need no compiler here.

    A driver that crashes or hangs takes that program down, and its last words say what it was trying.
    """
    if not _has_loader():
        return
    facts, ended = _asked(*_self_test())
    if not facts.gpus and not ended:
        yield Check("OpenCL devices", "missing", facts.no_gpu or "there is none", _GPU, _DRIVER)
    for i, gpu in enumerate(facts.gpus):
        yield _device(i, gpu)
    if ended:
        trying = f", while it tried {facts.trying[0]}" if facts.trying else ""
        yield Check("OpenCL self-test", "unknown", f"{ended}{trying}", _GPU, "take another driver, or --device")


def _has_loader() -> bool:
    own = (Path(folder) / "libOpenCL.so.1" for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder)
    return find_library("OpenCL") is not None or any(path.exists() for path in own)


def _self_test() -> tuple[list[str], bytes]:
    """A program that says hvdc_probe's lines of GPUs, and its input."""
    from device_runtime.build import SOURCE  # here, because another program's folder may hide ours
    from hvdc.pipeline.runtime_build import kept_runtime

    kept = kept_runtime("host")
    if kept is not None and PROGRAM in kept.programs:
        return [str(kept.folder / PROGRAM), "--only", "gpu"], b""
    # Isolated: neither this folder's modules nor a person's settings are imported in the standard library's place.
    return [sys.executable, "-I", opencl_child.__file__], (SOURCE / "gpu/kernels/dot.cl").read_bytes()


def _device(i: int, gpu: GpuFacts) -> Check:
    name = f"OpenCL device {i}"
    about = f"{gpu.device} ({gpu.platform}, driver {gpu.driver})"
    if not gpu.dots:
        return Check(name, "unknown", f"{about}: not tried", _GPU, _DRIVER)
    wrong = {form: why for form, why in gpu.dots.items() if WRONG in why}
    absent = [form for form, why in gpu.dots.items() if why and form not in wrong]
    lists = (("right", gpu.right_dots), ("WRONG", tuple(wrong)), ("absent", tuple(absent)))
    found = "; ".join(f"{word}: {', '.join(forms)}" for word, forms in lists if forms)
    found = f"{about}: INT8 dot products {found}"
    if gpu.right_dots:
        return Check(name, "ok", found)
    why = next(iter(wrong.values()), "") or next(iter(gpu.dots.values()))
    return Check(name, "missing", f"{found} ({why})", _GPU, _DRIVER)


def _asked(command: list[str], given: bytes) -> tuple[PlatformFacts, str]:
    """What the program says, and how it ended too early; ``""``: it did not."""
    facts, ended = PlatformFacts(), ""
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=SELF_TEST_S, check=False)
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
