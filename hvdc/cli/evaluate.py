"""``hvdc evaluate``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hvdc.cli.output import json_number, out, print_json, progress_for, table
from hvdc.cli.shared_options import model_options, parse_seeds, run_options, say_for
from hvdc.config import SCALE_MODES, CalibrationMode, load_config
from hvdc.errors import UsageError
from hvdc.figures import prepare_folder
from hvdc.pipeline.videos import PathFolders

if TYPE_CHECKING:  # it imports PyTorch, which help needs not
    from hvdc.pipeline.evaluate import Evaluation, Row


def parse_cuts(text: str) -> tuple[int, ...]:
    """``0,6,12``. Raises UsageError."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",") if part))
    except ValueError as error:
        raise UsageError(
            "the cuts are not a list", where="--cut", expected="block numbers: 6,12", found=text
        ) from error


def parse_shares(text: str) -> tuple[float, ...]:
    """``0.25,0.5``. Raises UsageError."""
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",") if part))
    except ValueError as error:
        raise UsageError(
            "the shares are not a list", where="--gpu-share", expected="numbers from 0 to 1: 0.25,0.5", found=text
        ) from error


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="Prompt embeddings, by `hvdc embed`.")
@click.option("--calibration", type=click.Path(path_type=Path), help="Activation statistics, by `hvdc calibrate`.")
@click.option("--artifact", type=click.Path(path_type=Path), help="Judge this artifact's own bytes too.")
@click.option("--scale-mode", "modes", multiple=True, type=click.Choice(SCALE_MODES),
              help="May be repeated.  [default: as configured, per-step]")  # fmt: skip
@click.option("--cut", "cuts", default="", metavar="K,K", help="Also GPU before, NPU from these block executions on.")
@click.option("--gpu-share", "gpu_shares", default="", metavar="S,S",
              help="Also each linear's columns shared: hetero-tensor.")  # fmt: skip
@click.option("--smooth", multiple=True, type=float, metavar="STRENGTH", help="Also smoothed; may be repeated.")
@click.option(
    "--vae", type=click.Path(path_type=Path), help="Decoder, for PSNR, SSIM and the task: a diffusers folder."
)
@model_options
@run_options
@click.option("--task", metavar="MODULE", help="Module with check(frames, prompt) that scores a clip.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Draw error curves, maxima and histograms into a folder.",
)
@click.option(
    "--export-videos",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write clips as VBench reads them into a folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with all curves.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    checkpoint: Path,
    prompts: Path,
    calibration: Path | None,
    artifact: Path | None,
    modes: tuple[CalibrationMode, ...],
    cuts: str,
    gpu_shares: str,
    smooth: tuple[float, ...],
    vae: Path | None,
    task: str | None,
    prompts_limit: int | None,
    seeds: str,
    adapter: Path | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    device: str,
    plot: Path | None,
    export_videos: Path | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Measure what the engines' arithmetic costs: each path against CHECKPOINT in FP32, on the same prompts and noise.

    Paths: npu (FP16), gpu (INT8 activations; needs --calibration), hetero(k), which is gpu before block execution k,
    and hetero-tensor(s), where both share the columns of every linear.

    \b
    Examples:
      hvdc evaluate DCM_WAN/transformer --prompts p.safetensors --calibration c.safetensors --cut 51 --device cuda
      hvdc evaluate DCM_WAN/transformer --prompts p.safetensors --artifact dcm.hvdc --vae DCM_WAN/vae --device cuda
    """
    from hvdc.pipeline.evaluate import EvaluateRequest, evaluate, facts
    from hvdc.pipeline.quality_plots import draw
    from hvdc.pipeline.ranks import join

    request = EvaluateRequest(
        checkpoint=checkpoint,
        prompts=prompts,
        calibration=calibration,
        artifact=artifact,
        adapter=adapter,
        config=load_config(config_file, settings, options),
        modes=modes,
        cuts=parse_cuts(cuts),
        gpu_shares=parse_shares(gpu_shares),
        smooth=smooth,
        prompts_limit=prompts_limit,
        seeds=parse_seeds(seeds),
        vae=vae,
        task=task,
    )
    if plot is not None:
        prepare_folder(plot)
    folders = None if export_videos is None or vae is None else PathFolders(export_videos)
    ranks = join(device)
    try:
        sink = folders.add if folders is not None else None
        if export_videos is not None and vae is None:
            raise UsageError("frames are needed for videos, and no decoder was given", fix="add --vae DIR")
        evaluation = evaluate(request, ranks, progress_for(quiet=quiet or as_json), say_for(quiet=as_json), sink)
    finally:
        ranks.leave()
    if folders is not None:
        folders.finish()
    if as_json:
        print_json(_finite(facts(evaluation)))
    else:
        _print(evaluation)
    if plot is not None:
        draw(evaluation, plot)


def _finite(value: Any) -> Any:
    """JSON has no infinity: see `json_number`."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return json_number(value) if isinstance(value, float) else value


def _print(evaluation: Evaluation) -> None:
    for name, columns, rows in tables(evaluation):
        table(name, columns, rows)
        out().print()
    video, clips = evaluation.video, evaluation.clips
    out().print(f"{clips} {'clip' if clips == 1 else 'clips'} of {video.frames} frames {video.width} × {video.height}")
    for note in evaluation.notes:
        out().print(f"note: {note}")


def tables(evaluation: Evaluation) -> list[tuple[str, list[str], list[list[str]]]]:
    """``(title, columns, rows)`` of everything that was measured."""
    columns = ["path", ">SQNR first dB", ">worst dB", ">last dB", ">cosine last", ">latent dB", ">latent error"]
    rows = [_curve_row(row, evaluation.layers) for row in evaluation.rows if row.curve is not None]
    found = [("Hidden states and latents against FP32", columns, rows)]
    if any(row.scores for row in evaluation.rows):
        measured = dict.fromkeys(name for row in evaluation.rows for name in row.scores)
        names = [name for name in SCORES if name in measured] + [name for name in measured if name not in SCORES]
        titles = [">" + SCORES.get(name, name.removeprefix("task ")) for name in names]
        rows = [[row.path, *(_score(row.scores.get(name), name) for name in names)] for row in evaluation.rows]
        found.append(("Decoded frames", ["path", *titles], rows))
    return found


SCORES = {"psnr_db": "PSNR dB", "ssim": "SSIM", "lpips": "LPIPS"}


def _curve_row(row: Row, layers: int) -> list[str]:
    curve = row.curve
    assert curve is not None  # noqa: S101 - the caller looked
    if curve.failed is not None:
        step, block = divmod(curve.failed, layers)
        return [row.path, f"NaN or Inf at step {step}, block {block}", *["–"] * 5]
    db = curve.sqnr_db
    figures = [_db(db[0]), _db(min(db)), _db(db[-1]), f"{curve.mean_cosine[-1]:.5f}"]
    return [row.path, *figures, _db(curve.latent_sqnr_db), f"{row.latent_error:.4f}"]


def _score(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    return _db(value) if name == "psnr_db" else f"{value:.4f}" if name in SCORES else f"{value:.3f}"


def _db(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else str(value)
