"""What commands say of a calibration: the GEMM inputs that stand out, warnings, and what would be run."""

from __future__ import annotations

from hvdc.cli.activations import many
from hvdc.cli.output import out, table
from hvdc.pipeline.calibration_summary import WARNED_ABOVE, Summary

SHOWN = 3
"""The worst of each kind, which are named at the end of every run."""

_FP16 = {"NPU": "the NPU's FP16", "GPU": "the FP16 of the GPU's residual stream"}


def trajectories(count: int) -> str:
    """``1 trajectory``, ``2 trajectories``."""
    return many(count, "trajectory", "trajectories")


def print_summary(summary: Summary, *, smoothed: bool = False) -> None:
    """The worst GEMM inputs, and warnings. ``smoothed``: what follows smooths them."""
    console = out()
    rows = [
        (o.block, o.input, o.step, o.channel, f"{o.absmax:.4g}", f"{o.ratio:.1f}", f"{100 * o.few_bits:.0f} %")
        for o in summary.outliers[:SHOWN]
    ]
    names = (">block", "GEMM input", ">step", ">channel", ">largest", ">÷ median channel", ">values below 3 bits")
    before = ", before smoothing" if smoothed else ""
    table(f"GEMM inputs in which one channel stands out most{before}", names, rows)
    large = summary.large_outputs
    for o in large[:SHOWN]:
        bound = " (an upper bound)" if o.output.endswith("bound") else ""
        console.print(
            f"warning: {o.output} of block {o.block} reaches {o.absmax:,.0f}{bound} at step {o.step}; "
            f"{_FP16[o.engine]} ends at 65,504"
        )
    if len(large) > SHOWN:
        engines = " and ".join(sorted({o.engine for o in large[SHOWN:]}, reverse=True))
        console.print(
            f"warning: and {len(large) - SHOWN} more above {WARNED_ABOVE:,.0f}, of the {engines}; --json lists all"
        )
    if summary.all_zero:
        step, block, name = summary.all_zero[0]
        console.print(
            f"note: {len(summary.all_zero)} GEMM inputs were all zero and have scale 1; the first is {name} of "
            f"block {block} at step {step}"
        )
