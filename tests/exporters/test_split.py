"""A fully merged detail checkpoint gives its factors back; what factors cannot carry is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from exporters.checkpoint import open_checkpoint
from exporters.errors import CheckpointError
from exporters.model import Geometry, canonical_tensors, detail_tensors
from exporters.split import truncated_svd
from tests.exporters.models import GEOMETRY, base_of, linears, merged_of, own_of, spelled, values, without, write


@pytest.fixture(scope="module")
def model():
    return values()


@pytest.fixture
def base(tmp_path, model):
    return write(tmp_path / "base", spelled(base_of(model), "wan"))


def _product(tensors, stem):
    b, a = (tensors[f"{stem}.lora_{p}.weight"] for p in "BA")
    b, a = (x if isinstance(x, np.ndarray) else x.read() for x in (b, a))
    return b.astype(np.float64) @ a.astype(np.float64)


def _relative(model, checkpoint, stem):
    true = GEOMETRY.alpha_over_rank * _product(model, stem)
    ours = checkpoint.geometry.alpha_over_rank * _product(checkpoint.tensors, stem)
    return np.linalg.norm(ours - true) / np.linalg.norm(true)


@pytest.mark.parametrize("layout", ["wan", "diffusers"])
def test_known_factors_come_back(tmp_path, model, base, layout):
    merged = write(tmp_path / "merged", spelled(merged_of(model), layout))
    with open_checkpoint(base, adapter=merged, rank=4) as c:
        assert c.geometry == replace(GEOMETRY, alpha_over_rank=1.0)
        assert list(c.tensors) == list(canonical_tensors(c.geometry))
        for stem in linears():
            assert _relative(model, c, stem) <= 1e-3
        for name, value in {**base_of(model), **own_of(model)}.items():
            np.testing.assert_array_equal(c.tensors[name].read(), value)
        assert set(c.report.left_out_energy) == set(linears())
        assert max(c.report.left_out_energy.values()) < 1e-9
        assert any("energy left out: at most" in line for line in c.report.lines())
        assert "merged" in c.report.experts["detail"]


def test_a_rank_above_the_true_one_changes_nothing(tmp_path, model, base):
    merged = write(tmp_path / "merged", spelled(merged_of(model), "wan"))
    with open_checkpoint(base, adapter=merged, rank=9) as c:
        assert c.geometry.rank == 9
        assert {n: t.shape for n, t in c.tensors.items() if "lora" in n} == detail_tensors(c.geometry)
        assert _relative(model, c, "blocks.1.attn2.to_q") <= 1e-3


def test_a_rank_below_the_true_one_is_refused_with_the_share(tmp_path, model, base):
    merged = write(tmp_path / "merged", spelled(merged_of(model), "wan"))
    delta = GEOMETRY.alpha_over_rank * _product(model, "blocks.0.attn1.to_q")
    energy = np.linalg.svd(delta, compute_uv=False) ** 2
    share = energy[3:].sum() / energy.sum()
    with (
        open_checkpoint(base, adapter=merged, rank=3) as c,
        pytest.raises(CheckpointError, match="leaves out too much") as caught,
    ):
        c.tensors["blocks.0.attn1.to_q.lora_A.weight"].read()
    assert float(caught.value.found) == pytest.approx(share, rel=1e-2)
    assert "higher rank" in caught.value.fix
    with open_checkpoint(base, adapter=merged, rank=3, max_left_out_energy=0.9) as c:
        for stem in linears():
            assert _relative(model, c, stem) ** 2 == pytest.approx(c.report.left_out_energy[stem], rel=1e-3)


def test_an_unchanged_linear_gets_zero_factors(tmp_path, model, base):
    merged = merged_of(model)
    merged["blocks.0.attn1.to_q.weight"] = model["blocks.0.attn1.to_q.weight"]
    with open_checkpoint(base, adapter=write(tmp_path / "merged", spelled(merged, "wan")), rank=4) as c:
        assert not c.tensors["blocks.0.attn1.to_q.lora_B.weight"].read().any()
        assert c.report.left_out_energy["blocks.0.attn1.to_q"] == 0


@pytest.mark.parametrize(
    ("name", "early"),
    [
        ("blocks.0.ffn.net.0.proj.weight", False),
        ("blocks.1.attn1.to_q.bias", True),
        ("blocks.1.norm2.weight", True),
        ("blocks.0.scale_shift_table", True),
        ("scale_shift_table", True),
        ("patch_embedding.bias", True),
    ],
)
def test_whatever_else_differs_is_named(tmp_path, model, base, name, early):
    merged = merged_of(model)
    merged[name] = merged[name].copy()
    merged[name].flat[-1] += 1e-4
    path = write(tmp_path / "merged", spelled(merged, "wan"))

    def open_and_read(read: bool) -> None:
        with open_checkpoint(base, adapter=path, rank=4) as c:
            if read:
                c.tensors[name].read()

    # Small tensors are compared when the file is opened, the rest of large ones as they are read.
    if not early:
        open_and_read(False)
    with pytest.raises(CheckpointError, match="differs from the base in") as caught:
        open_and_read(not early)
    assert repr(name) in caught.value.what
    assert str([d - 1 for d in merged[name].shape]) in caught.value.expected


def test_a_merge_in_bf16_is_compared_within_its_rounding(tmp_path, model, base):
    merged = write(tmp_path / "merged", spelled(merged_of(model), "wan"), torch.bfloat16)
    with open_checkpoint(base, adapter=merged, rank=4, max_left_out_energy=1.0) as c:
        for name in base_of(model):
            np.testing.assert_array_equal(c.tensors[name].read(), model[name])
        assert 1e-9 < max(_relative(model, c, s) for s in linears()) < 0.5


@pytest.mark.parametrize("rank", [0, -1, 129])
def test_impossible_ranks(tmp_path, model, base, rank):
    merged = write(tmp_path / "merged", spelled(merged_of(model), "wan"))
    with pytest.raises(CheckpointError, match="the rank does not fit"):
        open_checkpoint(base, adapter=merged, rank=rank)


def test_the_default_rank_is_dcms(tmp_path, model, base):
    merged = write(tmp_path / "merged", spelled(merged_of(model), "wan"))
    with open_checkpoint(base, adapter=merged) as c:
        assert c.geometry.rank == 128
        assert any("rank 128 (the default)" in n for n in c.report.notes)


def test_a_merged_checkpoint_of_another_size(tmp_path, model, base):
    other = Geometry(**{**GEOMETRY.__dict__, "ffn_width": 256})
    merged = write(tmp_path / "merged", spelled(base_of(values(other)), "wan"))
    with pytest.raises(CheckpointError, match="a shape that does not fit"):
        open_checkpoint(base, adapter=merged, rank=4)
    deeper = Geometry(**{**GEOMETRY.__dict__, "layers": 3})
    merged = write(tmp_path / "deeper", spelled(base_of(values(deeper)), "wan"))
    with pytest.raises(CheckpointError, match="not the same kind of model"):
        open_checkpoint(base, adapter=merged, rank=4)
    merged = write(tmp_path / "part", without(spelled(merged_of(model), "wan"), ["head.head.bias"]))
    with pytest.raises(CheckpointError, match="lacks 1 of"):
        open_checkpoint(base, adapter=merged, rank=4)


def test_alpha_means_nothing_for_a_merged_checkpoint(tmp_path, model, base):
    merged = write(tmp_path / "merged", spelled(merged_of(model), "wan"))
    with pytest.raises(CheckpointError, match="an adapter alpha was given"):
        open_checkpoint(base, adapter=merged, rank=4, lora_alpha=8)


def test_values_that_are_not_finite(tmp_path, model, base):
    merged = merged_of(model)
    merged["blocks.0.attn1.to_q.weight"] = np.full((128, 128), np.nan, np.float32)
    path = write(tmp_path / "merged", spelled(merged, "wan"))
    with open_checkpoint(base, adapter=path, rank=4) as c, pytest.raises(CheckpointError, match="not finite"):
        c.tensors["blocks.0.attn1.to_q.lora_A.weight"].read()


@pytest.mark.parametrize(("shape", "rank"), [((300, 200), 8), ((40, 30), 8), ((200, 300), 16), ((5, 7), 7)])
def test_truncated_svd_is_near_the_best_possible(shape, rank):
    """Slowly falling singular values, the hard case for a subspace iteration."""
    rng = np.random.default_rng(1)
    u, _, vt = np.linalg.svd(rng.standard_normal(shape), full_matrices=False)
    s = 1.0 / np.arange(1, min(shape) + 1)
    delta = (u * s) @ vt
    b, a, left_out = truncated_svd(delta, rank)
    best = (s[rank:] ** 2).sum() / (s**2).sum()
    assert left_out == pytest.approx(np.linalg.norm(delta - b @ a) ** 2 / np.linalg.norm(delta) ** 2, abs=1e-14)
    assert best - 1e-14 <= left_out <= best * 1.001 + 1e-14


def test_the_split_repeats_itself():
    delta = np.random.default_rng(2).standard_normal((200, 180))
    one, two = truncated_svd(delta, 8), truncated_svd(delta, 8)
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])
