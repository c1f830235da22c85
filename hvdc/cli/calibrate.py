"""``hvdc calibrate``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hvdc.artifact.calibration import CalibrationDType
from hvdc.cli.activations import many
from hvdc.cli.output import out, print_json, progress_for
from hvdc.cli.shared_options import dtype_option, model_options, parse_seeds, run_options, say_for
from hvdc.cli.summary import print_summary, trajectories
from hvdc.config import load_config
from hvdc.errors import StoppedError, UsageError
from hvdc.pipeline.calibration_summary import summarize

if TYPE_CHECKING:  # it imports PyTorch, which help needs not
    from hvdc.pipeline.calibrate import Outcome


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="Prompt embeddings, by `hvdc embed`.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="calibration.safetensors.")
@model_options
@run_options
@dtype_option
@click.option("--save-latents", type=click.Path(path_type=Path), help="Keep the final latents, for the decoder.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted calibration of this output.")
@click.option("--force", is_flag=True, help="Replace existing files, or start an unfinished run over.")
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
    if resume and force:
        raise UsageError("--resume and --force exclude each other", fix="--resume goes on, --force starts over")
    from hvdc.pipeline.calibrate import CalibrateRequest, calibrate
    from hvdc.pipeline.ranks import join

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
        how = "--resume instead of --force" if force else "--resume"
        fix = f"to go on, run the same command with {how}: finished prompts are not run again"
        raise StoppedError("interrupted", fix=fix) from stop
    finally:
        ranks.leave()
    if outcome is not None:
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
        f"wrote {output}: {len(inputs)} GEMM inputs of {many(len(provenance.steps), 'step')} and "
        f"{many(provenance.geometry.layers, 'block')}, {trajectories(outcome.jobs)} of {many(video.frames, 'frame')} "
        f"{video.width} × {video.height}"
    )
    if outcome.resumed:
        was = "was" if outcome.resumed == 1 else "were"
        console.print(f"{trajectories(outcome.resumed)} {was} taken over from the interrupted run")
    if outcome.peak_device_bytes is not None:
        console.print(f"peak memory on the GPU: {outcome.peak_device_bytes / 2**30:.2f} GiB")
    print_summary(summarize(outcome.calibrated))
    console.print(f"next: hvdc compile … --calibration {shlex.quote(str(output))}")
