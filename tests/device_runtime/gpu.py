"""Asking the GPU's engine: ``hvdc_gpu_check`` as a process, with arrays as its files."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

NOT_OURS = ("libpocl", "libLLVM", "libclang", "libOpenCL")
"""Libraries that lose memory, or keep it until the process ends: the leak checker is told to look away there."""


def gpu_environment(folder: Path) -> dict[str, str]:
    """Variables of a process that uses PoCL: its cache below ``folder``, leaks reported but those of `NOT_OURS`."""
    suppressions = folder / "leaks"
    suppressions.write_text("".join(f"leak:{library}\n" for library in NOT_OURS))
    return {
        "POCL_CACHE_DIR": str(folder / "pocl"),
        "LSAN_OPTIONS": f"suppressions={suppressions}:print_suppressions=0",
    }


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """What the engine said no with."""


class Gpu:
    """A running ``hvdc_gpu_check``; options are those of its head comment."""

    def __init__(
        self, program: Path, folder: Path, environment: Mapping[str, str] | None = None, **options: object
    ) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        arguments = [f"{key.replace('_', '-')}={value}" for key, value in options.items()]
        self._process = subprocess.Popen(
            [str(program), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **(environment or {})},
        )  # fmt: skip

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _, report = self._process.communicate(timeout=60)
        if kind is None:
            assert self._process.returncode == 0, report[-4000:]

    def ask(self, *words: object) -> str:
        """The answer to a question; arrays are written to files. Raises Refused."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(" ".join(str(self._file(w) if isinstance(w, np.ndarray) else w) for w in words) + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            _, report = self._process.communicate(timeout=60)
            raise AssertionError(f"{words[0]}: status {self._process.returncode}\n{report[-4000:]}")
        if answer.startswith("ok"):
            return answer[2:].strip()
        raise Refused(answer[3:].strip())

    def array(self, dtype: Any, shape: tuple[int, ...], *words: object) -> Array:
        """The array that a question's last file holds."""
        out = self._path()
        self.ask(*words, out)
        return np.fromfile(out, dtype).reshape(shape)

    def described(self) -> dict[str, str]:
        """What an open engine chose."""
        return dict(pair.split("=") for pair in self.ask("describe").split(" / ")[0].split())

    def _path(self) -> Path:
        return self._folder / f"{os.getpid()}-{id(self)}-{next(self._numbers)}"

    def _file(self, array: Array) -> Path:
        path = self._path()
        np.ascontiguousarray(array).tofile(path)
        return path


def padded(x: Array, multiple: int = 32) -> Array:
    """The last axis padded with zeros to whole tiles."""
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % multiple)])
