"""``hvdc compile``."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hvdc.artifact.calibration import CalibrationDType
from hvdc.cli.output import memory_facts, mib, out, print_json, print_memory, print_totals, progress_for, table
from hvdc.cli.shared_options import dtype_option, model_options, parse_seeds, run_options, say_for
from hvdc.config import SCALE_MODES, load_config
from hvdc.errors import StoppedError, UsageError
from hvdc.pipeline.build import Built, build
from hvdc.pipeline.prepare import Prepared, Request, decide, parameters, prepare
from hvdc.plan.memory import Row, WeightBytes, memory_table
from hvdc.targets import target_names


def default_jobs() -> int:
    """One thread per core that this process may use, at most 8: beyond that a disk is the limit."""
    return min(len(os.sched_getaffinity(0)), 8)


SHOWN_LINEARS = 12
"""Lines of the table of a split; the manifest lists all."""


@click.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The artifact to write: NAME.hvdc.")
@model_options
@click.option("--prompts", type=click.Path(path_type=Path), help="Calibrate with these prompt embeddings.")
@click.option("--calibration", type=click.Path(path_type=Path), help="Take activation scales from `hvdc calibrate`.")
@click.option("--scale-mode", type=click.Choice(SCALE_MODES), help="How scales follow from it.  [default: per-step]")
@click.option("--smooth", type=float, metavar="STRENGTH", help="Move outliers into the weights: 0 to 1, 0.5 is usual.")
@click.option("--allow-geometry", is_flag=True, help="Take a calibration that was run at another video size.")
@run_options
@dtype_option
@click.option("--target", type=click.Choice(target_names()), help="The phone's SoC.  [default: sm8750]")
@click.option("--jobs", type=click.IntRange(1, 64), default=default_jobs, show_default="cores", help="Threads.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the plan, write nothing.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted build of this output.")
@click.option("--force", is_flag=True, help="Replace an existing artifact, or start an unfinished build over.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    checkpoint: Path,
    output: Path | None,
    adapter: Path | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    prompts: Path | None,
    calibration: Path | None,
    allow_geometry: bool,
    prompts_limit: int | None,
    seeds: str,
    device: str,
    dtype: CalibrationDType,
    jobs: int,
    dry_run: bool,
    resume: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Compile CHECKPOINT, a DCM-Wan2.1 model in any of its forms, into an artifact.

    CHECKPOINT is a file (.safetensors, .pth), a sharded directory or a diffusers pipeline folder; its layout is
    detected from its content. The detail expert is taken from the file itself, or from --adapter.

    \b
    Examples:
      hvdc compile DCM_WAN/transformer -o dcm.hvdc
      hvdc compile wan.safetensors --adapter detail_lora.safetensors -o dcm.hvdc
      hvdc compile DCM_WAN/transformer --prompts prompts.safetensors --device cuda -o dcm.hvdc
      hvdc compile DCM_WAN/transformer --dry-run
    """
    if output is None and not dry_run:
        raise UsageError("no output was given", fix="add -o NAME.hvdc, or --dry-run to see the plan")
    if resume and force:
        raise UsageError("--resume and --force exclude each other", fix="--resume goes on, --force starts over")
    config = load_config(config_file, settings, options)
    prepared = prepare(Request(checkpoint, output, adapter, config, jobs, resume, force))
    with prepared.checkpoint:
        if calibration is not None or prompts is not None or config.smooth is not None:
            given = {
                "file": calibration,
                "prompts": prompts,
                "prompts_limit": prompts_limit,
                "seeds": parse_seeds(seeds),
                "dtype": dtype,
                "allow_geometry": allow_geometry,
                "dry_run": dry_run,
            }
            prepared = _calibrated(prepared, given, device, quiet=quiet or as_json)
        if dry_run:
            if as_json:
                print_json(plan_facts(prepared))
            else:
                _print_plan(prepared)
            return
        if not as_json:
            _print_notes(prepared)
        try:
            built = build(prepared, progress_for(quiet=quiet or as_json))
        except KeyboardInterrupt as stop:
            how = "--resume instead of --force" if force else "--resume"
            raise StoppedError("interrupted", fix=f"to go on, run the same command with {how}") from stop
    if as_json:
        print_json(plan_facts(prepared) | result_facts(built))
    else:
        _print_result(built)


def _calibrated(prepared: Prepared, given: dict[str, Any], device: str, *, quiet: bool) -> Prepared:
    """The same build with activation scales."""
    from hvdc.pipeline.activations import CalibrationChoice, activations_for  # PyTorch, which compiling needs not
    from hvdc.pipeline.ranks import join, world_size

    if world_size() > 1:
        fix = "torchrun … -m hvdc calibrate, then compile --calibration"
        raise UsageError("a compilation is one process, and torchrun started several", fix=fix)
    ranks = join(device if given["prompts"] else "cpu")
    config, checkpoint = prepared.request.config, prepared.checkpoint
    try:
        activations = activations_for(
            CalibrationChoice(**given), config, checkpoint, ranks, progress_for(quiet=quiet), say_for(quiet=quiet)
        )
    except KeyboardInterrupt as stop:
        fix = "run the same command again: finished prompts are not run again"
        raise StoppedError("interrupted while calibrating", fix=fix) from stop
    return decide(replace(prepared.request, activations=activations), checkpoint)


def plan_facts(prepared: Prepared) -> dict[str, Any]:
    """The plan as JSON: everything in bytes."""
    plan, target = prepared.plan, prepared.target
    return {
        "geometry": prepared.geometry.__dict__,
        "experts": list(prepared.geometry.experts),
        "configuration": prepared.config.model_dump(mode="json"),
        "video": prepared.video.model_dump(mode="json"),
        "steps": [step.__dict__ for step in prepared.steps],
        "report": prepared.checkpoint.report.lines(),
        "notes": list(prepared.notes),
        "totals": plan.totals().model_dump(),
        "files": [
            {"path": f.path, "kind": f.kind, "bytes": f.region.bytes, "tensors": len(f.tensors)} for f in plan.files
        ],
        "memory": memory_facts(_memory(prepared)),
        "mapping": {"mapped_bytes": prepared.plan.mapped_bytes(), "budget_bytes": target.mapping_budget_bytes.value},
        "needs": {"disk_bytes": prepared.needs.disk_bytes, "memory_bytes": prepared.needs.memory_bytes},
    }


def result_facts(built: Built) -> dict[str, Any]:
    """What was built, as JSON."""
    return {
        "artifact": str(built.path),
        "model_sha256": built.manifest.model_sha256,
        "resumed_files": built.resumed_files,
        "left_out_energy": built.manifest.source.left_out_energy,
    }


def _memory(prepared: Prepared) -> list[Row]:
    return memory_table(WeightBytes(prepared.plan.totals(), parameters(prepared.geometry)))


def _print_notes(prepared: Prepared) -> None:
    for line in (*prepared.checkpoint.report.lines(), *(f"note: {note}" for note in prepared.notes)):
        click.echo(line, err=True)


def _print_plan(prepared: Prepared) -> None:
    """The dry run."""
    _print_notes(prepared)
    plan, g, video = prepared.plan, prepared.geometry, prepared.video
    console = out()
    console.print(
        f"model     {g.layers} blocks, width {g.width}, feed-forward {g.ffn_width}, {g.heads} heads"
        + (f", adapter rank {g.rank} × {g.alpha_over_rank:g}" if g.rank else ", one expert")
    )
    console.print(f"video     {video.frames} frames of {video.width} × {video.height}: {video.tokens:,} tokens")
    console.print("steps     " + ", ".join(f"{s.timestep:g} {s.expert}" for s in prepared.steps))
    kinds: dict[str, list[int]] = {}
    for file in plan.files:
        kinds.setdefault(file.kind, []).append(file.region.bytes)
    console.print()
    table(
        "Files", ("kind", ">files", ">largest MiB", ">MiB", ">bytes"),
        [(kind, len(sizes), mib(max(sizes)), mib(sum(sizes)), f"{sum(sizes):,}") for kind, sizes in kinds.items()],
    )  # fmt: skip
    console.print()
    print_totals(plan.totals())
    console.print()
    print_memory(_memory(prepared))
    budget = prepared.target.mapping_budget_bytes.value
    cap = prepared.target.region_cap_bytes.value
    console.print()
    console.print(f"target    {prepared.target.soc}; regions up to {mib(cap)} MiB")
    console.print(f"mapping   {mib(prepared.plan.mapped_bytes())} of {mib(budget)} MiB that one NPU session can map")
    console.print(f"disk      {mib(prepared.needs.disk_bytes)} MiB needed, with a reserve")
    console.print(
        f"memory    about {mib(prepared.needs.memory_bytes)} MiB at the peak, with {prepared.request.jobs} jobs"
    )


def _print_result(built: Built) -> None:
    totals = built.manifest.totals
    console = out()
    console.print(f"wrote {built.path}: {len(built.manifest.files)} files, {mib(totals.data_bytes)} MiB")
    if built.resumed_files:
        console.print(f"{built.resumed_files} files were taken over from the unfinished build")
    if shares := built.manifest.source.left_out_energy:
        rows = sorted(((linear, f"{share:.3g}") for linear, share in shares.items()), key=lambda row: -float(row[1]))
        table(
            "Share of energy that the split left out, worst first", ("linear", ">share of ‖ΔW‖²"), rows[:SHOWN_LINEARS]
        )
        console.print(f"{len(shares)} linears in all; manifest.json lists each")
    console.print(f"model_sha256 {built.manifest.model_sha256}")
    console.print(f"next: hvdc validate --deep {shlex.quote(str(built.path))}")
