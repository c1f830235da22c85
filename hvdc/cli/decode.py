"""``hvdc decode``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from hvdc.artifact.reader import open_artifact
from hvdc.cli.output import out, print_json, progress_for
from hvdc.cli.shared_options import say_for
from hvdc.errors import StoppedError, UsageError


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.argument("latents", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="NAME.mp4, NAME.gif or a folder.")
@click.option("--clip", type=click.IntRange(0), help="Which clip of the file, from 0.  [default: the first]")
@click.option("--fp32", is_flag=True, help="In FP32, by the float weights of --vae: what INT8 is compared with.")
@click.option("--vae", type=click.Path(path_type=Path), help="The VAE that the artifact was compiled with.")
@click.option("--fps", type=click.IntRange(1, 240), default=16, show_default=True, help="Frames a second.")
@click.option("--threads", type=click.IntRange(1, 64), default=2, show_default=True, help="Threads of onnxruntime.")
@click.option("--force", is_flag=True, help="Replace an existing output.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    artifact: Path,
    latents: Path,
    output: Path,
    clip: int | None,
    fp32: bool,
    vae: Path | None,
    fps: int,
    threads: int,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Decode LATENTS, of `hvdc calibrate --save-latents`, with the decoder in ARTIFACT, on this machine.

    The artifact's own INT8 graphs run tile by tile and latent frame by latent frame, with the integer caches that they
    have on the phone. onnxruntime computes each node in float between the graph's own roundings, so a phone's frames
    differ by some steps of the last bit.

    \b
    Examples:
      hvdc decode dcm.hvdc latents.safetensors -o clip.mp4
      hvdc decode dcm.hvdc latents.safetensors --clip 3 --fp32 --vae DCM_WAN/vae -o reference.gif
    """
    if fp32 != (vae is not None):
        raise UsageError("--fp32 and --vae belong together", fix="give both, or neither for the artifact's INT8 graphs")
    from hvdc.pipeline.clip_writer import check_clip_path, write_clip
    from hvdc.pipeline.host_decoder import HostDecoder
    from hvdc.pipeline.latents_file import read_latents

    check_clip_path(output, force=force)
    progress, say = progress_for(quiet=quiet or as_json), say_for(quiet=quiet or as_json)
    begin = time.monotonic()
    with open_artifact(artifact) as opened, HostDecoder(opened, vae, threads) as decoder:
        given = read_latents(latents, len(decoder.entry.latents_mean))
        count, number = len(given.values), clip or 0
        if number >= count:
            raise UsageError("there is no such clip", where="--clip", expected=f"0 to {count - 1}", found=str(number))
        prompt = given.prompts[number] if given.prompts else None
        if clip is None and count > 1:
            say(f"the first of {count} clips{f': {prompt}' if prompt else ''}; --clip N chooses another")
        try:
            frames = decoder.decode(given.values[number], progress)
        except KeyboardInterrupt as stop:
            raise StoppedError("interrupted while decoding: nothing was written") from stop
        write_clip(output, frames, fps)
    facts = {
        "output": str(output), "clip": number, "prompt": prompt, "frames": len(frames), "height": frames.shape[1],
        "width": frames.shape[2], "fps": fps, "arithmetic": "fp32" if fp32 else "int8",
        "duration_s": round(time.monotonic() - begin, 3),
    }  # fmt: skip
    if as_json:
        print_json(facts)
        return
    out().print(
        f"wrote {output}: {len(frames)} frames of {frames.shape[2]} × {frames.shape[1]}, "
        f"{'FP32' if fp32 else 'INT8'}{f', {prompt!r}' if prompt else ''}"
    )
