"""``hvdc embed``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hvdc.cli.output import mib, out, print_json, progress_for, table
from hvdc.pipeline.embed import STORED, Embedded, Request, embed

SHOWN_PROMPTS = 12
"""Lines of the table of prompts; --json lists all."""

_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--text-encoder", type=_FILE, required=True, help="A diffusers pipeline, or its text_encoder folder.")
@click.option("--prompts", type=_FILE, required=True, help="A text file, UTF-8: one prompt a line.")
@click.option("-o", "--output", type=_FILE, required=True, help="The .safetensors file to write.")
@click.option("--text-tokens", type=click.IntRange(2, 4096), default=512, show_default=True, help="Tokens of a prompt.")
@click.option("--dtype", type=click.Choice(["fp32", "bf16"]), default="fp32", show_default=True, help="How to store.")
@click.option("--tokenizer", type=_FILE, help="Folder with tokenizer.json.  [default: beside the text encoder]")
@click.option("--truncate", is_flag=True, help="Cut prompts that are too long, instead of refusing them.")
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(as_json: bool, quiet: bool, **options: Any) -> None:
    """Run the released text encoder, umT5-xxl, on prompts; write what the transformer takes.

    The encoder runs one layer at a time, in float32, so that 8 GB of memory are enough for its 22.7 GB.

    \b
    Example:
      hvdc embed --text-encoder DCM_WAN --prompts prompts.txt -o prompts.safetensors
    """
    embedded = embed(Request(**options), progress_for(quiet=quiet or as_json))
    if as_json:
        print_json(facts(embedded))
        return
    for line in notes(embedded):
        click.echo(f"note: {line}", err=True)
    _print(embedded)


def facts(embedded: Embedded) -> dict[str, Any]:
    """What was written, as JSON."""
    rows = zip(embedded.prompts, embedded.tokens, strict=True)
    return {
        "embeddings": str(embedded.path),
        "shape": list(embedded.shape),
        "dtype": embedded.dtype,
        "sha256": embedded.sha256,
        "prompts": [
            {"text": text, "tokens": tokens, "truncated": i in embedded.truncated}
            for i, (text, tokens) in enumerate(rows)
        ],
        "repaired_with_ftfy": embedded.repaired,
        "notes": notes(embedded),
    }


def notes(embedded: Embedded) -> list[str]:
    """What a person should know about the prompts."""
    found = []
    if embedded.truncated:
        lines = ", ".join(str(i + 1) for i in embedded.truncated)
        found.append(f"cut to {embedded.shape[1]} tokens: lines {lines}")
    if embedded.other_characters and not embedded.repaired:
        found.append(
            f"{embedded.other_characters} prompts hold more than printable ASCII, and ftfy is not installed, with "
            "which the pipeline repairs such text (curly quotes become straight, for example): pip install ftfy"
        )
    return found


def _print(embedded: Embedded) -> None:
    prompts, tokens, width = embedded.shape
    size = prompts * tokens * width * STORED[embedded.dtype][1]
    table("Prompts", (">tokens", "~prompt"), list(zip(embedded.tokens, embedded.prompts, strict=True))[:SHOWN_PROMPTS])
    if prompts > SHOWN_PROMPTS:
        out().print(f"and {prompts - SHOWN_PROMPTS:,} more")
    out().print(
        f"wrote {embedded.path}: {prompts:,} prompts × {tokens:,} tokens × {width:,}, {embedded.dtype}, {mib(size)} MiB"
    )
    out().print(f"sha256 {embedded.sha256}")
