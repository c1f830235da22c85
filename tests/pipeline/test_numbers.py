"""Every stored byte of a small artifact, against a brute-force oracle."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from exporters.model import canonical_tensors
from tests.commands import compiled, hvdc
from tests.conftest import RAGGED
from tests.exporters.models import Values, spelled, write
from tests.pipeline.oracle import Stored, padded_floats, quantised, stored_tensors, tiled

ONE_BLOCK = replace(RAGGED, layers=1)
ATTENTION = [f"{attn}.{p}" for attn in ("attn1", "attn2") for p in ("to_q", "to_k", "to_v", "to_out.0")]
FFN = ["ffn.net.0.proj", "ffn.net.2"]
HARD = "blocks.0.attn1.to_q.weight"
"""The weight that holds the columns which are hard to quantise."""


def hard_values() -> Values:
    rng = np.random.default_rng(11)
    model = {n: (rng.standard_normal(s) * 0.05).astype(np.float32) for n, s in canonical_tensors(ONE_BLOCK).items()}
    w = model[HARD]
    w[0] = 0.0
    w[1] = 0.0
    w[1, 3] = 1e-36  # / 127 is below 2^-126: rounds to nothing
    w[2] = 0.0
    w[2, 139] = 2e-36  # / 127 is just above 2^-126: kept
    w[3] = np.arange(140, dtype=np.float32) / 2 - 35  # with the next line exact ties: … 0.5, 1.5, 2.5 …
    w[3, 0] = -127.0
    w[4] = -3.0  # a column of one negative value: -127, never -128
    w[5] = np.float32(3.0e38)
    w[6, ::2] = -0.0
    model["blocks.0.attn1.to_q.lora_B.weight"][0] = 0.0
    model["blocks.0.attn1.to_q.lora_A.weight"][4] = 0.0
    return model


@pytest.fixture(scope="module")
def model() -> Values:
    return hard_values()


@pytest.fixture(scope="module")
def artifact(model: Values, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    return compiled(write(folder / "w", spelled(model, "dcm")), folder / "a.hvdc")


@pytest.fixture(scope="module")
def stored(artifact: Path) -> dict[str, Stored]:
    return stored_tensors(artifact)


def weights() -> list[str]:
    base = [f"blocks.0.{linear}.weight" for linear in (*ATTENTION, *FFN)]
    return base + [f"blocks.0.{linear}.{part}.weight" for linear in ATTENTION for part in ("lora_A", "lora_B")]


@pytest.mark.parametrize("name", weights())
def test_a_weight_and_its_scales(name: str, model: Values, stored: dict[str, Stored]) -> None:
    q, scales = quantised(model[name])
    if ".lora_B." in name:
        scales = [float(np.float32(s) * np.float32(ONE_BLOCK.alpha_over_rank)) for s in scales]
    weight, scale = stored[name], stored[f"{name}_scale"]
    n, k = model[name].shape
    assert weight.entry["shape"] == [n, k]
    assert weight.entry["padded_shape"] == [-(-n // 32) * 32, -(-k // 32) * 32]
    assert (weight.entry["dtype"], weight.entry["tile_order"]) == ("int8", "hmx-int8-k4")
    assert weight.entry["scale"] == f"{name}_scale"
    assert weight.data == tiled(q)
    assert b"\x80" not in weight.data, "-128"
    assert scale.data == padded_floats(scales, -(-n // 32) * 32, 1.0)


def test_the_hard_columns(stored: dict[str, Stored]) -> None:
    """Spelled out, so that the oracle itself is seen to be right."""
    scales = stored[f"{HARD}_scale"].floats()
    assert scales[0] == scales[1] == 1.0
    assert 2.0**-126 <= scales[2] < 2.0**-125
    assert scales[3] == 1.0
    data = stored[HARD].data

    def q(n: int, k: int) -> int:
        tile = (n // 32) * 5 + k // 32
        byte = data[1024 * tile + 128 * (k % 32 // 4) + 4 * (n % 32) + k % 4]
        return byte - 256 if byte > 127 else byte

    assert [q(1, 3), q(2, 139), q(3, 0), q(4, 77), q(5, 100)] == [0, 127, -127, -127, 127]
    assert [q(3, k) for k in (69, 71, 73, 75)] == [0, 0, 2, 2], "-0.5, 0.5, 1.5, 2.5 round half to even"


@pytest.mark.parametrize("part", ["bias", "norms", "host"])
def test_what_is_not_quantised_is_copied_in_fp32(part: str, model: Values, stored: dict[str, Stored]) -> None:
    names = {
        "bias": [f"blocks.0.{linear}.bias" for linear in (*ATTENTION, *FFN)],
        "norms": [n for n in model if n.startswith("blocks.0.") and ".norm" in n],
        "host": [n for n in model if n.startswith(("patch_embedding", "proj_out")) or ".text_embedder." in n],
    }[part]
    assert len(names) == {"bias": 10, "norms": 6, "host": 2 + 4 + 8}[part]
    for name in names:
        held, values = stored[name], model[name].reshape(-1).tolist()
        assert held.entry["dtype"] == "float32"
        assert held.data == padded_floats(values, len(held.data) // 4, 0.0), name
        if part == "bias":
            assert len(held.data) // 4 == -(-len(values) // 32) * 32


def test_every_tensor_of_the_checkpoint_is_somewhere(model: Values, stored: dict[str, Stored]) -> None:
    folded = {n for n in model if n.endswith("scale_shift_table") or ".time_" in n}
    tables = {"schedule.adaln", "schedule.head", *(f"schedule.rope_freqs_{a}" for a in ("frame", "row", "col"))}
    scales = {f"{n}_scale" for n in weights()}
    assert set(stored) == (set(model) - folded) | tables | scales


def test_places(artifact: Path, stored: dict[str, Stored]) -> None:
    """Alignment, whole pages, no overlap, zeros between tensors; the feed-forward pair lies contiguously."""
    for file in json.loads((artifact / "manifest.json").read_text())["files"]:
        data = (artifact / file["path"]).read_bytes()
        assert len(data) == file["bytes"]
        assert len(data) % 4096 == 0
        end = 0
        for tensor in file["tensors"]:
            assert tensor["offset"] % 128 == 0
            assert 0 <= tensor["offset"] - end < 128
            assert not any(data[end : tensor["offset"]])
            end = tensor["offset"] + tensor["bytes"]
        assert len(data) - end < 4096
        assert not any(data[end:])
    up, down = (stored[f"blocks.0.{linear}.weight"] for linear in FFN)
    assert up.file["path"] == down.file["path"] == "regions/block-000.bin"
    assert up.entry["offset"] + up.entry["bytes"] == down.entry["offset"]


def test_rooms(stored: dict[str, Stored]) -> None:
    """One region per block, adapters apart, what the CPU runs apart."""
    for name, held in stored.items():
        if ".lora_" in name:
            assert held.file["kind"] == "adapter"
        elif name.startswith("blocks."):
            assert held.file["path"] == f"regions/block-{int(name.split('.')[1]):03d}.bin"
        elif name.startswith("schedule."):
            assert held.file["kind"] == "schedule"
        else:
            assert held.file["kind"] == "host"


SPOTS = {
    "a base weight": ("blocks.0.ffn.net.2.weight", (137, 199), np.nan),
    "a bias": ("blocks.0.attn2.to_out.0.bias", (7,), np.inf),
    "a norm gain": ("blocks.0.attn1.norm_k.weight", (139,), -np.inf),
    "a factor": ("blocks.0.attn2.to_v.lora_B.weight", (3, 4), np.nan),
    "a modulation": ("blocks.0.scale_shift_table", (0, 5, 12), np.nan),
    "a time embedder": ("condition_embedder_lora.time_proj.weight", (600, 1), np.inf),
    "a text projection": ("condition_embedder.text_embedder.linear_1.weight", (2, 39), np.nan),
    "a head": ("proj_out_lora.bias", (63,), np.nan),
    "the patch embedding": ("patch_embedding.weight", (100, 15, 0, 1, 1), -np.inf),
}


@pytest.mark.parametrize("where", SPOTS)
def test_a_value_that_is_not_finite_is_refused_by_name_and_index(where: str, model: Values, tmp_path: Path) -> None:
    name, index, value = SPOTS[where]
    damaged = {**model, name: model[name].copy()}
    damaged[name][index] = value
    damaged[name].reshape(-1)[-1] = value  # the first index is named, not the last
    done = hvdc("compile", write(tmp_path / "w", spelled(damaged, "dcm")), "-o", tmp_path / "a.hvdc", "-q")
    assert done.status == 3
    assert name in done.err
    assert str(list(index)) in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["w"], "nothing that a later compile would trip over"


def test_an_unused_experts_embedder_must_be_finite_too(model: Values, tmp_path: Path) -> None:
    """No table is made from it, and still a damaged checkpoint is not compiled."""
    name = "condition_embedder_lora.time_embedder.linear_1.weight"
    damaged = {**model, name: model[name].copy()}
    damaged[name][5, 6] = np.nan
    checkpoint = write(tmp_path / "w", spelled(damaged, "dcm"))
    done = hvdc("compile", checkpoint, "-o", tmp_path / "a.hvdc", "-q", "--set", "timesteps=[1000, 990]")
    assert done.status == 3
    assert name in done.err
    assert "[5, 6]" in done.err


@pytest.mark.parametrize(
    "change", [lambda w: w * np.float32(0.5), lambda w: w[::-1].copy(), lambda w: -w], ids=["half", "reversed", "minus"]
)
def test_the_oracle_can_object(change: Callable[[np.ndarray], np.ndarray], model: Values) -> None:
    name = "blocks.0.attn1.to_v.weight"
    q, scales = quantised(model[name][:40])
    other_q, other_scales = quantised(change(model[name][:40]))
    assert (tiled(q), scales) != (tiled(other_q), other_scales)


@pytest.mark.parametrize("alpha", ["1e-44", "1e40", "1e-40"])
def test_an_alpha_that_scales_cannot_hold_is_refused_before_any_work(
    ragged_checkpoint: Path, tmp_path: Path, alpha: str
) -> None:
    done = hvdc("compile", ragged_checkpoint, "-o", tmp_path / "a.hvdc", "--lora-alpha", alpha)
    assert done.status == 3
    assert "cannot be folded into its scales" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("alpha", ["1e37", "1e-36"])
def test_a_scale_that_alpha_takes_out_of_range_is_refused_by_name(
    ragged_checkpoint: Path, tmp_path: Path, alpha: str
) -> None:
    tensors = load_file(ragged_checkpoint)
    name = next(key for key in tensors if "lora_B" in key)
    tensors[name][3] *= 1e6 if float(alpha) > 1 else 1e-6
    save_file(tensors, tmp_path / "extreme.safetensors")
    done = hvdc("compile", tmp_path / "extreme.safetensors", "-o", tmp_path / "a.hvdc", "--lora-alpha", alpha)
    assert done.status == 3
    assert "out of FP32's range" in done.err
    assert not (tmp_path / "a.hvdc").exists()
