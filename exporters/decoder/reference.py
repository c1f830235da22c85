"""Runs the streaming graphs with onnxruntime on the CPU: tile by tile, frame by frame, as a runtime must."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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


class GraphError(RuntimeError):
    """What is wrong with model ``number`` of ``variant``, from 0: onnxruntime does not load or run it, or it does not
    read and write what a tile's graphs do."""

    def __init__(self, what: str, variant: Variant, number: int) -> None:
        super().__init__(f"graph {number} of {variant!r}: {what}")
        self.what, self.variant, self.number = what, variant, number


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
        self._options.log_severity_level = 4  # errors come as exceptions: they need not be printed, too
        levels = self._ort.GraphOptimizationLevel
        self._options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
        self._sessions: dict[tuple[Variant, int, int], list[Any]] = {}

    def decode(self, latent: Float32Array, progress: Progress | None = None) -> Float32Array:
        """``latent``, float32 [z, T, H, W], normalised as the transformer leaves it -> frames float32
        [1 + s (T - 1), r H, r W, 3], RGB in [0, 1]; s and r are the geometry's scales in time and space, 4 and 8.

        Raises ValueError for a latent of another dtype or shape, GraphError.
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
        g = self.geometry
        part = latent[None, :, :, tile.rows.start : tile.rows.stop, tile.columns.start : tile.columns.stop]
        values: dict[str, Float32Array] = {}
        for t in range(latent.shape[1]):
            variant: Variant = "later" if t else "first"
            values[LATENT] = np.ascontiguousarray(part[:, :, t : t + 1])
            sessions = self._sessions_of(variant, rows, columns)
            for number, session in enumerate(sessions):
                with _blaming(variant, number):
                    values |= _run(session, values)
            frames = values.get(FRAMES)
            scale, start = g.spatial_scale, g.frames(t)
            due = (1, FRAME_CHANNELS, g.frames(t + 1) - start, rows * scale, columns * scale)
            if frames is None or frames.shape != due:
                found = "nothing" if frames is None else list(frames.shape)
                raise GraphError(f"it writes {found} as {FRAMES}, not {list(due)}", variant, len(sessions) - 1)
            yield start, frames[0].transpose(1, 2, 3, 0)
            values = {CACHE + n.removeprefix(NEXT_CACHE): v for n, v in values.items() if n.startswith(NEXT_CACHE)}

    def _sessions_of(self, variant: Variant, rows: int, columns: int) -> list[Any]:
        key = (variant, rows, columns)
        if key not in self._sessions:
            sessions = []
            for number, model in enumerate(self._models(variant, rows, columns)):
                data = model.SerializeToString()
                with _blaming(variant, number):
                    sessions.append(self._ort.InferenceSession(data, self._options, providers=["CPUExecutionProvider"]))
            self._sessions[key] = sessions
        return self._sessions[key]


def _run(session: Any, values: Mapping[str, Float32Array]) -> dict[str, Float32Array]:
    """What a session writes, by name."""
    read, written = ([port.name for port in side] for side in (session.get_inputs(), session.get_outputs()))
    if lost := [name for name in read if name not in values]:
        raise ValueError(f"nothing writes {', '.join(lost)}, which it reads")
    return dict(zip(written, session.run(written, {name: values[name] for name in read}), strict=True))


@contextmanager
def _blaming(variant: Variant, number: int) -> Iterator[None]:
    """Say which graph it was. onnxruntime's errors have no base of their own; want of memory is no graph's fault."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise GraphError(str(error), variant, number) from error
