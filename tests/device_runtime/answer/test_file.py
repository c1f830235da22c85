"""The stored answer as a file: the same for the same weights; malformed ones are refused by both readers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.artifact.answer import made_up, read_answers
from hvdc.artifact.answer_records import (
    ALIGN_BYTES,
    ANSWER,
    HEADER,
    MIDDLE,
    MODULUS,
    MULTIPLIER,
    VALUE_BYTES,
    AnswerEngine,
)  # fmt: skip
from hvdc.artifact.codes import Code
from hvdc.artifact.errors import ArtifactError
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.answer import grid_of, questions_of, stored_answer
from hvdc.progress import Silent
from layouts.regions import align_up
from tests import calibrations
from tests.answers import edited, header_of, owned, put, sealed, stored, table_of
from tests.calibrations import SHAPE
from tests.device_runtime.gpu_blocks import make_artifact
from tests.device_runtime.programs import Checker


@given(st.integers(1, MODULUS - 1), st.integers(0, 600))
def test_the_input_is_the_generators(seed: int, count: int) -> None:
    state, due = seed, []
    for _ in range(count):
        due.append((state // 2**20 - MIDDLE) * 0.25)
        state = state * MULTIPLIER % MODULUS
    found = made_up(seed, 0.25, count)
    np.testing.assert_array_equal(found, np.array(due, np.float32))
    np.testing.assert_array_equal(found.astype(np.float16).astype(np.float32), found)


def test_the_text_fills_the_range_of_its_codes(small: Path) -> None:
    with open_artifact(small) as artifact:
        grid = grid_of(artifact)
        scales = artifact.manifest.calibration
        assert scales is not None
        column = [i.name for i in scales.inputs].index("attn2.text")
        table = artifact.tensor("calibration.activation_scales")
        for question in questions_of(artifact):
            largest = np.abs(question.text(grid)).max() / table[question.step, question.block, column]
            assert 60 < largest <= 127


def test_the_same_weights_have_the_same_answer(small: Path) -> None:
    with open_artifact(small) as artifact:
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(threads % 2 + 1)
            assert stored_answer(artifact, Silent()) == stored(small)
        finally:
            torch.set_num_threads(threads)


def field(name: str, value: object) -> Callable[[bytearray], object]:
    return lambda data: header_of(data).__setitem__(name, value)


def of_record(name: str, value: object, record: int = 1) -> Callable[[bytearray], object]:
    return lambda data: table_of(data)[name].__setitem__(record, value)


def twice(data: bytearray) -> None:
    table = table_of(data)
    for name in ("engine", "step", "block"):
        table[name][2] = table[name][0]


def not_finite(engine: AnswerEngine) -> Callable[[bytearray], None]:
    def edit(data: bytearray) -> None:
        at = next(int(row["values_offset"]) for row in table_of(data) if row["engine"] == engine)
        data[at : at + 4] = b"\xff\xff\xff\xff" if engine == AnswerEngine.NPU else b"\x00\x7c\x00\x00"

    return edit


MALFORMED: dict[str, Callable[[bytearray], object]] = {
    "another magic": field("magic", 0),
    "another version": field("version", 2),
    "another header": field("header_bytes", 120),
    "of another artifact": field("artifact_sha256", 7),
    "no frames": field("frames", 0),
    "too many rows": field("rows", 1025),
    "tokens that overflow": lambda data: [field(n, 2**16)(data) for n in ("frames", "rows")],
    "another width": field("width", SHAPE.width - 1),
    "another text": field("text_tokens", 7),
    "no answers": field("answers", 0),
    "too many answers": field("answers", 17),
    "more answers than records": field("answers", 5),
    "one answer fewer": field("answers", 3),
    "an unknown engine": of_record("engine", 3),
    "engine 0": of_record("engine", 0),
    "a step that is not there": of_record("step", 6),
    "a block that is not there": of_record("block", 2**32 - 1),
    "seed 0": of_record("hidden_seed", 0),
    "a seed beyond": of_record("text_seed", 2**31 - 1),
    "a unit that is no power of two": of_record("hidden_unit", 0.3),
    "a unit of 0": of_record("text_unit", 0.0),
    "a negative unit": of_record("text_unit", -1.0),
    "a unit that is NaN": of_record("text_unit", np.nan),
    "a large unit": of_record("hidden_unit", 32.0),
    "a tiny unit": of_record("hidden_unit", 2.0**-25),
    "a negative limit": of_record("limit", -0.1),
    "a limit that is NaN": of_record("limit", np.nan),
    "a limit above 1": of_record("limit", 1.5),
    "reserved is used": of_record("reserved", 1),
    "the same twice": twice,
    "values elsewhere": of_record("values_offset", 8),
    "values beyond the end": of_record("values_offset", 2**63, 3),
    "the NPU's NaN": not_finite(AnswerEngine.NPU),
    "the GPU's infinity": not_finite(AnswerEngine.GPU),
    "something behind": lambda data: data.extend(bytes(8)),
    "cut short": lambda data: data.__delitem__(slice(-8, None)),
    "a header only": lambda data: data.__delitem__(slice(HEADER.bytes, None)),
    "less than a header": lambda data: data.__delitem__(slice(HEADER.bytes - 1, None)),
}


def python_refuses(root: Path) -> bool:
    with open_artifact(root) as artifact:
        try:
            read_answers(stored(root), artifact.index, "answer.bin")
        except ArtifactError as error:
            return error.code == Code.DATA_ANSWER and "hvdc runtime build --into" in str(error)
    return False


def test_a_right_file_is_read(small: Path, checker: Checker) -> None:
    assert checker.answer(small) == ""
    assert not python_refuses(small)


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_by_both_readers(case: str, copy: Path, checker: Checker) -> None:
    data = bytearray(stored(copy))
    MALFORMED[case](data)
    put(copy, bytes(data) if len(data) < HEADER.bytes else sealed(data))
    assert python_refuses(copy)
    assert "hvdc runtime build --into" in checker.answer(copy)


def test_a_long_path_leaves_room_for_the_reason(small: Path, checker: Checker, tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 250) / ("y" * 250)
    shutil.copytree(small, deep)
    data = bytearray(stored(deep))
    MALFORMED["no answers"](data)
    put(deep, sealed(data))
    said = checker.answer(deep)
    assert "/runtime/answer.bin: 0 answers, expected 1 to 16, and their records in the file; `hvdc runtime" in said


def test_a_gap_that_is_not_zero(tmp_path: Path, checker: Checker) -> None:
    """40 tokens leave none; one of 138 channels in FP16 does."""
    artifact = make_artifact(tmp_path, replace(SHAPE, width=138, heads=1, ffn_width=200, rank=5))

    def one_token(data: bytearray) -> None:
        header_of(data)["frames"], header_of(data)["rows"], header_of(data)["columns"] = 1, 1, 1
        table = table_of(data).copy()
        at = HEADER.bytes + table.nbytes
        for row in table:
            size = 138 * VALUE_BYTES[AnswerEngine(int(row["engine"]))]
            row["values_offset"] = at
            at += align_up(size, ALIGN_BYTES)
        data[HEADER.bytes :] = table.tobytes() + bytes(at - HEADER.bytes - table.nbytes)

    edited(artifact, one_token)
    assert checker.answer(artifact) == ""
    assert not python_refuses(artifact)
    data = bytearray(stored(artifact))
    data[-1] = 1
    put(artifact, sealed(data))
    assert "no zeros behind" in checker.answer(artifact)
    assert python_refuses(artifact)


def test_a_gpus_answer_of_an_uncalibrated_artifact(
    watched_checkpoint: Path, small: Path, checker: Checker, tmp_path: Path
) -> None:
    artifact = tmp_path / "uncalibrated.hvdc"
    assert calibrations.run_compile(watched_checkpoint, artifact, "-q").status == 0
    own = stored(artifact)
    assert [int(row["engine"]) for row in table_of(bytearray(own))] == [AnswerEngine.NPU] * 2
    put(artifact, stored(small))
    owned(artifact)
    assert "cannot execute the artifact" in checker.answer(artifact)
    assert python_refuses(artifact)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_flipped_bit_anywhere_is_found(small: Path, data: st.DataObject) -> None:
    whole = bytearray(stored(small))
    at = data.draw(st.one_of(st.integers(0, HEADER.bytes + 4 * ANSWER.bytes), st.integers(0, len(whole) - 1)))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    with open_artifact(small) as artifact, pytest.raises(ArtifactError):
        read_answers(bytes(whole), artifact.index, "answer.bin")
