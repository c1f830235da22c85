"""``hvdc probe``."""

from __future__ import annotations

from pathlib import Path

import click

from hvdc.cli.device_options import adb_options, open_device
from hvdc.cli.output import describe_error, err, out, print_json, progress_for, table
from hvdc.cli.shared_options import given, refuse_without_effect, say_for
from hvdc.deploy.layout import TARGET, Layout, checked_target
from hvdc.errors import UsageError
from hvdc.measure.probe import MOST_MIB, SAFE_MIB, ProbeRequest
from hvdc.measure.probe_run import Found, Wish, check_output, probe_device, probe_host
from hvdc.targets import Limit, target_names


@click.command()
@click.option("--host", is_flag=True, help="Probe this machine, with the runtime built for it.")
@click.option("--device", "serial", metavar="SERIAL|auto",
              help="Probe this phone; auto: the only one, or ANDROID_SERIAL.")  # fmt: skip
@adb_options
@click.option("--to", "target", default=TARGET, show_default=True, metavar="DIR", help="The folder on the device.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The target file to write, TOML.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--base", type=click.Choice(target_names()),
              help="Take what cannot be measured from this target.  [default: the SoC's, or sm8750]")  # fmt: skip
@click.option("--largest-mib", type=click.IntRange(1, MOST_MIB), default=SAFE_MIB, show_default=True,
              help="Try regions up to this size.")  # fmt: skip
@click.option("--dangerous", is_flag=True, help=f"Allow regions above {SAFE_MIB} MiB, which can take a phone down.")
@click.option("--total-mib", type=click.IntRange(1, 1 << 20), metavar="N",
              help="Map so much at once at most.  [default: 3840, or 3/4 of what is available]")  # fmt: skip
@click.option("--mappings", type=click.IntRange(1, 1 << 16), help="Map so many at once at most.  [default: 256]")
@click.option(
    "--opencl-device", metavar="TEXT", help="OpenCL device: an index, or a part of its name.  [default: the first GPU]"
)
@click.option("--fastrpc", metavar="LIBRARY", help="FastRPC's library there.  [default: libcdsprpc.so]")
@click.option("--forget", is_flag=True, help="Start over: also try again what a probe before has ended at.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    host: bool,
    serial: str | None,
    adb: Path | None,
    adb_host: str | None,
    adb_port: int | None,
    target: str,
    output: Path | None,
    force: bool,
    base: str | None,
    largest_mib: int,
    dangerous: bool,
    total_mib: int | None,
    mappings: int | None,
    opencl_device: str | None,
    fastrpc: str | None,
    forget: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Find out what a phone's platform really allows, and write it as a target for `hvdc compile --target FILE`.

    Which way the GPU imports memory that the NPU maps too, the largest region that both map, how many and how much
    in all, which dot products of the GPU are right, what the DSP is and its VTCM. Each is tried, step by step; a phone
    that goes down on the way takes with it only what was not known yet: the file is written as facts come. The same
    command then goes on, and does not try again what the phone went down at.

    \b
    Examples:
      hvdc probe --device R5CX1234567 -o s25.toml
      hvdc compile DCM_WAN/transformer --target s25.toml -o dcm.hvdc
    """
    if host == (serial is not None):
        raise UsageError(
            "which machine is to be probed?", found="both" if host else "none", fix="give --host, or --device SERIAL"
        )
    if host:
        of_device = given("adb", "adb_host", "adb_port", "target")
        refuse_without_effect(of_device, "this machine is probed", "--device SERIAL")
    if output is None:
        refuse_without_effect(given("force"), "no file is written", "give -o")
    if largest_mib > SAFE_MIB and not dangerous:
        raise UsageError(
            "regions of this size have taken a phone down", where=f"--largest-mib {largest_mib}",
            expected=f"at most {SAFE_MIB}", fix="add --dangerous if you mean it",
        )  # fmt: skip
    if dangerous and largest_mib <= SAFE_MIB:
        refuse_without_effect(["--dangerous"], f"regions up to {largest_mib} MiB are tried", "give --largest-mib")
    check_output(output, force=force)
    request = ProbeRequest(
        largest_mib=largest_mib, total_mib=total_mib, mappings=mappings, opencl_device=opencl_device, fastrpc=fastrpc
    )
    wish = Wish(request, base, output, forget, force)
    progress, say = progress_for(quiet=quiet or as_json), say_for(quiet=quiet or as_json)
    if host:
        found = probe_host(wish, progress, say)
    else:
        layout, device = Layout(checked_target(target)), open_device(adb, adb_host, adb_port, serial)
        found = probe_device(wish, device, layout, progress, say)
    found.write()
    print_json(found.facts()) if as_json else _print(found)
    if found.probed.error is not None and not as_json:
        _, fields = describe_error(found.probed.error)
        err().print(f"error: {found.probed.ended}" + (f" ({fields['found']})" if fields.get("found") else ""))
    return found.probed.status


def _print(found: Found) -> None:
    described = found.described.target
    limits = {name: str(value.value) for name, value in described.limits().items()}
    others = {
        "hexagon_arch": described.hexagon_arch,
        "gpu": described.gpu,
        "gpu_import": described.gpu_import.value if described.gpu_import else "not known",
        "dot_forms": ", ".join(described.dot_forms.value) if described.dot_forms else "not known",
        "mapping_count": str(described.mapping_count.value) if described.mapping_count else "not known",
    }
    sources = {name: getattr(described, name) for name in (*limits, *others)}
    rows = [
        (name, value, source.source if isinstance(source := sources[name], Limit) or hasattr(source, "source") else "")
        for name, value in (limits | others).items()
    ]
    table("", ("what", ">value", "~source"), rows)
    console = out()
    for note in found.described.notes:
        console.print(f"note: {note}")
    if found.output is not None:
        console.print(f"wrote {found.output}; hvdc compile --target {found.output}")
