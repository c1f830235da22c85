"""Scores of decoded frames, clip by clip and path by path."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from hvdc.errors import HvdcError, UsageError
from quant import frames as metrics

Frames = npt.NDArray[np.float32]
Task = Callable[[Frames, str], Mapping[str, float]]
"""Frames float32 ``[T, H, W, 3]`` in 0 … 1 and their prompt -> named numbers."""


def require_libraries() -> None:
    """Whether the metrics' libraries are installed, before a long run. Raises HvdcError."""
    try:
        metrics.require_libraries()
    except metrics.MissingLibraryError as error:
        raise HvdcError(str(error), fix=error.fix) from error


class Scores:
    """PSNR, SSIM and, where it can be had, LPIPS against the reference's frames; and a task's numbers."""

    def __init__(self, reference: str, task: Task | None, device: torch.device) -> None:
        self._reference = reference
        self._task = task
        self._lpips = metrics.load_lpips(device)
        self._values: dict[str, dict[str, list[float]]] = {}

    def add(self, name: str, frames: Frames, reference: Frames, prompt: str) -> None:
        """One clip of a path. Raises UsageError where the task fails."""
        values = self._values.setdefault(name, {})

        def put(metric: str, value: float) -> None:
            values.setdefault(metric, []).append(value)

        if name != self._reference:
            put("psnr_db", metrics.psnr_db(frames, reference))
            if min(frames.shape[1:3]) >= metrics.SSIM_WINDOW:
                put("ssim", metrics.ssim(frames, reference))
            if self._lpips.metric is not None and min(frames.shape[1:3]) >= metrics.LPIPS_SMALLEST:
                put("lpips", self._lpips.metric(frames, reference))
        if self._task is not None:
            for metric, value in self._scored(frames, prompt).items():
                put(f"task {metric}", value)

    def _scored(self, frames: Frames, prompt: str) -> dict[str, float]:
        assert self._task is not None  # noqa: S101 - the caller looked
        try:
            return {str(name): float(value) for name, value in self._task(frames, prompt).items()}
        except Exception as error:  # whatever somebody else's module raises
            raise UsageError(
                "the task cannot score a clip",
                where=f"prompt {prompt!r}",
                found=f"{type(error).__name__}: {error}",
                fix="check that prompts and --task belong together",
            ) from error

    def means(self, name: str) -> dict[str, float]:
        """Metric -> mean over the clips of a path; a task's under ``task NAME``."""
        return {metric: _mean(values) for metric, values in self._values.get(name, {}).items()}

    def notes(self) -> tuple[str, ...]:
        """What was not measured, and why."""
        return () if self._lpips.metric is not None else (f"no LPIPS: {self._lpips.reason}",)


def _mean(values: list[float]) -> float:
    """NaN stays NaN; clips that are equal to the reference have an infinite PSNR and are left out of its mean."""
    kept = [v for v in values if v != math.inf]
    return sum(kept) / len(kept) if kept else math.inf


def load_task(name: str) -> Task:
    """The function ``check`` of a module, found from the current directory too. Raises UsageError."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        task = importlib.import_module(name).check
    except Exception as error:  # a module of somebody else's may raise anything
        raise UsageError(
            "the task cannot be loaded",
            where=f"--task {name}",
            expected="a module with a function check(frames, prompt)",
            found=f"{type(error).__name__}: {error}",
        ) from error
    out: Task = task
    return out
