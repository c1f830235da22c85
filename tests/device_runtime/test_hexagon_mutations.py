"""That the tests of the Hexagon kernels can fail: sources with a fault in them, built as the right ones are.

The first two are the faults that the paper (appendix B.1) found in the library it started from.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from device_runtime.build import SOURCE
from tests.device_runtime import test_hexagon_kernels as specification
from tests.device_runtime.hexagon import NEWEST_CPU_OF_EVERY_EMULATOR, built_for_hexagon, why_no_hexagon
from tests.device_runtime.kernels import Array, Kernels

pytestmark = pytest.mark.skipif(bool(why_no_hexagon()), reason=why_no_hexagon() or "there is one")

ARCH = "v79"
FOLDER = SOURCE / "npu" / "hexagon" / "src"


@dataclass(frozen=True)
class Fault:
    """``was`` becomes ``is_`` in a file of `FOLDER`, and ``found_by`` has to fail."""

    file: str
    was: str
    is_: str
    found_by: Callable[..., None]


CLAMPED = "lanes_min(lanes_max(x, lanes_splat(-127.0f)), lanes_splat(128.0f))"

FAULTS = {
    "narrowing interleaves its two inputs": Fault(
        "lanes_emulated.h",
        "return Q6_Vh_vpacke_VwVw(lanes_halfs(second), lanes_halfs(first));",
        "return Q6_Vh_vshuffe_VhVh(lanes_halfs(second), lanes_halfs(first));",
        specification.test_narrowing_keeps_the_order_of_elements,
    ),
    "an exponential that is right for small scores only": Fault(
        "lanes.h",
        CLAMPED,
        "lanes_min(lanes_max(x, lanes_splat(-16.0f)), lanes_splat(16.0f))",
        specification.test_exponentials_of_every_half,
    ),
    "an exponential without limits": Fault(
        "lanes.h", f"lanes held = {CLAMPED}", "lanes held = x", specification.test_exponentials_of_every_half
    ),
    "ties are rounded up": Fault(
        "lanes_emulated.h",
        "normal = Q6_Vuw_vlsr_VuwR(Q6_Vw_vadd_VwVw(normal, last), 13);",
        "normal = Q6_Vuw_vlsr_VuwR(Q6_Vw_vadd_VwVw(normal, one), 13);",
        specification.test_narrowing_is_to_nearest_even,
    ),
    "subnormal products are cut off": Fault(
        "lanes_emulated.h",
        "Q6_V_vsplat_R(0x38800000), magnitude), subnormal, normal)",
        "Q6_V_vsplat_R(0x38800000), magnitude), Q6_V_vzero(), normal)",
        specification.test_weights_are_widened_at_every_magnitude_of_a_scale,
    ),
    "two inputs of a weight are exchanged": Fault(
        "hvx_tiles.c",
        "lanes_narrow_turns(at->products[0], at->products[1])",
        "lanes_narrow_turns(at->products[1], at->products[0])",
        lambda both: specification.test_weights_are_widened(both, 31, 33),
    ),
}


class Alone:
    """Stands for the test's two machines: what is asked is compared with numpy alone."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def ask(
        self, name: str, *sizes: int, arrays: tuple[Array, ...], dtype: npt.DTypeLike = "float16", tiny: float = 0
    ) -> Array:
        return self._kernels.ask(name, *sizes, arrays=arrays, dtype=dtype)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_for_hexagon(tmp_path_factory)


def rebuilt(build: Path, sources: Path, output: Path) -> Path:
    """The program of kernels with the vector unit's files of ``sources`` in the place of the right ones."""
    right = {path for part in ("npu", "kernels") for path in build.rglob(f"hvdc_{part}_{ARCH}.dir/**/*.obj")}
    objects = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        source, words = Path(entry["file"]), shlex.split(entry["command"])
        made = Path(entry["directory"]) / words[words.index("-o") + 1]
        if made not in right or source.parent != FOLDER or not source.name.startswith("hvx_"):
            continue
        right.remove(made)
        objects.append(output / made.name)
        words[words.index("-o") + 1] = str(objects[-1])
        words[words.index("-c") + 1] = str(sources / source.name)
        subprocess.run(words, cwd=entry["directory"], check=True)
    assert len(objects) >= 5
    program = output / "hvdc_kernels"
    words = ["ld.lld-22", "-static", *map(str, [*objects, *sorted(right)]), "-o", str(program)]
    subprocess.run(words, check=True)
    return program


def copied(folder: Path, fault: Fault | None) -> Path:
    sources = shutil.copytree(FOLDER, folder / "src")
    if fault is not None:
        text = (sources / fault.file).read_text()
        assert text.count(fault.was) == 1
        (sources / fault.file).write_text(text.replace(fault.was, fault.is_))
    return sources


def asked(program: Path) -> Kernels:
    return Kernels(["qemu-hexagon", "-cpu", NEWEST_CPU_OF_EVERY_EMULATOR, str(program)])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(build: Path, tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    with asked(rebuilt(build, copied(tmp_path, fault), tmp_path)) as kernels:
        with pytest.raises(AssertionError):
            fault.found_by(Alone(kernels))
        assert len(kernels.ask("narrow", 1, arrays=(np.ones(1, np.float32),))) == 1  # it is not that it has died


def test_without_a_fault_nothing_is_found(build: Path, tmp_path: Path) -> None:
    with asked(rebuilt(build, copied(tmp_path, None), tmp_path)) as kernels:
        for fault in FAULTS.values():
            fault.found_by(Alone(kernels))
