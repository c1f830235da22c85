"""The decoder of an artifact: float VAE and latents → encodings → QDQ graphs → a backend's binaries.

What takes long (measuring, encodings, binaries) is kept in the user's cache by the identity of what it was made from.
One process at a time makes one thing; another that wants the same waits for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from exporters.decoder.checkpoint import DecoderCheckpoint, open_decoder
from exporters.decoder.graphs import stage_graphs
from exporters.errors import CheckpointError
from exporters.qnn.options import Limits
from hvdc import __version__
from hvdc.artifact.decoder import Binary, Check, Decoder, Graph, Port, Quantisation, Tiles
from hvdc.artifact.manifest import Video
from hvdc.config import CompileConfig
from hvdc.errors import HvdcError
from hvdc.files import whole_folder, write_durably
from hvdc.pipeline import decoder_backends as backends
from hvdc.pipeline.cache import cache_folder, locked
from hvdc.pipeline.decoder_checks import emulate_graphs, emulated_graphs, other_build
from hvdc.pipeline.decoder_encodings import Quantised, choose, measure_decoder, require_moving, vae_sha256
from hvdc.pipeline.decoder_hosted import OnPhone, run_on_phone
from hvdc.pipeline.decoder_measured import DAMAGED, Measured
from hvdc.pipeline.decoder_parts import ENCODINGS, DecoderParts, file_name, parts_in
from hvdc.pipeline.decoder_tiles import Attempt, TilePlanner
from hvdc.pipeline.decoder_trials import Emulated
from hvdc.pipeline.latents_file import Float32Array, latents_sha256, read_latents
from hvdc.pipeline.prepare import require_room
from hvdc.progress import Progress
from quant.decoder.graph import VARIANTS, Graphs
from quant.decoder.ports import ports
from quant.decoder.qdq import quantise, serialised

Say = Callable[[str], None]
T = TypeVar("T")

MAKING = ".making-"
ENTRY, IDENTITY = "entry.json", "sha256"
"""Beside the files in a cached folder: the manifest's entry, and the identity of all that lies there."""
LEFT_AFTER_S = 24 * 3600
"""Nobody works on graphs for so long: a folder that is older was left by a compile that was killed."""
BINARY_BYTES_PER_WEIGHT = 1.6
"""Of the full-size decoder's: 82.9 MB at optimisation level 1, 111.4 MB at level 3 (docs/BENCHMARKS.md), for 73.3
million weights."""
TOOLS = ("numpy", "onnx", "onnxruntime")
"""Another version of these may measure other ranges, or write a graph otherwise."""


@dataclass(frozen=True)
class BuiltDecoder:
    """``parts`` go into an artifact; the rest says what was checked on the way, where that was asked for."""

    parts: DecoderParts
    emulated: tuple[Emulated, ...] = ()
    on_phone: OnPhone | None = None


@dataclass(frozen=True)
class _Making:
    """What one build is made from, and how."""

    decoder: DecoderCheckpoint
    config: CompileConfig
    identity: dict[str, Any]
    """Of VAE and latents."""
    limits: Limits
    progress: Progress
    say: Say


def build_decoder(
    vae: Path, latents: Path, config: CompileConfig, video: Video, channels: int, limits: Limits, progress: Progress,
    say: Say,
) -> BuiltDecoder:  # fmt: skip
    """``channels``: those that the transformer makes. ``limits``: of each process of the phone's compiler.

    Raises CheckpointError, UsageError, DecoderQuantError or QnnError; HvdcError where the emulator or a phone computes
    something else than the graphs. The artifact is not touched.
    """
    backends.require_backend(config.decoder_backend)
    with open_decoder(vae) as decoder:
        for line in decoder.lines():
            say(line)
        _require_fitting(decoder, video, channels, vae)
        planner = _planner(decoder, config, video)
        cache = cache_folder("decoders")
        require_room(cache, files_bytes(decoder, config), "the decoder's graphs", "set HVDC_CACHE_DIR")
        given = read_latents(latents, decoder.geometry.z_dim).values
        identity = {"vae": vae_sha256(decoder), "latents": latents_sha256(given)}
        making = _Making(decoder, config, identity, limits, progress, say)
        quantised = _quantised(making, given)
        parts = planner.first_that_compiles(lambda attempt: _built(making, quantised, attempt, planner), say)
        return _checked(parts, quantised, making)


def plan_decoder(
    vae: Path, latents: Path | None, config: CompileConfig, video: Video, channels: int
) -> tuple[str, int]:
    """What `build_decoder` would try first, in words, and about how many bytes its files take.

    Checks all that it would refuse at once. Raises as it does.
    """
    backends.require_backend(config.decoder_backend)
    with open_decoder(vae) as decoder:
        _require_fitting(decoder, video, channels, vae)
        require_moving(video.latent[0] if latents is None else read_latents(latents, channels).values.shape[2])
        planner = _planner(decoder, config, video)
        size = files_bytes(decoder, config)
        first = next(planner.attempts(), None)
        if first is None:
            return "no tile fits the compiler's memory: all were refused before", size
        if config.decoder_backend == "onnx":
            return f"ONNX graphs for a host, none compiled for the NPU: {first.text}", size
        memory = planner.loaded_bytes(first) / 2**20
        text = f"to be compiled by {config.decoder_backend}: {first.text}, about {memory:,.0f} MiB of graph memory"
        return text, size


def files_bytes(decoder: DecoderCheckpoint, config: CompileConfig) -> int:
    """About what ONNX graphs and binaries take: each variant holds all weights, in a byte each, and so does a binary
    of each, or one where they share them."""
    weights = sum(math.prod(tensor.shape) for tensor in decoder.weights.tensors.values())
    binaries = 0 if config.decoder_backend == "onnx" else 1 if config.decoder_share_weights else len(VARIANTS)
    return int(weights * (len(VARIANTS) + BINARY_BYTES_PER_WEIGHT * binaries))


def _planner(decoder: DecoderCheckpoint, config: CompileConfig, video: Video) -> TilePlanner:
    tools = json.dumps(backends.identity(config), sort_keys=True)
    return TilePlanner(decoder.geometry, video.latent[1:], config, tools)


def _checked(parts: DecoderParts, quantised: Quantised, making: _Making) -> BuiltDecoder:
    """What was asked for beyond reading binaries back. It is done each time, and never kept with the graphs.

    Raises HvdcError where something is out of bounds, QnnError, AiHubError.
    """
    config, entry = making.config, parts.entry
    emulated: tuple[Emulated, ...] = ()
    on_phone: OnPhone | None = None
    checks: tuple[Check, ...] = ()
    if config.decoder_emulate:
        graphs = emulated_graphs(
            entry, quantised.encodings, making.decoder, lambda name: parts.files[name].read_bytes()
        )
        emulated = tuple(emulate_graphs(graphs, quantised.probe, backends.qnn_options(config), making.progress))
        _require_passed(emulated, "the x86 emulator of the NPU")
        if other := other_build(entry):
            making.say(f"the emulator {other}, and is not recorded as their check")
        elif entry.binaries:
            checks += ("emulator",)
    if config.aihub_profile and config.decoder_backend == "aihub":  # a file may hold more than one needs
        folder = next(iter(parts.files.values())).parent
        options, state = backends.hosted_options(config), backends.state_of(folder.parent)
        on_phone = run_on_phone(entry, folder, quantised.probe, options, state, making.progress, making.say)
        for result in on_phone.profiles:
            making.say(f"{result.graph} takes {result.inference_us / 1000:.1f} ms on {result.device}: {result.url}")
        _require_passed(on_phone.compared, "a hosted phone")
        checks += on_phone.checks
    binaries = tuple(b.model_copy(update={"checks": (*b.checks, *checks)}) for b in entry.binaries)
    checked = entry.model_copy(update={"binaries": binaries})
    return BuiltDecoder(DecoderParts(checked, parts.files, parts.hashes), emulated, on_phone)


def _require_passed(results: tuple[Emulated, ...], who: str) -> None:
    bad = [result for result in results if not result.passed]
    if bad:
        expected, found = bad[0].in_words()
        raise HvdcError(
            f"{who} computes something else than the decoder's graphs", where=f"{bad[0].what}, {bad[0].output}",
            expected=expected, found=found + (f"; and {len(bad) - 1} more outputs" if len(bad) > 1 else ""),
            fix="raise --set decoder_budget, or compile without this check and look at hvdc decode",
        )  # fmt: skip


def _require_fitting(decoder: DecoderCheckpoint, video: Video, channels: int, vae: Path) -> None:
    g = decoder.geometry
    if g.z_dim != channels:
        raise CheckpointError(
            "the autoencoder decodes other latents than the transformer makes", where=str(vae),
            expected=f"{channels} channels", found=str(g.z_dim), fix="give Wan 2.1's autoencoder",
        )  # fmt: skip
    made = (g.frames(video.latent[0]), video.latent[1] * g.spatial_scale, video.latent[2] * g.spatial_scale)
    if made != (video.frames, video.height, video.width):
        raise CheckpointError(
            "the autoencoder makes other clips than the artifact is compiled for", where=str(vae),
            expected=f"{video.frames} frames of {video.width} × {video.height}",
            found=f"{made[0]} frames of {made[2]} × {made[1]}", fix="give Wan 2.1's autoencoder",
        )  # fmt: skip


def _quantised(making: _Making, latents: Float32Array) -> Quantised:
    """Encodings under the configured budget: cached, or chosen from what was measured, which is cached too."""
    folder, budget = cache_folder("decoders"), making.config.decoder_budget
    path = folder / f"{_key({**making.identity, 'what': 'encodings', 'budget': budget})}.json"
    measured_path = folder / f"{_key({**making.identity, 'what': 'measured'})}.npz"
    with locked(measured_path, making.say):
        found = _kept(path, lambda data: Quantised.from_json(data.decode("utf-8")))
        if found is not None:
            making.say(f"the decoder's encodings are taken from the cache: {path}")
            return found
        measured = _kept(measured_path, Measured.from_bytes)
        if measured is None:
            measured = measure_decoder(making.decoder, latents, making.progress)
            write_durably(measured_path, measured.to_bytes())
        else:
            making.say(f"what was measured of the decoder is taken from the cache: {measured_path}")
        found = choose(making.decoder, latents, measured, budget, making.say)
        write_durably(path, found.to_json().encode())
        return found


def _kept(path: Path, read: Callable[[bytes], T]) -> T | None:
    """What a cached file holds; one that is damaged is removed, for it is made again."""
    try:
        return read(path.read_bytes())
    except FileNotFoundError:
        return None
    except DAMAGED:
        path.unlink()
        return None


def _built(making: _Making, quantised: Quantised, attempt: Attempt, planner: TilePlanner) -> DecoderParts:
    """Graphs of one tile, and their binaries. Raises QnnError where the tile is too large for the compiler."""
    config = making.config
    what = {
        **making.identity, "budget": config.decoder_budget, "attempt": asdict(attempt),
        "backend": config.decoder_backend, **backends.identity(config),
    }  # fmt: skip
    folder = cache_folder("decoders") / _key(what)
    with locked(folder, making.say):
        try:
            entry = Decoder.model_validate_json((folder / ENTRY).read_bytes())
            parts = parts_in(entry, folder)
            if parts.sha256() != (folder / IDENTITY).read_text("ascii"):
                raise ValueError("a file is damaged")
        except (ValueError, OSError):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            making.say(f"the decoder's graphs are taken from the cache: {folder}")
            return parts
        _sweep(folder.parent)
        with whole_folder(folder, MAKING) as temporary:
            made = _made(making, quantised, attempt, planner, temporary)
            write_durably(temporary / IDENTITY, made.sha256().encode("ascii"))
            write_durably(temporary / ENTRY, made.entry.model_dump_json().encode())
    return DecoderParts(made.entry, {name: folder / path.name for name, path in made.files.items()}, made.hashes)


def _made(making: _Making, quantised: Quantised, attempt: Attempt, planner: TilePlanner, folder: Path) -> DecoderParts:
    """All files of a decoder, in an empty folder."""
    decoder, config, tile = making.decoder, making.config, attempt.tile
    parts_of = {v: stage_graphs(decoder, v, tile.rows, tile.columns, attempt.groups) for v in VARIANTS}
    floats = Graphs(*(tuple(part.model() for part in parts_of[v]) for v in VARIANTS))
    graphs = quantise(floats, quantised.encodings)
    entries, predicted = [], {}
    for variant in VARIANTS:
        sizes = planner.graph_bytes(attempt, variant)
        for part, model, size in zip(parts_of[variant], graphs.models(variant), sizes, strict=True):
            name = part.name.removeprefix("decoder_")
            predicted[name] = size
            (folder / f"{name}.onnx").write_bytes(serialised(model))
            inputs, outputs = ports(model)
            entries.append(
                Graph(
                    name=name, variant=variant, stages=part.stages, model=f"decoder.{name}",
                    inputs=tuple(map(_port, inputs)), outputs=tuple(map(_port, outputs)),
                )
            )  # fmt: skip
    (folder / file_name(ENCODINGS)).write_text(quantised.to_json(), "utf-8")
    hashes: dict[str, str] = {}
    binaries: tuple[Binary, ...] = ()
    if config.decoder_backend != "onnx":
        hashes, binaries = backends.compile_binaries(
            config, folder, predicted, attempt.text, making.limits, making.progress, making.say
        )
    entry = Decoder(
        backend=config.decoder_backend,
        vae_sha256=making.identity["vae"],
        latents_mean=decoder.weights.mean,
        latents_std=decoder.weights.std,
        spatial_scale=decoder.geometry.spatial_scale,
        temporal_scale=decoder.geometry.temporal_scale,
        tiles=Tiles(
            rows=tile.rows, columns=tile.columns, overlap_rows=tile.overlap_rows, overlap_columns=tile.overlap_columns
        ),
        encodings=ENCODINGS,
        quantisation=Quantisation(
            calibration_latents_sha256=quantised.latents_sha256, clips=quantised.clips,
            wide_tensors=len(quantised.choice.wide), wide_budget=config.decoder_budget,
            psnr_db=quantised.psnr_db if math.isfinite(quantised.psnr_db) else None,
            psnr_on_unseen=quantised.unseen,
        ),
        graphs=tuple(entries),
        binaries=binaries,
    )  # fmt: skip
    made = parts_in(entry, folder)
    for tensor, sha256 in hashes.items():
        if made.hashes[tensor] != sha256:
            raise HvdcError(
                "a binary changed on the disk after it was checked", where=str(made.files[tensor]), expected=sha256,
                found=made.hashes[tensor], fix="check the disk and its free space, then run the command again",
            )  # fmt: skip
    return made


def _sweep(folder: Path) -> None:
    for path in folder.glob(f"{MAKING}*"):
        with contextlib.suppress(OSError):  # another compile may have swept
            if time.time() - path.stat().st_mtime > LEFT_AFTER_S:
                shutil.rmtree(path)


def _port(port: Any) -> Port:
    e = port.encoding
    return Port(name=port.name, dtype=e.dtype, shape=port.shape, scale=e.scale, zero_point=e.zero_point)


def _key(identity: dict[str, Any]) -> str:
    tools = {name: metadata.version(name) for name in TOOLS}
    whole = {**identity, "tools": tools, "hvdc": __version__, "version": 3}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
