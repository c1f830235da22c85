"""``make bench-decoder``: Wan 2.1's VAE decoder at full size with random weights, one tile of 60 × 40 latent pixels.

What compiling its INT8 graphs for SM8750 costs, how far INT8 frames are from FP32, and how long a host takes to decode
the tile, against diffusers in the same run. Everything that is timed runs in a process of its own, whose peak memory
is its own too. Writes the section "Decoding" of docs/BENCHMARKS.md, after each part anew, for all take an hour. Never
fails by a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from safetensors.numpy import save_file

from benchmarks.clock import Clock, peak_bytes
from benchmarks.decoder_binaries import automatic, compiling
from benchmarks.decoder_plan import LATENT_FRAMES, Plan, gib
from benchmarks.report import Line, lines_table, say, write_section
from exporters.decoder.checkpoint import open_decoder
from exporters.decoder.config import LATENTS_MEAN, LATENTS_STD
from exporters.decoder.geometry import DecoderGeometry, caches
from exporters.decoder.graphs import whole_graph
from exporters.qnn.available import why_not
from exporters.tensor import Float32Array
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.host_decoder import HostDecoder
from hvdc.pipeline.latents_file import read_latents
from hvdc.progress import Silent
from quant.decoder.encodings import Encodings, choose_encodings
from quant.decoder.graph import FRAMES, LATENT, VARIANTS, Graphs, structure
from quant.decoder.ports import float_ports, named, ports
from quant.decoder.qdq import quantise, quantise_model, serialised
from quant.decoder.ranges import observe
from quant.decoder.stream import Streamer, decode
from quant.frames import psnr_db, ssim

EXAMPLE, EXAMPLE_CLIPS, EXAMPLE_UNSEEN = Path("examples/moving_shapes/model"), 8, 4
OBSERVED_TILE, OBSERVED_CLIPS = (8, 8), 4
QUALITY_TILE = (12, 12)
HELD_OUT = 1000
"""Seed of the latent that is decoded; those of calibration are smaller."""
HOST = ("diffusers", "fp32", "int8", "int8-fused")
CORES = len(os.sched_getaffinity(0))
VNNI = {"avx512_vnni", "avx_vnni", "avx_vnni_int8"}


Run = Callable[[str], dict[str, Any]]
"""Runs one of `WORKERS` in a process of its own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/bench"), help="where weights, graphs and binaries go")
    parser.add_argument(
        "--quick", action="store_true", help="a small decoder and tile, to try things; not written down"
    )
    parser.add_argument("--resume", action="store_true", help="take over what an interrupted run had measured")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        plan = Plan(arguments.dir / "decoder-quick", DecoderGeometry(base_dim=16), (12, 12))
    else:
        plan = Plan(arguments.dir / "decoder", DecoderGeometry(), (60, 40))
    if arguments.worker:
        Path("/proc/self/oom_score_adj").write_text("1000")  # rather this one than what else the machine does
        out = WORKERS[arguments.worker](plan)
        print(json.dumps(out | {"peak_bytes": peak_bytes()}))
        return
    plan.folder.mkdir(parents=True, exist_ok=True)

    def run(worker: str) -> dict[str, Any]:
        """One of `WORKERS` in a process of its own."""
        command = [sys.executable, "-m", "benchmarks.bench_decoder", "--worker", worker, "--dir", str(arguments.dir)]
        command += ["--quick"] if arguments.quick else []
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    kept = plan.folder / "parts.json"
    held: dict[str, str] = json.loads(kept.read_text("utf-8")) if arguments.resume and kept.is_file() else {}
    if "introduction" not in held:
        say("making a random autoencoder, and its INT8 graphs")
        made = run("prepare")
        say(f"quantised in {made['quantise_s']:.0f} s, peak {gib(made['peak_bytes'])}")
        held = {"introduction": _introduction(plan, made)}
    text = [held["introduction"]]
    libraries = ("hvdc", "numpy", "onnx", "onnxruntime", "torch", "diffusers")
    parts: dict[str, Callable[[], str]] = {
        "the example's frames": lambda: lines_table(_of_the_example(run)),
        "frames and host": lambda: lines_table([*_quality(run), *_host(plan, run)]),
    }
    if problem := why_not():
        text.append(f"Compiling was not measured: {problem}.")
    else:
        libraries += ("onnxruntime-qnn",)
        parts = {"compiling at optimisation 1": lambda: compiling(plan, 1)} | parts
        if not arguments.quick:
            parts["the tile that auto picks"] = lambda: automatic(plan)
            parts["compiling at optimisation 3"] = lambda: compiling(plan, 3)
    for i, (name, part) in enumerate(parts.items()):
        held[name] = held[name] if name in held else part()
        kept.write_text(json.dumps(held), "utf-8")
        text.append(held[name])
        print(text[-1], flush=True)
        if not arguments.quick:
            later = list(parts)[i + 1 :]
            missing = [f"Not measured yet: {', '.join(later)}."] if later else []
            everything = "\n\n".join([*text, *missing])
            write_section(Path("docs/BENCHMARKS.md"), "Decoding", "make bench-decoder", everything, libraries)


def _introduction(plan: Plan, made: dict[str, Any]) -> str:
    g, (rows, columns) = plan.geometry, plan.tile
    r = g.spatial_scale
    cached = sum(cache.values for cache in caches(g, rows, columns))
    return (
        f"The decoder of base width {g.base_dim} with random weights, and a tile of {rows} × {columns} latent pixels: "
        f"frames of {r * rows} × {r * columns}, {cached / 1e6:.0f} million cached values. `first` decodes the first "
        f"latent frame to one frame, `later` each other one to {g.temporal_scale}. Ranges were observed on "
        f"{OBSERVED_CLIPS} latents of noise of {OBSERVED_TILE[0]} × {OBSERVED_TILE[1]}, {LATENT_FRAMES} latent frames "
        f"each; the largest value was {made['largest']:.0f}. 16 bits only under the norms' square roots and in the "
        f"attention: {made['wide']} of {made['groups']} groups of tensors."
    )


# ---- what runs in processes of its own ----


def _prepare(plan: Plan) -> dict[str, Any]:
    """The autoencoder and its INT8 graphs, written down."""
    if not (plan.vae / "config.json").exists():
        _write_vae(plan)
    with open_decoder(plan.vae) as decoder:
        small = Graphs.of(*(whole_graph(decoder, v, *OBSERVED_TILE).model() for v in VARIANTS))
        known = structure(small)
        ranges = observe(small, [plan.latent(seed, OBSERVED_TILE) for seed in range(OBSERVED_CLIPS)], known)
        encodings = choose_encodings(known, ranges, known.root_groups)
        plan.encodings.write_text(encodings.to_json())
        begin = time.perf_counter()
        for variant in VARIANTS:
            model = whole_graph(decoder, variant, *plan.tile).model()
            plan.quantised(variant).write_bytes(serialised(quantise_model(model, variant, encodings)))
    largest = max(max(-r.low, r.high) for r in ranges.ranges.values())
    seconds = time.perf_counter() - begin
    return {"quantise_s": seconds, "wide": len(encodings.wide), "groups": len(known.groups), "largest": largest}


def _write_vae(plan: Plan) -> None:
    """diffusers' model with random weights, gains and biases of a fixed seed. Every convolution keeps the variance of
    what it reads, so that the residual stream grows slowly and frames lie mostly within [-1, 1]."""
    from diffusers import AutoencoderKLWan

    g = plan.geometry
    model = AutoencoderKLWan(
        base_dim=g.base_dim,
        z_dim=g.z_dim,
        dim_mult=list(g.dim_mult),
        num_res_blocks=g.num_res_blocks,
        temperal_downsample=list(reversed(g.temporal_upsample)),
        latents_mean=list(LATENTS_MEAN),
        latents_std=list(LATENTS_STD),
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith("gamma"):
                value.copy_(1.0 + 0.2 * noise)
            elif name.endswith("bias"):
                value.copy_(0.1 * noise)
            else:
                value.copy_(noise * value[0].numel() ** -0.5)
        model.decoder.conv_out.weight.mul_(0.5)
    model.save_pretrained(plan.vae)


def _qualities(plan: Plan) -> dict[str, Any]:
    """INT8 frames against FP32 ones, of a latent that calibration has not seen."""
    encodings = Encodings.from_json(plan.encodings.read_text())
    z = plan.latent(HELD_OUT, QUALITY_TILE)
    with open_decoder(plan.vae) as decoder:
        graphs = Graphs.of(*(whole_graph(decoder, v, *QUALITY_TILE).model() for v in VARIANTS))
    found = quantise(graphs, encodings)
    (reference,), (frames,) = decode(graphs, [z]), decode(_behind_floats(found), [z])
    inside = (reference > 0) & (reference < 1)
    return {
        "psnr": psnr_db(frames, reference),
        "ssim": ssim(frames, reference),
        "std": float(reference.std()),
        "inside": float(inside.mean()),
    }


def _diffusers(plan: Plan) -> dict[str, Any]:
    """diffusers' decode of the tile's latent."""
    from diffusers import AutoencoderKLWan

    torch.set_num_threads(CORES)
    model = AutoencoderKLWan.from_pretrained(plan.vae, torch_dtype=torch.float32).eval().requires_grad_(False)
    shape = (1, -1, 1, 1, 1)
    z = torch.from_numpy(plan.latent(HELD_OUT))[None] * torch.tensor(LATENTS_STD).reshape(shape)
    z += torch.tensor(LATENTS_MEAN).reshape(shape)
    with Clock() as clock, torch.no_grad():
        sample = model.decode(z, return_dict=False)[0]
    frames = sample[0].permute(1, 2, 3, 0).numpy()
    np.save(plan.frames("diffusers"), frames)
    return clock.found()


def _fp32(plan: Plan) -> dict[str, Any]:
    """The float graphs, optimised by onnxruntime."""
    with open_decoder(plan.vae) as decoder:
        graphs = Graphs.of(*(whole_graph(decoder, v, *plan.tile).model() for v in VARIANTS))
    streamer = Streamer(graphs, optimise=True, threads=CORES)
    del graphs
    return _stream(plan, "fp32", streamer, plan.latent(HELD_OUT))


def _int8(plan: Plan, *, optimise: bool) -> dict[str, Any]:
    """The INT8 graphs, integers at their ports."""
    graphs = Graphs.of(*(onnx.load(plan.quantised(v)) for v in VARIANTS))
    codes = named(ports(graphs.first[0])[0], LATENT).encoding.quantise(plan.latent(HELD_OUT))
    streamer = Streamer(graphs, optimise=optimise, threads=CORES)
    del graphs
    return _stream(plan, "int8-fused" if optimise else "int8", streamer, codes)


def _stream(plan: Plan, name: str, streamer: Streamer, latent: np.ndarray) -> dict[str, Any]:
    """Decodes frame by frame, sessions being ready; saves the frames as they come."""
    parts, each = [], []
    with Clock() as clock:
        begin = time.perf_counter()
        for _, out in streamer.run(latent):
            parts.append(out[FRAMES][0].transpose(1, 2, 3, 0).copy())
            each.append(time.perf_counter() - begin)
            begin = time.perf_counter()
    np.save(plan.frames(name), np.concatenate(parts))
    return clock.found() | {"each_s": each}


WORKERS: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "prepare": _prepare,
    "quality": _qualities,
    "example": lambda plan: _example(plan),
    "diffusers": _diffusers,
    "fp32": _fp32,
    "int8": partial(_int8, optimise=False),
    "int8-fused": partial(_int8, optimise=True),
}


# ---- frames and host ----


def _example(plan: Plan) -> dict[str, Any]:
    """Frames of the trained example's decoder in INT8 against FP32, on clips that nothing was calibrated with."""
    folder = plan.folder / "example"
    folder.mkdir(exist_ok=True)
    clip = ("--frames", "17", "--height", "128", "--width", "128", "--force", "-q")
    latents, few, artifact = (folder / name for name in ("latents.safetensors", "few.safetensors", "example.hvdc"))
    made = ("-o", folder / "calibration.safetensors", "--save-latents", latents)
    prompts = ("--prompts", EXAMPLE / "prompts.safetensors", "--prompts-limit", EXAMPLE_CLIPS + EXAMPLE_UNSEEN)
    _hvdc("calibrate", EXAMPLE / "transformer", *prompts, *made, *clip)
    values = read_latents(latents).values
    save_file({"latents": values[:EXAMPLE_CLIPS]}, few)
    given = ("--vae", EXAMPLE / "vae", "--latents", few, "--decoder-backend", "onnx")
    _hvdc("compile", EXAMPLE / "transformer", "-o", artifact, *given, *clip)
    scores = []
    with open_artifact(artifact) as opened, HostDecoder(opened) as int8, HostDecoder(opened, EXAMPLE / "vae") as fp32:
        for latent in values[EXAMPLE_CLIPS:]:
            frames, reference = (decoder.decode(latent, Silent()) for decoder in (int8, fp32))
            scores.append((psnr_db(frames, reference), ssim(frames, reference)))
    return {"psnr": [psnr for psnr, _ in scores], "ssim": [similarity for _, similarity in scores]}


def _hvdc(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "hvdc", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def _of_the_example(run: Run) -> list[Line]:
    say("frames of the example")
    e = run("example")
    worst, how = min(e["psnr"]), f"{EXAMPLE_UNSEEN} clips of the example that nothing was calibrated with, 17 frames"
    return [
        Line("worst PSNR of the example's INT8 frames", f"{worst:.1f} dB", "≥ 38 dB", worst >= 38, how),
        Line("worst SSIM of the example's INT8 frames", f"{min(e['ssim']):.4f}", "none", True, "the same frames"),
    ]


def _quality(run: Run) -> list[Line]:
    say("INT8 frames against FP32")
    q = run("quality")
    rows, columns = QUALITY_TILE
    how = (
        f"{LATENT_FRAMES} latent frames of noise, {rows} × {columns}, every node as written; the FP32 frames have "
        f"a standard deviation of {q['std']:.3f} in [0, 1], {q['inside']:.0%} of their values are not clipped"
    )
    return [
        Line("PSNR of INT8 frames", f"{q['psnr']:.1f} dB", "none: random weights", True, how),
        Line("SSIM of INT8 frames", f"{q['ssim']:.4f}", "none: random weights", True, "the same frames"),
    ]


def _host(plan: Plan, run: Run) -> list[Line]:
    """Each way of decoding the tile once. Processor time is compared: wall time is what other work leaves."""
    found: dict[str, dict[str, Any]] = {}
    for name in HOST:
        say(f"host decode, {name}")
        found[name] = run(name) | {"load": os.getloadavg()[0]}
        wall, processor, peak = (found[name][key] for key in ("wall_s", "processor_s", "peak_bytes"))
        say(f"{wall:.1f} s, processor {processor:.1f} s, peak {gib(peak)}, load {found[name]['load']:.1f}")
    peer = found["diffusers"]

    def line(what: str, name: str, goal: float, more: str = "") -> Line:
        mine = found[name]
        ratio = peer["processor_s"] / mine["processor_s"]
        first, *later = mine["each_s"]
        how = (
            f"processor time: {peer['processor_s']:.1f} s ÷ {mine['processor_s']:.1f} s; wall time, {CORES} threads: "
            f"{peer['wall_s']:.1f} s at a load of {peer['load']:.1f}, {mine['wall_s']:.1f} s at {mine['load']:.1f}, "
            f"of which `first` {first:.1f} s, `later` {' and '.join(f'{s:.1f}' for s in later)} s"
        )
        return Line(what, f"{ratio:.2f}", f"≥ {goal:.1f}", ratio >= goal, how + more)

    frames = {name: np.load(plan.frames(name)) for name in HOST}
    difference = float(np.abs(frames["fp32"].clip(-1, 1) - frames["diffusers"].clip(-1, 1)).max())
    steps = np.abs(frames["int8"].astype(np.int32) - frames["int8-fused"].astype(np.int32))
    encoding = named(ports(onnx.load(plan.quantised("later")))[1], FRAMES).encoding
    reference = _shown(frames["fp32"])
    exact, fused = (psnr_db(_shown(encoding.dequantise(frames[n])), reference) for n in ("int8", "int8-fused"))
    peaks = ", ".join(f"{name} {gib(found[name]['peak_bytes'])}" for name in HOST)
    return [
        line("diffusers ÷ FP32 graphs", "fp32", 1.0, f"; frames differ by {difference:.1e} at most"),
        line("diffusers ÷ INT8 graphs, every node as written", "int8", 1.5, f"; these multiply in FP32, and {_vnni()}"),
        line("diffusers ÷ INT8 graphs, optimised", "int8-fused", 1.5, "; not exact, see below"),
        Line(
            "INT8 graphs, optimised and as written",
            f"{steps.mean():.2f} LSB",
            "none",
            True,
            f"mean difference of the frames' 8-bit codes; largest {steps.max()}, {(steps > 0).mean():.0%} differ; "
            f"PSNR of this tile against the FP32 graphs {exact:.1f} dB as written, {fused:.1f} dB optimised",
        ),
        Line(
            "peak memory of a host decode, FP32 graphs",
            gib(found["fp32"]["peak_bytes"]),
            "none",
            True,
            f"VmHWM: {peaks}",
        ),
    ]


def _vnni() -> str:
    """Whether the processor multiplies 8-bit integers in one instruction, as a phrase."""
    flags = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    found = sorted(VNNI & flags)
    return f"this processor has {', '.join(found)}" if found else "this processor has no VNNI"


def _shown(frames: Float32Array) -> Float32Array:
    """Frames around [-1, 1] as RGB in [0, 1]."""
    shown: Float32Array = np.clip(frames * np.float32(0.5) + np.float32(0.5), 0.0, 1.0)
    return shown


def _behind_floats(graphs: Graphs) -> Graphs:
    return Graphs(tuple(map(float_ports, graphs.first)), tuple(map(float_ports, graphs.later)))


if __name__ == "__main__":
    main()
