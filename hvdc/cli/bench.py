"""``hvdc bench``."""

from __future__ import annotations

import math
from pathlib import Path

import click

from hvdc.cli.device_options import adb_options, open_device
from hvdc.cli.output import out, print_json, progress_for, table
from hvdc.cli.shared_options import given, refuse_without_effect, say_for
from hvdc.deploy.layout import TARGET, Layout, checked_target
from hvdc.errors import UsageError
from hvdc.measure.bench import Benched, BenchRequest, require_steady
from hvdc.measure.bench_run import Measured, measure_device, measure_host
from hvdc.pipeline.run_decoders import HOST_DECODERS


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--host", is_flag=True, help="Measure this machine, with the runtime built for it.")
@click.option("--device", "serial", metavar="SERIAL|auto",
              help="Measure this phone, to which it was deployed; auto: the only one, or ANDROID_SERIAL.")  # fmt: skip
@adb_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The rate table to write, TOML.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--name", help="What the artifact is called on the device.  [default: any]")
@click.option("--to", "target", default=TARGET, show_default=True, metavar="DIR", help="The folder on the device.")
@click.option("--engine", type=click.Choice(("both", "npu", "gpu")), default="both", show_default=True,
              help="What to measure. A table that places a cut needs both.")  # fmt: skip
@click.option("--warm-up", type=click.IntRange(0, 1000), default=1, show_default=True,
              help="Blocks of each expert that are executed before any is counted.")  # fmt: skip
@click.option("--repeat", type=click.IntRange(1, 1000), default=5, show_default=True,
              help="Blocks of each expert that are counted.")  # fmt: skip
@click.option("--decode-repeat", type=click.IntRange(1, 1000), default=1, show_default=True,
              help="Videos that are decoded, alone and beside the GPU's blocks.")  # fmt: skip
@click.option("--no-decode", is_flag=True, help="Leave the decoder out: such a table places no cut.")
@click.option("--decode-with", type=click.Choice(HOST_DECODERS), default=HOST_DECODERS[0], show_default=True,
              help="With --host: the artifact's graphs, or its binaries on Qualcomm's x86 emulator.")  # fmt: skip
@click.option("--max-spread", type=float, default=0.1, show_default=True,
              help="(max - min) / median of the same work above this is not steady.")  # fmt: skip
@click.option("--keep-unsteady", is_flag=True, help="Write the table of a run that is not steady; it says so.")
@click.option("--cooling", default="", metavar="TEXT", help="How the device is cooled and powered, for the table.")
@click.option("--rest-s", type=float, default=0.0, show_default=True, metavar="S", help="Wait before the first block.")
@click.option("--npu-sums", type=click.Choice(("fast", "exact")), default="fast", show_default=True,
              help="How the NPU's engine adds.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1, 64), help="Of the NPU's engine and the CPU.  [default: processors]")
@click.option(
    "--opencl-device", metavar="TEXT", help="OpenCL device: an index, or a part of its name.  [default: the first GPU]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    artifact: Path,
    host: bool,
    serial: str | None,
    adb: Path | None,
    adb_host: str | None,
    adb_port: int | None,
    output: Path | None,
    force: bool,
    name: str | None,
    target: str,
    engine: str,
    warm_up: int,
    repeat: int,
    decode_repeat: int,
    no_decode: bool,
    decode_with: str,
    max_spread: float,
    keep_unsteady: bool,
    cooling: str,
    rest_s: float,
    npu_sums: str,
    threads: int | None,
    opencl_device: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure what ARTIFACT's blocks and its decoder take on each engine, and write a table that `hvdc plan cut` reads.

    Each engine alone, then both at once; of both experts; after a warm-up, repeatedly. Temperatures, clocks and what a
    phone tells of its battery and screen stand in the table: before, meanwhile and after. A run whose times differ too
    much is not called steady, and not written.
    With --device the programs and the artifact are those that `hvdc deploy` put there.

    \b
    Examples:
      hvdc bench dcm.hvdc --host -o host.toml
      hvdc bench dcm.hvdc --device R5CX1234567 --repeat 20 --rest-s 600 --cooling "fan, screen off" -o s25.toml
      hvdc bench dcm.hvdc --host --repeat 20 --rest-s 120 --cooling "fan on, plugged in" -o host.toml
      hvdc plan cut --rates host.toml
    """
    if host == (serial is not None):
        raise UsageError(
            "which machine is to be measured?", found="both" if host else "none", fix="give --host, or --device SERIAL"
        )
    if host:
        of_device = given("adb", "adb_host", "adb_port", "name", "target")
        refuse_without_effect(of_device, "this machine is measured", "--device SERIAL")
    else:
        refuse_without_effect(given("decode_with"), "a device decodes with the artifact's binaries", "--host")
    if output is None:
        refuse_without_effect(given("force", "keep_unsteady"), "no table is written", "give -o")
    if no_decode:
        refuse_without_effect(given("decode_repeat", "decode_with"), "nothing is decoded", "leave out --no-decode")
    if engine == "npu":
        refuse_without_effect(given("opencl_device"), "the GPU is not measured", "--engine both")
    if engine == "gpu":
        refuse_without_effect(
            given("npu_sums", "decode_repeat", "decode_with"), "the NPU is not measured", "--engine both"
        )
    if not 0.0 <= max_spread < math.inf:
        raise UsageError("this is no spread", where="--max-spread", expected="0 or more", found=str(max_spread))
    if not 0.0 <= rest_s <= 86_400.0:
        raise UsageError("this is no time to rest", where="--rest-s", expected="0 to 86400 seconds", found=str(rest_s))
    request = BenchRequest(
        engine=engine,
        warm_up=warm_up,
        repeat=repeat,
        decode_repeat=decode_repeat,
        threads=threads,
        npu_sums=npu_sums,
        opencl_device=opencl_device,
        max_spread=max_spread,
        cooling=" ".join(cooling.split()),
        rest_s=rest_s,
    )
    silent = quiet or as_json
    decodes, progress, say = not no_decode and engine != "gpu", progress_for(quiet=silent), say_for(quiet=silent)
    if host:
        decoder = decode_with if decodes else None
        measured = measure_host(artifact, request, decoder, output, force=force, progress=progress, say=say)
    else:
        layout, device = Layout(checked_target(target)), open_device(adb, adb_host, adb_port, serial)
        measured = measure_device(
            artifact, request, device, layout, name, output, decode=decodes, force=force, progress=progress, say=say
        )
    if not as_json:
        _print(measured.benched, measured)
    if output is None or not keep_unsteady:
        require_steady(measured.benched)
    measured.write()
    if as_json:
        print_json(measured.facts())
    elif output is not None:
        out().print(f"wrote {output}; hvdc plan cut --rates {output}")


def _print(benched: Benched, measured: Measured) -> None:
    rows = [
        (s.engine.upper(), s.what.replace("_", " "), "alone" if s.beside == "nothing" else f"{s.beside.upper()} works",
         s.expert or "", s.count, f"{s.min_s:.6g}", f"{s.median_s:.6g}", f"{s.max_s:.6g}", f"{s.spread:.1%}")
        for s in benched.report.series
    ]  # fmt: skip
    columns = ("engine", "what", "while", "expert", ">times", ">min s", ">median s", ">max s", ">spread")
    table("", columns, rows)
    console = out()
    console.print(f"on        {measured.table.device}")
    console.print(f"before    {benched.before.text()}")
    if benched.during.seen:
        console.print(f"during    {benched.during.text()}")
    console.print(f"after     {benched.after.text()}")
    if unsteady := benched.unsteady():
        console.print(f"NOT STEADY: {len(unsteady)} series differ by more than {benched.request.max_spread:.0%}")
