"""``hvdc compile``."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hvdc.artifact.calibration import Calibration, CalibrationDType
from hvdc.cli.activations import activations_facts, activations_line, many
from hvdc.cli.compile_decoder import (
    PlannedDecoder,
    built_decoder,
    check_decoder_options,
    checked_facts,
    decoder_options,
    with_planned_decoder,
    with_provenance,
)
from hvdc.cli.decoder import DecoderChecks, decoder_facts, decoder_line
from hvdc.cli.output import memory_facts, mib, out, print_json, print_memory, print_totals, progress_for, table
from hvdc.cli.shared_options import (
    dtype_option,
    given,
    model_options,
    parse_seeds,
    refuse_without_effect,
    run_options,
    say_for,
    target_option,
)
from hvdc.cli.summary import print_summary, trajectories
from hvdc.config import SCALE_MODES, CompileConfig, load_config
from hvdc.errors import StoppedError, UsageError
from hvdc.pipeline.build import Built, build
from hvdc.pipeline.prepare import Prepared, Request, decide, parameters, prepare
from hvdc.pipeline.runtime_skel import provide_skel
from hvdc.plan.memory import Row, WeightBytes, memory_table
from hvdc.targets import with_description

if TYPE_CHECKING:  # it imports PyTorch, which compiling needs not
    from hvdc.pipeline.activations import Activations
    from hvdc.pipeline.decoder_build import BuiltDecoder


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
@decoder_options
@run_options
@dtype_option
@target_option
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
    vae: Path | None,
    latents: Path | None,
    decoder_minutes: float,
    decoder_memory_gib: float,
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
      hvdc compile DCM_WAN/transformer --prompts prompts.safetensors --vae DCM_WAN/vae -o dcm.hvdc
      hvdc compile DCM_WAN/transformer --dry-run
    """
    if output is None and not dry_run:
        raise UsageError("no output was given", fix="add -o NAME.hvdc, or --dry-run to see the plan")
    if resume and force:
        raise UsageError("--resume and --force exclude each other", fix="--resume goes on, --force starts over")
    config = load_config(config_file, settings, with_description(options))
    _refuse_without_effect(config, settings, prompts, calibration)
    check_decoder_options(config, settings, vae, latents, prompts)
    prepared = prepare(Request(checkpoint, output, adapter, config, jobs, resume, force))
    with prepared.checkpoint:
        found: Activations | None = None
        made: BuiltDecoder | None = None
        if latents is not None:
            prepared = with_provenance(prepared, latents, quiet=quiet or as_json)
        prepared, decoder = with_planned_decoder(prepared, vae, latents)
        if calibration is not None or prompts is not None or config.smooth is not None:
            choice = {
                "file": calibration,
                "prompts": prompts,
                "prompts_limit": prompts_limit,
                "seeds": parse_seeds(seeds),
                "dtype": dtype,
                "allow_geometry": allow_geometry,
                "latents": vae is not None and latents is None,
                "dry_run": dry_run,
            }
            found = _calibrate(prepared, choice, device, quiet=quiet or as_json)
            prepared = decide(replace(prepared.request, activations=found.scales), prepared.checkpoint)
        if vae is not None and not dry_run:
            source = latents if latents is not None else (found.latents if found is not None else None)
            assert source is not None  # noqa: S101 - check_decoder_options saw to it
            limits = (decoder_minutes, decoder_memory_gib)
            made = built_decoder(prepared, vae, source, limits, quiet=quiet or as_json)
            prepared = decide(replace(prepared.request, decoder=made.parts), prepared.checkpoint)
        if dry_run:
            if as_json:
                print_json(plan_facts(prepared, found) | decoder.facts())
            else:
                _print_plan(prepared, found, decoder)
            return
        if not as_json:
            _print_notes(prepared)
        silent = quiet or as_json
        lacks = provide_skel(prepared.target, progress_for(quiet=silent), say_for(quiet=silent))
        try:
            built = build(prepared, progress_for(quiet=quiet or as_json))
        except KeyboardInterrupt as stop:
            how = "--resume instead of --force" if force else "--resume"
            raise StoppedError("interrupted", fix=f"to go on, run the same command with {how}") from stop
    if as_json:
        print_json(
            plan_facts(prepared, found)
            | result_facts(built)
            | checked_facts(made)
            | {"lacks": "; ".join(filter(None, (lacks, built.unanswered)))}
        )
    else:
        if made is not None:
            DecoderChecks(emulated=list(made.emulated)).print_table()
        _print_result(built, found)
        for note in filter(None, (lacks, built.unanswered)):
            out().print(f"note: {note}")


def _refuse_without_effect(
    config: CompileConfig, settings: tuple[str, ...], prompts: Path | None, calibration: Path | None
) -> None:
    """Options of the command line that would change nothing. A file of settings may hold more than one compile needs.

    Raises UsageError.
    """
    keys = [setting.partition("=")[0].strip() for setting in settings]
    running = ("prompts_limit", "seeds", "device", "dtype")
    if prompts is None and calibration is None:
        options = given("scale_mode", "allow_geometry", *running)
        options += [f"--set {key}" for key in ("scale_mode", "percentile") if key in keys]
        refuse_without_effect(options, "nothing to calibrate with", "add --prompts or --calibration")
    elif prompts is None:
        why = "--calibration, a file of trajectories that were run before"
        refuse_without_effect(given(*running), why, "leave it out, or run them now: --prompts")
    elif calibration is None:
        why = "--prompts, which are run at the size that is compiled"
        refuse_without_effect(given("allow_geometry"), why, "leave it out")
    if "percentile" in keys and config.scale_mode != "percentile":
        why = f"the scale mode {config.scale_mode!r}"
        refuse_without_effect(["--set percentile"], why, "add --scale-mode percentile")


def _calibrate(prepared: Prepared, choice: dict[str, Any], device: str, *, quiet: bool) -> Activations:
    """Activation scales for a build."""
    from hvdc.pipeline.activations import CalibrationChoice, activations_for
    from hvdc.pipeline.ranks import join, world_size

    if world_size() > 1:
        fix = "torchrun … -m hvdc calibrate, then compile --calibration"
        raise UsageError("a compilation is one process, and torchrun started several", fix=fix)
    ranks = join(device if choice["prompts"] else "cpu")
    config, checkpoint = prepared.request.config, prepared.checkpoint
    try:
        return activations_for(
            CalibrationChoice(**choice), config, checkpoint, ranks, progress_for(quiet=quiet), say_for(quiet=quiet)
        )
    except KeyboardInterrupt as stop:
        fix = "run the same command again: finished prompts are not run again"
        raise StoppedError("interrupted while calibrating", fix=fix) from stop


def plan_facts(prepared: Prepared, found: Activations | None) -> dict[str, Any]:
    """The plan as JSON: everything in bytes. ``found``: what calibrating gave."""
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
        "activations": _activations_facts(prepared, found),
        "calibration": None if found is None or found.summary is None else found.summary.facts(),
    }


def _activations_facts(prepared: Prepared, found: Activations | None) -> dict[str, Any]:
    """``to_run``: the trajectories that a compile, which this is a dry run of, would run first."""
    planned = None if found is None else found.planned
    if planned is None:
        return activations_facts(_entry(prepared)) | {"to_run": None}
    to_run = planned.__dict__ | {"trajectories": planned.trajectories}
    return {"calibrated": True, "text": _activations_line(prepared, found), "to_run": to_run}


def _activations_line(prepared: Prepared, found: Activations | None) -> str:
    planned = None if found is None else found.planned
    if planned is None:
        return activations_line(_entry(prepared))
    how = ""
    if planned.cpu_duration_s is not None:
        from hvdc.pipeline.cost import in_words

        how = f", about {in_words(planned.cpu_duration_s)} on this CPU"
    return (
        f"to be calibrated: {trajectories(planned.trajectories)} ({many(planned.prompts, 'prompt')} × "
        f"{many(planned.seeds, 'seed')}) of {many(planned.steps, 'step')}{how}; less where an earlier compile kept them"
    )


def _entry(prepared: Prepared) -> Calibration | None:
    activations = prepared.request.activations
    return None if activations is None else activations.entry(prepared.video)


def result_facts(built: Built) -> dict[str, Any]:
    """What was built, as JSON."""
    return {
        "artifact": str(built.path),
        "model_sha256": built.manifest.model_sha256,
        "resumed_files": built.resumed_files,
        "left_out_energy": built.manifest.source.left_out_energy,
        "decoder": decoder_facts(built.manifest.decoder),
    }


def _memory(prepared: Prepared) -> list[Row]:
    return memory_table(WeightBytes(prepared.plan.totals(), parameters(prepared.geometry)))


def _print_notes(prepared: Prepared) -> None:
    for line in (*prepared.checkpoint.report.lines(), *(f"note: {note}" for note in prepared.notes)):
        click.echo(line, err=True)


def _print_plan(prepared: Prepared, found: Activations | None, decoder: PlannedDecoder) -> None:
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
    console.print(f"activations  {_activations_line(prepared, found)}")
    console.print(f"decoder   {decoder.text}")
    _print_calibration(found)
    kinds: dict[str, list[int]] = {}
    for file in plan.files:
        kinds.setdefault(file.kind, []).append(file.region.bytes)
    console.print()
    rows: list[tuple[object, ...]] = [
        (kind, len(sizes), mib(max(sizes)), mib(sum(sizes)), f"{sum(sizes):,}") for kind, sizes in kinds.items()
    ]
    if decoder.files_bytes:
        rows.append(("decoder, about", "", "", mib(decoder.files_bytes), ""))
    table("Files", ("kind", ">files", ">largest MiB", ">MiB", ">bytes"), rows)
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
        + ("" if not decoder.files_bytes else "; the decoder's measuring and compiler, which run before, not counted")
    )


def _print_calibration(found: Activations | None) -> None:
    if found is not None and found.summary is not None:
        print_summary(found.summary, smoothed=found.scales is not None and bool(found.scales.smoothing))


def _print_result(built: Built, found: Activations | None) -> None:
    totals = built.manifest.totals
    console = out()
    console.print(f"wrote {built.path}: {len(built.manifest.files)} files, {mib(totals.data_bytes)} MiB")
    if built.resumed_files:
        console.print(f"{built.resumed_files} files were taken over from the unfinished build")
    console.print(f"activations  {activations_line(built.manifest.calibration)}")
    console.print(f"decoder   {decoder_line(built.manifest.decoder)}")
    _print_calibration(found)
    if shares := built.manifest.source.left_out_energy:
        rows = sorted(((linear, f"{share:.3g}") for linear, share in shares.items()), key=lambda row: -float(row[1]))
        table(
            "Share of energy that the split left out, worst first", ("linear", ">share of ‖ΔW‖²"), rows[:SHOWN_LINEARS]
        )
        console.print(f"{len(shares)} linears in all; manifest.json lists each")
    console.print(f"model_sha256 {built.manifest.model_sha256}")
    console.print(f"next: hvdc validate --deep {shlex.quote(str(built.path))}")
