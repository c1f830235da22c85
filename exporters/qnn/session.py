"""ONNX Runtime sessions, inside the worker: nothing else imports this module.

One process holds one Hexagon architecture: sessions of two make executions fail with QNN's error 1100.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort  # type: ignore[import-untyped, import-not-found, unused-ignore]

from exporters.qnn.available import BACKEND, PROVIDER
from exporters.qnn.options import QnnOptions

EP = "QNNExecutionProvider"


def compile_here(libraries: str, folder: str, names: Sequence[str], options: Mapping[str, Any]) -> None:
    """Compiles ``NAME.onnx`` of a folder to ``NAME.context.onnx`` and one binary beside it.

    Relative names are given on purpose: the library derives a graph's name in the binary from the path it was given,
    so with absolute ones the bytes would depend on where the work was done.
    """
    os.chdir(folder)
    chosen = QnnOptions(**options)
    sessions = []
    for name in names:
        entries = {
            "ep.context_enable": "1",
            "ep.context_embed_mode": "0",
            "ep.context_file_path": f"{name}.context.onnx",
        }
        if chosen.share_weights:
            entries["ep.share_ep_contexts"] = "1"
            if name == names[-1]:
                entries["ep.stop_share_ep_contexts"] = "1"
        # Sessions that share a context must stay alive until the last one has written it.
        sessions.append(_htp(f"{name}.onnx", Path(libraries), chosen, entries))


def emulate_here(
    libraries: str,
    folder: str,
    model: str,
    options: Mapping[str, Any],
    names: Sequence[str],
    inputs: str,
    outputs: str,
) -> list[str]:
    """Runs a model on the HTP emulator: a graph, or a wrapper of a binary.

    ``inputs`` and ``outputs`` are .npz files whose arrays are called by their place, "0", "1", …: a name may be one
    that no file in an archive can have. ``names`` are those of the inputs; those of the outputs are returned.
    """
    os.chdir(folder)
    return _run(_htp(model, Path(libraries), QnnOptions(**options), {}), names, inputs, outputs)


def reference_here(model: str, names: Sequence[str], inputs: str, outputs: str) -> list[str]:
    """Runs a graph on ONNX Runtime's CPU without any optimisation.

    The optimised kernels multiply uint8 by int8 in saturating 16-bit arithmetic on machines without VNNI: up to 36
    steps of the output were lost.
    """
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _run(ort.InferenceSession(model, settings, providers=["CPUExecutionProvider"]), names, inputs, outputs)


def _htp(model: str, libraries: Path, options: QnnOptions, entries: Mapping[str, str]) -> Any:
    """A session in which every node runs on the HTP, or an exception."""
    # The QNN libraries' lines, errors included, reach the default logger alone, at its most verbose severity.
    ort.set_default_logger_severity(0)
    if not any(device.ep_name == EP for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(EP, str(libraries / PROVIDER))
    devices = [device for device in ort.get_ep_devices() if device.ep_name == EP][:1]
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1  # the HTP has threads of its own; see `worker._fix_addresses`
    for key, value in {"session.disable_cpu_ep_fallback": "1", **entries}.items():
        settings.add_session_config_entry(key, value)
    settings.add_provider_for_devices(devices, {"backend_path": str(libraries / BACKEND), **options.provider()})
    return ort.InferenceSession(model, settings)


def _run(session: Any, names: Sequence[str], inputs: str, outputs: str) -> list[str]:
    session.disable_fallback()  # without it a failed run is quietly repeated on the CPU
    with np.load(inputs, allow_pickle=False) as arrays:
        feed = {name: arrays[str(i)] for i, name in enumerate(names)}
    results = [output.name for output in session.get_outputs()]
    np.savez(outputs, **{str(i): array for i, array in enumerate(session.run(results, feed))})
    return results
