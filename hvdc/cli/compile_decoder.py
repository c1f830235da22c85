"""What `hvdc compile` does about a decoder: its options, what of them is refused, and the calls that make one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from hvdc.cli.decoder import WITHOUT
from hvdc.cli.output import progress_for
from hvdc.cli.shared_options import given, refuse_without_effect, say_for
from hvdc.config import CompileConfig, DecoderBackend
from hvdc.errors import StoppedError, UsageError
from hvdc.pipeline.build import manifest_steps
from hvdc.pipeline.machine import free_memory_bytes
from hvdc.pipeline.prepare import Prepared, with_decoder_bytes

if TYPE_CHECKING:  # it imports ONNX
    from hvdc.pipeline.decoder_build import BuiltDecoder

DEFAULT_MINUTES, MOST_MEMORY_GIB = 120, 8
"""Of one compilation. The full-size decoder takes a minute at optimisation level 1, up to ten at level 3, and 4 GiB."""

BACKEND_HELP = "Who compiles it: qnn (this machine), aihub (Qualcomm), onnx (nobody).  [default: qnn]"
MINUTES_HELP = "Stop the decoder's compiler after so long."
MEMORY_HELP = "Stop it when it takes more memory."
EMULATE_HELP = "Check the decoder on the x86 emulator of the NPU."


class _AboveZero(click.FloatRange):
    """A finite number above zero: click takes nan and inf for floats."""

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


ABOVE_ZERO = _AboveZero()


def default_memory_gib() -> float:
    """8 GiB, or what this machine has free: a compiler that takes more ends in the kernel's killing something."""
    return min(MOST_MEMORY_GIB, round(free_memory_bytes() / 2**30, 1))


OPTIONS = (
    click.option("--vae", type=click.Path(path_type=Path), help="Compile the decoder of this Wan 2.1 VAE in too."),
    click.option(
        "--latents", type=click.Path(path_type=Path), help="Quantise it by these; else by those of --prompts."
    ),
    click.option("--decoder-backend", type=click.Choice(get_args(DecoderBackend)), help=BACKEND_HELP),
    click.option("--decoder-tile", metavar="auto|RxC", help="Latent pixels of a tile.  [default: auto]"),
    click.option("--decoder-minutes", type=ABOVE_ZERO, default=DEFAULT_MINUTES, show_default=True, help=MINUTES_HELP),
    click.option(
        "--decoder-memory-gib",
        type=ABOVE_ZERO,
        default=default_memory_gib,
        show_default=f"{MOST_MEMORY_GIB}, or what is free",
        help=MEMORY_HELP,
    ),
    click.option("--emulate", "decoder_emulate", is_flag=True, default=None, help=EMULATE_HELP),
    click.option(
        "--aihub-profile", is_flag=True, default=None, help="With backend aihub: run it on a hosted phone too."
    ),
)


def decoder_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the decoder's options to a command."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def check_decoder_options(
    config: CompileConfig,
    settings: tuple[str, ...],
    vae: Path | None,
    latents: Path | None,
    prompts: Path | None,
) -> None:
    """What can be refused before anything is computed. Raises UsageError."""
    keys = [setting.partition("=")[0].strip() for setting in settings]
    if vae is None:
        options = given("latents", "decoder_backend", "decoder_tile", "decoder_minutes", "decoder_memory_gib")
        options += given("decoder_emulate", "aihub_profile")
        options += [f"--set {key}" for key in keys if key.startswith(("decoder_", "aihub_"))]
        refuse_without_effect(options, "no decoder to compile", "add --vae")
        return
    if config.decoder_backend != "aihub":
        refuse_without_effect(
            given("aihub_profile") + ["--set aihub_profile"] * ("aihub_profile" in keys),
            f"the decoder's backend {config.decoder_backend}",
            "add --decoder-backend aihub",
        )
    if config.decoder_backend != "qnn":
        refuse_without_effect(
            given("decoder_minutes", "decoder_memory_gib"),
            f"the decoder's backend {config.decoder_backend}, which compiles nothing here",
            "leave it out",
        )
    if config.decoder_backend == "onnx" and not config.decoder_emulate:
        of_compiler = ("decoder_optimization", "decoder_vtcm_mb", "decoder_share_weights")
        refuse_without_effect(
            [f"--set {key}" for key in of_compiler if key in keys],
            "the decoder's backend onnx, which compiles nothing for the NPU",
            "leave it out, or choose --decoder-backend qnn",
        )
    from hvdc.pipeline.decoder_backends import require_backend

    require_backend(config.decoder_backend)
    if config.decoder_emulate:
        from hvdc.pipeline.decoder_checks import require_libraries

        require_libraries()
    if latents is None and prompts is None:
        raise UsageError(
            "the decoder is quantised by latents of the model's own clips, and none were given",
            where="--vae",
            fix="add --latents FILE (of hvdc calibrate --save-latents), or --prompts to run some now",
        )


@dataclass(frozen=True)
class PlannedDecoder:
    """``text``: what would be tried first. ``files_bytes``: estimated, of ONNX graphs and binaries."""

    text: str = WITHOUT
    files_bytes: int = 0

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        return {"decoder_plan": self.text, "decoder_files_bytes_estimated": self.files_bytes}


def with_planned_decoder(prepared: Prepared, vae: Path | None, latents: Path | None) -> tuple[Prepared, PlannedDecoder]:
    """What can be known of a decoder before it is made; its files count among what the build needs.

    Raises as `plan_decoder`; HvdcError where the disk has no room for all."""
    if vae is None:
        return prepared, PlannedDecoder()
    from hvdc.pipeline.decoder_build import plan_decoder

    text, size = plan_decoder(vae, latents, prepared.config, prepared.video, prepared.geometry.out_channels)
    return with_decoder_bytes(prepared, size), PlannedDecoder(text, size)


def with_provenance(prepared: Prepared, latents: Path, *, quiet: bool) -> Prepared:
    """Latents of another model or schedule are refused, as far as sizes tell; the build compares weights."""
    from hvdc.pipeline.latents_file import read_provenance, require_own_latents

    provenance, say = read_provenance(latents), say_for(quiet=quiet)
    steps = manifest_steps(prepared.steps)
    for note in require_own_latents(provenance, prepared.geometry, steps, prepared.video, str(latents)):
        say(note)
    return replace(prepared, request=replace(prepared.request, latents=provenance))


def built_decoder(
    prepared: Prepared, vae: Path, latents: Path, limits: tuple[float, float], *, quiet: bool
) -> BuiltDecoder:
    """``limits``: minutes and GiB of memory, of one run of the compiler."""
    from hvdc.pipeline import decoder_backends
    from hvdc.pipeline.decoder_build import build_decoder

    try:
        return build_decoder(
            vae, latents, prepared.config, prepared.video, prepared.geometry.out_channels,
            decoder_backends.limits(*limits), progress_for(quiet=quiet), say_for(quiet=quiet),
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        raise StoppedError(
            "interrupted while the decoder was compiled",
            fix="run the same command again: it goes on after the last stage that was finished (measuring, encodings, "
            "binary)",
        ) from stop


def checked_facts(made: BuiltDecoder | None) -> dict[str, Any]:
    """What the emulator and a hosted phone gave for the decoder, where they were asked, as JSON."""
    emulated = None if made is None or not made.emulated else [row.to_json() for row in made.emulated]
    phone = None if made is None or made.on_phone is None else made.on_phone.to_json()
    return {"decoder_emulated": emulated, "decoder_on_phone": phone}
