"""The records and kinds of a decoder's sections of ``index.bin``, which came with version 1.2; binaries with 1.3."""

from __future__ import annotations

from enum import IntEnum

from hvdc.artifact.record import MAX_DIMS, Field, Record

MAX_DECODER_GRAPHS = 64
"""A reader refuses more: it looks for two of one name by comparing all pairs."""

MAX_DECODER_PORTS = 1024
"""A reader refuses more, of all graphs together: it looks for a cache's writer by comparing names."""

FRAME_CHANNELS = 3
"""Of a frame: red, green and blue."""

GRAPH_PATTERN = r"[A-Za-z][A-Za-z0-9_-]*"
"""What the name of a graph looks like."""

GRAPH_LIMIT = 64
"""Longest name of a graph, in bytes."""

PRINTABLE_PATTERN = r"[!-~]+"
"""What a compiler may have called a graph within its binary, or itself: it is not ours to say."""


class DecoderBackend(IntEnum):
    """Who compiled the graphs. A name in lower case is the configuration's, and the manifest's."""

    ONNX = 1
    """Nobody: there are no binaries."""
    QNN = 2
    AIHUB = 3


class DecoderVariant(IntEnum):
    """Which latent frames of a tile a graph decodes."""

    FIRST = 1
    LATER = 2


class PortDType(IntEnum):
    """What a graph reads or writes. A name in lower case is the manifest's, and numpy's."""

    UINT8 = 1
    UINT16 = 2


DECODER = Record(
    "hvdc_decoder",
    "The VAE's decoder; one record, in artifacts with a decoder only.",
    (
        Field("backend", "u32", "enum hvdc_decoder_backend"),
        Field("graphs", "u32", "graphs, at least 2"),
        Field("ports", "u32", "inputs and outputs of all graphs"),
        Field("binaries", "u32", "context binaries; 0 exactly with backend ONNX"),
        Field("encodings", "u32", "tensor id of the encodings (JSON), which a runtime does not need"),
        Field("channels", "u32", "channels of a latent, as many as out_channels"),
        Field("tile_rows", "u32", "rows of a tile, latent pixels; at most those of the latent"),
        Field("tile_columns", "u32", "columns of a tile, latent pixels; the same"),
        Field("overlap_rows", "u32", "least overlap of tiles, latent pixels; at most half of tile_rows"),
        Field("overlap_columns", "u32", "the same of columns"),
        Field("spatial_scale", "u32", "rows and columns of pixels to one of latent pixels"),
        Field("temporal_scale", "u32", "frames to a latent frame; the first one gives 1"),
        Field("bytes", "u64", "bytes of tensors of kind DECODER"),
    ),
)

DECODER_GRAPH = Record(
    "hvdc_decoder_graph",
    "A graph of the decoder. Those of variant FIRST come first; graphs of a variant run in their order.",
    (
        Field("name", "u32", "string: name of the graph"),
        Field("variant", "u32", "enum hvdc_decoder_variant"),
        Field("model", "u32", "tensor id of its ONNX model"),
        Field("binary", "u32", "tensor id of the binary that holds it, or HVDC_NONE; graphs may share one"),
        Field("name_in_binary", "u32", "string: what a runtime asks the binary for, or HVDC_NONE"),
        Field("first_port", "u32", "index of its first port: inputs, then outputs"),
        Field("inputs", "u32", "inputs, at least 1; 1 if FIRST"),
        Field("outputs", "u32", "outputs, at least 1"),
        Field("vtcm_bytes", "u64", "what the binary takes of VTCM for it; 0 without a binary"),
        Field("spill_fill_bytes", "u64", "its spill-fill buffer in DDR; 0 without a binary"),
        Field("optimization", "u32", "level that it was compiled at, 1 to 3; 0 without a binary"),
        Field("reserved", "u32", "0"),
    ),
)

DECODER_PORT = Record(
    "hvdc_decoder_port",
    "An input or output of a graph: real = (code - zero_point) * scale.",
    (
        Field("name", "u32", "string: canonical name"),
        Field("dtype", "u32", "enum hvdc_port_dtype"),
        Field("dims", "u32", "dimensions, 1 to 5"),
        Field("zero_point", "u32", "a code of the dtype"),
        Field("scale", "f32", "finite, at least 2^-126"),
        Field("shape", "u32", "unused entries 0; row-major, unpadded", MAX_DIMS),
    ),
)

DECODER_BINARY = Record(
    "hvdc_decoder_binary",
    "A context binary of the decoder: what it was compiled for, and by which build. In the order of their ids.",
    (
        Field("binary", "u32", "tensor id of the file"),
        Field("build_id", "u32", "string: the compiler's build, as v2.51.0.260929181845"),
        Field("soc", "u32", "QNN's number of the SoC: 69 is SM8750"),
        Field("arch", "u32", "architecture of the Hexagon NPU: 79 is V79"),
    ),
)
