"""The binary records of ``index.bin``, described once.

From these descriptions come the numpy dtypes that Python reads and writes, the C structs with their ``static_assert``s
(`hvdc.artifact.c_header`) and the tables of docs/FORMAT.md. All numbers are little-endian; structs have no implicit
padding: every field lies at a multiple of its size. Those of a decoder are in `hvdc.artifact.decoder_records`.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from hvdc.artifact.decoder_records import (
    DECODER,
    DECODER_BINARY,
    DECODER_GRAPH,
    DECODER_PORT,
    DecoderBackend,
    DecoderVariant,
    PortDType,
)
from hvdc.artifact.record import MAX_DIMS, Field, Record

MAGIC = b"HVDCIDX\x00"
MAJOR = 1
MINOR = 3
CALIBRATION_MINOR = 1
"""The first minor version whose artifacts may be calibrated."""

DECODER_MINOR = 2
"""The first minor version whose artifacts may hold a decoder."""

BINARIES_MINOR = 3
"""The first minor version whose index says what a decoder's binaries were compiled for."""

FEATURE_CALIBRATION = 1
"""Bit of ``required_features``: there are a file of kind CALIBRATION and the sections that describe it."""

FEATURE_DECODER = 2
"""Bit of ``required_features``: there are files of kind DECODER and the sections that describe them."""

KNOWN_FEATURES = FEATURE_CALIBRATION | FEATURE_DECODER
"""Bits of ``required_features`` that this reader understands. None are defined in 1.0."""

NONE = 0xFFFFFFFF
"""'No such index' in 32-bit index fields."""

MAX_INDEX_BYTES = 256 << 20
"""A reader refuses a larger index.bin: the full-size model's is about 270 KB."""

MAX_SECTIONS = 64
"""A reader refuses more: it looks for two sections of one kind by comparing all pairs."""

TEXT_LIMIT = 200
"""Longest path or tensor name, in bytes."""

NAME_PATTERN = r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*"
"""What a tensor name, and a linear's, looks like."""

PATH_PATTERN = r"[a-z0-9_-]+/[a-z0-9_-]+(\.[a-z0-9_-]+)*"
"""Relative, one folder deep, lower case: no '..', not absolute, no backslash, no drive letter, no case collision."""

ADALN_NAME = "schedule.adaln"
"""FP32 ``[steps, layers, 6, width]``; every artifact has it."""

HEAD_NAME = "schedule.head"
"""FP32 ``[steps, 2, width]``; every artifact has it."""

ACTIVATION_SCALES_NAME = "calibration.activation_scales"
"""FP32 ``[steps, layers, inputs]``; a calibrated artifact has it."""

SMOOTHING_PREFIX = "calibration.smooth."
"""Followed by a site: FP32 ``[layers, channels]``."""

MAX_GEMM_INPUTS = 256
"""A reader refuses more: it looks for two of one name by comparing all pairs."""

SMALLEST_NORMAL = np.finfo(np.float32).smallest_normal
"""2⁻¹²⁶: no activation scale is below it, for engines may flush subnormal numbers to zero."""


class Section(IntEnum):
    """Kinds of sections. Numbers are never reused."""

    GEOMETRY = 1
    FILES = 2
    TENSORS = 3
    STEPS = 4
    STRINGS = 5
    CALIBRATION = 6
    GEMM_INPUTS = 7
    DECODER = 8
    DECODER_GRAPHS = 9
    DECODER_PORTS = 10
    DECODER_BINARIES = 11


class FileKind(IntEnum):
    REGION = 1
    ADAPTER = 2
    HOST = 3
    SCHEDULE = 4
    CALIBRATION = 5
    DECODER = 6


class TensorKind(IntEnum):
    """What a tensor counts as in the memory accounting."""

    ATTENTION_BASE = 1
    FFN_BASE = 2
    BASE_SCALE = 3
    ADAPTER = 4
    BLOCK_OTHER = 5
    HOST = 6
    SCHEDULE = 7
    CALIBRATION = 8
    DECODER = 9


GEOMETRY_KINDS = 7
"""Kinds of tensors whose bytes the geometry record holds: those of version 1.0. Other sections hold later ones'."""


FILE_HOLDS = {
    FileKind.REGION: (
        TensorKind.ATTENTION_BASE,
        TensorKind.FFN_BASE,
        TensorKind.BASE_SCALE,
        TensorKind.BLOCK_OTHER,
    ),
    FileKind.ADAPTER: (TensorKind.ADAPTER,),
    FileKind.HOST: (TensorKind.HOST,),
    FileKind.SCHEDULE: (TensorKind.SCHEDULE,),
    FileKind.CALIBRATION: (TensorKind.CALIBRATION,),
    FileKind.DECODER: (TensorKind.DECODER,),
}
"""Which kinds of tensors a kind of file holds."""


class DType(IntEnum):
    """What an element is. A name in lower case is the manifest's, and numpy's."""

    INT8 = 1
    FLOAT32 = 2
    FLOAT64 = 3
    UINT8 = 4
    """Bytes of an opaque file, and nothing else."""


DTYPE_BYTES = {dtype: np.dtype(dtype.name.lower()).itemsize for dtype in DType}


class Expert(IntEnum):
    """Whom a tensor or a step belongs to. SHARED is for tensors only."""

    SEMANTIC = 0
    DETAIL = 1
    SHARED = 2


class CalibrationMode(IntEnum):
    """How scales were chosen from what calibration saw."""

    GLOBAL = 1
    PER_STEP = 2
    PERCENTILE = 3
    MSE = 4


class ScalePer(IntEnum):
    """What a scale may vary with, beside the block."""

    STEP = 1
    EXPERT = 2


STRING_DOC = "Strings are ASCII, each ended by a zero byte; a reference is the byte offset of a string's first byte."

SECTION_REQUIRED = 1
"""Flag of a section that a reader must understand; unknown sections without it are skipped by size."""

HEADER = Record(
    "hvdc_header",
    "First bytes of index.bin.",
    (
        Field("magic", "u8", "'HVDCIDX', 0", 8),
        Field("major", "u16", "a reader refuses another major version"),
        Field("minor", "u16", "a newer minor version adds sections or appends fields; older readers skip them"),
        Field("header_bytes", "u32", "size of this header; the section table follows it"),
        Field("total_bytes", "u64", "size of index.bin"),
        Field("required_features", "u64", "a reader refuses bits that it does not know"),
        Field("section_count", "u32", "entries of the section table"),
        Field("section_record_bytes", "u32", "size of an entry of the section table"),
        Field("manifest_sha256", "u8", "SHA-256 of manifest.json", 32),
        Field("index_sha256", "u8", "SHA-256 of index.bin with these 32 bytes zero", 32),
    ),
)

SECTION = Record(
    "hvdc_section",
    "An entry of the section table. Sections follow the table in order, each at a multiple of 8, without holes.",
    (
        Field("kind", "u32", "enum hvdc_section_kind"),
        Field("flags", "u32", "bit 0: a reader must know this kind"),
        Field("offset", "u64", "from the start of index.bin"),
        Field("bytes", "u64", "count * record_bytes, rounded up to a multiple of 8"),
        Field("count", "u32", "records; for strings, bytes"),
        Field("record_bytes", "u32", "size of one record; larger than known means appended fields"),
    ),
)

GEOMETRY = Record(
    "hvdc_geometry",
    "The model, the video and the accounting; one record.",
    (
        Field("layers", "u32", "DiT blocks"),
        Field("width", "u32", "channels of the residual stream"),
        Field("ffn_width", "u32", "channels between the feed-forward pair"),
        Field("heads", "u32", "attention heads; width / heads channels each"),
        Field("text_width", "u32", "channels of a prompt embedding"),
        Field("text_tokens", "u32", "tokens of a prompt, all attended"),
        Field("in_channels", "u32", "latent channels in"),
        Field("out_channels", "u32", "latent channels out"),
        Field("patch", "u32", "frames, rows, columns of latent per token", 3),
        Field("rope_dims", "u32", "channels of a head rotated by frame, row, column position", 3),
        Field("rank", "u32", "rank of the adapter; 0 if there is one expert"),
        Field("experts", "u32", "1 or 2"),
        Field("steps", "u32", "denoising steps"),
        Field("frames", "u32", "frames of the video"),
        Field("height", "u32", "rows of the video, pixels"),
        Field("video_width", "u32", "columns of the video, pixels"),
        Field("latent", "u32", "latent frames, rows, columns", 3),
        Field("tokens", "u32", "tokens of a step"),
        Field("eps", "f64", "epsilon of every norm"),
        Field("region_cap_bytes", "u64", "largest region that the target maps"),
        Field("kind_bytes", "u64", "bytes of tensors by kind: enum hvdc_tensor_kind - 1", GEOMETRY_KINDS),
        Field("data_bytes", "u64", "bytes of all data files"),
    ),
)

FILE = Record(
    "hvdc_file",
    "A data file. Its tensors are a contiguous range of the tensor table, in order of offset.",
    (
        Field("path", "u32", "string: relative path with '/'"),
        Field("kind", "u32", "enum hvdc_file_kind"),
        Field("first_block", "u32", "first block that it holds, or HVDC_NONE"),
        Field("block_count", "u32", "blocks that it holds"),
        Field("first_tensor", "u32", "index of its first tensor"),
        Field("tensor_count", "u32", "tensors, at least 1"),
        Field("bytes", "u64", "size of the file; unless it is of kind DECODER, a multiple of the region granule"),
        Field("sha256", "u8", "SHA-256 of the file", 32),
    ),
)

TENSOR = Record(
    "hvdc_tensor",
    "A tensor. Its id is its index in the table.",
    (
        Field("name", "u32", "string: canonical name"),
        Field("linear", "u32", "string: the linear it belongs to inside a block, or HVDC_NONE"),
        Field("file", "u32", "index of its file"),
        Field("kind", "u32", "enum hvdc_tensor_kind"),
        Field("dtype", "u32", "enum hvdc_dtype"),
        Field("tile_order", "u32", "tile order id; 0 is row-major"),
        Field("block", "u32", "block, or HVDC_NONE"),
        Field("expert", "u32", "enum hvdc_expert"),
        Field("scale", "u32", "id of the FP32 scale per output column of an INT8 tensor, or HVDC_NONE"),
        Field("dims", "u32", "dimensions, 1 to 5"),
        Field("shape", "u32", "logical shape, unused entries 0", MAX_DIMS),
        Field("padded", "u32", "stored shape, unused entries 0", MAX_DIMS),
        Field("offset", "u64", "from the start of the file"),
        Field("bytes", "u64", "stored bytes"),
    ),
)

STEP = Record(
    "hvdc_step",
    "A denoising step: x += v * step_size, v by the step's expert.",
    (
        Field("timestep", "f64", "timestep given to the time embedder"),
        Field("sigma", "f32", "noise level before the step"),
        Field("sigma_next", "f32", "noise level after it"),
        Field("step_size", "f32", "sigma_next - sigma"),
        Field("expert", "u32", "enum hvdc_expert, not SHARED"),
    ),
)

CALIBRATION = Record(
    "hvdc_calibration",
    "Where the activation scales are and what they come from; one record, in calibrated artifacts only.",
    (
        Field("table", "u32", "id of the activation scales: FP32 [steps, layers, inputs]"),
        Field("mode", "u32", "enum hvdc_calibration_mode"),
        Field("flags", "u32", "bit 0: the model was run at another size than the artifact's"),
        Field("inputs", "u32", "GEMM inputs, at least 1"),
        Field("frames", "u32", "frames of the videos that the model was run at"),
        Field("height", "u32", "their rows, pixels"),
        Field("video_width", "u32", "their columns, pixels"),
        Field("smoothed_sites", "u32", "tensors of smoothing factors, which a runtime does not need"),
        Field("percentile", "f64", "with mode PERCENTILE above 0, at most 100; else 0"),
        Field("bytes", "u64", "bytes of tensors of kind CALIBRATION"),
    ),
)

CALIBRATION_OTHER_GEOMETRY = 1
"""Flag of a calibration record."""

GEMM_INPUT = Record(
    "hvdc_gemm_input",
    "A GEMM input: a column of the activation scales. Its number is its index in the section.",
    (
        Field("name", "u32", "string: canonical name"),
        Field("per", "u16", "enum hvdc_scale_per"),
        Field("experts", "u16", "bit e: it exists in steps of enum hvdc_expert e"),
    ),
)

RECORDS = (
    HEADER, SECTION, GEOMETRY, FILE, TENSOR, STEP, CALIBRATION, GEMM_INPUT, DECODER, DECODER_GRAPH, DECODER_PORT,
    DECODER_BINARY,
)  # fmt: skip
SECTION_RECORDS = {
    Section.GEOMETRY: GEOMETRY,
    Section.FILES: FILE,
    Section.TENSORS: TENSOR,
    Section.STEPS: STEP,
    Section.CALIBRATION: CALIBRATION,
    Section.GEMM_INPUTS: GEMM_INPUT,
    Section.DECODER: DECODER,
    Section.DECODER_GRAPHS: DECODER_GRAPH,
    Section.DECODER_PORTS: DECODER_PORT,
    Section.DECODER_BINARIES: DECODER_BINARY,
}
SECTION_FEATURE = {
    Section.CALIBRATION: FEATURE_CALIBRATION,
    Section.GEMM_INPUTS: FEATURE_CALIBRATION,
    Section.DECODER: FEATURE_DECODER,
    Section.DECODER_GRAPHS: FEATURE_DECODER,
    Section.DECODER_PORTS: FEATURE_DECODER,
    Section.DECODER_BINARIES: FEATURE_DECODER,
}
"""Sections that are there exactly if their feature bit is set; all others are always there."""
SECTION_MINOR = {Section.DECODER_BINARIES: BINARIES_MINOR}
"""Sections that a minor version added to a feature: they are there from it on, and older readers skip them."""

ENUMS: tuple[type[IntEnum], ...] = (
    Section, FileKind, TensorKind, DType, Expert, CalibrationMode, ScalePer, DecoderBackend, DecoderVariant, PortDType
)  # fmt: skip
