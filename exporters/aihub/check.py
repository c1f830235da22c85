"""Whether a download is a context binary, and the one that was asked for. No binary of the real service was seen yet.

With Qualcomm's libraries at hand the binary is read by them. Without, only its first bytes are looked at: they were
seen in binaries of QAIRT 2.51, big-endian 2 and then 3, at byte 24 the offset of the data and at byte 32 its size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from exporters.aihub.errors import AiHubError
from exporters.aihub.options import AiHubOptions
from exporters.qnn import available
from exporters.qnn.errors import QnnError
from exporters.qnn.graphs import Port, Signature
from exporters.qnn.metadata import GraphInfo, Metadata, TensorInfo, read_metadata

FAKE = b"HVDC STAND-IN, NOT A QNN BINARY"
"""How every file of the tests' stand-in server begins: it looks like nothing else and is refused before all."""

_START = bytes([0, 0, 0, 2])
_LAYOUT_251 = _START + bytes([0, 0, 0, 3])
_HEADER_BYTES = 40
_AGAIN = "run the same command again to download it again; if it stays so, move the file of submitted jobs away"


def is_binary(path: Path, where: str) -> Metadata | None:
    """The binary's metadata, or None where Qualcomm's libraries are not at hand and its first bytes look right.

    Raises:
        AiHubError: it is none, or not whole.
    """
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
    size = path.stat().st_size
    if head.startswith(FAKE):
        raise _not_one(where, "the mark of the tests' stand-in server")
    if not head.startswith(_START) or len(head) < _HEADER_BYTES:
        raise _not_one(where, f"{size} bytes, the first are {head[:8].hex(' ') or 'missing'}")
    if head.startswith(_LAYOUT_251):
        wanted = int.from_bytes(head[24:32], "little") + int.from_bytes(head[32:40], "little")
        if size < wanted:
            raise _not_one(where, f"{size} bytes of {wanted}: it is truncated")
    if available.why_not():
        return None
    try:
        return read_metadata(path)
    except QnnError as error:
        raise _not_one(where, f"{error.what} {error.found}".strip()) from error


def pair(
    metadata: Metadata, signatures: Mapping[str, Signature], options: AiHubOptions, where: str
) -> dict[str, GraphInfo]:
    """The binary's graph for each of ours.

    A single graph may have any name. The optimisation level is not compared: whether the service obeys is not known.

    Raises:
        AiHubError: another SoC, other graphs, more VTCM, or other inputs and outputs than were asked for.
    """
    inside = {graph.name: graph for graph in metadata.graphs}
    if len(signatures) == len(inside) == 1:
        inside = dict(zip(signatures, inside.values(), strict=True))
    for what, expected, found in (
        ("SoC", options.soc, metadata.soc),
        ("architecture", options.arch, metadata.arch),
        ("graphs", sorted(signatures), sorted(inside)),
    ):
        if expected != found:
            raise _another(what, str(expected), str(found), where)
    for name, signature in signatures.items():
        graph = inside[name]
        if graph.vtcm_bytes > options.vtcm_mb << 20:
            raise _another(f"VTCM of {name}", f"up to {options.vtcm_mb << 20} bytes", f"{graph.vtcm_bytes}", where)
        _same(f"inputs of {name}", signature.inputs, graph.inputs, where)
        _same(f"outputs of {name}", signature.outputs, graph.outputs, where)
    return {name: inside[name] for name in signatures}


def _same(what: str, ports: Sequence[Port], tensors: Sequence[TensorInfo], where: str) -> None:
    """By name, since the order in a binary is not ONNX's. QNN's offset is the zero point with the other sign."""
    by_name = {tensor.name: tensor for tensor in tensors}
    for port in ports:
        tensor = by_name.get(port.name)
        same = (
            tensor is not None
            and (tensor.dtype.replace("ufixed", "uint"), tensor.dims) == (port.dtype, port.dims)
            and (
                port.scale is None
                or (
                    tensor.scale is not None
                    and math.isclose(tensor.scale, port.scale, rel_tol=1e-6)
                    and -(tensor.offset or 0) == port.zero_point
                )
            )
        )
        if not same:
            raise _another(f"{what}, {port.name}", str(port), "; ".join(map(str, tensors)), where)
    if len(ports) != len(tensors):
        raise _another(what, ", ".join(p.name for p in ports), ", ".join(by_name), where)


def _not_one(where: str, found: str) -> AiHubError:
    return AiHubError("this is not a QNN context binary", where=where, found=found, fix=_AGAIN)


def _another(what: str, expected: str, found: str, where: str) -> AiHubError:
    return AiHubError(
        f"Qualcomm AI Hub's binary is not what was asked for: {what}",
        where=where,
        expected=expected,
        found=found,
        fix="choose the device that belongs to soc and arch, or report this with the job's page",
    )
