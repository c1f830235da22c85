"""A file of latents: what is read, what it says of its model, and what is refused with a way to make a right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from exporters.errors import CheckpointError
from exporters.model import Geometry
from hvdc.artifact.manifest import Step, Video
from hvdc.pipeline.calibration_file import Provenance, geometry_of, pack, read_calibration, unpack
from hvdc.pipeline.latents_file import (
    read_latents,
    read_provenance,
    require_own_latents,
    require_own_weights,
    write_latents,
)

VALUES = torch.linspace(-2, 2, 2 * 16 * 2 * 3 * 4).reshape(2, 16, 2, 3, 4)


@pytest.fixture(scope="module")
def provenance(calibration: Path) -> Provenance:
    return read_calibration(calibration).provenance


@pytest.fixture
def own(provenance: Provenance, tmp_path: Path) -> Path:
    """As `hvdc calibrate` writes it."""
    write_latents(tmp_path / "own", VALUES.numpy(), ["a cat", "a dog"], [0, 0], provenance)
    return tmp_path / "own"


def written(path: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_any_floats_become_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    given = VALUES.to(dtype)
    found = read_latents(written(tmp_path / "l", latents=given), 16)
    assert found.values.dtype == np.float32
    np.testing.assert_array_equal(found.values, given.to(torch.float32).numpy())
    assert (found.prompts, found.provenance) == ((), None)


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


def test_what_was_written_comes_back(own: Path, provenance: Provenance) -> None:
    found = read_latents(own, 16)
    np.testing.assert_array_equal(found.values, VALUES.numpy())
    assert (found.prompts, found.provenance) == (("a cat", "a dog"), provenance)
    assert read_provenance(own) == provenance
    again = own.with_name("again")
    write_latents(again, found.values, found.prompts, [0, 0], provenance)
    assert again.read_bytes() == own.read_bytes()


FOREIGN: dict[str, Callable[[dict[str, Any]], object]] = {
    "nothing": lambda held: None,
    "text": lambda held: "mine",
    "a list": lambda held: [held],
    "half of it": lambda held: {"format": held["format"]},
    "a newer version": lambda held: held | {"version": 2},
    "no number": lambda held: held | {"prompts": float("nan")},
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_says_nothing_of_a_model_is_read_all_the_same(case: str, own: Path) -> None:
    arrays, facts = unpack(own.read_bytes())
    own.write_bytes(pack(arrays, facts | {"calibration": FOREIGN[case](facts["calibration"])}))
    assert read_provenance(own) is None
    found = read_latents(own)
    assert (found.provenance, len(found.values)) == (None, 2)


def test_other_values_than_were_written(own: Path) -> None:
    arrays, facts = unpack(own.read_bytes())
    flipped = arrays["latents"].copy()
    flipped.view(np.uint32)[1, 3, 1, 2, 0] ^= 1
    for values in (flipped, arrays["latents"][:1], arrays["latents"].astype(np.float16)):
        own.write_bytes(pack({"latents": values}, facts))
        with pytest.raises(CheckpointError, match="not those that the file was written with") as caught:
            read_latents(own)
        assert facts["latents_sha256"] in caught.value.expected
        assert "--save-latents" in caught.value.fix


# --- of which model they are ------------------------------------------------------------------------------------

Due = tuple[Geometry, tuple[Step, ...], Video]


@pytest.fixture
def due(provenance: Provenance) -> Due:
    return geometry_of(provenance), provenance.steps, provenance.video


def test_own_latents(provenance: Provenance, due: Due) -> None:
    assert require_own_latents(provenance, *due, "l") == ()
    require_own_weights(provenance, provenance.tensors_sha256, "l")


def test_latents_of_another_model(provenance: Provenance, due: Due) -> None:
    geometry, steps, video = due
    with pytest.raises(CheckpointError, match="the latents are of another model") as caught:
        require_own_latents(provenance, replace(geometry, layers=3), steps, video, "l")
    error = caught.value
    assert (error.where, error.expected, error.found) == ("l: layers", "3 (this checkpoint)", "2")
    assert error.fix


def test_latents_of_another_schedule(provenance: Provenance, due: Due) -> None:
    geometry, steps, video = due
    with pytest.raises(CheckpointError, match="the latents are of another schedule") as caught:
        require_own_latents(provenance, geometry, steps[:2], video, "l")
    assert caught.value.found.startswith(caught.value.expected), "of which two are the first"
    assert caught.value.fix


def test_latents_of_other_weights(provenance: Provenance) -> None:
    with pytest.raises(CheckpointError, match="sizes agree, weights do not") as caught:
        require_own_weights(provenance, "0" * 64, "l")
    assert "0" * 64 in caught.value.expected
    assert (caught.value.where, caught.value.found) == ("l", provenance.tensors_sha256)
    assert "hvdc calibrate … --save-latents" in caught.value.fix


def test_latents_of_another_size_serve(provenance: Provenance, due: Due) -> None:
    geometry, steps, video = due
    wider = Video.model_validate(video.model_dump() | {"width": 64})
    (note,) = require_own_latents(provenance, geometry, steps, wider, "l")
    assert "of another size: 5 frames of 32 × 32 instead of 5 of 64 × 32" in note


def test_latents_that_say_nothing_serve(due: Due) -> None:
    (note,) = require_own_latents(None, *due, "l")
    assert "l does not say which model these latents are of" in note
    require_own_weights(None, "0" * 64, "l")


# --- what is refused --------------------------------------------------------------------------------------------


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
        for read in (read_latents, read_provenance):
            with pytest.raises(CheckpointError, match="cannot be read") as caught:
                read(wrong)
            assert "--save-latents" in caught.value.fix


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path / "l", latents=VALUES)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cut off"):
        read_latents(path)
