"""What `hvdc_bench --answer` finds: right engines give the stored answer, wrong ones do not.

Wrongs are of the kinds that a device may have: weights that are not where a kernel reads them, a part that is left out,
a rounding that is another one. They are made in the artifact, or in the numeric path that stores the answer.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hvdc.artifact.answer_records import (
    HEADER,
    AnswerEngine,
)  # fmt: skip
from hvdc.artifact.manifest import TensorEntry
from hvdc.pipeline.answer import LIMITS
from layouts.grid import TileGrid, pack, unpack
from layouts.order import HMX_INT8_K4
from quant.gemms import LINEARS
from tests.answers import edited, header_of, owned, table_of
from tests.artifacts import edit_tensor
from tests.calibrations import SHAPE
from tests.device_runtime.answer.small import FAILED, TOKENS, USAGE, WRONG, Answering, needs_gpu
from tests.device_runtime.gpu_blocks import ODD_MODELS, make_artifact
from tests.device_runtime.runs import why_no_gpu


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
