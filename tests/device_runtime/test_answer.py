"""What `hvdc_bench --answer` finds: right engines give the stored answer, wrong ones do not.

Wrongs are of the kinds that a device may have: weights that are not where a kernel reads them, a part that is left out,
a rounding that is another one. They are made in the artifact, or in the numeric path that stores the answer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdc.artifact.answer import Float32Array, made_up, read_answers
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
from hvdc.artifact.manifest import TensorEntry
from hvdc.artifact.reader import open_artifact
from hvdc.pipeline.answer import COLUMNS, FRAMES, LIMITS, ROWS, computed, grid_of, questions_of, relative, stored_answer
from hvdc.progress import Silent
from layouts.grid import TileGrid, pack, unpack
from layouts.order import HMX_INT8_K4
from layouts.regions import align_up
from quant.gemms import LINEARS
from quant.paths.gpu import GpuArithmetic
from quant.paths.npu import NpuArithmetic
from tests import calibrations
from tests.answers import edited, header_of, owned, put, sealed, stored, table_of
from tests.artifacts import edit_tensor
from tests.calibrations import SHAPE
from tests.device_runtime.gpu_blocks import ODD_MODELS, make_artifact
from tests.device_runtime.programs import Checker
from tests.device_runtime.runs import REPORTS, SANITIZERS, why_no_gpu
from tests.exporters.models import Values

RIGHT, FAILED, USAGE, WRONG = 0, 1, 2, 6
TOKENS = FRAMES * ROWS * COLUMNS

needs_gpu = pytest.mark.skipif(bool(why_no_gpu()), reason=why_no_gpu() or "there is one")

ROW = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "engine": {"enum": ["npu", "gpu"]},
        "expert": {"enum": ["semantic", "detail"]},
        "step": {"type": "integer"},
        "block": {"type": "integer"},
        "values": {"type": "integer", "minimum": 1},
        "different": {"type": "integer", "minimum": 0},
        "max_abs": {"type": ["number", "null"]},
        "relative": {"type": ["number", "null"]},
        "decides": {"enum": ["bits", "limit"]},
        "limit": {"type": "number", "minimum": 0},
        "right": {"type": "boolean"},
    },
}
ROW["required"] = list(ROW["properties"])  # type: ignore[call-overload]


@dataclass(frozen=True)
class Answering:
    """``hvdc_bench --answer``, built with sanitizers."""

    program: Path
    kernels: Path

    def run(self, artifact: Path, *more: object) -> subprocess.CompletedProcess[str]:
        given = (self.program, artifact, "--answer", "--kernel-cache", self.kernels, *more)
        done = subprocess.run(
            [*map(str, given)], env={**os.environ, **SANITIZERS}, capture_output=True, text=True, check=False,
            timeout=120,
        )  # fmt: skip
        assert not any(report in done.stderr for report in REPORTS), done.stderr[-4000:]
        return done

    def rows(self, artifact: Path, engine: str, *more: object, status: int = RIGHT) -> list[dict[str, Any]]:
        done = self.run(artifact, "--engine", engine, "--json", *more)
        assert done.returncode == status, done.stderr
        report = json.loads(done.stdout)
        assert report["tokens"] == TOKENS
        assert report["right"] is (status == RIGHT)
        for row in report["answers"]:
            jsonschema.validate(row, ROW)
        rows: list[dict[str, Any]] = report["answers"]
        return rows


@pytest.fixture(scope="module")
def ask(programs: dict[str, Path], gpu_caches: Path) -> Answering:
    return Answering(programs["hvdc_bench"], gpu_caches / "ours")


def attending(model: Values) -> None:
    """Gains of norms near 1, as a trained model's: else all scores of attention are nearly the same."""
    for name in model:
        if ".norm" in name and name.endswith("weight"):
            model[name] += 1


@pytest.fixture(scope="module")
def small(embeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks, both experts, with activation scales. Tests change copies of it only."""
    folder = tmp_path_factory.mktemp("calibrated")
    checkpoint = calibrations.write_model(folder / "model", attending)
    calibration = calibrations.calibrated(checkpoint, embeds, folder / "c.safetensors")
    done = calibrations.run_compile(checkpoint, folder / "small.hvdc", "--calibration", calibration, "-q")
    assert done.status == 0, done.err
    return folder / "small.hvdc"


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "copy.hvdc"))


# --- right engines -------------------------------------------------------------------------------------------------


def test_exact_sums_give_the_answer_to_the_bit(ask: Answering, small: Path) -> None:
    rows = ask.rows(small, "npu", "--npu-sums", "exact")
    assert [(r["expert"], r["step"], r["block"], r["decides"]) for r in rows] == [
        ("semantic", 0, 0, "bits"), ("detail", 5, 1, "bits")
    ]  # fmt: skip
    assert [r["different"] for r in rows] == [0, 0]
    assert {r["values"] for r in rows} == {TOKENS * SHAPE.width}


def test_fast_sums_are_within_the_limit_and_not_the_same(ask: Answering, small: Path) -> None:
    rows = ask.rows(small, "npu")
    assert all(0 < r["relative"] <= r["limit"] == LIMITS[AnswerEngine.NPU] for r in rows)
    assert all(r["different"] and r["max_abs"] > 0 and r["decides"] == "limit" for r in rows)


@needs_gpu
def test_the_gpu_gives_the_answer_to_the_bit(ask: Answering, small: Path) -> None:
    rows = ask.rows(small, "both", "--npu-sums", "exact")
    assert [(r["engine"], r["different"]) for r in rows] == [("npu", 0), ("npu", 0), ("gpu", 0), ("gpu", 0)]
    assert {r["limit"] for r in rows} == {0, LIMITS[AnswerEngine.GPU]}


@pytest.mark.parametrize(
    "model", [*ODD_MODELS, "one expert"], ids=lambda name: str(name).replace(" ", "-").replace(",", "")
)
def test_sizes_that_fill_no_tile(ask: Answering, model: str, tmp_path: Path) -> None:
    geometry = ODD_MODELS.get(model, replace(SHAPE, rank=0, alpha_over_rank=0.0))
    artifact = make_artifact(tmp_path, geometry)
    rows = ask.rows(artifact, "npu" if why_no_gpu() else "both", "--npu-sums", "exact")
    assert {r["different"] for r in rows} == {0}
    assert len({r["expert"] for r in rows}) == (2 if geometry.rank else 1)


def test_the_engine_behind_fastrpc(ask: Answering, small: Path) -> None:
    """Through the stand-in of FastRPC's library, whose DSP is this machine: in shared memory, as in a run."""
    library = ask.program.with_name("libcdsprpc_stand_in.so")
    rows = ask.rows(small, "npu", "--npu", "dsp", "--fastrpc", library)
    assert all(r["relative"] <= r["limit"] and r["decides"] == "limit" for r in rows)


def test_people_get_a_table(ask: Answering, small: Path) -> None:
    lines = ask.run(small, "--engine", "npu", "--npu-sums", "exact").stdout.splitlines()
    assert lines[:2] == [lines[0], "NPU: portable, sums exact"]
    assert lines[2].split() == ["on", "expert", "step", "block", "different", "max", "abs", "relative", "limit"]
    assert [line.split()[0] + line.split()[-1] for line in lines[3:]] == ["npuright"] * 2


def test_options_without_effect_are_refused(ask: Answering, small: Path) -> None:
    for more in (("--tokens", 8), ("--qnn-libraries", "x")):
        done = ask.run(small, "--engine", "npu", *more)
        assert (done.returncode, f"{more[0]} has no effect with --answer" in done.stderr) == (USAGE, True)


# --- weights that are not where they should be ---------------------------------------------------------------------


def on_rows(change: Callable[[np.ndarray], None]) -> Callable[[bytearray, TensorEntry], None]:
    """An edit of a weight's codes ``[n, k]``."""

    def edit(data: bytearray, tensor: TensorEntry) -> None:
        codes = unpack(TileGrid(HMX_INT8_K4, *tensor.shape), np.frombuffer(bytes(data), np.int8)).copy()
        change(codes)
        data[:] = pack(HMX_INT8_K4, codes).tobytes()

    return edit


def exchange(codes: np.ndarray) -> None:
    codes[[5, 6]] = codes[[6, 5]]


def lose_a_page(data: bytearray, tensor: TensorEntry) -> None:
    data[:4096] = bytes(4096)


def half_a_scale(data: bytearray, tensor: TensorEntry) -> None:
    np.frombuffer(data, "<f4")[7] *= 0.5


def nothing(data: bytearray, tensor: TensorEntry) -> None:
    data[:] = bytes(len(data))


WRONG_WEIGHTS: dict[str, tuple[str, Callable[[bytearray, TensorEntry], None]]] = {
    **{f"two rows of {linear} exchanged": (f"{linear}.weight", on_rows(exchange)) for linear in LINEARS},
    **{f"a page of {linear} is zero": (f"{linear}.weight", lose_a_page) for linear in ("attn2.to_k", "ffn.net.0.proj")},
    "a column's scale is half of it": ("ffn.net.2.weight_scale", half_a_scale),
    "an adapter is left out": ("attn1.to_v.lora_B.weight", nothing),
    "a bias is left out": ("attn2.to_out.0.bias", nothing),
    "a norm's gains are left out": ("attn1.norm_q.weight", nothing),
}


def test_wrong_weights_are_seen(ask: Answering, small: Path, tmp_path: Path) -> None:
    """Those of the last block, by the detail expert's answer; each is enough by itself."""
    engine, unseen = "npu" if why_no_gpu() else "both", []
    for i, (case, (tensor, edit)) in enumerate(WRONG_WEIGHTS.items()):
        root = Path(shutil.copytree(small, tmp_path / f"{i}.hvdc"))
        edit_tensor(root, f"blocks.1.{tensor}", edit)
        rows = ask.rows(owned(root), engine, status=WRONG)
        assert all(row["right"] for row in rows if row["expert"] == "semantic"), "block 0 is as it was"
        unseen += [(case, row) for row in rows if row["expert"] == "detail" and row["right"]]
        shutil.rmtree(root)
    assert unseen == []


def test_one_flipped_bit_of_a_weight_is_seen_by_exact_sums(ask: Answering, copy: Path) -> None:
    """By one number: what a weight is worth is below what fast sums may be off."""

    def flip(data: bytearray, tensor: TensorEntry) -> None:
        data[3] ^= 1

    edit_tensor(copy, "blocks.0.ffn.net.2.weight", flip)
    rows = ask.rows(owned(copy), "npu", "--npu-sums", "exact", status=WRONG)
    assert [(r["expert"], r["right"]) for r in rows] == [("semantic", False), ("detail", True)]
    done = ask.run(copy, "--engine", "npu", "--npu-sums", "exact")
    assert "results of this device are wrong" in done.stderr
    assert "WRONG" in done.stdout


# --- kernels that compute something else ---------------------------------------------------------------------------


def toward_zero(x: torch.Tensor) -> torch.Tensor:
    """FP16 by cutting off."""
    near = x.half()
    return torch.where(near.float().abs() > x.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def _other_linear(change: Callable[..., torch.Tensor]) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for arithmetic in (NpuArithmetic, GpuArithmetic):
            before = arithmetic.linear

            def linear(self: Any, at: Any, name: str, operand: Any, before: Any = before) -> torch.Tensor:
                return change(before, self, at, name, operand)

            monkeypatch.setattr(arithmetic, "linear", linear)

    return patch


def _set(target: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(target, value)


def _no_adapter(before: Any, self: Any, at: Any, name: str, operand: Any) -> torch.Tensor:
    result: torch.Tensor = before(self, replace(at, expert="semantic"), name, operand)
    return result


def _cut_off(before: Any, self: Any, at: Any, name: str, operand: Any) -> torch.Tensor:
    y: torch.Tensor = before(self, at, name, operand)
    return y if y.dtype != torch.float16 else torch.nextafter(y, torch.zeros_like(y))


def _codes_cut_off(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.trunc(x.float() / scale).clamp(-127, 127).to(torch.int8)


def _probabilities_cut_off(scores: torch.Tensor) -> torch.Tensor:
    wide = scores.float()
    return torch.floor(torch.exp(wide - wide.amax(-1, keepdim=True)) * 127.0).to(torch.int8)


NPU, GPU = AnswerEngine.NPU, AnswerEngine.GPU
WRONG_KERNELS: dict[str, tuple[set[AnswerEngine], Callable[[pytest.MonkeyPatch], object]]] = {
    "no adapter": ({NPU, GPU}, _other_linear(_no_adapter)),
    "results one unit too small": ({NPU}, _other_linear(_cut_off)),
    "activations cut off": ({GPU}, _set("quant.paths.gpu.quantize_activations", _codes_cut_off)),
    "probabilities cut off": ({GPU}, _set("quant.paths.gpu._probabilities", _probabilities_cut_off)),
    "no rotation": ({NPU, GPU}, _set("quant.paths.block.rotate", lambda x, rotations, heads: x)),
    "no modulation": ({NPU, GPU}, _set("quant.paths.block.modulate", lambda x, shift, scale: x)),
    "ReLU for GELU": (
        {NPU, GPU},
        lambda patch: [patch.setattr(a, "gelu", lambda self, x: x.relu()) for a in (NpuArithmetic, GpuArithmetic)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_KERNELS)
def test_wrong_kernels_are_seen(case: str, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far off as they are, no limit lets them through: of the answers of an engine at least one is beyond it."""
    engines, patch = WRONG_KERNELS[case]
    with open_artifact(small) as artifact:
        grid = grid_of(artifact)
        due = {q: computed(artifact, grid, q) for q in questions_of(artifact)}
        patch(monkeypatch)
        for engine in engines:
            shares = [relative(computed(artifact, grid, q), due[q], q.hidden(grid)) for q in due if q.engine == engine]
            assert max(shares) > LIMITS[engine], shares


# --- the file ------------------------------------------------------------------------------------------------------


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


def test_without_a_file_it_is_said(ask: Answering, copy: Path) -> None:
    (copy / "runtime" / "answer.bin").unlink()
    done = ask.run(copy, "--engine", "npu")
    assert done.returncode == FAILED
    assert "answer.bin: cannot be opened: No such file or directory; `hvdc runtime build --into`" in done.stderr
    assert not done.stdout


def test_an_answer_of_one_engine_only(ask: Answering, copy: Path) -> None:
    def of_the_npu(data: bytearray) -> None:
        kept = table_of(data)[::2].copy()
        values = [bytes(data[int(row["values_offset"]) :][: TOKENS * SHAPE.width * 4]) for row in kept]
        header_of(data)["answers"] = 2
        kept["values_offset"] = HEADER.bytes + kept.nbytes + np.arange(2) * len(values[0])
        data[HEADER.bytes :] = kept.tobytes() + b"".join(values)

    edited(copy, of_the_npu)
    assert len(ask.rows(copy, "npu", "--npu-sums", "exact")) == 2
    if not why_no_gpu():
        done = ask.run(copy, "--engine", "gpu")
        assert (done.returncode, "holds no block of the GPU's engine" in done.stderr) == (USAGE, True)


def test_no_answer_is_off_by_nothing() -> None:
    one: Float32Array = np.ones((2, 2), np.float32)
    assert relative(one, one, 0 * one) == 0
    assert relative(2 * one, one, 0 * one) == 1
