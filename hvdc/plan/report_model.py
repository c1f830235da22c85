"""What a report says about an artifact itself: the model, its bytes, calibration, decoder, programs, files."""

from __future__ import annotations

from itertools import groupby

from markupsafe import Markup

from hvdc.artifact import records
from hvdc.artifact.decoder import Check, Decoder, Port
from hvdc.artifact.manifest import Manifest
from hvdc.artifact.reader import Artifact
from hvdc.artifact.runtime import Runtime
from hvdc.plan.memory import MIB, WeightBytes
from hvdc.plan.report_charts import Strip, strips
from hvdc.plan.report_parts import Cell, Mark, Picture, Section, Table
from hvdc.plan.report_text import gib, many, mib

CHECKED: dict[Check, str] = {
    "metadata": "metadata read back and compared",
    "emulator": "run on the x86 emulator",
    "device": "run on a phone",
}


def overview(manifest: Manifest, activations: str, decoder: str) -> Section:
    """Sizes, steps, bytes. ``activations``, ``decoder``: a sentence on each."""
    g, v = manifest.geometry, manifest.video
    weights = WeightBytes(manifest.totals, manifest.parameters)
    adapter = f", adapter of rank {g.rank} × {g.alpha_over_rank:g}" if g.rank else ""
    steps = [
        (str(i), f"{s.timestep:g}", f"{s.sigma:.6f}", f"{s.step_size:+.6f}", s.expert)
        for i, s in enumerate(manifest.steps)
    ]
    kinds = [
        (name.removesuffix("_bytes").replace("_", " "), mib(size), f"{size:,}")
        for name, size in manifest.totals.model_dump().items()
    ]
    return Section(
        "Model",
        headlines=(
            (gib(weights.artifact_bytes), "weights, stored once"),
            (f"{len(manifest.steps)} × {g.layers}", "steps × blocks of a video"),
            (f"{v.tokens:,}", f"tokens: {v.frames} frames of {v.width} × {v.height}"),
            (str(len(manifest.experts)), "expert" if len(manifest.experts) == 1 else "experts from one base"),
        ),
        facts=(
            ("Model", f"{g.layers} blocks, width {g.width}, feed-forward {g.ffn_width}, {g.heads} heads"),
            ("Experts", ", ".join(manifest.experts) + adapter),
            ("Target", manifest.target.soc),
            ("Activations", activations),
            ("Decoder", decoder),
            ("Written by", ", ".join(f"{name} {version}" for name, version in manifest.tools.items())),
            ("Format", f"{manifest.format.major}.{manifest.format.minor}"),
            ("model_sha256", manifest.model_sha256),
        ),
        pictures=(Picture("The trajectory: steps, by the expert that denoises them", _steps(manifest)),),
        tables=(
            Table("Steps", (">step", ">timestep", ">sigma", ">step size", "expert"), steps),
            Table("Bytes by kind", ("kind", ">MiB", ">bytes"), kinds, folded=True),
        ),
    )


def _steps(manifest: Manifest) -> Markup:
    pieces = [(s.expert, 1, f"{s.timestep:g}") for s in manifest.steps]
    experts = [(e, len(list(steps)), e) for e, steps in groupby(s.expert for s in manifest.steps)]
    return strips("Steps of the trajectory", [Strip("expert", experts), Strip("timestep", pieces)])


def calibration(artifact: Artifact, line: str) -> Section:
    """Where the scales come from, and their range over the blocks for each GEMM input and step."""
    manifest = artifact.manifest
    held = manifest.calibration
    if held is None:
        return Section("Calibration", lead=_sentence(line))
    scales = artifact.tensor(records.ACTIVATION_SCALES_NAME)
    low, high = scales.min(axis=1), scales.max(axis=1)
    rows = [
        (
            item.name,
            item.per,
            *(
                f"{low[step, column]:.3g} … {high[step, column]:.3g}" if s.expert in item.experts else "–"
                for step, s in enumerate(manifest.steps)
            ),
        )
        for column, item in enumerate(held.inputs)
    ]
    columns = ("GEMM input", "per", *(f">step {i}, {s.timestep:g}" for i, s in enumerate(manifest.steps)))
    clip = held.video
    return Section(
        "Calibration",
        lead=_sentence(line),
        facts=(
            ("Scales", held.mode if held.percentile is None else f"{held.mode} {held.percentile:g}"),
            ("From", f"{many(held.prompts, 'prompt')} × {many(len(held.seeds), 'seed')}, in {held.dtype}"),
            ("Run at", f"{clip.frames} frames of {clip.width} × {clip.height}"),
            ("Smoothing", "none" if held.smoothing is None else f"strength {held.smoothing.strength:g}"),
            ("Statistics", held.statistics_sha256),
        ),
        tables=(
            Table(
                "Activation scales, smallest … largest over the blocks", columns, rows,
                note="An INT8 value times its scale is the activation; – where an input does not exist in a step.",
            ),
        ),
    )  # fmt: skip


def decoder(manifest: Manifest, line: str) -> Section:
    """Tiles, quantisation, graphs, binaries and what was checked of them."""
    entry = manifest.decoder
    if entry is None:
        return Section("Decoder", lead=_sentence(line))
    t, q = entry.tiles, entry.quantisation
    psnr = "not measured" if q.psnr_db is None else f"{q.psnr_db:.1f} dB against FP32"
    unseen = ", on clips that calibration had not seen" if q.psnr_on_unseen else ""
    return Section(
        "Decoder",
        lead=_sentence(line),
        facts=(
            ("Tiles", f"{t.rows} × {t.columns} latent pixels, overlapping by {t.overlap_rows} × {t.overlap_columns}"),
            ("Tiles of a frame", _tile_count(manifest, entry)),
            ("Frames", psnr + unseen),
            ("16 bits", f"{many(q.wide_tensors, 'group')} of tensors; all others have 8"),
            ("Calibrated by", f"latents of {many(q.clips, 'clip')}"),
            ("Backend", entry.backend),
        ),
        tables=(_graphs(manifest, entry), *_binaries(manifest, entry)),
    )


def _tile_count(manifest: Manifest, entry: Decoder) -> str:
    counts = []
    for length, size, overlap in (
        (manifest.video.latent[1], entry.tiles.rows, entry.tiles.overlap_rows),
        (manifest.video.latent[2], entry.tiles.columns, entry.tiles.overlap_columns),
    ):
        counts.append(1 if length <= size else -(-(length - overlap) // max(size - overlap, 1)))
    return f"{counts[0]} × {counts[1]} of a latent of {manifest.video.latent[1]} × {manifest.video.latent[2]}"


def _graphs(manifest: Manifest, entry: Decoder) -> Table:
    sizes = {tensor.name: tensor.bytes for _, tensor in manifest.tensors()}
    rows = [
        (
            graph.name,
            graph.variant,
            ", ".join(graph.stages),
            _port(graph.inputs[0]),
            _port(graph.outputs[0]),
            str(len(graph.inputs) - 1),
            mib(sum(_port_bytes(port) for port in graph.inputs[1:])),
            mib(sizes[graph.model]),
        )
        for graph in entry.graphs
    ]
    columns = ("graph", "frame", "~stages", ">in", ">out", ">caches", ">caches MiB", ">ONNX MiB")
    return Table("Graphs, for one tile", columns, rows)


def _port(port: Port) -> str:
    return f"{'×'.join(map(str, port.shape))} {port.dtype}"


def _port_bytes(port: Port) -> int:
    size = 2 if port.dtype == "uint16" else 1
    for length in port.shape:
        size *= length
    return size


def _binaries(manifest: Manifest, entry: Decoder) -> list[Table]:
    if not entry.binaries:
        return []
    sizes = {tensor.name: tensor.bytes for _, tensor in manifest.tensors()}
    rows: list[tuple[Cell, ...]] = []
    for b in entry.binaries:
        checks: tuple[Cell, ...] = tuple(Mark("yes" if c in b.checks else "no", c in b.checks) for c in CHECKED)
        graphs = ", ".join(g.graph for g in b.graphs)
        rows.append((b.binary, graphs, f"v{b.arch}, soc {b.soc}", mib(sizes[b.binary]), mib(b.predicted_graph_bytes),
                     mib(max(g.vtcm_bytes for g in b.graphs)), *checks, b.build_id))  # fmt: skip
    columns = ("binary", "~graphs", "for", ">MiB", ">predicted MiB", ">VTCM MiB", *CHECKED.values(), "built by QAIRT")
    return [Table("Binaries, and what was checked of them", columns, rows)]


def programs(runtime: Runtime | None, faults: list[str]) -> Section:
    """What travels in ``runtime/``. ``faults``: of its files, as validating finds them."""
    if runtime is None:
        lead = "The artifact carries no programs; hvdc runtime build --into ARTIFACT adds them."
        return Section("Programs", lead="The programs' list is damaged." if faults else lead, notes=faults)
    rows: list[tuple[Cell, ...]] = [
        (program.name, build.target, build.machine, f"{program.bytes / MIB:.2f}", build.compiler, program.sha256[:12])
        for build in runtime.builds
        for program in build.programs
    ]
    sound = Mark("as listed", True) if not faults else Mark(many(len(faults), "fault"), False)
    return Section(
        "Programs",
        lead="What executes the artifact, built from the sources beside it.",
        tables=(
            Table("Programs", ("program", "target", "machine", ">MiB", "~compiler", "SHA-256"), rows,
                  note="The list says how each was compiled; it holds no record of a run. What an emulator executed of "
                  "them, and that no phone did, is in hvdc's documentation of the runtime."),
            Table("Files", ("what", "state"), [
                ("SHA-256 of every file, compared now", sound),
                ("sources", f"hvdc {runtime.hvdc}, {runtime.sources.bytes:,} bytes"),
            ]),
        ),
        notes=faults,
    )  # fmt: skip


def files(manifest: Manifest) -> Section:
    """Every data file."""
    rows = [(f.path, f.kind, str(len(f.tensors)), mib(f.bytes), f.sha256[:16]) for f in manifest.files]
    return Section(
        "Files",
        tables=(Table(f"{len(rows)} data files", ("file", "kind", ">tensors", ">MiB", "SHA-256"), rows, folded=True),),
    )


def _sentence(line: str) -> str:
    return line[:1].upper() + line[1:] + "."
