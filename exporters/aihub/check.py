"""Whether a download is a context binary, and the one that was asked for. No binary of the real service was seen yet.

With Qualcomm's libraries at hand the binary is read by them. Without, only its first bytes are looked at: they were
seen in binaries of QAIRT 2.51, big-endian 2 and then 3, at byte 24 the offset of the data and at byte 32 its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from exporters.aihub.errors import AiHubError
from exporters.aihub.options import AiHubOptions
from exporters.qnn import available
from exporters.qnn import compile as local
from exporters.qnn.errors import QnnError
from exporters.qnn.graphs import Signature
from exporters.qnn.metadata import GraphInfo, Metadata, read_metadata
from exporters.qnn.options import QnnOptions

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
    """The binary's graph for each of ours, compared as those of this machine's compiler are: to the last bit.

    A single graph may have any name.

    Raises:
        AiHubError: another SoC, other graphs, other VTCM, another optimisation level, or other inputs and outputs than
            were asked for.
    """
    names = {name: name for name in signatures}
    if len(signatures) == len(metadata.graphs) == 1:
        names = dict.fromkeys(signatures, metadata.graphs[0].name)
    asked = QnnOptions(options.soc, options.arch, options.vtcm_mb, options.optimization)
    try:
        paired = local.check_as_asked(metadata, names, dict(signatures), asked, where)
    except QnnError as error:
        raise AiHubError(
            f"Qualcomm AI Hub's answer is refused, {error.what}",
            where=where,
            expected=error.expected,
            found=error.found,
            fix="choose the device that belongs to soc and arch, or another optimisation level; "
            "otherwise report this with the job's page",
        ) from error
    return {graph.name: graph.info for graph in paired}


def _not_one(where: str, found: str) -> AiHubError:
    return AiHubError("this is not a QNN context binary", where=where, found=found, fix=_AGAIN)
