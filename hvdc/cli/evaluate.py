"""``hvdc evaluate``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from hvdc.cli.output import json_number, out, print_json, progress_for, table
from hvdc.cli.shared_options import model_options, parse_seeds, run_options
from hvdc.config import SCALE_MODES, CalibrationMode, load_config
from hvdc.errors import UsageError
from hvdc.pipeline.evaluate import EvaluateRequest, Evaluation, Row, evaluate, facts
from hvdc.pipeline.ranks import join
from hvdc.pipeline.videos import PathFolders


def parse_cuts(text: str) -> tuple[int, ...]:
    """``0,6,12``. Raises UsageError."""
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",") if part))
    except ValueError as error:
        raise UsageError(
            "the cuts are not a list", where="--cut", expected="block numbers: 6,12", found=text
        ) from error


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="Prompt embeddings, by `hvdc embed`.")
@click.option("--calibration", type=click.Path(path_type=Path), help="Activation statistics, by `hvdc calibrate`.")
@click.option("--artifact", type=click.Path(path_type=Path), help="Judge this artifact's own bytes too.")
@click.option("--scale-mode", "modes", multiple=True, type=click.Choice(SCALE_MODES),
              help="May be repeated.  [default: per-step]")  # fmt: skip
@click.option("--cut", "cuts", default="", metavar="K,K", help="Also GPU before, NPU from these block executions on.")
@click.option("--smooth", multiple=True, type=float, metavar="STRENGTH", help="Also smoothed; may be repeated.")
@click.option(
    "--vae", type=click.Path(path_type=Path), help="Decoder, for PSNR, SSIM and the task: a diffusers folder."
)
@model_options
@run_options
@click.option("--task", metavar="MODULE", help="Module with check(frames, prompt) that scores a clip.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw error curves, maxima and histograms into a folder.")
@click.option(
    "--export-videos", type=click.Path(path_type=Path), help="Write clips as VBench reads them into a folder."
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

    Paths: npu (FP16), gpu (INT8 activations; needs --calibration) and hetero(k), which is gpu before block execution k.

    \b
    Examples:
      hvdc evaluate DCM_WAN/transformer --prompts p.safetensors --calibration c.safetensors --cut 51 --device cuda
      hvdc evaluate DCM_WAN/transformer --prompts p.safetensors --artifact dcm.hvdc --vae DCM_WAN/vae --device cuda
    """
    request = EvaluateRequest(
        checkpoint=checkpoint,
        prompts=prompts,
        calibration=calibration,
        artifact=artifact,
        adapter=adapter,
        config=load_config(config_file, settings, options),
        modes=modes or ("per-step",),
        cuts=parse_cuts(cuts),
        smooth=smooth,
        prompts_limit=prompts_limit,
        seeds=parse_seeds(seeds),
        vae=vae,
        task=task,
    )
    ranks = join(device)
    folders = None if export_videos is None else PathFolders(export_videos)
    sink = None if folders is None else folders.add
    evaluation = evaluate(request, ranks, progress_for(quiet=quiet or as_json), sink)
    if folders is not None:
        folders.finish()
    if plot is not None:
        from hvdc.pipeline.quality_plots import draw  # matplotlib, where it is installed

        draw(evaluation, plot)
    if as_json:
        print_json(_finite(facts(evaluation)))
    else:
        _print(evaluation)


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
    video = evaluation.video
    out().print(f"{evaluation.clips} clips of {video.frames} frames {video.width} × {video.height}")
    for note in evaluation.notes:
        out().print(f"note: {note}")


def tables(evaluation: Evaluation) -> list[tuple[str, list[str], list[list[str]]]]:
    """``(title, columns, rows)`` of everything that was measured."""
    columns = ["path", ">SQNR first dB", ">worst dB", ">last dB", ">cosine last", ">latent dB", ">latent error"]
    rows = []
    for row in evaluation.rows:
        if row.curve is not None:
            db = row.curve.sqnr_db
            figures = [_db(db[0]), _db(min(db)), _db(db[-1]), f"{row.curve.mean_cosine[-1]:.5f}"]
            rows.append([row.path, *figures, _db(row.curve.latent_sqnr_db), f"{row.latent_error:.4f}"])
    found = [("Hidden states and latents against FP32", columns, rows)]
    if any(row.psnr_db is not None or row.task for row in evaluation.rows):
        names = list(dict.fromkeys(name for row in evaluation.rows for name in row.task))
        columns = [
            "path",
            ">PSNR dB",
            ">SSIM",
            *([">LPIPS"] if any(r.lpips is not None for r in evaluation.rows) else []),
        ]
        rows = [_frame_row(row, names, lpips=">LPIPS" in columns) for row in evaluation.rows]
        found.append(("Decoded frames", [*columns, *(f">{name}" for name in names)], rows))
    return found


def _frame_row(row: Row, names: list[str], *, lpips: bool) -> list[str]:
    cells = [row.path, _db(row.psnr_db), "–" if row.ssim is None else f"{row.ssim:.4f}"]
    if lpips:
        cells.append("–" if row.lpips is None else f"{row.lpips:.4f}")
    return cells + [f"{row.task[name]:.3f}" if name in row.task else "–" for name in names]


def _db(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if math.isfinite(value) else str(value)
