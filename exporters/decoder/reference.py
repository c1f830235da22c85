"""Runs the streaming graphs with onnxruntime on the CPU: tile by tile, frame by frame, as a runtime must."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import onnx

from exporters.decoder.blending import Mosaic
from exporters.decoder.blocks import Variant
from exporters.decoder.checkpoint import DecoderCheckpoint
from exporters.decoder.geometry import CACHE, FRAME_CHANNELS, NEXT_CACHE
from exporters.decoder.graphs import FRAMES, LATENT, stage_graphs, whole_graph
from exporters.decoder.tiles import Tile, TileSettings, plan_tiles
from exporters.tensor import Float32Array

Models = Callable[[Variant, int, int], Sequence[onnx.ModelProto]]
"""``models(variant, rows, columns)`` gives the models of a tile's size, one or several that follow each other."""

Progress = Callable[[int, int], None]
"""``progress(done, total)``, in latent frames of tiles."""


def float_models(decoder: DecoderCheckpoint, groups: Iterable[Sequence[str]] | None = None) -> Models:
    """The float32 graphs of ``decoder``: one for all, or one for each group of stages (see `stage_graphs`)."""
    cut = None if groups is None else [tuple(group) for group in groups]

    def models(variant: Variant, rows: int, columns: int) -> Sequence[onnx.ModelProto]:
        if cut is None:
            return [whole_graph(decoder, variant, rows, columns).model()]
        return [graph.model() for graph in stage_graphs(decoder, variant, rows, columns, cut)]

    return models


class Sizes(Protocol):
    """What of a `DecoderGeometry` decoding needs."""

    @property
    def z_dim(self) -> int: ...

    @property
    def spatial_scale(self) -> int: ...

    def frames(self, latent_frames: int) -> int: ...


class StreamingDecoder:
    """Decodes whole latents with graphs of one tile.

    ``models`` are `float_models`, or others with the same inputs and outputs. With ``optimise`` onnxruntime may fuse
    and reorder; without, every node is computed as written, which is what INT8 graphs need to be compared (its fused
    8-bit kernels saturate on CPUs without VNNI). Sessions are made when a tile's size first occurs, and kept.

    Raises:
        ImportError: onnxruntime is not installed.
    """

    def __init__(
        self,
        geometry: Sizes,
        models: Models,
        tiles: TileSettings | None = None,
        *,
        optimise: bool = False,
        threads: int = 1,
    ) -> None:
        self.geometry = geometry
        self.tiles = tiles or TileSettings()
        self._models = models
        self._ort: Any = importlib.import_module("onnxruntime")
        self._options = self._ort.SessionOptions()
        self._options.intra_op_num_threads = threads
        levels = self._ort.GraphOptimizationLevel
        self._options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
        self._sessions: dict[tuple[Variant, int, int], list[Any]] = {}

    def decode(self, latent: Float32Array, progress: Progress | None = None) -> Float32Array:
        """``latent``, float32 [z, T, H, W], normalised as the transformer leaves it -> frames float32
        [1 + s (T - 1), r H, r W, 3], RGB in [0, 1]; s and r are the geometry's scales in time and space, 4 and 8.

        Raises ValueError for a latent of another dtype or shape.
        """
        g = self.geometry
        if latent.dtype != np.float32 or latent.ndim != 4 or latent.shape[0] != g.z_dim or 0 in latent.shape:
            raise ValueError(f"a latent is float32 [{g.z_dim}, T, H, W], not {latent.dtype} {list(latent.shape)}")
        count = latent.shape[1]
        plan = plan_tiles(latent.shape[2], latent.shape[3], self.tiles)
        mosaic = Mosaic(plan, frames=g.frames(count), scale=g.spatial_scale, channels=FRAME_CHANNELS)
        done = 0
        for tile in plan:
            for start, frames in self._tile(latent, tile):
                mosaic.put(tile, start, frames)
                done += 1
                if progress is not None:
                    progress(done, len(plan) * count)
        frames = mosaic.frames
        frames += 1.0
        frames *= 0.5
        return np.clip(frames, 0.0, 1.0, out=frames)

    def _tile(self, latent: Float32Array, tile: Tile) -> Iterable[tuple[int, Float32Array]]:
        """(first frame, float32 [t, rows, columns, 3] around [-1, 1]) of one tile, a latent frame at a time."""
        rows, columns = tile.shape
        part = latent[None, :, :, tile.rows.start : tile.rows.stop, tile.columns.start : tile.columns.stop]
        values: dict[str, Float32Array] = {}
        for t in range(latent.shape[1]):
            variant: Variant = "later" if t else "first"
            values[LATENT] = np.ascontiguousarray(part[:, :, t : t + 1])
            for session in self._sessions_of(variant, rows, columns):
                feeds = {port.name: values[port.name] for port in session.get_inputs()}
                names = [port.name for port in session.get_outputs()]
                values |= dict(zip(names, session.run(names, feeds), strict=True))
            yield self.geometry.frames(t), values[FRAMES][0].transpose(1, 2, 3, 0)
            values = {CACHE + n.removeprefix(NEXT_CACHE): v for n, v in values.items() if n.startswith(NEXT_CACHE)}

    def _sessions_of(self, variant: Variant, rows: int, columns: int) -> list[Any]:
        key = (variant, rows, columns)
        if key not in self._sessions:
            self._sessions[key] = [
                self._ort.InferenceSession(model.SerializeToString(), self._options, providers=["CPUExecutionProvider"])
                for model in self._models(variant, rows, columns)
            ]
        return self._sessions[key]
