"""``answer.bin`` written and read: `hvdc.artifact.answer_records` says what lies in it. It is small, and read whole."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from hvdc.artifact.answer_records import (
    ALIGN_BYTES,
    ANSWER,
    HEADER,
    LARGEST_UNIT,
    MAGIC,
    MAX_ANSWERS,
    MAX_TOKENS,
    MIDDLE,
    MODULUS,
    MULTIPLIER,
    SHIFT,
    SMALLEST_UNIT,
    VALUE_BYTES,
    VERSION,
    AnswerEngine,
)
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.index_tables import Index
from layouts.regions import align_up

Float32Array = npt.NDArray[np.float32]

MAKE_ANEW = "hvdc runtime build --into ARTIFACT computes it anew"
_STORED: dict[AnswerEngine, np.dtype[Any]] = {AnswerEngine.NPU: np.dtype("<f4"), AnswerEngine.GPU: np.dtype("<f2")}


@dataclass(frozen=True)
class Grid:
    """Tokens of the executed block; channels; tokens of the text."""

    frames: int
    rows: int
    columns: int
    width: int
    text_tokens: int

    @property
    def tokens(self) -> int:
        return self.frames * self.rows * self.columns


@dataclass(frozen=True)
class Question:
    """A block execution and its made-up input; fields as those of the record."""

    engine: AnswerEngine
    step: int
    block: int
    hidden_seed: int
    text_seed: int
    hidden_unit: float
    text_unit: float
    limit: float

    def hidden(self, grid: Grid) -> Float32Array:
        """``[tokens][width]``."""
        return made_up(self.hidden_seed, self.hidden_unit, grid.tokens * grid.width).reshape(grid.tokens, -1)

    def text(self, grid: Grid) -> Float32Array:
        """``[text_tokens][width]``: the text as an expert projected it."""
        return made_up(self.text_seed, self.text_unit, grid.text_tokens * grid.width).reshape(grid.text_tokens, -1)


@dataclass(frozen=True)
class Answers:
    """All of the file. ``values``: of each question, float32 ``[tokens][width]``, the GPU's widened."""

    grid: Grid
    questions: tuple[Question, ...]
    values: tuple[Float32Array, ...]


def made_up(seed: int, unit: float, count: int) -> Float32Array:
    """The input's rule: float32 ``[count]``."""
    powers = np.array([seed], np.uint64)
    while len(powers) < count:  # the next len(powers) numbers are these times MULTIPLIER^len(powers)
        step = np.uint64(pow(MULTIPLIER, len(powers), MODULUS))
        powers = np.concatenate([powers, powers * step % np.uint64(MODULUS)])
    codes = (powers[:count] >> np.uint64(SHIFT)).astype(np.int64) - MIDDLE
    return codes.astype(np.float32) * np.float32(unit)


def answer_bytes(answers: Answers, index: Index) -> bytes:
    """The file, for the artifact of ``index``."""
    grid, count = answers.grid, len(answers.questions)
    table, payload = np.zeros(count, ANSWER.dtype), b""
    for row, question, values in zip(table, answers.questions, answers.values, strict=True):
        row["engine"] = int(question.engine)
        for name in ("step", "block", "hidden_seed", "text_seed", "hidden_unit", "text_unit", "limit"):
            row[name] = getattr(question, name)
        row["values_offset"] = HEADER.bytes + table.nbytes + len(payload)
        payload += np.ascontiguousarray(values, _STORED[question.engine]).tobytes()
        payload += bytes(align_up(len(payload), ALIGN_BYTES) - len(payload))
    header = np.zeros(1, HEADER.dtype)
    header["magic"][0] = np.frombuffer(MAGIC, np.uint8)
    header["version"], header["header_bytes"], header["answers"] = VERSION, HEADER.bytes, count
    header["total_bytes"] = HEADER.bytes + table.nbytes + len(payload)
    header["artifact_sha256"][0] = index.header["index_sha256"]
    for name in ("frames", "rows", "columns", "width", "text_tokens"):
        header[name] = getattr(grid, name)
    header["sha256"][0] = np.frombuffer(hashlib.sha256(header.tobytes() + table.tobytes() + payload).digest(), np.uint8)
    return header.tobytes() + table.tobytes() + payload


def read_answers(data: bytes, index: Index, where: str) -> Answers:
    """Check all of the file, and that it is of this artifact. Raises ArtifactError DATA_ANSWER.

    The C reader (``hvdc/answer_file.h``) makes the same checks in the same order.
    """
    header = _header(data, where)
    grid = _grid(header, index, where)
    count = int(header["answers"])
    start = HEADER.bytes + count * ANSWER.bytes
    if not 1 <= count <= MAX_ANSWERS or start > len(data):
        _refuse(where, f"1 to {MAX_ANSWERS} answers, and their records in the file", str(count))
    table = np.frombuffer(data, ANSWER.dtype, count, HEADER.bytes)
    questions: list[Question] = []
    values: list[Float32Array] = []
    at = start
    for i, row in enumerate(table):
        place = f"{where}: answer {i}"
        question = _question(row, index, place)
        if any((q.engine, q.step, q.block) == (question.engine, question.step, question.block) for q in questions):
            _refuse(place, "another block execution than those before", f"step {question.step} again")
        elements = grid.tokens * grid.width
        behind = at + elements * VALUE_BYTES[question.engine]
        end = align_up(behind, ALIGN_BYTES)
        if int(row["values_offset"]) != at or end > len(data):
            _refuse(place, f"values at {at}, within {len(data)} bytes", f"{int(row['values_offset'])} to {end}")
        held = np.frombuffer(data, _STORED[question.engine], elements, at).astype(np.float32)
        if not np.isfinite(held).all():
            _refuse(place, "finite values", f"value {int(np.argmin(np.isfinite(held)))} is not")
        if any(data[behind:end]):
            _refuse(place, "zeros behind its values", data[behind:end].hex(" "))
        questions.append(question)
        values.append(held.reshape(grid.tokens, grid.width))
        at = end
    if at != len(data):
        _refuse(where, f"the end at {at}, behind the last value", f"{len(data)} bytes")
    return Answers(grid, tuple(questions), tuple(values))


def _header(data: bytes, where: str) -> np.void:
    if len(data) < HEADER.bytes:
        _refuse(where, f"at least {HEADER.bytes} bytes", str(len(data)))
    header: np.void = np.frombuffer(data, HEADER.dtype, 1)[0]
    if header["magic"].tobytes() != MAGIC:
        _refuse(where, "a file that begins with HVDCANS", repr(header["magic"].tobytes()))
    due = {"version": VERSION, "header_bytes": HEADER.bytes, "total_bytes": len(data)}
    for name, value in due.items():
        if int(header[name]) != value:
            _refuse(where, f"{name} {value}", str(int(header[name])))
    at = HEADER.offset("sha256")
    digest = hashlib.sha256(data[:at] + bytes(32) + data[at + 32 :]).hexdigest()
    if digest != header["sha256"].tobytes().hex():
        _refuse(where, f"SHA-256 {header['sha256'].tobytes().hex()}", digest)
    return header


def _grid(header: np.void, index: Index, where: str) -> Grid:
    own = index.header["index_sha256"].tobytes().hex()
    if header["artifact_sha256"].tobytes().hex() != own:
        _refuse(where, f"the answer of this artifact, index_sha256 {own}", header["artifact_sha256"].tobytes().hex())
    grid = Grid(*(int(header[name]) for name in ("frames", "rows", "columns", "width", "text_tokens")))
    if not (1 <= grid.tokens <= MAX_TOKENS):
        _refuse(where, f"1 to {MAX_TOKENS} tokens", f"{grid.frames} x {grid.rows} x {grid.columns}")
    for name in ("width", "text_tokens"):
        if getattr(grid, name) != int(index.geometry[name]):
            _refuse(where, f"{name} {int(index.geometry[name])}", str(getattr(grid, name)))
    return grid


def _question(row: np.void, index: Index, where: str) -> Question:
    engine, step, block = (int(row[name]) for name in ("engine", "step", "block"))
    if engine not in tuple(AnswerEngine) or (engine == AnswerEngine.GPU and index.calibration is None):
        _refuse(where, "an engine that can execute the artifact", str(engine))
    steps, layers = len(index.steps), int(index.geometry["layers"])
    if step >= steps or block >= layers:
        _refuse(where, f"one of {steps} steps and {layers} blocks", f"step {step}, block {block}")
    seeds = [int(row[name]) for name in ("hidden_seed", "text_seed")]
    if not all(1 <= seed < MODULUS for seed in seeds):
        _refuse(where, f"seeds from 1 to {MODULUS - 1}", f"{seeds[0]}, {seeds[1]}")
    units = [float(row[name]) for name in ("hidden_unit", "text_unit")]
    if not all(SMALLEST_UNIT <= unit <= LARGEST_UNIT and math.frexp(unit)[0] == 0.5 for unit in units):
        _refuse(where, "units that are powers of two, 2^-24 to 2^4", f"{units[0]:g}, {units[1]:g}")
    limit = float(row["limit"])
    if not 0.0 <= limit <= 1.0 or int(row["reserved"]) != 0:
        _refuse(where, "a limit from 0 to 1, and 0 in reserved", f"{limit:g}, {int(row['reserved'])}")
    return Question(AnswerEngine(engine), step, block, seeds[0], seeds[1], units[0], units[1], limit)


def _refuse(where: str, expected: str, found: str) -> NoReturn:
    raise ArtifactError(Code.DATA_ANSWER, where=where, expected=expected, found=found, fix=MAKE_ANEW)
