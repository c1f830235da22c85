"""That the tests of the Hexagon kernels can fail: sources with a fault in them, built as the right ones are.

The first two are the faults that the paper (appendix B.1) found in the library it started from.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tests.device_runtime import test_hexagon_kernels as specification
from tests.device_runtime.hexagon import (
    NEWEST_CPU_OF_EVERY_EMULATOR,
    Fault,
    built_for_hexagon,
    rebuilt,
    why_no_hexagon,
)
from tests.device_runtime.kernels import Array, Kernels

pytestmark = pytest.mark.skipif(bool(why_no_hexagon()), reason=why_no_hexagon() or "there is one")

ARCH = "v79"


CLAMPED = "lanes_min(lanes_max(x, lanes_splat(-127.0f)), lanes_splat(128.0f))"

FAULTS: dict[str, tuple[Fault, Callable[..., None]]] = {
    "narrowing interleaves its two inputs": (
        Fault(
            "lanes_emulated.h",
            "return Q6_Vh_vpacke_VwVw(lanes_halfs(second), lanes_halfs(first));",
            "return Q6_Vh_vshuffe_VhVh(lanes_halfs(second), lanes_halfs(first));",
            ("hvx_rows.c",),
        ),
        specification.test_narrowing_keeps_the_order_of_elements,
    ),
    "an exponential that is right for small scores only": (
        Fault(
            "lanes.h", CLAMPED, "lanes_min(lanes_max(x, lanes_splat(-16.0f)), lanes_splat(16.0f))", ("hvx_attention.c",)
        ),
        specification.test_exponentials_of_every_half,
    ),
    "an exponential without limits": (
        Fault("lanes.h", f"lanes held = {CLAMPED}", "lanes held = x", ("hvx_attention.c",)),
        specification.test_exponentials_of_every_half,
    ),
    "ties are rounded up": (
        Fault(
            "lanes_emulated.h",
            "normal = Q6_Vuw_vlsr_VuwR(Q6_Vw_vadd_VwVw(normal, last), 13);",
            "normal = Q6_Vuw_vlsr_VuwR(Q6_Vw_vadd_VwVw(normal, one), 13);",
            ("hvx_rows.c",),
        ),
        specification.test_narrowing_is_to_nearest_even,
    ),
    "subnormal products are cut off": (
        Fault(
            "lanes_emulated.h",
            "Q6_V_vsplat_R(0x38800000), magnitude), subnormal, normal)",
            "Q6_V_vsplat_R(0x38800000), magnitude), Q6_V_vzero(), normal)",
            ("hvx_tiles.c",),
        ),
        specification.test_weights_are_widened_at_every_magnitude_of_a_scale,
    ),
    "two inputs of a weight are exchanged": (
        Fault(
            "hvx_tiles.c",
            "lanes_narrow_turns(at->products[0], at->products[1])",
            "lanes_narrow_turns(at->products[1], at->products[0])",
            ("hvx_tiles.c",),
        ),
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


def asked(program: Path) -> Kernels:
    return Kernels(["qemu-hexagon", "-cpu", NEWEST_CPU_OF_EVERY_EMULATOR, str(program)])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(build: Path, tmp_path: Path, name: str) -> None:
    fault, found_by = FAULTS[name]
    with asked(rebuilt(build, "hvdc_kernels", ARCH, tmp_path, fault)) as kernels:
        with pytest.raises(AssertionError):
            found_by(Alone(kernels))
        assert len(kernels.ask("narrow", 1, arrays=(np.ones(1, np.float32),))) == 1  # it is not that it has died


def test_without_a_fault_nothing_is_found(build: Path, tmp_path: Path) -> None:
    """The same way of building, with a change that is none."""
    none = Fault(
        "hvx_tiles.c", "/* One more vector begins", "/* One more vector  begins", ("hvx_rows.c", "hvx_tiles.c")
    )
    with asked(rebuilt(build, "hvdc_kernels", ARCH, tmp_path, none)) as kernels:
        for _, found_by in FAULTS.values():
            found_by(Alone(kernels))
