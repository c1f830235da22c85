"""``hvdc runtime``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hvdc.cli.output import out, print_json, progress_for
from hvdc.cli.shared_options import say_for
from hvdc.errors import UsageError
from hvdc.pipeline.runtime_build import NDK, TARGETS, copy_programs, find_runtime

ANDROID = "android-arm64"
SHORT = {"android": ANDROID}
"""What people type."""


@click.group()
def command() -> None:
    """Build the device runtime: what executes an artifact."""


@command.command(short_help="Build it for this machine, a phone, or a phone's DSP.")
@click.option(
    "--target",
    type=click.Choice([*TARGETS, *SHORT]),
    default="host",
    show_default=True,
    help="What it is built for; android is android-arm64.",
)
@click.option(
    "--ndk",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="An Android NDK, for android-arm64.  [default: ANDROID_NDK_ROOT]",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A folder to copy the programs into.")
@click.option("--into", type=click.Path(path_type=Path), metavar="ARTIFACT", help="Put sources and programs into it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def build(target: str, ndk: Path | None, output: Path | None, into: Path | None, as_json: bool, quiet: bool) -> None:
    """Build the runtime's C sources with CMake, unless the user's cache holds what they would become.

    android-arm64 takes the NDK that --ndk or ANDROID_NDK_ROOT names. hexagon is libhvdc_skel.so, which a phone's DSP
    loads, for each of its architectures; Debian's clang-22 and lld-22 build it. Nothing of Qualcomm's is needed.

    \b
    Examples:
      hvdc runtime build
      hvdc runtime build --target aarch64-linux -o build/aarch64
      hvdc runtime build --target android --into dcm.hvdc
      hvdc runtime build --target hexagon --into dcm.hvdc
    """
    target = SHORT.get(target, target)
    if ndk is not None:
        if target != ANDROID:
            raise UsageError(f"--ndk has no effect on {target}", fix=f"leave it out, or give --target {ANDROID}")
        os.environ[NDK] = str(ndk.absolute())  # from where CMake's preset takes it
    if into is not None:  # before minutes of building
        from hvdc.artifact.reader import open_artifact

        open_artifact(into).close()
    runtime = find_runtime(target, progress_for(quiet=quiet or as_json), say_for(quiet=quiet or as_json))
    if output is not None:
        copy_programs(runtime, output)
    lacks = ""
    if into is not None:
        from hvdc.pipeline.runtime_parts import kept_runtimes, put_runtime

        lacks = put_runtime(into, kept_runtimes(), progress_for(quiet=quiet or as_json))
    folder = runtime.folder if output is None else output
    if as_json:
        print_json(
            {
                "target": target,
                "folder": str(folder),
                "programs": {name: str(folder / name) for name in runtime.programs},
                "compiler": runtime.compiler,
                "built": runtime.built,
                "lacks": lacks,
            }
        )
        return
    how = f"built with {runtime.compiler}" if runtime.built else "built before, of the same sources"
    out().print(f"{folder}: {', '.join(runtime.programs)}; {how}")
    if lacks:
        out().print(f"note: {lacks}")
