"""The records of ``answer.bin``: what blocks of an artifact must give on a made-up input, to try devices with.

Header, then one record for each answer, then their values, each from a multiple of 8 bytes on, the gaps zero. An
answer is one block execution on one engine, on tokens of the grid ``frames × rows × columns``: hidden state
``[tokens][width]``, float32 of the NPU's, float16 of the GPU's, as each engine keeps it between blocks.

The input is not stored, for it follows from a seed: with ``x_0 = seed`` and ``x_(i+1) = 48271 · x_i mod (2^31 − 1)``,
Park and Miller's minimal standard, value i is ``(floor(x_i / 2^20) − 1024) · unit``. A unit is a power of two, so that
every value is one of FP16. The hidden state ``[tokens][width]`` has one seed and unit, the projected text
``[text_tokens][width]`` others.

The NPU's answer is by exact sums: `quant.paths.exact`.
"""

from __future__ import annotations

from enum import IntEnum

from hvdc.artifact.record import Field, Record

ANSWER_NAME = "answer.bin"
MAGIC = b"HVDCANS\x00"
VERSION = 1
ALIGN_BYTES = 8
MAX_ANSWERS = 16
MAX_TOKENS = 1024
"""A reader refuses more of either: a device is tried with few."""

MULTIPLIER, MODULUS, SHIFT, MIDDLE = 48271, 2**31 - 1, 20, 1024
"""Of the made-up input."""
SMALLEST_UNIT, LARGEST_UNIT = 2.0**-24, 2.0**4
"""Every value is a number of FP16, and none is large."""


class AnswerEngine(IntEnum):
    """Whose arithmetic an answer is of."""

    NPU = 1
    GPU = 2


VALUE_BYTES = {AnswerEngine.NPU: 4, AnswerEngine.GPU: 2}

HEADER = Record(
    "hvdc_answer_header",
    "First bytes of answer.bin.",
    (
        Field("magic", "u8", "'HVDCANS', 0", 8),
        Field("version", "u32", "a reader refuses another one"),
        Field("header_bytes", "u32", "size of this header; the answers' records follow it"),
        Field("total_bytes", "u64", "size of answer.bin"),
        Field("sha256", "u8", "SHA-256 of answer.bin with these 32 bytes zero", 32),
        Field("artifact_sha256", "u8", "index_sha256 of the artifact whose weights gave the answers", 32),
        Field("frames", "u32", "of the grid of tokens, as rows and columns"),
        Field("rows", "u32", "at least 1, as all three"),
        Field("columns", "u32", "at least 1; the product is the number of tokens"),
        Field("width", "u32", "channels of the hidden state: the artifact's"),
        Field("text_tokens", "u32", "tokens of the text: the artifact's"),
        Field("answers", "u32", "at least 1"),
    ),
)

ANSWER = Record(
    "hvdc_answer",
    "One block execution and what it gives.",
    (
        Field("engine", "u32", "enum hvdc_answer_engine"),
        Field("step", "u32", "whose expert and tables are meant"),
        Field("block", "u32", "below the artifact's layers"),
        Field("hidden_seed", "u32", "1 to 2^31 - 2"),
        Field("text_seed", "u32", "1 to 2^31 - 2"),
        Field("hidden_unit", "f32", "a power of two, 2^-24 to 2^4"),
        Field("text_unit", "f32", "a power of two, 2^-24 to 2^4"),
        Field("reserved", "u32", "0"),
        Field("limit", "f64", "RMS of a difference / RMS of what the block changes, at most, where bits may differ"),
        Field("values_offset", "u64", "of its values, from the start of answer.bin"),
    ),
)

RECORDS = (HEADER, ANSWER)
ENUMS = (AnswerEngine,)
