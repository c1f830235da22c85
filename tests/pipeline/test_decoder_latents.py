"""A file of latents: what is read, and what is refused with a way to make a right one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from exporters.errors import CheckpointError
from hvdc.pipeline.calibration_file import pack
from hvdc.pipeline.latents_file import read_latents

VALUES = torch.linspace(-2, 2, 2 * 16 * 2 * 3 * 4).reshape(2, 16, 2, 3, 4)


def written(path: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_any_floats_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    given = VALUES.to(dtype)
    found = read_latents(written(tmp_path / "l", latents=given), 16)
    assert found.values.dtype == np.float32
    np.testing.assert_array_equal(found.values, given.to(torch.float32).numpy())
    assert found.prompts == ()


def test_four_dimensions_are_one_clip(tmp_path: Path) -> None:
    found = read_latents(written(tmp_path / "l", latents=VALUES[0].contiguous()), 16)
    assert found.values.shape == (1, 16, 2, 3, 4)


def test_prompts_come_with_what_calibrate_wrote(tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_bytes(pack({"latents": VALUES.numpy()}, {"prompts": ["a cat", "a dog"]}))
    assert read_latents(path).prompts == ("a cat", "a dog")


@pytest.mark.parametrize("prompts", [["only one"], 5, None, "two", {"0": "a"}], ids=repr)
def test_prompts_that_do_not_fit_are_left_out(prompts: object, tmp_path: Path) -> None:
    path = tmp_path / "l"
    path.write_bytes(pack({"latents": VALUES.numpy()}, {"prompts": prompts}))
    found = read_latents(path)
    assert found.prompts == ()
    assert found.values.shape == VALUES.shape


def nan() -> torch.Tensor:
    bad = VALUES.clone()
    bad[1, 3, 1, 2, 0] = float("nan")
    return bad


REFUSED: dict[str, tuple[dict[str, torch.Tensor], str, str]] = {
    "another name": ({"samples": VALUES}, "holds no latents", "samples"),
    "no tensor": ({}, "holds no latents", "no tensor"),
    "three dimensions": ({"latents": VALUES[0, 0].contiguous()}, "another shape", "F32 [2, 3, 4]"),
    "no clip": ({"latents": VALUES[:0]}, "another shape", "F32 [0, 16, 2, 3, 4]"),
    "integers": ({"latents": VALUES.to(torch.int32)}, "another shape", "I32"),
    "other channels": ({"latents": VALUES[:, :4].contiguous()}, "another autoencoder", "4"),
    "a NaN": ({"latents": nan()}, "not finite", ""),
    "infinity": ({"latents": VALUES / 0}, "not finite", ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    tensors, words, found = REFUSED[case]
    path = written(tmp_path / "l", **tensors)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_latents(path, 16)
    assert found in caught.value.found
    assert caught.value.where == str(path)
    assert "hvdc calibrate … --save-latents" in caught.value.fix


@pytest.mark.parametrize("content", [None, b"", b"no safetensors at all", b"\xff" * 64], ids=repr)
def test_what_is_no_such_file(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "l"
    if content is not None:
        path.write_bytes(content)
    for wrong in (path, tmp_path):
        with pytest.raises(CheckpointError, match="cannot be read") as caught:
            read_latents(wrong)
        assert "--save-latents" in caught.value.fix


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path / "l", latents=VALUES)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cut off"):
        read_latents(path)
