"""Latents become frames on this machine: by the very graphs that an artifact ships, or by the float decoder."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import onnx

from exporters.decoder.blocks import Variant
from exporters.decoder.reference import GraphError, StreamingDecoder, float_models
from exporters.decoder.tiles import TileSettings, plan_tiles
from hvdc.artifact.decoder import Decoder
from hvdc.artifact.reader import Artifact
from hvdc.errors import UsageError
from hvdc.pipeline.decoder_encodings import open_same
from hvdc.pipeline.decoder_graphs import graph_fault, read_graph
from hvdc.progress import Progress
from quant.decoder.graph import VARIANTS
from quant.decoder.ports import float_ports

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Sizes:
    z_dim: int
    spatial_scale: int
    temporal_scale: int

    def frames(self, latent_frames: int) -> int:
        return 1 + self.temporal_scale * (latent_frames - 1) if latent_frames else 0


class HostDecoder:
    """A decoder with an artifact's tiles; a context manager.

    Without ``vae`` it runs the artifact's INT8 graphs node by node as written: integers at every port, as on the phone,
    whose own rounding within an operator may differ by some steps. With ``vae``, the float weights in FP32.

    Raises:
        UsageError: the artifact has no decoder.
        ArtifactError: a graph's file is not the one that was compiled, or not what the manifest says of it.
        CheckpointError: ``vae`` is not an autoencoder.
        HvdcError: it is another autoencoder than the artifact's.
    """

    def __init__(self, artifact: Artifact, vae: Path | None = None, threads: int = 1) -> None:
        entry = artifact.manifest.decoder
        if entry is None:
            raise UsageError(
                "the artifact holds no decoder",
                where=str(artifact.path),
                fix="compile it with --vae PATH --latents FILE",
            )
        self.entry: Decoder = entry
        self._models: dict[Variant, list[onnx.ModelProto]] = {}
        """The artifact's; empty with ``vae``."""
        self._open = ExitStack()
        t = entry.tiles
        tiles = TileSettings(t.rows, t.columns, t.overlap_rows, t.overlap_columns)
        self._tiles = tiles
        if vae is None:
            for variant in VARIANTS:  # all of them before the first frame: a fault is not found after minutes
                self._models[variant] = [float_ports(read_graph(artifact, graph)) for graph in entry.variant(variant)]
            sizes = _Sizes(len(entry.latents_mean), entry.spatial_scale, entry.temporal_scale)
            self._decoder = StreamingDecoder(sizes, lambda variant, *_: self._models[variant], tiles, threads=threads)
            return
        try:
            checkpoint = self._open.enter_context(open_same(vae, entry.vae_sha256))
            models = float_models(checkpoint)
            self._decoder = StreamingDecoder(checkpoint.geometry, models, tiles, optimise=True, threads=threads)
        except BaseException:
            self._open.close()
            raise

    def __enter__(self) -> HostDecoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def decode(self, latent: Float32Array, progress: Progress) -> Float32Array:
        """``latent`` float32 ``[z, T, rows, columns]`` → frames float32 ``[T', height, width, 3]``, RGB in [0, 1].

        Raises UsageError for a latent that is smaller than a tile, or has other channels; ArtifactError for a graph of
        the artifact that onnxruntime refuses.
        """
        t = self._tiles
        if latent.shape[0] != len(self.entry.latents_mean) or latent.shape[2] < t.rows or latent.shape[3] < t.columns:
            raise UsageError(
                "the artifact's decoder does not fit these latents",
                expected=f"{len(self.entry.latents_mean)} channels, at least {t.rows} × {t.columns} latent pixels",
                found=f"{latent.shape[0]} channels, {latent.shape[2]} × {latent.shape[3]}",
                fix="give latents of the clip that the artifact is compiled for",
            )  # fmt: skip
        total = math.prod((len(plan_tiles(latent.shape[2], latent.shape[3], t)), latent.shape[1]))
        progress.start("decoding", total, total, unit="latent frames")
        try:
            return self._decoder.decode(latent, lambda done, total: progress.advance(1))
        except GraphError as error:
            if not self._models:  # our own graphs, of float weights: no fault of the artifact's
                raise
            graph = self.entry.variant(error.variant)[error.number]
            raise graph_fault(graph, "cannot be run", "a graph that onnxruntime runs", error.what) from error
        finally:
            progress.finish()
