"""``hvdc synth``: checkpoints and artifacts for CI and benchmarks, without a trained model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from hvdc.cli.compile import default_jobs
from hvdc.cli.output import mib, out, print_json, progress_for
from hvdc.cli.shared_options import target_option
from hvdc.config import load_config
from hvdc.errors import UsageError
from hvdc.pipeline.splat import build_splat
from hvdc.pipeline.synthetic import DTYPES, LAYOUTS, PRESETS, preset_geometry, write_synthetic
from hvdc.targets import with_description

PRESET = click.option("--preset", type=click.Choice(sorted(PRESETS)), default="tiny", show_default=True, help="Sizes.")
LAYERS = click.option("--layers", type=click.IntRange(1, 1000), help="Another number of blocks than the preset's.")
FORCE = click.option("--force", is_flag=True, help="Replace what is there.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.group()
def command() -> None:
    """Write synthetic checkpoints and artifacts."""


@command.command(short_help="A checkpoint of true names and shapes, and random values.")
@PRESET
@LAYERS
@click.option("--layout", type=click.Choice(LAYOUTS), default="dcm", show_default=True, help="Spelling of the names.")
@click.option("--dtype", type=click.Choice(DTYPES), default="bf16", show_default=True, help="How to store.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random values.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The .safetensors file to write.")
@FORCE
@JSON
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def checkpoint(
    preset: str,
    layers: int | None,
    layout: Any,
    dtype: Any,
    seed: int,
    output: Path,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """A checkpoint with the true names and shapes and plausible random values.

    Layouts wan and diffusers hold the semantic expert only, as their published files do.

    \b
    Examples:
      hvdc synth checkpoint -o tiny.safetensors
      hvdc synth checkpoint --preset dcm-wan2.1-1.3b --layers 2 -o two-blocks.safetensors
    """
    progress = progress_for(quiet=quiet or as_json)
    written = write_synthetic(
        output, preset_geometry(preset, layers), layout=layout, dtype=dtype, seed=seed, force=force, progress=progress
    )
    if as_json:
        print_json({"checkpoint": str(written.path), "tensors": written.tensors, "bytes": written.total_bytes})
    else:
        out().print(
            f"wrote {written.path}: {written.tensors:,} tensors, {written.parameters:,} parameters, "
            f"{mib(written.total_bytes)} MiB of random values"
        )


@command.command(short_help="A whole artifact with one constant in all weights.")
@PRESET
@LAYERS
@click.option("--splat", "value", type=float, default=1.0, show_default=True, help="Value of every weight.")
@target_option
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The artifact to write: NAME.hvdc."
)
@FORCE
@click.option("--jobs", type=click.IntRange(1, 64), default=default_jobs, show_default="cores", help="Threads.")
@JSON
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def artifact(
    preset: str,
    layers: int | None,
    value: float,
    target: str | None,
    output: Path,
    force: bool,
    jobs: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """A structurally complete artifact with one constant in all weights, for CI without a model.

    \b
    Example:
      hvdc synth artifact -o constants.hvdc
    """
    if not math.isfinite(value):
        raise UsageError(
            "the value of the weights must be finite", where="--splat", expected="a number", found=str(value)
        )
    geometry = preset_geometry(preset, layers)
    config = load_config(None, (), with_description({"target": target}))
    progress = progress_for(quiet=quiet or as_json)
    built = build_splat(output, geometry, config, value, jobs=jobs, force=force, progress=progress)
    if as_json:
        print_json({"artifact": str(output), "model_sha256": built.manifest.model_sha256, "lacks": built.unanswered})
    else:
        size = mib(built.manifest.totals.data_bytes)
        out().print(f"wrote {output}: {len(built.manifest.files)} files, {size} MiB of constants")
        if built.unanswered:
            out().print(f"note: {built.unanswered}")
