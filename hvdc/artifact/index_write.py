"""``index.bin`` written as a pure function of the manifest."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdc.artifact import records
from hvdc.artifact.calibration import Calibration
from hvdc.artifact.decoder import Decoder
from hvdc.artifact.decoder_records import DecoderBackend, DecoderVariant, PortDType
from hvdc.artifact.manifest import Manifest
from hvdc.artifact.record import Record
from hvdc.artifact.records import NONE, CalibrationMode, DType, Expert, FileKind, ScalePer, Section, TensorKind
from layouts.order import BY_NAME, ROW_MAJOR_ID
from layouts.regions import align_up

Table = npt.NDArray[np.void]
Payload = tuple[int, bytes, int, int]
"""A section: kind, bytes, count, record_bytes."""

_HASH_OFFSET = records.HEADER.offset("index_sha256")
HASH_FIELD = slice(_HASH_OFFSET, _HASH_OFFSET + 32)
"""Where ``index_sha256`` lies."""


class _Strings:
    def __init__(self) -> None:
        self.data = bytearray()
        self._at: dict[str, int] = {}

    def add(self, text: str | None) -> int:
        if text is None:
            return NONE
        if text not in self._at:
            self._at[text] = len(self.data)
            self.data += text.encode("ascii") + b"\0"
        return self._at[text]


def _row(record: Record, **values: Any) -> Table:
    row = np.zeros(1, record.dtype)
    with np.errstate(over="ignore"):  # a manifest may hold a number that FP32 does not: the reader refuses the Inf
        for name, value in values.items():
            row[name][0] = value
    return row


def _padded(shape: tuple[int, ...]) -> list[int]:
    return [*shape, *[0] * (records.MAX_DIMS - len(shape))]


def _expert(name: str | None) -> int:
    return int(Expert.SHARED if name is None else Expert[name.upper()])


def build_index(manifest: Manifest, manifest_bytes: bytes) -> bytes:
    """Bytes of ``index.bin`` for a manifest and the very bytes it is stored as."""
    strings = _Strings()
    ids = {tensor.name: i for i, (_, tensor) in enumerate(manifest.tensors())}
    files: list[Table] = []
    tensors: list[Table] = []
    for file_index, file in enumerate(manifest.files):
        files.append(
            _row(
                records.FILE,
                path=strings.add(file.path),
                kind=FileKind[file.kind.upper()],
                first_block=NONE if file.first_block is None else file.first_block,
                block_count=file.block_count,
                first_tensor=len(tensors),
                tensor_count=len(file.tensors),
                bytes=file.bytes,
                sha256=np.frombuffer(bytes.fromhex(file.sha256), np.uint8),
            )
        )
        for t in file.tensors:
            tensors.append(
                _row(
                    records.TENSOR,
                    name=strings.add(t.name),
                    linear=strings.add(t.linear),
                    file=file_index,
                    kind=TensorKind[t.kind.upper()],
                    dtype=DType[t.dtype.upper()],
                    tile_order=ROW_MAJOR_ID if t.tile_order == "row-major" else BY_NAME[t.tile_order].id,
                    block=NONE if t.block is None else t.block,
                    expert=_expert(t.expert),
                    scale=NONE if t.scale is None else ids[t.scale],
                    dims=len(t.shape),
                    shape=_padded(t.shape),
                    padded=_padded(t.padded_shape),
                    offset=t.offset,
                    bytes=t.bytes,
                )
            )
    steps = [
        _row(
            records.STEP,
            timestep=s.timestep,
            sigma=s.sigma,
            sigma_next=s.sigma_next,
            step_size=s.step_size,
            expert=_expert(s.expert),
        )
        for s in manifest.steps
    ]
    payloads: list[Payload] = [
        _payload(Section.GEOMETRY, [_geometry(manifest)]),
        _payload(Section.FILES, files),
        _payload(Section.TENSORS, tensors),
        _payload(Section.STEPS, steps),
    ]
    calibration: list[Payload] = []
    if manifest.calibration is not None:
        inputs = [
            _row(
                records.GEMM_INPUT,
                name=strings.add(i.name),
                per=ScalePer[i.per.upper()],
                experts=sum(1 << _expert(expert) for expert in set(i.experts)),
            )
            for i in manifest.calibration.inputs
        ]
        record = _calibration(manifest.calibration, ids[records.ACTIVATION_SCALES_NAME], manifest)
        calibration = [_payload(Section.CALIBRATION, [record]), _payload(Section.GEMM_INPUTS, inputs)]
    decoder = [] if manifest.decoder is None else _decoder(manifest.decoder, manifest, ids, strings)
    if manifest.decoder is not None and manifest.format.minor >= records.BINARIES_MINOR:
        decoder.append(_binaries(manifest.decoder, ids, strings))
    payloads.append((Section.STRINGS, bytes(strings.data), len(strings.data), 1))
    features = (records.FEATURE_CALIBRATION if calibration else 0) | (records.FEATURE_DECODER if decoder else 0)
    digest = hashlib.sha256(manifest_bytes).digest()
    return assemble([*payloads, *calibration, *decoder], digest, manifest.format.minor, features=features)


def _payload(kind: Section, rows: list[Table]) -> Payload:
    record = records.SECTION_RECORDS[kind]
    return kind, b"".join(row.tobytes() for row in rows), len(rows), record.bytes


def assemble(
    payloads: list[Payload],
    manifest_sha256: bytes,
    minor: int = records.MINOR,
    optional: frozenset[int] = frozenset(records.SECTION_MINOR),
    features: int = 0,
) -> bytes:
    """Lay out header, section table and sections; seal them with the checksum.

    A reader that does not know a kind in ``optional`` skips that section; of another kind, it refuses the file.
    """
    offset = records.HEADER.bytes + records.SECTION.bytes * len(payloads)
    table, body = [], bytearray()
    for kind, data, count, record_bytes in payloads:
        size = align_up(len(data), 8)
        table.append(
            _row(
                records.SECTION,
                kind=kind,
                flags=0 if kind in optional else records.SECTION_REQUIRED,
                offset=offset,
                bytes=size,
                count=count,
                record_bytes=record_bytes,
            )
        )
        body += data + bytes(size - len(data))
        offset += size
    header = _row(
        records.HEADER,
        magic=np.frombuffer(records.MAGIC, np.uint8),
        major=records.MAJOR,
        minor=minor,
        header_bytes=records.HEADER.bytes,
        total_bytes=offset,
        required_features=features,
        section_count=len(payloads),
        section_record_bytes=records.SECTION.bytes,
        manifest_sha256=np.frombuffer(manifest_sha256, np.uint8),
    )
    return seal(header.tobytes() + np.concatenate(table).tobytes() + bytes(body))


def seal(data: bytes) -> bytes:
    """Set ``index_sha256`` to the SHA-256 of the whole with that field zero."""
    blank = bytearray(data)
    blank[HASH_FIELD] = bytes(32)
    blank[HASH_FIELD] = hashlib.sha256(blank).digest()
    return bytes(blank)


def _geometry(m: Manifest) -> Table:
    g, totals = m.geometry, m.totals
    kinds = [getattr(totals, f"{kind.name.lower()}_bytes") for kind in list(TensorKind)[: records.GEOMETRY_KINDS]]
    return _row(
        records.GEOMETRY,
        layers=g.layers,
        width=g.width,
        ffn_width=g.ffn_width,
        heads=g.heads,
        text_width=g.text_width,
        text_tokens=g.text_tokens,
        in_channels=g.in_channels,
        out_channels=g.out_channels,
        patch=g.patch,
        rope_dims=g.rope_axis_dims,
        rank=g.rank,
        experts=len(m.experts),
        steps=len(m.steps),
        frames=m.video.frames,
        height=m.video.height,
        video_width=m.video.width,
        latent=m.video.latent,
        tokens=m.video.tokens,
        eps=g.eps,
        region_cap_bytes=m.target.region_cap_bytes,
        kind_bytes=kinds,
        data_bytes=totals.data_bytes,
    )


def _calibration(c: Calibration, table: int, m: Manifest) -> Table:
    return _row(
        records.CALIBRATION,
        table=table,
        mode=CalibrationMode[c.mode.replace("-", "_").upper()],
        flags=records.CALIBRATION_OTHER_GEOMETRY if c.other_geometry else 0,
        inputs=len(c.inputs),
        frames=c.video.frames,
        height=c.video.height,
        video_width=c.video.width,
        smoothed_sites=len(c.smoothing.sites) if c.smoothing is not None else 0,
        percentile=0.0 if c.percentile is None else c.percentile,
        bytes=m.totals.calibration_bytes,
    )


def _decoder(d: Decoder, m: Manifest, ids: dict[str, int], strings: _Strings) -> list[Payload]:
    """The three sections of a decoder."""
    binaries = {held.graph: (binary.binary, held) for binary in d.binaries for held in binary.graphs}
    graphs: list[Table] = []
    ports: list[Table] = []
    for graph in d.graphs:
        binary, held = binaries.get(graph.name, (None, None))
        graphs.append(
            _row(
                records.DECODER_GRAPH,
                name=strings.add(graph.name),
                variant=DecoderVariant[graph.variant.upper()],
                model=ids[graph.model],
                binary=NONE if binary is None else ids[binary],
                name_in_binary=strings.add(None if held is None else held.name_in_binary),
                first_port=len(ports),
                inputs=len(graph.inputs),
                outputs=len(graph.outputs),
                vtcm_bytes=0 if held is None else held.vtcm_bytes,
                spill_fill_bytes=0 if held is None else held.spill_fill_bytes,
                optimization=0 if held is None else held.optimization,
            )
        )
        ports += [
            _row(
                records.DECODER_PORT,
                name=strings.add(port.name),
                dtype=PortDType[port.dtype.upper()],
                dims=len(port.shape),
                zero_point=port.zero_point,
                scale=port.scale,
                shape=_padded(port.shape),
            )
            for port in (*graph.inputs, *graph.outputs)
        ]
    record = _row(
        records.DECODER,
        backend=DecoderBackend[d.backend.upper()],
        graphs=len(graphs),
        ports=len(ports),
        binaries=len(d.binaries),
        encodings=ids[d.encodings],
        channels=len(d.latents_mean),
        tile_rows=d.tiles.rows,
        tile_columns=d.tiles.columns,
        overlap_rows=d.tiles.overlap_rows,
        overlap_columns=d.tiles.overlap_columns,
        spatial_scale=d.spatial_scale,
        temporal_scale=d.temporal_scale,
        bytes=m.totals.decoder_bytes,
    )
    return [
        _payload(Section.DECODER, [record]),
        _payload(Section.DECODER_GRAPHS, graphs),
        _payload(Section.DECODER_PORTS, ports),
    ]


def _binaries(d: Decoder, ids: dict[str, int], strings: _Strings) -> Payload:
    """What each binary was compiled for."""
    rows = [
        _row(
            records.DECODER_BINARY,
            binary=ids[binary.binary],
            build_id=strings.add(binary.build_id),
            soc=binary.soc,
            arch=binary.arch,
        )
        for binary in d.binaries
    ]
    return _payload(Section.DECODER_BINARIES, rows)
