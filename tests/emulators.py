"""A stand-in for Qualcomm's emulator of the NPU: onnxruntime in this process, exact unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from hvdc.pipeline import decoder_checks, decoder_trials

Arrays = dict[str, np.ndarray]


def emulator(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[str, Arrays], Arrays]) -> list[str]:
    """In place of Qualcomm's: the exact reference, changed by ``wrong(name of the graph, outputs)``. What it ran."""
    ran: list[str] = []

    def run(path: Path, inputs: Arrays, *more: Any) -> Arrays:
        name = onnx.load(path).graph.name
        ran.append(name)
        return wrong(name, in_this_process(path, inputs))

    monkeypatch.setattr(decoder_checks, "why_not", lambda: "")
    monkeypatch.setattr(decoder_checks, "toolchain", lambda: SimpleNamespace(build_id="a stand-in"))
    monkeypatch.setattr(decoder_checks, "run_graph", run)
    monkeypatch.setattr(decoder_trials, "run_reference", in_this_process)
    return ran


def in_this_process(path: Path, inputs: Arrays, *more: Any) -> Arrays:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
