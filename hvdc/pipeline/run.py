"""`hvdc run`: prompts become clips, by the device runtime, here or on a phone, from one copy of the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporters.prompts import Prompts, read_prompts
from hvdc.artifact.reader import Artifact, open_artifact
from hvdc.errors import HvdcError, StoppedError, UsageError
from hvdc.pipeline.cache import cache_folder
from hvdc.pipeline.clip_writer import image_library
from hvdc.pipeline.host_decoder import HostDecoder
from hvdc.pipeline.latents_file import write_latents
from hvdc.pipeline.run_clips import Clip, write_clips, write_sheet
from hvdc.pipeline.run_decoders import DECODERS, ON_DEVICE, AfterStream, InStream, OnDevice, RunDecoder
from hvdc.pipeline.run_device import DeviceChoice, DeviceMachine, Machine, RunnerPaths
from hvdc.pipeline.run_history import finished_run, merged
from hvdc.pipeline.run_place import Identity, Place, Run, opened_place
from hvdc.pipeline.run_policy import PolicyChoice, RunPolicy, policy_of
from hvdc.pipeline.run_process import Watched, run_runner
from hvdc.pipeline.run_results import read_results
from hvdc.pipeline.run_trace import check_trace
from hvdc.pipeline.runtime_build import find_runtime
from hvdc.pipeline.runtime_kept import Runtime
from hvdc.pipeline.stream_file import StreamVideo, planned_videos, write_stream
from hvdc.pipeline.videos import require_encoder
from hvdc.plan.cut import Rates
from hvdc.plan.fitting import fit_to_manifest
from hvdc.plan.placement import Trajectory
from hvdc.plan.rates import RateTable, load_rates
from hvdc.progress import Progress

MODES = ("hetero", "npu", "gpu", "dp", "hetero-tensor")
NPU_SUMS = ("fast", "exact")
GPU_IMPORTS = ("any", "khr-dma-buf", "qcom-dmabuf", "qcom-ion", "arm-dma-buf", "host-pointer", "copy")
"""Names of hvdc_gpu_import_name that `hvdc_runner` can reach."""

AND_RESUME = " with --resume"
WHERE = "the portable build of both executors on this machine's processors; no phone took part"


@dataclass(frozen=True)
class RunRequest:
    """``cut``, ``gpu_share`` None: auto. ``count`` None: every prompt with every seed. ``decode``: latents become
    clips. ``gpu_silence_s`` None: as the runtime has it; ``npu_silence_s`` None: no limit."""

    artifact: Path
    prompts: Path
    output: Path
    prompts_limit: int | None = None
    seeds: tuple[int, ...] = (0,)
    count: int | None = None
    mode: str = "hetero"
    cut: int | None = None
    gpu_share: float | None = None
    npu_sums: str = "fast"
    rates: Path | None = None
    policy: PolicyChoice = field(default_factory=PolicyChoice)
    threads: int | None = None
    opencl_device: str | None = None
    gpu_import: str = "any"
    gpu_silence_s: float | None = None
    npu_silence_s: float | None = None
    npu_cpus: str | None = None
    gpu_cpus: str | None = None
    stop_when_gpu_lost: bool = False
    trace: Path | None = None
    decode: bool = True
    decode_with: str = DECODERS[0]
    suffix: str = "mp4"
    fps: int = 16
    resume: bool = False
    force: bool = False
    device: DeviceChoice | None = None
    """None: this machine."""


@dataclass(frozen=True)
class HostMachine:
    """The runtime as it is built for this machine."""

    artifact: Path
    runtime: Runtime
    where: str = WHERE

    def paths(self, place: Place, trace: Path | None, libraries: Path | None) -> RunnerPaths:
        stream, results = place.stream.absolute(), place.results.absolute()
        return RunnerPaths(self.artifact, stream, results, cache_folder("kernels"), trace, libraries)

    def run(self, arguments: Sequence[object], watched: Watched, progress: Progress) -> dict[str, Any]:
        return run_runner(self.runtime.runner, arguments, watched, progress)


@dataclass(frozen=True)
class Ran:
    """``report``: of `hvdc_runner`. ``clips``: of each video; none of a run that does not decode. ``in_stream``: the
    runtime has decoded them. ``where``: what the runtime ran on, a sentence."""

    request: RunRequest
    report: dict[str, Any]
    device: str
    videos: tuple[StreamVideo, ...]
    texts: tuple[str, ...]
    clips: tuple[Clip, ...]
    in_stream: bool
    where: str = WHERE
    notes: tuple[str, ...] = field(default=())

    @property
    def decoded_by(self) -> str:
        """Who decoded the clips, all of them if there are several; ``""`` without clips."""
        return ", ".join(dict.fromkeys(clip.decoded_by for clip in self.clips))


def run(request: RunRequest, progress: Progress, say: Callable[[str], None]) -> Ran:
    """Check everything, build what is missing, make the videos, decode them.

    Raises UsageError, ArtifactError, CheckpointError, HvdcError; StoppedError after an interrupt, with how to go on.
    """
    with ExitStack() as stack:
        artifact = stack.enter_context(open_artifact(request.artifact))
        device = None if request.device is None else DeviceMachine(request.device, request.artifact, say)
        decoder = _decoder(request, artifact, device, stack)
        g = artifact.manifest.geometry
        prompts = stack.enter_context(
            read_prompts(
                request.prompts, text_tokens=g.text_tokens, text_width=g.text_width, limit=request.prompts_limit
            )
        )
        videos = planned_videos(len(prompts), request.seeds, request.count)
        table = _checked(request, artifact)
        rates = None if table is None else table.rates
        identity = Identity(
            artifact.index.header["index_sha256"].tobytes().hex(), prompts.sha256, videos, request.mode, request.cut,
            request.gpu_share, request.npu_sums,
            None if rates is None else (rates.gpu_block_s, rates.npu_block_s, rates.decode_s),
            None if device is None else device.model, policy_of(request.policy, table),
        )  # fmt: skip
        machine = _machine(request, device, identity, progress, say)
        place, state = stack.enter_context(
            opened_place(request.output, identity, resume=request.resume, force=request.force)
        )
        try:
            one_cut = request.mode == "hetero" and identity.policy is None
            if table is not None and not table.is_uniform and one_cut and state.cut is None:
                # The runtime knows equal blocks only.
                state.note(cut=Trajectory(table.costs()).best().cut, gpu_share=None, cut_source="rates")
            return _run(request, artifact, prompts, identity, rates, machine, place, state, decoder, progress, say)
        except HvdcError as error:
            if not place.root.is_dir():
                raise HvdcError(
                    "the output was removed, renamed or replaced while it was filled", where=str(place.root),
                    found=f"{error.what}{error.found and f': {error.found}'}",
                    fix="put the folder back and run the same command with --resume, or run the same command again",
                ) from error  # fmt: skip
            if not state.has_begun and AND_RESUME in error.fix:  # nothing of this run is kept
                error.fix = error.fix.partition(AND_RESUME)[0] + " again"
            raise
        except KeyboardInterrupt as stop:
            if not state.has_begun:
                what = "interrupted before the first video: the output is as it was"
                raise StoppedError(what, where=str(request.output), fix="run the same command again") from stop
            raise StoppedError(
                "interrupted: finished videos are kept", where=str(request.output),
                fix="run the same command with --resume to go on",
            ) from stop  # fmt: skip


def _needs_gpu(request: RunRequest) -> bool:
    """Whether what was asked for leaves the GPU any work; a cut or a share that is still to be placed may."""
    idle = {"npu": True, "hetero": request.cut == 0, "hetero-tensor": request.gpu_share == 0}
    return not idle.get(request.mode, False)


def _checked(request: RunRequest, artifact: Artifact) -> RateTable | None:
    """What is refused before anything is built or written. Raises UsageError."""
    manifest = artifact.manifest
    steps, layers = len(manifest.steps), manifest.geometry.layers
    if _needs_gpu(request) and manifest.calibration is None:
        raise UsageError(
            "the artifact has no activation scales, and the GPU's arithmetic needs them",
            where=f"{request.artifact}, --mode {request.mode}",
            fix="--mode npu, or compile it with --prompts or --calibration",
        )
    if request.trace is not None:
        check_trace(request.trace, request.artifact, request.output)
    if request.cut is not None and request.cut > steps * layers:
        raise UsageError(
            "the cut is beyond the trajectory", where="--cut", expected=f"0 to {steps * layers}: {steps} steps of "
            f"{layers} blocks", found=str(request.cut),
        )  # fmt: skip
    if request.rates is None:
        return None
    table = load_rates(request.rates)
    fit_to_manifest(table, manifest)
    table.require_co_run_rates()
    return table


def _decoder(
    request: RunRequest, artifact: Artifact, device: DeviceMachine | None, stack: ExitStack
) -> RunDecoder | None:
    in_stream = request.decode_with != DECODERS[0]
    if not request.decode or (artifact.manifest.decoder is None and not in_stream):
        return None
    image_library()
    if request.suffix == "mp4":
        require_encoder()
    if request.decode_with == ON_DEVICE:
        return OnDevice(artifact, has_libraries=device is not None and device.has_qnn)
    if in_stream:
        return InStream(artifact)
    return AfterStream(stack.enter_context(HostDecoder(artifact, None, request.threads or 2)))


def _run(
    request: RunRequest, artifact: Artifact, prompts: Prompts, identity: Identity, rates: Rates | None,
    machine: Machine, place: Place, state: Run, decoder: RunDecoder | None, progress: Progress,
    say: Callable[[str], None],
) -> Ran:  # fmt: skip
    videos, policy = identity.videos, identity.policy
    manifest, executions = artifact.manifest, len(artifact.manifest.steps) * artifact.manifest.geometry.layers
    texts = tuple(prompts.texts[video.prompt] for video in videos)
    finished = finished_run(state, place, artifact, prompts, videos, decoder) if request.trace is None else None
    device = state.gpu
    if finished is None:
        write_stream(place.stream, artifact, prompts, videos)
        watched = Watched(
            len(videos), executions, progress, say,
            lambda cut, share, source: (
                None if state.cut is not None or policy is not None  # which has none for all
                else state.note(cut=cut, gpu_share=share, cut_source=source)
            ),
            state.begin, lambda record: state.note_videos([record]),
        )  # fmt: skip
        paths = machine.paths(place, request.trace, decoder.libraries if decoder is not None else None)
        report = machine.run(_arguments(request, paths, state, rates, policy), watched, progress)
        # Most were heard as they finished; what this process did not read for too long, the runtime has not kept.
        state.note_videos(record for record in report["videos"] if record["finished_s"] and not record["skipped"])
        report = merged(report, state)
        if not report["stopped"]:
            state.begin()  # also where the runtime has not said so
        device = watched.device or state.gpu
        state.note(report=report, gpu=device)
        if report["stopped"]:
            raise KeyboardInterrupt
        latents = read_results([place.result(video) for video in range(len(videos))], artifact)
    else:
        report, latents = finished
    write_latents(place.latents, latents, texts, [video.seed for video in videos], None)
    clips: list[Clip] = []
    in_stream = decoder is not None and decoder.libraries is not None
    if not in_stream:
        report = report | {"decoder": None}  # a start whose decoder it had may have been another one's
    if decoder is not None:
        clips = write_clips(place, state, decoder, latents, request.suffix, request.fps, progress)
        write_sheet(place, [f"{i}: {text}, seed {videos[i].seed}" for i, text in enumerate(texts)])
    return Ran(
        request, _with_first_source(report, state), device, videos, texts, tuple(clips), in_stream,
        machine.where, _notes(request, manifest.decoder is not None, report),
    )  # fmt: skip


def _machine(
    request: RunRequest, device: DeviceMachine | None, identity: Identity, progress: Progress,
    say: Callable[[str], None],
) -> Machine:  # fmt: skip
    if device is None:
        return HostMachine(request.artifact.absolute(), find_runtime("host", progress, say))
    device.begin(identity)
    return device


def _arguments(
    request: RunRequest, paths: RunnerPaths, state: Run, rates: Rates | None, policy: RunPolicy | None
) -> list[object]:
    out: list[object] = [paths.artifact, paths.stream, "-o", paths.results]
    out += ["--mode", request.mode, "--npu-sums", request.npu_sums]
    out += ["--resume"]  # the folder is this run's own: what is there was made by it
    if request.mode == "hetero":
        out += [] if policy is None else policy.arguments
        if state.cut is not None:
            out += ["--cut", state.cut]
        elif request.cut is not None:
            out += ["--cut", request.cut]
        elif rates is not None:
            out += [*_block_rates(rates), "--decode-s", rates.decode_s]
    if request.mode == "hetero-tensor":
        share = request.gpu_share if state.gpu_share is None else state.gpu_share
        if share is not None:
            out += ["--gpu-share", share]
        elif rates is not None:
            out += _block_rates(rates)
    if request.mode != "npu":
        out += ["--kernel-cache", paths.kernels]
        out += ["--on-gpu-loss", "stop" if request.stop_when_gpu_lost else "go-on"]
        out += ["--gpu-import", request.gpu_import]
    if paths.libraries is not None:
        out += ["--qnn-libraries", paths.libraries]
        out += ["--emulator", "yes"] if request.device is None else []
    given = {
        "--threads": request.threads, "--device": request.opencl_device, "--npu-cpus": request.npu_cpus,
        "--gpu-cpus": request.gpu_cpus, "--gpu-silence-s": request.gpu_silence_s,
        "--npu-silence-s": request.npu_silence_s, "--trace": paths.trace,
    }  # fmt: skip
    for option, value in given.items():
        out += [option, value] if value is not None else []
    return out


def _block_rates(rates: Rates) -> list[object]:
    return ["--gpu-block-s", rates.gpu_block_s, "--npu-block-s", rates.npu_block_s]


def _with_first_source(report: dict[str, Any], state: Run) -> dict[str, Any]:
    """A resumed run is given the cut that the first one placed."""
    return report if state.cut_source is None else report | {"cut_source": state.cut_source}


def _notes(request: RunRequest, has_decoder: bool, report: dict[str, Any]) -> tuple[str, ...]:
    notes = []
    if request.decode and not has_decoder:
        notes.append("the artifact holds no decoder, so that latents stay latents: compile it with --vae and --latents")
    if report["gpu_lost"]:
        notes.append(str(report["note"]))
    return tuple(notes)


def facts(ran: Ran) -> dict[str, Any]:
    """As JSON. Points in time of ``videos`` are seconds since the stream began."""
    place = Place(ran.request.output)
    rows = []
    for i, (held, text) in enumerate(zip(ran.report["videos"], ran.texts, strict=True)):
        row = {"prompt": text, "seed": ran.videos[i].seed, **held, "host_decode_s": None}
        row |= {"clip": None, "decoded_by": None}
        if ran.clips:
            row |= {"clip": str(place.clip(i, ran.request.suffix)), "decoded_by": ran.clips[i].decoded_by}
        if ran.clips and not ran.in_stream:
            row |= {"host_decode_s": ran.clips[i].decode_s, "decode_s": 0.0}
        rows.append(row)
    return {
        **{name: value for name, value in ran.report.items() if name != "videos"},
        "gpu": ran.device,
        "where": ran.where,
        "decoded_by": ran.decoded_by or None,
        "latents": str(place.latents),
        "sheet": str(place.sheet) if ran.clips else None,
        "videos": rows,
        "notes": list(ran.notes),
    }
