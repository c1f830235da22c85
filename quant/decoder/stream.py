"""Runs the graphs of a decoder latent frame by latent frame with its caches, with onnxruntime on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx

from quant.decoder.errors import DecoderQuantError
from quant.decoder.graph import CACHE, FRAMES, LATENT, NEXT_CACHE, VARIANTS, Graphs, Variant

Float32Array = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]
Progress = Callable[[int, int], None]
"""``progress(done, total)``."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class Streamer:
    """Sessions of both variants' models.

    By default every node is computed as written: the fused 8-bit kernels of onnxruntime saturate on CPUs without VNNI.
    Threads may share one. ``constants``: for each model, in the order of ``graphs``, the values of inputs that neither
    the latent, a cache nor the model before it gives.
    """

    def __init__(
        self,
        graphs: Graphs,
        *,
        optimise: bool = False,
        threads: int = 1,
        constants: Sequence[Mapping[str, AnyArray]] | None = None,
    ) -> None:
        ort: Any = importlib.import_module("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        # Blocks that are kept from call to call speed little up here, and double the memory of a large tile.
        options.enable_cpu_mem_arena = options.enable_mem_pattern = optimise
        levels = ort.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
        constants = constants or [{} for _ in graphs]
        self._sessions: dict[Variant, list[tuple[Any, Mapping[str, AnyArray]]]] = {v: [] for v in VARIANTS}
        for (variant, model), fixed in zip(graphs, constants, strict=True):
            self._sessions[variant].append((_session(ort, model, options), fixed))

    def run(self, latent: AnyArray) -> Iterator[tuple[Variant, Mapping[str, AnyArray]]]:
        """``latent`` [z, T, h, w] of the graphs' tile -> for each latent frame the variant and all outputs by name.

        Its dtype is that of the graphs' port: float32, or the codes of a quantised graph.

        Raises:
            DecoderQuantError: another dtype or shape.
        """
        values: dict[str, AnyArray] = {}
        self._check(latent)
        for t in range(latent.shape[1]):
            variant: Variant = "later" if t else "first"
            values[LATENT] = np.ascontiguousarray(latent[None, :, t : t + 1])
            written: dict[str, AnyArray] = {}
            for session, fixed in self._sessions[variant]:
                feeds = {p.name: fixed[p.name] if p.name in fixed else values[p.name] for p in session.get_inputs()}
                names = [port.name for port in session.get_outputs()]
                out = dict(zip(names, session.run(names, feeds), strict=True))
                values |= out
                written |= out
            yield variant, written
            values = {
                f"{CACHE}{name.removeprefix(NEXT_CACHE)}": value
                for name, value in written.items()
                if name.startswith(NEXT_CACHE)
            }

    def decode(self, latent: Float32Array) -> Float32Array:
        """Graphs with float ports: ``latent`` float32 [z, T, h, w] -> frames float32 [T', 8h, 8w, 3], RGB in [0, 1].

        Raises:
            DecoderQuantError: another dtype or shape.
        """
        parts = [out[FRAMES][0].transpose(1, 2, 3, 0) for _, out in self.run(latent)]
        frames: Float32Array = np.clip(np.concatenate(parts) * np.float32(0.5) + np.float32(0.5), 0.0, 1.0)
        return frames

    def _check(self, latent: AnyArray) -> None:
        session, _ = self._sessions["first"][0]
        port = next(p for p in session.get_inputs() if p.name == LATENT)
        kinds = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8, "tensor(uint16)": np.uint16}
        wanted = (kinds[port.type], [port.shape[1], *port.shape[3:]])
        found = (latent.dtype.type, [latent.shape[0], *latent.shape[2:]] if latent.ndim == 4 else list(latent.shape))
        if wanted != found or latent.shape[1] == 0:
            z, rows, columns = wanted[1]
            raise DecoderQuantError(
                f"a latent of this graph is {np.dtype(wanted[0])} [{z}, T, {rows}, {columns}], "
                f"not {latent.dtype} {list(latent.shape)}", where=LATENT,
            )  # fmt: skip


def _session(ort: Any, model: onnx.ModelProto, options: Any) -> Any:
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def decode(graphs: Graphs, latents: Sequence[Float32Array]) -> list[Float32Array]:
    """Frames of each latent, by graphs with float ports."""
    streamer = Streamer(graphs)
    return [streamer.decode(latent) for latent in latents]


def spread(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int = 1, progress: Progress | None = None
) -> list[Result]:
    """``work`` of each item, in their order, on ``jobs`` threads; ``progress`` is told of each, in order.

    After an exception, which is raised, no other item is begun.
    """
    results: list[Result] = []
    with ThreadPoolExecutor(jobs, thread_name_prefix="decoder") as pool:
        try:
            for result in pool.map(work, items):
                results.append(result)
                if progress is not None:
                    progress(len(results), len(items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return results
