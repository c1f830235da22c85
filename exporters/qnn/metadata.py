"""What a context binary says about itself, read by Qualcomm's own libQnnSystem in a process of its own.

The format has no checksum: a flipped bit in the weights goes unnoticed here and on the phone. Compare the file's
SHA-256 with the one that `exporters.qnn.compile` returned before trusting it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exporters.qnn import messages, process
from exporters.qnn.available import library_folder
from exporters.qnn.errors import QnnError
from exporters.qnn.options import GIB, Limits

_LIMITS = Limits(seconds=60, memory_bytes=8 * GIB)


@dataclass(frozen=True)
class TensorInfo:
    """An input or output. ``dtype`` is QNN's, such as ``"ufixed8"``.

    real = (stored + ``offset``) × ``scale``: QNN's offset is ONNX's zero point with the other sign. Both are None
    when the tensor is not quantised by one scale.
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    scale: float | None
    offset: int | None


@dataclass(frozen=True)
class GraphInfo:
    """One graph. ``optimization`` is the level of `QnnOptions`; spill-fill is DRAM for what VTCM cannot hold."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    vtcm_bytes: int
    optimization: int
    spill_fill_bytes: int


@dataclass(frozen=True)
class Metadata:
    """A context binary. ``soc`` is QNN's SoC number, ``arch`` the Hexagon architecture (79 is V79).

    ``build_id`` and the API versions are those of the compiler; a phone needs a QAIRT that is at least as new.
    """

    build_id: str
    core_api: str
    backend_api: str
    blob_version: str
    soc: int
    arch: int
    graphs: tuple[GraphInfo, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Metadata:
        """The inverse of `to_json`, also after a way through JSON text."""
        return Metadata(**{**values, "graphs": tuple(_graph(g) for g in values["graphs"])})


def read_metadata(path: Path, limits: Limits = _LIMITS) -> Metadata:
    """Reads a context binary's metadata.

    Raises:
        QnnError: no such file, no context binary, truncated, damaged, another info version, or the backend is not
            available here.
    """
    if not path.is_file():
        raise QnnError("there is no such file", where=str(path), fix="check the path")
    if not path.stat().st_size:
        raise QnnError("the context binary is empty", where=str(path), fix="compile it again")
    arguments = {"folder": str(library_folder()), "path": str(path.resolve())}
    ended = process.run("metadata", arguments, limits, keep=messages.is_wanted)
    return Metadata.from_json(messages.value_of(ended, "reading the metadata", str(path)))


def _graph(values: Mapping[str, Any]) -> GraphInfo:
    tensors = {kind: tuple(_tensor(t) for t in values[kind]) for kind in ("inputs", "outputs")}
    return GraphInfo(**{**values, **tensors})


def _tensor(values: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(**{**values, "dims": tuple(values["dims"])})
