"""The part of QNN's C interface that tells what a context binary holds, declared for ctypes. LP64 only.

Written from Qualcomm's public documentation of the interface; sizes and offsets were checked against QAIRT 2.51
(core API 2.40, System API 1.15), and `tests/exporters/qnn/test_abi.py` holds them. Nothing here is imported by
anything but the worker and `exporters.qnn.metadata`: a damaged file may crash the library that reads it.
"""

from __future__ import annotations

import ctypes as C
import mmap
from pathlib import Path
from typing import Any

from exporters.qnn.available import BACKEND, SYSTEM
from exporters.qnn.errors import QnnError

U8, U32, U64 = C.c_uint8, C.c_uint32, C.c_uint64

INFO_VERSION = 3
HTP_BACKEND_ID = 6
QUANT_DEFINED, QUANT_SCALE_OFFSET = 1, 0
_MOST_GRAPHS, _MOST_TENSORS, _MOST_DIMS = 1024, 65536, 16
"""Above these a count is taken for damage rather than followed through memory."""

DTYPES = {
    0x0008: "int8",
    0x0016: "int16",
    0x0032: "int32",
    0x0064: "int64",
    0x0108: "uint8",
    0x0116: "uint16",
    0x0132: "uint32",
    0x0164: "uint64",
    0x0216: "float16",
    0x0232: "float32",
    0x0308: "sfixed8",
    0x0316: "sfixed16",
    0x0332: "sfixed32",
    0x0408: "ufixed8",
    0x0416: "ufixed16",
    0x0432: "ufixed32",
    0x0508: "bool8",
}
"""High byte: kind. Low byte: bits, written as decimal digits."""


class Version(C.Structure):
    _fields_ = (("major", U32), ("minor", U32), ("patch", U32))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class ScaleOffset(C.Structure):
    _fields_ = (("scale", C.c_float), ("offset", C.c_int32))


class _QuantUnion(C.Union):
    _fields_ = (("scale_offset", ScaleOffset), ("widest", U64 * 4))


class Quant(C.Structure):
    _fields_ = (("definition", U32), ("encoding", U32), ("u", _QuantUnion))


class TensorBody(C.Structure):
    """Version 1 ends after ``memory``; version 2 appends the rest. The stride is the same for both."""

    _fields_ = (
        ("id", U32),
        ("name", C.c_char_p),
        ("type", U32),
        ("format", U32),
        ("dtype", U32),
        ("quant", Quant),
        ("rank", U32),
        ("dims", C.POINTER(U32)),
        ("memory_type", U32),
        ("memory", U64 * 2),
        ("dynamic_dims", C.c_void_p),
        ("sparse", U32 * 3),
        ("produced", U8),
    )


class Tensor(C.Structure):
    _fields_ = (("version", U32), ("body", TensorBody))


class GraphInfo(C.Structure):
    """``blob`` and what follows exist in version 3."""

    _fields_ = (
        ("version", U32),
        ("name", C.c_char_p),
        ("inputs_count", U32),
        ("inputs", C.POINTER(Tensor)),
        ("outputs_count", U32),
        ("outputs", C.POINTER(Tensor)),
        ("updatable_count", U32),
        ("updatable", C.POINTER(Tensor)),
        ("blob_size", U32),
        ("blob", C.c_void_p),
        ("start", U32),
        ("end", U32),
    )


class HtpGraph(C.Structure):
    """What HTP says of one graph. ``vtcm`` is in bytes."""

    _fields_ = (
        ("version", U32),
        ("spill_fill_bytes", U64),
        ("vtcm_bytes", U32),
        ("optimization", U32),
        ("dlbc", U8),
        ("hvx_threads", U64),
    )


class HtpContext(C.Structure):
    _fields_ = (("version", U32), ("dsp_arch", U32))


class InfoV3(C.Structure):
    _fields_ = (
        ("backend_id", U32),
        ("build_id", C.c_char_p),
        ("core_api", Version),
        ("backend_api", Version),
        ("soc_name", C.c_char_p),
        ("blob_version", Version),
        ("blob_size", U64),
        ("context_tensors_count", U32),
        ("context_tensors", C.POINTER(Tensor)),
        ("graphs_count", U32),
        ("graphs", C.POINTER(GraphInfo)),
        ("platform", C.c_void_p),
        ("metadata_size", U32),
        ("metadata", C.c_void_p),
        ("soc_model", U32),
    )


class BinaryInfo(C.Structure):
    """Versions 1 and 2 are laid out differently and are refused."""

    _fields_ = (("version", U32), ("v3", InfoV3))


class SystemProvider(C.Structure):
    """Table: 0 contextCreate, 1 contextGetBinaryInfo, 2 contextGetMetaData, 3 contextFree."""

    _fields_ = (("backend_id", U32), ("name", C.c_char_p), ("api", Version), ("table", C.c_void_p * 4))


class Provider(C.Structure):
    """Table up to slot 4, backendGetBuildId."""

    _fields_ = (
        ("backend_id", U32),
        ("name", C.c_char_p),
        ("core_api", Version),
        ("backend_api", Version),
        ("table", C.c_void_p * 5),
    )


def toolchain_here(folder: str) -> dict[str, str]:
    """Build id and API versions of the libraries of a folder; loads them into this process. OSError: cannot."""
    system = _provider(Path(folder) / SYSTEM, "QnnSystemInterface_getProviders", SystemProvider)
    htp = _provider(Path(folder) / BACKEND, "QnnInterface_getProviders", Provider)
    build_id = C.c_char_p()
    _check(C.CFUNCTYPE(U64, C.POINTER(C.c_char_p))(htp.table[4])(C.byref(build_id)), "QnnBackend_getBuildId")
    return {
        "build_id": _text(build_id.value),
        "core_api": str(htp.core_api),
        "backend_api": str(htp.backend_api),
        "system_api": str(system.api),
    }


def read_here(folder: str, path: str) -> dict[str, Any]:
    """A binary's metadata as plain values, the fields of `exporters.qnn.metadata.Metadata`. Call it in a worker.

    Raises:
        QnnError: no context binary, damaged, or of another info version.
    """
    system = _provider(Path(folder) / SYSTEM, "QnnSystemInterface_getProviders", SystemProvider)
    create = C.CFUNCTYPE(U64, C.POINTER(C.c_void_p))(system.table[0])
    get_info = C.CFUNCTYPE(U64, C.c_void_p, C.c_void_p, U64, C.POINTER(C.POINTER(BinaryInfo)), C.POINTER(U64))(
        system.table[1]
    )
    handle, info, size = C.c_void_p(), C.POINTER(BinaryInfo)(), U64()
    _check(create(C.byref(handle)), "QnnSystemContext_create")
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as content:
        data = (C.c_char * len(content)).from_buffer(content)
        error = get_info(handle, C.addressof(data), len(content), C.byref(info), C.byref(size))
        try:
            if error or not info:
                raise QnnError(
                    "this is no QNN context binary, or it is damaged",
                    where=path,
                    found=f"QnnSystemContext_getBinaryInfo: error {error & 0xFFFF}",
                    fix="compile it again, or fetch it again and compare its SHA-256",
                )
            return _info(info.contents, path)
        finally:
            del data  # the mapping cannot be closed while it is exported


def _info(info: BinaryInfo, path: str) -> dict[str, Any]:
    if info.version != INFO_VERSION:
        raise QnnError(
            "the context binary describes itself in a version that is not understood",
            where=path,
            expected=f"binary info version {INFO_VERSION}",
            found=f"version {info.version}",
            fix="compile it again with onnxruntime-qnn 2.7",
        )
    v3 = info.v3
    if v3.backend_id != HTP_BACKEND_ID:
        raise _damaged(path, f"backend id {v3.backend_id}, HTP is {HTP_BACKEND_ID}")
    if not 1 <= v3.graphs_count <= _MOST_GRAPHS:
        raise _damaged(path, f"{v3.graphs_count} graphs")
    if not v3.metadata or v3.metadata_size < C.sizeof(HtpContext):
        raise _damaged(path, "no description of the HTP context")
    return {
        "build_id": _text(v3.build_id),
        "core_api": str(v3.core_api),
        "backend_api": str(v3.backend_api),
        "blob_version": str(v3.blob_version),
        "soc": v3.soc_model,
        "arch": HtpContext.from_address(v3.metadata).dsp_arch,
        "graphs": [_graph(v3.graphs[i], path) for i in range(v3.graphs_count)],
    }


def _graph(graph: GraphInfo, path: str) -> dict[str, Any]:
    if graph.version != INFO_VERSION or not graph.blob or graph.blob_size < C.sizeof(HtpGraph):
        raise _damaged(path, f"graph info of version {graph.version} with {graph.blob_size} bytes about HTP")
    htp = HtpGraph.from_address(graph.blob)
    return {
        "name": _text(graph.name),
        "inputs": _tensors(graph.inputs, graph.inputs_count, path),
        "outputs": _tensors(graph.outputs, graph.outputs_count, path),
        "vtcm_bytes": htp.vtcm_bytes,
        "optimization": htp.optimization,
        "spill_fill_bytes": htp.spill_fill_bytes,
    }


def _tensors(tensors: Any, count: int, path: str) -> list[dict[str, Any]]:
    if count > _MOST_TENSORS:
        raise _damaged(path, f"{count} tensors")
    return [_tensor(tensors[i].body, path) for i in range(count)]


def _tensor(body: TensorBody, path: str) -> dict[str, Any]:
    if body.rank > _MOST_DIMS:
        raise _damaged(path, f"a tensor of rank {body.rank}")
    quant = body.quant
    known = quant.definition == QUANT_DEFINED and quant.encoding == QUANT_SCALE_OFFSET
    return {
        "name": _text(body.name),
        "dtype": DTYPES.get(body.dtype, hex(body.dtype)),
        "dims": [body.dims[i] for i in range(body.rank)],
        "scale": quant.u.scale_offset.scale if known else None,
        "offset": quant.u.scale_offset.offset if known else None,
    }


def _provider(library: Path, symbol: str, kind: type[C.Structure]) -> Any:
    """The first provider of a library, as a structure of ``kind``."""
    get = getattr(C.CDLL(str(library)), symbol)
    get.restype = U64
    providers, count = C.POINTER(C.POINTER(kind))(), U32()
    _check(get(C.byref(providers), C.byref(count)), symbol)
    if not count.value:
        raise QnnError(f"{library.name} offers no interface", where=str(library), fix="reinstall onnxruntime-qnn")
    return providers[0].contents


def _check(error: int, call: str) -> None:
    if error:
        raise QnnError(f"{call} failed", found=f"error {error & 0xFFFF}", fix="reinstall onnxruntime-qnn")


def _damaged(path: str, found: str) -> QnnError:
    return QnnError(
        "the context binary's description of itself makes no sense",
        where=path,
        found=found,
        fix="compile it again, or fetch it again and compare its SHA-256",
    )


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")
