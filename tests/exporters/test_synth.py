"""Synthetic checkpoints: true names and shapes in every layout, plausible values, written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters import synth
from exporters.errors import CheckpointError
from exporters.model import DCM_WAN21_1_3B, TINY, base_tensors, canonical_tensors
from exporters.names import spell
from exporters.synth import synthetic_tensors, write_checkpoint

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Tiny checkpoints by (layout, dtype), each written once."""
    folder = tmp_path_factory.mktemp("synth")

    def get(layout: Any = "dcm", dtype: Any = "f32") -> Path:
        path = folder / f"{layout}-{dtype}.safetensors"
        if not path.exists():
            write_checkpoint(path, TINY, layout=layout, dtype=dtype)
        return path

    return get


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    with safetensors_torch.safe_open(path, framework="pt") as file:
        return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118


# ---- names and shapes ----


def test_the_full_size_model_has_the_published_counts() -> None:
    both = synthetic_tensors(DCM_WAN21_1_3B)
    semantic = synthetic_tensors(DCM_WAN21_1_3B, experts=("semantic",))
    assert (len(both), sum(int(np.prod(t.shape)) for t in both.values())) == (1317, 1_539_041_408)
    assert (len(semantic), sum(int(np.prod(t.shape)) for t in semantic.values())) == (825, 1_418_996_800)


@pytest.mark.parametrize(
    ("layout", "present", "absent"),
    [
        (
            "dcm",
            [
                "blocks.0.attn1.to_q.base_layer.weight",
                "blocks.1.attn2.to_out.0.lora_B.lora1.weight",
                "blocks.0.ffn.net.0.proj.bias",
                "condition_embedder_lora.time_proj.weight",
                "proj_out_lora.bias",
            ],
            ["blocks.0.attn1.to_q.weight"],
        ),
        (
            "wan",
            ["blocks.0.self_attn.q.weight", "blocks.1.norm3.bias", "blocks.0.modulation", "head.modulation"],
            ["blocks.0.norm2.bias", "proj_out_lora.bias"],
        ),
        (
            "diffusers",
            ["blocks.0.attn1.to_q.weight", "blocks.1.norm2.bias", "scale_shift_table", "proj_out.weight"],
            ["blocks.0.norm3.bias", "condition_embedder_lora.time_proj.weight"],
        ),
    ],
)
def test_each_layout_has_its_own_keys(
    files: Callable[..., Path], layout: Any, present: list[str], absent: list[str]
) -> None:
    found = shapes_in(files(layout))
    names = canonical_tensors(TINY) if layout == "dcm" else base_tensors(TINY)
    assert found == {spell(name, layout): shape for name, shape in names.items()}
    assert set(present) <= set(found)
    assert not set(absent) & set(found)


def test_diffusers_model_takes_the_diffusers_file_without_a_missing_or_a_left_over_key(
    files: Callable[..., Path],
) -> None:
    wan = pytest.importorskip("diffusers.models.transformers.transformer_wan")
    with torch.device("meta"):
        model = wan.WanTransformer3DModel(
            num_attention_heads=TINY.heads,
            attention_head_dim=TINY.head_dim,
            text_dim=TINY.text_width,
            ffn_dim=TINY.ffn_width,
            num_layers=TINY.layers,
        )
    model.load_state_dict(safetensors_torch.load_file(files("diffusers")), strict=True, assign=True)


def test_experts_can_be_chosen(tmp_path: Path) -> None:
    both = write_checkpoint(tmp_path / "a", TINY, layout="diffusers", experts=("semantic", "detail"))
    one = write_checkpoint(tmp_path / "b", TINY, layout="dcm", experts=("semantic",))
    assert both.tensors == len(canonical_tensors(TINY))
    assert one.tensors == len(base_tensors(TINY))


def test_a_geometry_without_adapter_has_no_detail_expert() -> None:
    alone = replace(TINY, rank=0)
    assert set(synthetic_tensors(alone)) == set(base_tensors(alone))
    with pytest.raises(CheckpointError, match="experts"):
        synthetic_tensors(alone, experts=("semantic", "detail"))


# ---- values ----


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("layout", ["dcm", "wan", "diffusers"])
def test_values_depend_on_the_name_only_and_are_rounded_to_nearest_even(
    files: Callable[..., Path], layout: Any, dtype: str
) -> None:
    loaded = safetensors_torch.load_file(files(layout, dtype))
    experts = None if layout == "dcm" else ("semantic",)
    for name, tensor in synthetic_tensors(TINY, experts=experts).items():
        expected = torch.from_numpy(np.array(tensor.read())).to(TORCH_DTYPES[dtype])
        got = loaded[spell(name, layout)]
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected), name


def test_bfloat16_ties_go_to_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0xBF818000], dtype=np.uint32)
    stored = synth._narrow(bits.view(np.float32), "bf16")
    assert [hex(v) for v in stored] == ["0x3f80", "0x3f82", "0x3f81", "0x3f80", "0xbf82"]


def test_any_range_of_rows_gives_the_same_values_across_chunks() -> None:
    tensor = synthetic_tensors(DCM_WAN21_1_3B)["blocks.3.attn1.to_q.weight"]  # chunks of 682 rows
    whole = tensor.read()
    assert whole.shape == (1536, 1536)
    for start, stop in [(0, 1), (681, 683), (682, 1364), (600, 1500), (1535, 1536), (5, 5)]:
        assert np.array_equal(tensor.rows(start, stop), whole[start:stop])
    assert not np.isin(whole[:682, 0], whole[682:, 0]).any(), "one chunk repeats another"


def test_the_same_seed_gives_the_same_bytes_with_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synth, "_CHUNK_VALUES", 10_000)  # many chunks in one tensor, the last one shorter
    for jobs in (1, 3):
        write_checkpoint(tmp_path / f"{jobs}", TINY, seed=4, jobs=jobs, dtype="bf16")
    assert (tmp_path / "1").read_bytes() == (tmp_path / "3").read_bytes()


def test_another_seed_gives_other_values() -> None:
    name = "blocks.0.attn1.to_q.weight"
    a, b = (synthetic_tensors(TINY, seed=seed)[name].read() for seed in (0, 1))
    assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.1


def test_weights_have_heavy_tailed_columns_and_a_few_outlier_channels() -> None:
    weight = synthetic_tensors(DCM_WAN21_1_3B)["blocks.0.attn1.to_q.weight"].read()
    columns = np.sqrt(np.mean(np.square(weight), axis=1))
    assert np.max(columns) / np.median(columns) > 3
    channels = np.sqrt(np.mean(np.square(weight), axis=0))
    outliers = np.flatnonzero(channels > 5 * np.median(channels))
    assert 1 <= len(outliers) <= 3
    usual = np.delete(weight, outliers, axis=1)
    assert np.std(usual) == pytest.approx(1536**-0.5, rel=0.1)


def test_every_kind_of_tensor_has_its_scale() -> None:
    tensors = {name: t.read() for name, t in synthetic_tensors(TINY).items()}
    assert all(np.isfinite(v).all() for v in tensors.values())
    block = "blocks.0."
    assert np.mean(tensors[f"{block}attn1.norm_q.weight"]) == pytest.approx(1.0, abs=0.05)
    assert np.mean(tensors[f"{block}norm2.weight"]) == pytest.approx(1.0, abs=0.05)
    assert np.std(tensors[f"{block}norm2.bias"]) == pytest.approx(0.02, rel=0.3)
    assert np.std(tensors[f"{block}scale_shift_table"]) == pytest.approx(256**-0.5, rel=0.1)
    assert np.std(tensors["scale_shift_table"]) == pytest.approx(256**-0.5, rel=0.2)
    assert np.std(tensors[f"{block}attn1.to_q.lora_A.weight"]) == pytest.approx(256**-0.5, rel=0.1)
    assert np.std(tensors[f"{block}attn1.to_q.lora_B.weight"]) == pytest.approx(0.1 * 16**-0.5, rel=0.1)


# ---- the file ----


def test_the_file_is_what_the_format_says(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    written = write_checkpoint(path, TINY, dtype="f16", seed=9)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0
    assert header.pop("__metadata__") == {"format": "pt", "generator": "hvdc synth, seed 9"}
    end = 0
    for entry in header.values():
        assert entry["data_offsets"][0] == end
        end = entry["data_offsets"][1]
        assert end - entry["data_offsets"][0] == 2 * int(np.prod(entry["shape"]))
    assert written.total_bytes == len(raw) == 8 + length + end
    assert written.parameters * 2 == end


def test_progress_goes_up_to_the_whole_file(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    written = write_checkpoint(tmp_path / "m", TINY, progress=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1] == (written.total_bytes, written.total_bytes)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    geometry = replace(TINY, width=1024, heads=8, ffn_width=4096, layers=1)
    tracemalloc.start()
    try:
        written = write_checkpoint(tmp_path / "m", geometry, jobs=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written.total_bytes > 120e6
    assert peak < 40e6


# ---- refusals and failures ----


def test_an_existing_file_is_kept_unless_overwriting_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"precious")
    with pytest.raises(CheckpointError, match="exists already") as caught:
        write_checkpoint(path, TINY)
    assert caught.value.found == "a file of 8 bytes"
    assert path.read_bytes() == b"precious"
    write_checkpoint(path, TINY, overwrite=True)
    assert len(shapes_in(path)) == len(canonical_tensors(TINY))


@pytest.mark.parametrize(("name", "what"), [("nowhere/m.safetensors", "folder .* doesn't exist"), (".", "a folder is")])
def test_a_place_that_cannot_hold_the_file_is_refused(tmp_path: Path, name: str, what: str) -> None:
    with pytest.raises(CheckpointError, match=what):
        write_checkpoint(tmp_path / name, TINY, overwrite=True)


@pytest.mark.parametrize("arguments", [{"layout": "comfy"}, {"dtype": "fp8"}, {"experts": ("detail",)}])
def test_unknown_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        write_checkpoint(tmp_path / "m", TINY, **arguments)
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_refused_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(synth.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(CheckpointError, match="too little free space") as caught:
        write_checkpoint(tmp_path / "m", TINY)
    assert caught.value.found == "1000 bytes free"
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = os.pwrite, [0]

    def fills_up(fd: int, data: Any, offset: int) -> int:
        calls[0] += 1
        if calls[0] > 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, offset)

    monkeypatch.setattr(synth.os, "pwrite", fills_up)
    with pytest.raises(CheckpointError, match="could not be written") as caught:
        write_checkpoint(tmp_path / "m", TINY)
    assert caught.value.found == "No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "whole", TINY)
    write = os.pwrite
    monkeypatch.setattr(synth.os, "pwrite", lambda fd, data, offset: write(fd, data[:4099], offset))
    write_checkpoint(tmp_path / "pieces", TINY)
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "whole").read_bytes()


def test_an_interrupt_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"old")

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(path, TINY, overwrite=True, progress=interrupt)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
