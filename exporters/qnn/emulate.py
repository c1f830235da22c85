"""Running graphs without a phone: on the x86 emulator of the HTP, and on a reference that is exact to the integer.

The emulator computes what the HTP computes, slowly. It says nothing about time, power, or whether a phone loads the
binary: it does not even check the architecture.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exporters.qnn import graphs as qdq
from exporters.qnn import messages, process
from exporters.qnn.available import library_folder
from exporters.qnn.errors import QnnError
from exporters.qnn.metadata import GraphInfo, TensorInfo, read_metadata
from exporters.qnn.options import Limits, QnnOptions

Arrays = Mapping[str, "np.ndarray[Any, Any]"]

_DEFAULT_OPTIONS = QnnOptions()
_DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Difference:
    """How far two integer outputs are apart, in steps of the last bit. ``share`` of the elements differ (0 to 1)."""

    max_lsb: int
    mean_lsb: float
    share: float


class Runs:
    """What several threads run at a time, so that another can end it all: a run may take minutes.

    Give it to `run_graph` in each of them. After `end` those raise QnnError, and so does every later one; ``ended``
    says whether it was called.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[int] = set()
        self.ended = False

    @contextlib.contextmanager
    def one(self) -> Iterator[Callable[[int], None]]:
        """One process: what is given here is to be called with its id, and it has been waited for at the end."""
        begun: list[int] = []

        def started(pid: int) -> None:
            with self._lock:
                begun.append(pid)
                self._processes.add(pid)
                if self.ended:
                    _kill(pid)

        try:
            yield started
        finally:
            with self._lock:  # from here on its id may become another's
                self._processes.difference_update(begun)

    def end(self) -> None:
        """Kills all processes. The threads need a moment to notice."""
        with self._lock:
            self.ended = True
            for pid in self._processes:
                _kill(pid)


def run_graph(
    model: Path,
    inputs: Arrays,
    options: QnnOptions = _DEFAULT_OPTIONS,
    limits: Limits = _DEFAULT_LIMITS,
    runs: Runs | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Runs a graph on the emulator: a QDQ model (``.onnx``), a context binary, or an ONNX wrapper of one.

    ``inputs`` and the result are uint8 or uint16 by name, in the graph's shapes. ``options`` apply to a QDQ model; a
    binary runs as what it was compiled for.

    Raises:
        QnnError: inputs that do not fit; a binary with several graphs, since those share weights, which crashes the
            library on x86; whatever compiling raises; a limit was reached; ``runs`` was ended.
    """
    if model.suffix == ".onnx":
        loaded = qdq.load(model)
        if not qdq.is_context(loaded):
            signature = qdq.signature(loaded, str(model))
            _check_inputs(inputs, signature.inputs, str(model))
            return _emulate(model.resolve().parent, model.name, inputs, options, limits, runs, str(model))
        binary = model.parent / qdq.wrapper_parts(loaded, str(model))[0]
    else:
        binary = model
    return _run_binary(binary, inputs, limits, runs)


def run_reference(model: Path, inputs: Arrays, limits: Limits = _DEFAULT_LIMITS) -> dict[str, np.ndarray[Any, Any]]:
    """Runs a QDQ model on ONNX Runtime's CPU, unoptimised: float arithmetic between the model's own roundings.

    Raises:
        QnnError: inputs that do not fit, or ONNX Runtime refused the model; a limit was reached.
    """
    signature = qdq.signature(qdq.load(model), str(model))
    _check_inputs(inputs, signature.inputs, str(model))
    return _exchange("reference", {"model": str(model.resolve())}, inputs, limits, str(model))


def compare(reference: Arrays, found: Arrays) -> dict[str, Difference]:
    """Differences by output.

    Raises:
        QnnError: other names, shapes or dtypes, so that nothing can be compared.
    """
    if set(reference) != set(found):
        raise QnnError(
            "the two runs have other outputs", expected=", ".join(sorted(reference)), found=", ".join(sorted(found))
        )
    out = {}
    for name, left in reference.items():
        right = found[name]
        if (left.shape, left.dtype) != (right.shape, right.dtype) or left.dtype.kind not in "ui":
            raise QnnError(
                f"the two runs of '{name}' cannot be compared",
                expected=f"integers, {left.dtype} {left.shape}",
                found=f"{right.dtype} {right.shape}",
            )
        apart = np.abs(left.astype(np.int64) - right.astype(np.int64))
        out[name] = (
            Difference(int(apart.max()), float(apart.mean()), float((apart > 0).mean()))
            if apart.size
            else Difference(0, 0.0, 0.0)
        )
    return out


def _run_binary(binary: Path, inputs: Arrays, limits: Limits, runs: Runs | None) -> dict[str, np.ndarray[Any, Any]]:
    metadata = read_metadata(binary)
    if len(metadata.graphs) != 1:
        raise QnnError(
            "the emulator runs binaries with one graph only",
            where=str(binary),
            expected="1 graph",
            found=f"{len(metadata.graphs)} graphs, which share weights: loading them crashes the library on x86",
            fix="run the QDQ graphs it was compiled from, or compile them into binaries of their own",
        )
    graph = metadata.graphs[0]
    _check_inputs(inputs, [_as_port(tensor, binary) for tensor in graph.inputs], str(binary))
    for tensor in graph.outputs:
        _as_port(tensor, binary)
    options = QnnOptions(metadata.soc, metadata.arch, _vtcm_mb(graph, binary), graph.optimization)
    with tempfile.TemporaryDirectory(prefix="qnn-") as name:
        folder = Path(name)
        (folder / "context.bin").symlink_to(binary.resolve())
        qdq.write_wrapper(folder / "context.onnx", "context.bin", graph)
        return _emulate(folder, "context.onnx", inputs, options, limits, runs, str(binary))


def _emulate(
    folder: Path, model: str, inputs: Arrays, options: QnnOptions, limits: Limits, runs: Runs | None, where: str
) -> dict[str, np.ndarray[Any, Any]]:
    arguments = {
        "libraries": str(library_folder()),
        "folder": str(folder),
        "model": model,
        "options": options.to_json(),
    }
    return _exchange("emulate", arguments, inputs, limits, where, runs)


def _exchange(
    task: str, arguments: Mapping[str, Any], inputs: Arrays, limits: Limits, where: str, runs: Runs | None = None
) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays to a worker and back, through two files."""
    doing = {"emulate": "running on the emulator", "reference": "running on the CPU"}[task]
    with tempfile.TemporaryDirectory(prefix="qnn-") as name:
        source, target = Path(name) / "inputs.npz", Path(name) / "outputs.npz"
        with source.open("wb") as file:
            named: dict[str, Any] = {str(i): array for i, array in enumerate(inputs.values())}
            np.savez(file, **named)
        more = {"names": list(inputs), "inputs": str(source), "outputs": str(target)}
        with (runs or Runs()).one() as started:
            ended = process.run(task, {**arguments, **more}, limits, keep=messages.is_wanted, started=started)
        names = messages.value_of(ended, doing, where)
        with np.load(target, allow_pickle=False) as arrays:
            return {name: arrays[str(i)] for i, name in enumerate(names)}


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _check_inputs(inputs: Arrays, ports: Sequence[qdq.Port], where: str) -> None:
    """The library reads as many bytes as the graph wants, whatever the caller has: every size is checked here."""
    wanted = {port.name: f"{port.dtype} {list(port.dims)}" for port in ports}
    given = {name: f"{array.dtype} {list(array.shape)}" for name, array in inputs.items()}
    wrong = {name for name in wanted | given if wanted.get(name) != given.get(name)}
    if wrong:
        name = min(wrong)
        raise QnnError(
            f"the input '{name}' does not fit the graph",
            where=where,
            expected=wanted.get(name, "no such input"),
            found=given.get(name, "nothing"),
            fix="give every input in the graph's dtype and shape",
        )


def _as_port(tensor: TensorInfo, binary: Path) -> qdq.Port:
    if tensor.dtype not in qdq.QNN_DTYPES:
        raise QnnError(
            f"'{tensor.name}' is not a quantised integer",
            where=str(binary),
            expected=" or ".join(qdq.QNN_DTYPES),
            found=tensor.dtype,
            fix="compile a graph with uint8 or uint16 inputs and outputs",
        )
    return qdq.Port(tensor.name, tensor.dtype.replace("ufixed", "uint"), tensor.dims)


def _vtcm_mb(graph: GraphInfo, binary: Path) -> int:
    if graph.vtcm_bytes % (1 << 20):
        raise QnnError(
            "the binary plans with an odd amount of VTCM", where=str(binary), found=f"{graph.vtcm_bytes} bytes"
        )
    return graph.vtcm_bytes >> 20
