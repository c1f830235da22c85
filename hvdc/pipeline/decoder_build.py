"""The decoder of an artifact: float VAE and latents → encodings → QDQ graphs → a backend's binary.

What takes long (the encodings, the binary) is kept in the user's cache by the identity of what it was made from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exporters.decoder.checkpoint import DecoderCheckpoint, open_decoder
from exporters.decoder.graphs import stage_graphs
from exporters.errors import CheckpointError
from hvdc import __version__
from hvdc.artifact.decoder import Binary, Decoder, Graph, Port, Quantisation, Tiles
from hvdc.artifact.manifest import Video
from hvdc.config import CompileConfig
from hvdc.pipeline import decoder_backends as backends
from hvdc.pipeline.cache import cache_folder
from hvdc.pipeline.decoder_encodings import Quantised, choose, latents_sha256, require_moving, vae_sha256
from hvdc.pipeline.decoder_parts import ENCODINGS, DecoderParts, parts_in
from hvdc.pipeline.decoder_tiles import Attempt, TilePlanner
from hvdc.pipeline.latents_file import Float32Array, read_latents
from hvdc.pipeline.progress import Progress
from hvdc.pipeline.workspace import write_durably
from quant.decoder.graph import VARIANTS, Graphs
from quant.decoder.ports import ports
from quant.decoder.qdq import quantise, serialised

Say = Callable[[str], None]

MAKING = ".making-"
LEFT_AFTER_S = 24 * 3600
"""Nobody works on graphs for so long: a folder that is older was left by a compile that was killed."""


def build_decoder(
    vae: Path, latents: Path, config: CompileConfig, video: Video, channels: int, progress: Progress, say: Say
) -> DecoderParts:
    """``channels``: those that the transformer makes.

    Raises CheckpointError, UsageError, DecoderQuantError or QnnError; the artifact is not touched.
    """
    backends.require_backend(config.decoder_backend)
    with open_decoder(vae) as decoder:
        for line in decoder.lines():
            say(line)
        _require_fitting(decoder, video, channels, vae)
        tools = json.dumps(backends.identity(config), sort_keys=True)
        planner = TilePlanner(decoder.geometry, video.latent[1:], config, tools)
        given = read_latents(latents, decoder.geometry.z_dim).values
        identity = {"vae": vae_sha256(decoder), "latents": latents_sha256(given), "budget": config.decoder_budget}
        quantised = _quantised(decoder, given, config, identity, progress, say)
        return planner.first_that_compiles(
            lambda attempt: _built(
                decoder, quantised, attempt, planner.graph_bytes(attempt.tile), config, identity, progress, say
            ),
            say,
        )


def plan_decoder(vae: Path, latents: Path | None, config: CompileConfig, video: Video, channels: int) -> str:
    """What `build_decoder` would try first, in words; checks all that it would refuse at once. Raises as it does."""
    backends.require_backend(config.decoder_backend)
    with open_decoder(vae) as decoder:
        _require_fitting(decoder, video, channels, vae)
        require_moving(video.latent[0] if latents is None else read_latents(latents, channels).values.shape[2])
        tools = json.dumps(backends.identity(config), sort_keys=True)
        planner = TilePlanner(decoder.geometry, video.latent[1:], config, tools)
        first = next(planner.attempts(), None)
        if first is None:
            return "no tile fits the compiler's memory: all were refused before"
        memory = planner.graph_bytes(first.tile) / 2**20
        return f"to be compiled by {config.decoder_backend}: {first.text}, about {memory:,.0f} MiB of graph memory"


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


def _quantised(
    decoder: DecoderCheckpoint,
    latents: Float32Array,
    config: CompileConfig,
    identity: dict[str, Any],
    progress: Progress,
    say: Say,
) -> Quantised:
    path = cache_folder("decoders") / f"{_key({**identity, 'what': 'encodings'})}.json"
    if path.is_file():
        try:
            found = Quantised.from_json(path.read_text("utf-8"))
        except (ValueError, TypeError, KeyError):
            path.unlink()  # damaged: it is made again
        else:
            say(f"the decoder's encodings are taken from the cache: {path}")
            return found
    found = choose(decoder, latents, config.decoder_budget, progress, say)
    write_durably(path, found.to_json().encode())
    return found


def _built(
    decoder: DecoderCheckpoint,
    quantised: Quantised,
    attempt: Attempt,
    graph_bytes: int,
    config: CompileConfig,
    identity: dict[str, Any],
    progress: Progress,
    say: Say,
) -> DecoderParts:
    """Graphs of one tile, and their binary. Raises QnnError where the tile is too large for the compiler."""
    tile = attempt.tile
    what = {**identity, "attempt": asdict(attempt), "backend": config.decoder_backend, **backends.identity(config)}
    folder = cache_folder("decoders") / _key(what)
    entry_path = folder / "entry.json"
    if entry_path.is_file():
        try:
            parts = parts_in(Decoder.model_validate_json(entry_path.read_bytes()), folder)
            if parts.sha256() != (folder / "sha256").read_text("ascii"):
                raise ValueError("a file is damaged")
        except (ValueError, OSError):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"the decoder's graphs are taken from the cache: {folder}")
            return parts
    parts_of = {v: stage_graphs(decoder, v, tile.rows, tile.columns, attempt.groups) for v in VARIANTS}
    floats = Graphs(*(tuple(part.model() for part in parts_of[v]) for v in VARIANTS))
    graphs = quantise(floats, quantised.encodings)
    _sweep(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix=MAKING, dir=folder.parent))
    try:
        entries = []
        for variant in VARIANTS:
            for part, model in zip(parts_of[variant], graphs.models(variant), strict=True):
                name = part.name.removeprefix("decoder_")
                (temporary / f"{name}.onnx").write_bytes(serialised(model))
                inputs, outputs = ports(model)
                entries.append(
                    Graph(
                        name=name, variant=variant, stages=part.stages, model=f"decoder.{name}",
                        inputs=tuple(map(_port, inputs)), outputs=tuple(map(_port, outputs)),
                    )
                )  # fmt: skip
        (temporary / "encodings.json").write_text(quantised.to_json(), "utf-8")
        binaries: tuple[Binary, ...] = ()
        if config.decoder_backend != "onnx":
            names = [entry.name for entry in entries]
            made = backends.compile_binary(config, temporary, names, attempt.text, graph_bytes, progress, say)
            binaries = (made,)
        entry = Decoder(
            backend=config.decoder_backend,
            vae_sha256=identity["vae"],
            latents_mean=decoder.weights.mean,
            latents_std=decoder.weights.std,
            spatial_scale=decoder.geometry.spatial_scale,
            temporal_scale=decoder.geometry.temporal_scale,
            tiles=Tiles(
                rows=tile.rows, columns=tile.columns, overlap_rows=tile.overlap_rows,
                overlap_columns=tile.overlap_columns,
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
        write_durably(temporary / "sha256", parts_in(entry, temporary).sha256().encode("ascii"))
        write_durably(temporary / "entry.json", entry.model_dump_json().encode())
        shutil.rmtree(folder, ignore_errors=True)
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return parts_in(entry, folder)


def _sweep(folder: Path) -> None:
    for path in folder.glob(f"{MAKING}*"):
        with contextlib.suppress(OSError):  # another compile may have swept
            if time.time() - path.stat().st_mtime > LEFT_AFTER_S:
                shutil.rmtree(path)


def _port(port: Any) -> Port:
    e = port.encoding
    return Port(name=port.name, dtype=e.dtype, shape=port.shape, scale=e.scale, zero_point=e.zero_point)


def _key(identity: dict[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps({**identity, "hvdc": __version__, "version": 2}, sort_keys=True).encode()
    ).hexdigest()
