"""What can be wrong with an artifact: one numbered code per fault, the same in Python and in C.

A reader reports the first fault in the order of its checks; both readers check in the same order
(docs/FORMAT.md, "Order of checks"), so both report the same code for the same file. The C enum is generated from this.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Fault codes. Numbers are never reused. 1–19: files; 20–49: index.bin; 50–69: data; 70–: manifest."""

    OK = 0
    IO = 1
    MISSING_FILE = 2
    FILE_SIZE = 3
    EXTRA_FILE = 4
    INDEX_TOO_SHORT = 20
    INDEX_MAGIC = 21
    INDEX_MAJOR = 22
    INDEX_SIZE = 23
    INDEX_CHECKSUM = 24
    INDEX_FEATURE = 25
    INDEX_SECTION = 26
    INDEX_STRING = 27
    INDEX_PATH = 28
    INDEX_NAME = 29
    INDEX_GEOMETRY = 30
    INDEX_FILE_RECORD = 31
    INDEX_TENSOR_RECORD = 32
    INDEX_TILE_ORDER = 33
    INDEX_DTYPE = 34
    INDEX_SHAPE = 35
    INDEX_OFFSET = 36
    INDEX_SCALE_LINK = 37
    INDEX_STEP_RECORD = 38
    INDEX_REGION_CAP = 39
    INDEX_TOTALS = 40
    INDEX_SCHEDULE = 41
    INDEX_CALIBRATION = 42
    INDEX_DECODER = 43
    DATA_HASH = 50
    DATA_PADDING = 51
    DATA_SCALE = 52
    DATA_MINUS_128 = 53
    DATA_NOT_FINITE = 54
    DATA_SOURCE = 55
    DATA_CALIBRATION = 56
    DATA_DECODER = 57
    DATA_RUNTIME = 58
    DATA_ANSWER = 59
    MANIFEST_HASH = 70
    MANIFEST_JSON = 71
    MANIFEST_SCHEMA = 72
    MANIFEST_INDEX = 73


MEANING: dict[Code, str] = {
    Code.OK: "no fault",
    Code.IO: "a file could not be read",
    Code.MISSING_FILE: "a file that the artifact names is missing",
    Code.FILE_SIZE: "a file has another size than recorded",
    Code.EXTRA_FILE: "the directory holds a file that the artifact does not name",
    Code.INDEX_TOO_SHORT: "index.bin is shorter than its header",
    Code.INDEX_MAGIC: "index.bin does not start with the magic bytes",
    Code.INDEX_MAJOR: "the format's major version is not supported",
    Code.INDEX_SIZE: "index.bin has another size than its header says",
    Code.INDEX_CHECKSUM: "the checksum of index.bin does not match",
    Code.INDEX_FEATURE: "the artifact requires a feature that this reader does not know",
    Code.INDEX_SECTION: "a section of index.bin is out of range, overlaps, leaves a hole, or is missing",
    Code.INDEX_STRING: "a string reference is out of range or not valid text",
    Code.INDEX_PATH: "a file path is not canonical or leaves the directory",
    Code.INDEX_NAME: "a tensor name is not canonical or occurs twice",
    Code.INDEX_GEOMETRY: "the model's geometry is not possible",
    Code.INDEX_FILE_RECORD: "a file record is not possible",
    Code.INDEX_TENSOR_RECORD: "a tensor record is not possible",
    Code.INDEX_TILE_ORDER: "a tensor has a tile order that this reader does not know",
    Code.INDEX_DTYPE: "a tensor has a dtype that this reader does not know",
    Code.INDEX_SHAPE: "a tensor's shape, padded shape and bytes do not agree",
    Code.INDEX_OFFSET: "a tensor is misaligned, out of range, overlaps another or leaves a hole",
    Code.INDEX_SCALE_LINK: "a quantised tensor does not name a fitting scale",
    Code.INDEX_STEP_RECORD: "a step record is not possible",
    Code.INDEX_REGION_CAP: "a region is larger than the target can map",
    Code.INDEX_TOTALS: "a recorded total is not the sum of its parts",
    Code.INDEX_SCHEDULE: "the AdaLN or head table is missing or has another shape",
    Code.INDEX_CALIBRATION: "the calibration, a GEMM input or the table of activation scales is not possible",
    Code.INDEX_DECODER: "the decoder, one of its graphs or ports, or a file of it is not possible",
    Code.DATA_HASH: "a file's SHA-256 is not the recorded one",
    Code.DATA_PADDING: "padding holds something other than zeros (ones for scales)",
    Code.DATA_SCALE: "a scale is not finite and positive",
    Code.DATA_MINUS_128: "a quantised weight is -128",
    Code.DATA_NOT_FINITE: "a floating-point tensor holds NaN or Inf",
    Code.DATA_SOURCE: "a tensor disagrees with the checkpoint it was compared with",
    Code.DATA_CALIBRATION: "an activation scale or smoothing factor is not a number that an engine can use",
    Code.DATA_DECODER: "a decoder's graph or binary is not what the manifest says, or computes something else",
    Code.DATA_RUNTIME: "the runtime's folder is not what its own list says",
    Code.DATA_ANSWER: "the stored answer is malformed, of another artifact, or not what the weights give",
    Code.MANIFEST_HASH: "manifest.json is not the one that index.bin was made from",
    Code.MANIFEST_JSON: "manifest.json is not valid JSON",
    Code.MANIFEST_SCHEMA: "manifest.json does not follow the schema",
    Code.MANIFEST_INDEX: "index.bin is not what manifest.json gives",
}
