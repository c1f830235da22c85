"""``hvdc plan memory``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from hvdc.artifact.reader import open_artifact
from hvdc.cli.output import gib, mib, out, print_json, table
from hvdc.cli.plot_option import plot_option
from hvdc.figures import prepare_folder
from hvdc.plan.memory_plan import Check, Configuration, MemoryPlan, plan_memory
from hvdc.plan.working_memory import Buffer, total_bytes


@click.command("memory")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--frames", type=int, help="Plan clips of so many frames, 4 n + 1.  [default: the artifact's]")
@click.option("--buffers", is_flag=True, help="List every buffer of both executors too.")
@plot_option("bars against the target's limits")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, everything in bytes.")
def command(artifact: Path, frames: int | None, buffers: bool, plot: Path | None, as_json: bool) -> None:
    """What each way to run ARTIFACT holds in memory, and whether its target has it.

    The paper's table of weights and its working buffers, then what the runtime allocates in each mode of `hvdc run`.

    \b
    Examples:
      hvdc plan memory dcm.hvdc
      hvdc plan memory dcm.hvdc --frames 17 --buffers
    """
    with open_artifact(artifact) as opened:
        plan = plan_memory(opened.manifest, frames)
    if plot is not None:
        from hvdc.plan.pictures import draw_memory_plan  # here: plans without pictures start faster

        prepare_folder(plot)
        draw_memory_plan(plan, plot)
    if as_json:
        print_json(memory_plan_facts(plan))
    else:
        _print(plan, buffers=buffers)


def memory_plan_facts(plan: MemoryPlan) -> dict[str, Any]:
    """The whole plan, in bytes."""
    weights = [
        {
            "name": row.name,
            "base_bytes": row.base_bytes,
            "adapter_bytes": row.adapter_bytes,
            "transient_bytes": row.transient_bytes,
            "total_bytes": row.total_bytes,
            "note": row.note,
        }
        for row in plan.weights
    ]
    return {
        "target": plan.target.name,
        "frames": plan.frames,
        "tokens": plan.sizes.tokens,
        "weights": weights,
        "working_buffers": _buffers(plan.working),
        "with_working_buffers": [_configuration(c) for c in plan.verdicts],
        "modes": [_configuration(c) for c in plan.modes],
        "npu_buffers": _buffers(plan.npu_buffers),
        "gpu_buffers": _buffers(plan.gpu_buffers),
        "limits": [_check(c) for c in plan.limits],
    }


def _buffers(buffers: tuple[Buffer, ...]) -> list[dict[str, Any]]:
    return [asdict(buffer) for buffer in buffers]


def _configuration(c: Configuration) -> dict[str, Any]:
    return {
        "name": c.name,
        "fits": c.fits,
        "parts": _buffers(c.parts),
        "resident": _check(c.resident),
        "mapped": _check(c.mapped),
    }


def _check(check: Check) -> dict[str, Any]:
    return asdict(check) | {"spare_bytes": check.spare_bytes, "fits": check.fits}


def verdict(check: Check) -> str:
    """In words, by how much."""
    return f"fits, {gib(check.spare_bytes)} GiB left" if check.fits else f"{gib(-check.spare_bytes)} GiB too much"


def _print(plan: MemoryPlan, *, buffers: bool) -> None:
    console = out()
    console.print(f"{plan.frames} frames, {plan.sizes.tokens:,} tokens, on {plan.target.soc}")
    usable, budget = plan.verdicts[0].resident.limit_bytes, plan.verdicts[0].mapped.limit_bytes
    console.print(f"memory {gib(usable)} GiB usable, {gib(budget)} GiB mapped by one NPU session at most")
    console.print()
    rows = [
        (
            row.name,
            mib(row.base_bytes),
            mib(row.adapter_bytes),
            mib(row.transient_bytes),
            gib(row.total_bytes),
            row.note,
        )
        for row in plan.weights
    ]
    columns = ("configuration", ">base MiB", ">adapter MiB", ">transient MiB", ">total GiB", "~how it is counted")
    table("Weights (the paper's Table 3)", columns, rows)
    console.print()
    working = [(b.name, mib(b.bytes), b.note) for b in plan.working]
    working.append(("in all", mib(total_bytes(list(plan.working))), ""))
    table("Working buffers", ("buffer", ">MiB", "~how it is counted"), working)
    console.print()
    _print_configurations("Weights and working buffers", plan.verdicts)
    console.print()
    _print_configurations("In the runtime, by mode of hvdc run", plan.modes)
    if not plan.has_decoder:
        console.print("the artifact has no decoder's binaries, so they are not counted")
    for limit in plan.limits:
        console.print(f"{limit.what}: {mib(limit.needed_bytes)} of {mib(limit.limit_bytes)} MiB, {verdict(limit)}")
    if buffers:
        for name, some in (("NPU", plan.npu_buffers), ("GPU", plan.gpu_buffers)):
            console.print()
            table(
                f"Buffers of the {name}'s executor",
                ("buffer", ">MiB", "~"),
                [(b.name, mib(b.bytes), b.note) for b in some],
            )


def _print_configurations(title: str, configurations: tuple[Configuration, ...]) -> None:
    names = [f">{part.name} MiB" for part in configurations[0].parts]
    rows = [
        (
            c.name, *(mib(part.bytes) for part in c.parts), gib(c.resident.needed_bytes), verdict(c.resident),
            gib(c.mapped.needed_bytes), verdict(c.mapped),
        )
        for c in configurations
    ]  # fmt: skip
    table(title, ("configuration", *names, ">total GiB", "in memory", ">mapped GiB", "by the NPU"), rows)
