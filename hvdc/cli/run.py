"""``hvdc run``."""

from __future__ import annotations

import math
from pathlib import Path

import click

from hvdc.cli.device_options import adb_options
from hvdc.cli.output import out, print_json, progress_for, shown, table
from hvdc.cli.shared_options import given, pairs_options, parse_seeds, refuse_without_effect, say_for
from hvdc.deploy.layout import TARGET
from hvdc.errors import UsageError
from hvdc.pipeline.run import GPU_IMPORTS, MODES, NPU_SUMS, Ran, RunRequest, facts, run
from hvdc.pipeline.run_decoders import DECODERS, EMULATOR, ON_DEVICE
from hvdc.pipeline.run_device import DeviceChoice
from hvdc.pipeline.run_entries import CLIP_FORMATS
from hvdc.pipeline.run_place import Place
from hvdc.pipeline.run_policy import RUN_POLICIES, PolicyChoice
from hvdc.plan.results import Since
from hvdc.plan.scenarios import PolicyName


def parse_cut(text: str) -> int | None:
    """``auto`` (None) or a number. Raises UsageError."""
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise UsageError("this is no place for a cut", where="--cut", expected="auto, or a block: 51", found=text)
    return int(text)


def parse_share(text: str) -> float | None:
    """``auto`` (None) or a number from 0 to 1. Raises UsageError."""
    if text == "auto":
        return None
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.0 <= share <= 1.0:
        raise UsageError("this is no share", where="--gpu-share", expected="auto, or a number from 0 to 1", found=text)
    return share


def checked_silence(seconds: float | None, option: str) -> float | None:
    """Raises UsageError for what is no length of time."""
    if seconds is not None and not 0.0 < seconds < math.inf:
        raise UsageError("this is no length of time", where=option, expected="more than 0 seconds", found=str(seconds))
    return seconds


@click.command()
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--prompts", required=True, type=click.Path(path_type=Path), help="Prompt embeddings, by `hvdc embed`.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The folder to fill.")
@pairs_options
@click.option("--count", type=click.IntRange(1), help="Make the first N videos only.  [default: prompts × seeds]")
@click.option("--mode", type=click.Choice(MODES), default="hetero", show_default=True,
              help="Who executes which blocks.")  # fmt: skip
@click.option("--cut", default="auto", show_default=True, metavar="K|auto", help="Where the NPU takes over.")
@click.option("--gpu-share", metavar="S|auto", default="auto", show_default=True,
              help="In mode hetero-tensor: the share of each linear's columns.")  # fmt: skip
@click.option("--npu-sums", type=click.Choice(NPU_SUMS), default="fast", show_default=True,
              help="Exact: the bits of the Python path, slower.")  # fmt: skip
@click.option("--rates", type=click.Path(path_type=Path), help="Place cut or share by this table, and time nothing.")
@click.option("--policy", type=click.Choice(RUN_POLICIES), default="static", show_default=True,
              help="Who chooses the cut of each video: see hvdc plan simulate.")  # fmt: skip
@click.option("--deadline-s", type=float, help="Of policy deadline, in seconds.")
@click.option("--deadline-factor", type=float, help="Or as a multiple of the reference.  [default: 1.5]")
@click.option("--reference-s", type=float, help="What it multiplies.  [default: NPU-only latency by --rates]")
@click.option("--deadline-from", type=click.Choice(("start", "arrival")), default="start", show_default=True,
              help="A deadline counts from a video's first block, or from the stream's start.")  # fmt: skip
@click.option("--format", "suffix", type=click.Choice(CLIP_FORMATS), default="mp4", show_default=True,
              help="Of the clips.")  # fmt: skip
@click.option("--fps", type=click.IntRange(1, 240), default=16, show_default=True, help="Frames a second.")
@click.option("--decode-with", type=click.Choice(DECODERS), default=DECODERS[0], show_default=True,
              help="The artifact's graphs after the stream, or its binaries by the runtime: on Qualcomm's x86 "
              "emulator, or with --device on the phone.")  # fmt: skip
@click.option("--no-decode", is_flag=True, help="Latents only.")
@click.option("--threads", type=click.IntRange(1, 64), help="Of each process's CPU work.  [default: processors]")
@click.option(
    "--opencl-device", metavar="TEXT", help="OpenCL device: an index, or a part of its name.  [default: the first GPU]"
)
@click.option("--gpu-import", type=click.Choice(GPU_IMPORTS), default="any", show_default=True,
              help="How the GPU sees the shared weights; copy costs memory.")  # fmt: skip
@click.option("--gpu-silence-s", type=float, metavar="S",
              help="Give the GPU's process up when it has work and is silent for so long.  [default: 300]")  # fmt: skip
@click.option("--npu-silence-s", type=float, metavar="S",
              help="End the run when a call of the NPU's engine takes longer.  [default: wait for ever]")  # fmt: skip
@click.option("--npu-cpus", metavar="LIST", help="Processors of the NPU's process: 0,2-5.  [default: all]")
@click.option("--gpu-cpus", metavar="LIST", help="Processors of the GPU's process.  [default: all]")
@click.option("--on-gpu-loss", type=click.Choice(("go-on", "stop")), default="go-on", show_default=True,
              help="When the GPU's process dies: with the NPU alone, or not.")  # fmt: skip
@click.option("--trace", type=click.Path(path_type=Path), help="Write a trace for Perfetto or chrome://tracing.")
@click.option(
    "--device",
    metavar="SERIAL|auto",
    help="Run it on the phone that the artifact was deployed to; auto: the only one, or ANDROID_SERIAL.",
)
@adb_options
@click.option("--to", "target", default=TARGET, show_default=True, metavar="DIR", help="The folder on the device.")
@click.option("--name", help="What the artifact is called on the device.  [default: any]")
@click.option("--resume", is_flag=True, help="Go on with an interrupted run of this output.")
@click.option("--force", is_flag=True, help="Start over, whatever run the output holds.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(
    artifact: Path,
    prompts: Path,
    output: Path,
    prompts_limit: int | None,
    seeds: str,
    count: int | None,
    mode: str,
    cut: str,
    gpu_share: str,
    npu_sums: str,
    rates: Path | None,
    policy: PolicyName,
    deadline_s: float | None,
    deadline_factor: float | None,
    reference_s: float | None,
    deadline_from: Since,
    suffix: str,
    fps: int,
    decode_with: str,
    no_decode: bool,
    threads: int | None,
    opencl_device: str | None,
    gpu_import: str,
    gpu_silence_s: float | None,
    npu_silence_s: float | None,
    npu_cpus: str | None,
    gpu_cpus: str | None,
    on_gpu_loss: str,
    trace: Path | None,
    device: str | None,
    adb: Path | None,
    adb_host: str | None,
    adb_port: int | None,
    target: str,
    name: str | None,
    resume: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make videos of prompts with ARTIFACT, on this machine: both engines' executors as portable programs.

    With --device they run on a phone that ARTIFACT was deployed to, and latents come back. Here the GPU's executor runs
    on any OpenCL device, the NPU's on processors. In mode hetero the GPU executes blocks before
    the cut and the NPU the others, of consecutive videos at once; npu and gpu take one engine, dp gives each engine
    whole videos. In mode hetero-tensor both share every linear and wait for each other after it, to compare the others
    with. Without --cut, --gpu-share and --rates a few blocks of both are timed first.

    \b
    Examples:
      hvdc run dcm.hvdc --prompts p.safetensors --prompts-limit 2 -o clips
      hvdc run --device auto dcm.hvdc --prompts p.safetensors -o clips
      hvdc run dcm.hvdc --prompts p.safetensors --cut 51 --seeds 0:4 --trace trace.json -o clips
      hvdc run dcm.hvdc --prompts p.safetensors --policy replan --rates my-phone.toml -o clips
    """
    if device is None:
        of_phone = given("adb", "adb_host", "adb_port", "target", "name")
        refuse_without_effect(of_phone, "no phone is used", "give --device SERIAL")
        if decode_with == ON_DEVICE:
            raise UsageError("no phone is used, so that none decodes", where=f"--decode-with {ON_DEVICE}",
                             fix="give --device SERIAL")  # fmt: skip
    elif decode_with == EMULATOR:
        raise UsageError("a phone has no emulator of its NPU", where="--decode-with emulator",
                         fix=f"--decode-with {ON_DEVICE}, or leave it out")  # fmt: skip
    if resume and force:
        raise UsageError("--resume goes on and --force starts over", fix="give one of them")
    if mode not in ("hetero", "hetero-tensor"):
        refuse_without_effect(given("rates"), f"mode {mode} has no cut", "--mode hetero")
    if mode != "hetero":
        refuse_without_effect(given("cut", "policy"), f"mode {mode} has no cut", "--mode hetero")
    if policy != "static":
        refuse_without_effect(given("cut"), f"policy {policy} chooses the cut of each video", "--policy static")
    if policy != "deadline":
        of_deadline = given("deadline_s", "deadline_factor", "reference_s", "deadline_from")
        refuse_without_effect(of_deadline, f"policy {policy} knows no deadline", "--policy deadline")
    if mode != "hetero-tensor":
        refuse_without_effect(given("gpu_share"), f"mode {mode} shares no linears", "--mode hetero-tensor")
    if gpu_share != "auto":
        refuse_without_effect(given("rates"), f"the share is given: {gpu_share}", "--gpu-share auto")
    if mode == "npu":
        of_gpu = given("opencl_device", "gpu_import", "gpu_silence_s", "gpu_cpus", "on_gpu_loss")
        refuse_without_effect(of_gpu, "mode npu has no GPU", "--mode hetero")
    if cut != "auto":
        refuse_without_effect(given("rates"), f"the cut is given: {cut}", "--cut auto")
    if no_decode:
        refuse_without_effect(given("suffix", "fps", "decode_with"), "nothing is decoded", "leave out --no-decode")
    request = RunRequest(
        artifact=artifact,
        prompts=prompts,
        output=output,
        prompts_limit=prompts_limit,
        seeds=parse_seeds(seeds),
        count=count,
        mode=mode,
        cut=parse_cut(cut),
        gpu_share=parse_share(gpu_share),
        npu_sums=npu_sums,
        rates=rates,
        policy=PolicyChoice(policy, deadline_factor, deadline_s, reference_s, deadline_from),
        threads=threads,
        opencl_device=opencl_device,
        gpu_import=gpu_import,
        gpu_silence_s=checked_silence(gpu_silence_s, "--gpu-silence-s"),
        npu_silence_s=checked_silence(npu_silence_s, "--npu-silence-s"),
        npu_cpus=npu_cpus,
        gpu_cpus=gpu_cpus,
        stop_when_gpu_lost=on_gpu_loss == "stop",
        trace=trace,
        decode=not no_decode,
        decode_with=decode_with,
        suffix=suffix,
        fps=fps,
        resume=resume,
        force=force,
        device=None if device is None else DeviceChoice(device, adb, adb_host, adb_port, target, name),
    )
    ran = run(request, progress_for(quiet=quiet or as_json), say_for(quiet=quiet or as_json))
    if as_json:
        print_json(facts(ran))
    else:
        _print(ran)


def _print(ran: Ran) -> None:
    columns = ["video", "~prompt", ">seed", ">on the GPU", ">gpu s", ">npu s", ">cpu s", ">waiting s", ">decode s"]
    executions = ran.report["executions"]
    rows = []
    for i, held in enumerate(ran.report["videos"]):
        times = (held["gpu_s"], held["npu_s"], held["cpu_s"], held["waiting_s"])
        cells = ["was there"] * 4 if held["skipped"] else [f"{t:.3f}" for t in times]
        share = f"{held['gpu_blocks']}/{executions}" + (" (recovered)" if held["recovered"] else "")
        seconds = held["decode_s"] if ran.in_stream or not ran.clips else ran.clips[i].decode_s
        decode = "" if seconds is None else f"{seconds:.3f}"
        rows.append([i, shown(ran.texts[i]), ran.videos[i].seed, share, *cells, decode])
    table("", columns, rows)
    console, report, place = out(), ran.report, Place(ran.request.output)
    if report["mode"] == "hetero-tensor":
        share, source = report["gpu_share"], CUT_SOURCES[report["cut_source"]]
        console.print(f"share     {share:.4g} of all columns on the GPU, {source}")
    elif report.get("policy", "static") != "static":
        least, most = (end(held["cut"] for held in report["videos"]) for end in (min, max))
        cuts = f"{least}" if least == most else f"{least} to {most}"
        chosen = f"of {executions} blocks, chosen for each video by policy {report['policy']}"
        console.print(f"cut       {cuts} {chosen}")
    elif report["cut_source"] != "none":
        console.print(f"cut       {report['cut']} of {executions} blocks, {CUT_SOURCES[report['cut_source']]}")
    if report["period_s"]:
        console.print(f"period    {report['period_s']:.3f} s between finished latents")
    device = f"; GPU: {ran.device}" if ran.device else ""
    console.print(f"ran on    {ran.where}{device}")
    if ran.clips:
        emulator = "Qualcomm's emulator on this machine, no phone"
        by_runtime = emulator if ran.request.device is None else "the phone itself"
        console.print(f"decoder   {ran.decoded_by}: {by_runtime if ran.in_stream else 'on this machine'}")
    weights, beside = report["weights_bytes"] / 2**20, report["gpu_engine_bytes"] + report["npu_engine_bytes"]
    copied, shares = report["gpu_weights_copied_bytes"] / 2**20, report["gpu_import"] not in ("", "copy")
    once = f"and {copied:.1f} MiB copied to the GPU" if copied else "once for both engines" if shares else "once"
    console.print(f"weights   {weights:.1f} MiB, {once}; beside them {beside / 2**20:.1f} MiB of theirs")
    for note in ran.notes:
        console.print(f"note: {note}")
    made = f"{place.clip(0, ran.request.suffix)} …, {place.sheet}" if ran.clips else f"{place.latents}"
    console.print(f"wrote {made}")


CUT_SOURCES = {
    "given": "as given",
    "rates": "the best by the rate table",
    "measured": "the best by blocks timed while both engines worked",
}
