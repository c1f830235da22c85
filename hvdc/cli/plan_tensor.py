"""``hvdc plan tensor``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hvdc.cli.output import out, print_json, shown, table
from hvdc.plan.gemm_table import load_measured
from hvdc.plan.gemms import BlockSizes
from hvdc.plan.tensor import Decision, Partition
from hvdc.plan.tensor_plan import TensorPlan, plan_tensor

COLUMNS = (
    "GEMM", "", "partition", ">GPU", ">NPU", ">T GPU ms", ">T NPU ms", ">exchange ms", ">total ms", ">gain ms"
)  # fmt: skip


@click.command("tensor")
@click.argument("artifact", required=False, type=click.Path(path_type=Path))
@click.option("--rates", "rates_file", required=True, type=click.Path(path_type=Path), help="GEMM times, TOML.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(artifact: Path | None, rates_file: Path, as_json: bool) -> None:
    """Split each GEMM of a block between both engines, as HeteroInfer's solver does.

    The GEMMs are those of ARTIFACT; without one, of DCM-Wan2.1 with the tokens of the rate table, or, where the table
    is of GEMMs alone, its own.

    \b
    Examples:
      hvdc plan tensor --rates examples/rates/gemms/snapdragon-8-gen-3.toml
      hvdc plan tensor dcm.hvdc --rates my-phone.toml --json
    """
    measured = load_measured(rates_file)
    sizes = None
    if artifact is not None:
        from hvdc.artifact.reader import open_artifact  # it needs NumPy, and plans without an artifact don't

        with open_artifact(artifact) as opened:
            sizes = BlockSizes.of(opened.manifest)
    plan = plan_tensor(measured, sizes)
    if as_json:
        print_json(_facts(plan))
    else:
        _print(plan)


def _facts(plan: TensorPlan) -> dict[str, Any]:
    return {
        "rates": plan.measured.name,
        "conditions": plan.measured.conditions,
        "home": plan.measured.engines.exchange.home,
        "gemms": [_decision_facts(d) for d in plan.decisions],
        "not_measured": [g.name for g in plan.unmeasured],
        "gpu_share": None if plan.shared is None else plan.shared.gpu_share,
        "linears_s": None if plan.shared is None else plan.shared.linears_s,
        "npu_linears_s": None if plan.shared is None else plan.shared.npu_linears_s,
        "solved_linears_s": plan.solved_linears_s,
        "tensor_block_s": plan.tensor_block_s,
    }


def _decision_facts(d: Decision) -> dict[str, Any]:
    return {
        "name": d.gemm.name,
        "tokens": d.gemm.tokens,
        "in_features": d.gemm.in_features,
        "out_features": d.gemm.out_features,
        "exchanges": d.gemm.exchanges,
        "once_per_prompt": d.gemm.once_per_prompt,
        "chosen": d.chosen.kind,
        "gain_s": d.gain_s,
        "considered": [
            {name: getattr(p, name) for name in Partition.__dataclass_fields__}
            | {"total_s": p.total_s, "gpu_share": p.gpu_share}
            for p in d.considered
        ],
    }


def _print(plan: TensorPlan) -> None:
    console = out()
    measured = plan.measured
    console.print(f"{shown(measured.name)}: {shown(measured.conditions, 200)}")
    rows = [row for decision in plan.decisions for row in _rows(decision)]
    table("", COLUMNS, rows)
    console.print(f"* chosen; gain: over the {measured.engines.exchange.home.upper()} alone")
    if plan.unmeasured:
        names = ", ".join(shown(g.name) for g in plan.unmeasured)
        console.print(f"not measured on both engines, so neither the block nor a share can be planned: {names}")
    if plan.shared is not None:
        _print_block(plan, plan.shared.gpu_share)


def _print_block(plan: TensorPlan, share: float) -> None:
    console, shared = out(), plan.shared
    assert shared is not None  # noqa: S101  # the caller's
    console.print(
        f"a block's linears: {_ms(shared.npu_linears_s)} ms on the NPU alone, {_ms(shared.linears_s)} ms with one "
        f"share of all, {_ms(plan.solved_linears_s or 0.0)} ms with a partition for each"
    )
    if plan.tensor_block_s is not None and plan.measured.npu_block_s is not None:
        alone_s, shared_s = plan.measured.npu_block_s[0], plan.tensor_block_s[0]
        console.print(f"a block: {alone_s:.3f} s on the NPU alone, {shared_s:.3f} s shared")
    if share:
        console.print(f"run it: hvdc run ARTIFACT --mode hetero-tensor --gpu-share {share:g} …")
    else:
        console.print("no share pays: hvdc run --mode npu")


def _rows(decision: Decision) -> list[tuple[str, ...]]:
    g = decision.gemm
    rows: list[tuple[str, ...]] = []
    name = f"{shown(g.name)}  {g.tokens:,} × {g.in_features:,} → {g.out_features:,}"
    if g.once_per_prompt:
        name += ", once per prompt"
    for p in decision.considered:
        gain = decision.alone_s - p.total_s
        rows.append(
            (
                name if not rows else "", "*" if p is decision.chosen else "", p.kind, *_parts(p),
                _ms(p.gpu_s), _ms(p.npu_s), _ms(p.exchange_s), _ms(p.total_s), f"{gain * 1e3:+,.3f}",
            )
        )  # fmt: skip
    return rows


def _parts(p: Partition) -> tuple[str, str]:
    """What each engine has, in what the partition cuts."""
    if p.kind == "sequence-cut":
        return f"{p.gpu_tokens:,} tokens", f"{p.npu_tokens:,} tokens"
    return (
        f"{p.gpu_columns:,} columns" if p.gpu_columns else "–",
        f"{p.npu_columns:,} columns" if p.npu_columns else "–",
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"
