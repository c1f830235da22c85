"""``hvdc calibrate``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from hvdc.artifact.calibration import CalibrationDType
from hvdc.cli.output import out, print_json, progress_for, table
from hvdc.cli.shared_options import dtype_option, model_options, parse_seeds, run_options, say_for
from hvdc.config import load_config
from hvdc.errors import StoppedError
from hvdc.pipeline.calibrate import CalibrateRequest, Outcome, calibrate
from hvdc.pipeline.calibration_summary import Summary, summarize
from hvdc.pipeline.ranks import join

SHOWN = 3
"""Worst GEMM inputs that are named at the end of every run."""


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="Prompt embeddings, by `hvdc embed`.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="calibration.safetensors.")
@model_options
@run_options
@dtype_option
@click.option("--save-latents", type=click.Path(path_type=Path), help="Keep the final latents, for the decoder.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted calibration of this output.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    checkpoint: Path,
    prompts: Path,
    output: Path,
    prompts_limit: int | None,
    seeds: str,
    adapter: Path | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    device: str,
    dtype: CalibrationDType,
    save_latents: Path | None,
    resume: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Run CHECKPOINT's own trajectory over prompts and record what the input of every GEMM reaches.

    The GPU of the phone computes with INT8 activations and needs a scale for each GEMM input, block and step. The file
    keeps statistics, from which `hvdc compile --calibration` makes scales in any mode.

    \b
    Examples:
      hvdc calibrate DCM_WAN/transformer --prompts prompts.safetensors --device cuda --dtype bf16 -o calib.safetensors
      torchrun --nproc-per-node 2 -m hvdc calibrate … --device cuda
    """
    request = CalibrateRequest(
        checkpoint=checkpoint,
        prompts=prompts,
        output=output,
        adapter=adapter,
        config=load_config(config_file, settings, options),
        prompts_limit=prompts_limit,
        seeds=parse_seeds(seeds),
        dtype=dtype,
        resume=resume,
        force=force,
        save_latents=save_latents,
    )
    ranks = join(device)
    try:
        quiet = quiet or as_json or not ranks.is_first
        outcome = calibrate(request, ranks, progress_for(quiet=quiet), say_for(quiet=as_json or not ranks.is_first))
    except KeyboardInterrupt as stop:
        fix = "to go on, run the same command with --resume: finished prompts are not run again"
        raise StoppedError("interrupted", fix=fix) from stop
    finally:
        ranks.leave()
    if ranks.is_first:
        print_json(facts(outcome, output)) if as_json else _print(outcome, output)


def facts(outcome: Outcome, output: Path) -> dict[str, Any]:
    """The result as JSON."""
    return {
        "output": str(output),
        **outcome.calibrated.provenance.model_dump(mode="json", exclude={"format", "version"}),
        "trajectories": outcome.jobs,
        "resumed_trajectories": outcome.resumed,
        "peak_device_bytes": outcome.peak_device_bytes,
        **summarize(outcome.calibrated).facts(),
    }


def _print(outcome: Outcome, output: Path) -> None:
    provenance, console = outcome.calibrated.provenance, out()
    video, inputs = provenance.video, outcome.calibrated.statistics.inputs
    console.print(
        f"wrote {output}: {len(inputs)} GEMM inputs of {len(provenance.steps)} steps and "
        f"{provenance.geometry.layers} blocks, {outcome.jobs} trajectories of {video.frames} frames "
        f"{video.width} × {video.height}"
    )
    if outcome.resumed:
        console.print(f"{outcome.resumed} trajectories were taken over from the interrupted run")
    if outcome.peak_device_bytes is not None:
        console.print(f"peak memory on the GPU: {outcome.peak_device_bytes / 2**30:.2f} GiB")
    print_summary(summarize(outcome.calibrated))
    console.print(f"next: hvdc compile … --calibration {shlex.quote(str(output))}")


def print_summary(summary: Summary) -> None:
    """The worst GEMM inputs, and warnings."""
    console = out()
    rows = [
        (o.block, o.input, o.step, o.channel, f"{o.absmax:.4g}", f"{o.ratio:.1f}", f"{100 * o.few_bits:.0f} %")
        for o in summary.outliers[:SHOWN]
    ]
    names = (">block", "GEMM input", ">step", ">channel", ">largest", ">÷ median channel", ">values below 3 bits")
    table("GEMM inputs in which one channel stands out most", names, rows)
    for large in summary.large_outputs[:SHOWN]:
        bound = " (an upper bound)" if large.output.endswith("bound") else ""
        console.print(
            f"warning: {large.output} of block {large.block} reaches {large.absmax:,.0f}{bound} at step {large.step}; "
            "the NPU's FP16 ends at 65,504"
        )
    if summary.all_zero:
        step, block, name = summary.all_zero[0]
        console.print(
            f"note: {len(summary.all_zero)} GEMM inputs were all zero and have scale 1; the first is {name} of "
            f"block {block} at step {step}"
        )
