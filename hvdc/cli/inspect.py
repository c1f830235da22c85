"""``hvdc inspect``."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import click

from hvdc.artifact.manifest import Manifest, TensorEntry
from hvdc.artifact.reader import Artifact, open_artifact
from hvdc.artifact.runtime import runtime_facts, runtime_line
from hvdc.cli.activations import activations_facts, activations_line, show_scales
from hvdc.cli.decoder import decoder_facts, decoder_line
from hvdc.cli.output import memory_facts, mib, out, print_json, print_memory, print_totals, table
from hvdc.errors import UsageError
from hvdc.plan.memory import Row, WeightBytes, memory_table


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option(
    "--tensors", "pattern", metavar="GLOB", help="List the tensors whose names match, as in 'blocks.0.*.bias'."
)
@click.option("--memory", is_flag=True, help="Only the weight memory of each configuration.")
@click.option("--tile", nargs=3, metavar="NAME I J", help="One tile as a grid: rows are k, columns n.")
@click.option("--scales", is_flag=True, help="The activation scales: range over the blocks, per step and GEMM input.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, everything in bytes.")
def command(
    artifact: Path,
    pattern: str | None,
    memory: bool,
    tile: tuple[str, str, str] | None,
    scales: bool,
    as_json: bool,
) -> None:
    """Show what ARTIFACT holds: totals by kind, memory, steps, experts, activation scales, runtime, tensors, tiles.

    \b
    Examples:
      hvdc inspect dcm.hvdc
      hvdc inspect dcm.hvdc --tensors 'blocks.0.*'
      hvdc inspect dcm.hvdc --tile blocks.0.attn1.to_q.weight 0 0
    """
    if sum((tile is not None, pattern is not None, memory, scales)) > 1:
        raise UsageError("--tensors, --memory, --tile and --scales exclude each other", fix="give one of them")
    with open_artifact(artifact) as opened:
        if tile is not None:
            _tile(opened, *tile, as_json=as_json)
        elif pattern is not None:
            _tensors(opened, pattern, as_json=as_json)
        elif scales:
            show_scales(opened, as_json=as_json)
        elif memory and as_json:
            print_json(memory_facts(_memory(opened.manifest)))
        elif memory:
            print_memory(_memory(opened.manifest))
        elif as_json:
            print_json({**facts(opened.manifest), "runtime": runtime_facts(opened.path)})
        else:
            _summary(opened)


def _memory(manifest: Manifest) -> list[Row]:
    return memory_table(WeightBytes(manifest.totals, manifest.parameters))


def facts(manifest: Manifest) -> dict[str, Any]:
    """Everything but the list of tensors."""
    return {
        **manifest.model_dump(mode="json", exclude={"files"}),
        "files": [f.model_dump(mode="json", exclude={"tensors"}) | {"tensors": len(f.tensors)} for f in manifest.files],
        "activations": activations_facts(manifest.calibration),
        "decoder": decoder_facts(manifest.decoder),
        "memory": memory_facts(_memory(manifest)),
    }


def _summary(artifact: Artifact) -> None:
    m, console = artifact.manifest, out()
    g, v = m.geometry, m.video
    draft = " (draft)" if m.format.draft else ""
    console.print(
        f"artifact  {artifact.path}, format {m.format.major}.{m.format.minor}{draft}, by hvdc {m.tools['hvdc']}"
    )
    console.print(f"model     {g.layers} blocks, width {g.width}, feed-forward {g.ffn_width}, {g.heads} heads")
    adapter = f", adapter rank {g.rank} × {g.alpha_over_rank:g}" if g.rank else ""
    console.print(f"experts   {', '.join(m.experts)}{adapter}")
    console.print(f"video     {v.frames} frames of {v.width} × {v.height}: latent {v.latent}, {v.tokens:,} tokens")
    console.print(f"target    {m.target.soc}")
    console.print(f"activations  {activations_line(m.calibration)}")
    console.print(f"decoder   {decoder_line(m.decoder)}")
    console.print(f"runtime   {runtime_line(artifact.path)}")
    console.print(f"model_sha256 {m.model_sha256}")
    console.print()
    rows = [(i, f"{s.timestep:g}", f"{s.sigma:.6f}", f"{s.step_size:+.6f}", s.expert) for i, s in enumerate(m.steps)]
    table("Steps", (">step", ">timestep", ">sigma", ">step size", "expert"), rows)
    console.print()
    print_totals(m.totals)
    console.print()
    print_memory(_memory(m))


def _tensors(artifact: Artifact, pattern: str, *, as_json: bool) -> None:
    found = [(f, t) for f, t in artifact.manifest.tensors() if fnmatch.fnmatchcase(t.name, pattern)]
    if not found:
        raise UsageError(
            f"no tensor matches {pattern!r}",
            where=str(artifact.path),
            fix="a pattern matches whole names, as 'blocks.0.*' does; quote it",
        )
    if as_json:
        print_json([t.model_dump(mode="json") | {"file": f.path} for f, t in found])
        return
    rows = [
        (t.name, t.dtype, "×".join(map(str, t.shape)), t.tile_order, t.kind, f"{t.bytes:,}", f.path, f"{t.offset:,}")
        for f, t in found
    ]
    table("", ("name", "dtype", "shape", "tile order", "kind", ">bytes", "file", ">offset"), rows)
    out().print(f"{len(found)} tensor{'s' if len(found) > 1 else ''}, {mib(sum(t.bytes for _, t in found))} MiB")


def _tile(artifact: Artifact, name: str, row: str, col: str, *, as_json: bool) -> None:
    entry: TensorEntry = artifact.entry(name)
    grid = artifact.tile_grid(name)
    try:
        values = artifact.tile(name, int(row), int(col))
    except (ValueError, IndexError) as error:
        raise UsageError(
            f"there is no tile ({row}, {col})",
            where=name,
            expected=f"n tile 0 to {grid.n_tiles - 1}, k tile 0 to {grid.k_tiles - 1}",
        ) from error
    if as_json:
        print_json({"name": name, "n_tile": int(row), "k_tile": int(col), "tile": values.tolist()})
        return
    click.echo(f"{name}, tile n {row} of {grid.n_tiles}, k {col} of {grid.k_tiles}, order {entry.tile_order}")
    click.echo("  k\\n" + "".join(f"{n:5d}" for n in range(values.shape[1])))
    for k, line in enumerate(values):
        click.echo(f"{k:5d}" + "".join(f"{int(value):5d}" for value in line))
