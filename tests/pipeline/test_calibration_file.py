"""The calibration file: what it holds, to the bit; and everything that is not such a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from exporters.errors import CheckpointError
from exporters.prompts import read_prompts
from exporters.schedule import DCM_TIMESTEPS
from hvdc.pipeline.calibration_file import geometry_of, pack, read_calibration, unpack, write_calibration
from quant.calibration.statistics import from_arrays
from quant.gemms import gemm_inputs, gemm_outputs
from tests.calibrations import SHAPE, calibrated, write_model
from tests.commands import compiled, hvdc
from tests.exporters.models import write

Arrays = dict[str, np.ndarray]
Facts = dict[str, Any]


def test_the_same_inputs_give_the_same_bytes(watched_checkpoint, embeds, calibration, tmp_path) -> None:
    again = calibrated(watched_checkpoint, embeds, tmp_path / "again.safetensors", "-q", "--json")
    assert again.read_bytes() == calibration.read_bytes()
    copy = Path(tmp_path / "copy").absolute()
    copy.write_bytes(watched_checkpoint.read_bytes())
    elsewhere = calibrated(copy, embeds, tmp_path / "elsewhere.safetensors")
    assert elsewhere.read_bytes() == calibration.read_bytes()


def test_every_field(watched_checkpoint, embeds, calibration) -> None:
    provenance = read_calibration(calibration).provenance
    assert (provenance.format, provenance.version) == ("hvdc-calibration", 1)
    assert geometry_of(provenance) == SHAPE
    assert provenance.geometry.rope_axis_dims == SHAPE.rope_axis_dims
    assert tuple(step.timestep for step in provenance.steps) == DCM_TIMESTEPS
    assert [step.expert for step in provenance.steps] == ["semantic"] * 3 + ["detail"] * 3
    assert provenance.video.model_dump() == {"frames": 5, "height": 32, "width": 32, "latent": (2, 4, 4), "tokens": 8}
    with read_prompts(embeds) as prompts:
        assert (provenance.prompts, provenance.prompts_sha256) == (3, prompts.sha256)
    assert (provenance.seeds, provenance.dtype) == ((0,), "fp32")
    artifact = compiled(watched_checkpoint, calibration.with_name("same.hvdc"), "--lora-alpha", 8)
    manifest = json.loads((artifact / "manifest.json").read_text())
    assert provenance.tensors_sha256 == manifest["source"]["tensors_sha256"]


def test_every_array(calibration) -> None:
    held = read_calibration(calibration)
    arrays = load_file(calibration)
    inputs = {i.name: i for i in gemm_inputs(SHAPE)}
    assert set(arrays) == {f"channel_absmax.{name}" for name in inputs} | {"histogram", "output_absmax"}
    for name, gemm_input in inputs.items():
        array = arrays[f"channel_absmax.{name}"]
        assert (array.dtype, array.shape) == (np.float32, (6, 2, gemm_input.channels))
        assert (array[[0, 3]].max(axis=(1, 2)) > 0).tolist() == ["semantic" in gemm_input.experts, True], name
        if gemm_input.per == "expert":
            assert (array[4] == array[3]).all()
    assert (arrays["histogram"].dtype, arrays["histogram"].shape) == (np.int64, (6, 2, 21, 512))
    assert arrays["output_absmax"].shape == (6, 2, len(gemm_outputs(SHAPE)))
    column = list(inputs).index("attn1.input")
    assert (arrays["histogram"][:, :, column].sum(axis=-1) == 3 * 8 * SHAPE.width).all(), "three prompts, eight tokens"
    assert held.statistics.sha256() == held.provenance.statistics_sha256
    assert held.statistics.sha256() == from_arrays(SHAPE, 6, arrays).sha256()


def test_written_again_it_is_the_same_file(calibration, tmp_path) -> None:
    write_calibration(tmp_path / "c.safetensors", read_calibration(calibration))
    assert (tmp_path / "c.safetensors").read_bytes() == calibration.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def signed(arrays: Arrays, facts: Facts) -> None:
    """Make the hash fit what the arrays say now, as one who forges a file would."""
    facts["statistics_sha256"] = from_arrays(SHAPE, 6, arrays).sha256()


def value(name: str, number: float, sign: bool = False) -> Callable[[Arrays, Facts], None]:
    def edit(arrays: Arrays, facts: Facts) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][0, 1, 2] = number
        if sign:
            signed(arrays, facts)

    return edit


def array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays, Facts], None]:
    return lambda arrays, facts: arrays.update({name: change(arrays[name])})


def fact(**changes: Any) -> Callable[[Arrays, Facts], None]:
    return lambda arrays, facts: facts.update(changes)


def geometry(**changes: Any) -> Callable[[Arrays, Facts], None]:
    return lambda arrays, facts: facts["geometry"].update(changes)


INPUT = "channel_absmax.attn1.input"
EDITS: dict[str, tuple[Callable[[Arrays, Facts], object], str]] = {
    "a negative maximum": (value(INPUT, -1.0, sign=True), "negative or not finite"),
    "a maximum of NaN": (value(INPUT, np.nan, sign=True), "negative or not finite"),
    "an infinite output": (value("output_absmax", np.inf, sign=True), "negative or not finite"),
    "a negative count": (array("histogram", lambda a: a - 1), "negative or not finite"),
    "an edited maximum": (value(INPUT, 3.0), "another SHA-256"),
    "an edited count": (array("histogram", lambda a: a + 1), "another SHA-256"),
    "an edited hash": (fact(statistics_sha256="0" * 64), "another SHA-256"),
    "an array less": (lambda arrays, facts: arrays.pop(INPUT), f"{INPUT}: float32 [6, 2, 128] expected, nothing found"),
    "a step less": (array(INPUT, lambda a: a[1:]), "[5, 2, 128] found"),
    "a channel more": (array(INPUT, lambda a: np.repeat(a, 2, axis=2)), "[6, 2, 256] found"),
    "a flat array": (array("output_absmax", np.ravel), "output_absmax"),
    "doubles": (array(INPUT, lambda a: a.astype(np.float64)), "float64"),
    "short counts": (array("histogram", lambda a: a.astype(np.int32)), "int32"),
    "a newer version": (fact(version=2, more="unknown"), "written by a newer hvdc"),
    "version 0": (fact(version=0), "version"),
    "a version in words": (fact(version="1"), "version"),
    "another format": (fact(format="hvdc-latents"), "format"),
    "a field more": (fact(mode="mse"), "mode"),
    "a field less": (lambda arrays, facts: facts.pop("seeds"), "seeds"),
    "no steps": (fact(steps=[]), "steps"),
    "no seeds": (fact(seeds=[]), "seeds"),
    "a seed too large": (fact(seeds=[2**64]), "seeds"),
    "no prompts": (fact(prompts=0), "prompts"),
    "another dtype": (fact(dtype="int8"), "dtype"),
    "a hash that is none": (fact(tensors_sha256="abc"), "tensors_sha256"),
    "a timestep of NaN": (lambda arrays, facts: facts["steps"][0].update(timestep=float("nan")), "timestep"),
    "a step of a third expert": (lambda arrays, facts: facts["steps"][0].update(expert="third"), "expert"),
    "another number of blocks": (geometry(layers=3), "damaged"),
    "another rank": (geometry(rank=8), "damaged"),
    "one expert": (geometry(rank=0), "damaged"),
    "billions of blocks": (geometry(layers=2**32 - 1), "damaged"),
    "billions of channels": (geometry(ffn_width=2**32 - 1), "damaged"),
    "no heads": (geometry(heads=0), "heads"),
}


@pytest.mark.parametrize("case", EDITS)
def test_an_edited_file_is_refused(case: str, calibration, tmp_path) -> None:
    edit, words = EDITS[case]
    arrays, facts = unpack(calibration.read_bytes())
    edit(arrays, facts)
    path = tmp_path / "edited.safetensors"
    path.write_bytes(pack(arrays, facts))
    with pytest.raises(CheckpointError) as caught:
        read_calibration(path)
    assert str(path) in caught.value.where
    assert words in str(caught.value)
    assert caught.value.fix


def bytes_of(change: Callable[[bytes], bytes]) -> Callable[[Path, bytes], object]:
    return lambda path, data: path.write_bytes(change(data))


def with_metadata(metadata: dict[str, str] | None) -> Callable[[Path, bytes], object]:
    def make(path: Path, data: bytes) -> None:
        path.write_bytes(save(unpack(data)[0], metadata))

    return make


OTHERS: dict[str, Callable[[Path, bytes], object]] = {
    "nothing": lambda path, data: None,
    "a folder": lambda path, data: path.mkdir(),
    "an empty file": bytes_of(lambda data: b""),
    "seven bytes": bytes_of(lambda data: data[:7]),
    "a cut header": bytes_of(lambda data: data[:900]),
    "a cut array": bytes_of(lambda data: data[:-1]),
    "more at its end": bytes_of(lambda data: data + b"\0"),
    "text": bytes_of(lambda data: b"absmax: 3.5\n" * 100),
    "zeros": bytes_of(lambda data: bytes(4096)),
    "a huge header": bytes_of(lambda data: b"\xff" * 8 + data[8:]),
    "no metadata": with_metadata(None),
    "other metadata": with_metadata({"format": "pt"}),
    "metadata that are no JSON": with_metadata({"calibration": "{"}),
    "metadata that are a list": with_metadata({"calibration": "[1]"}),
    "metadata that are a number": with_metadata({"calibration": "1"}),
    "metadata without end": with_metadata({"calibration": "[" * 100_000}),
    "a checkpoint": lambda path, data: write(path, {"x": np.zeros(3, np.float32)}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_no_calibration_file_is_refused(case: str, watched_checkpoint, calibration, tmp_path) -> None:
    path = tmp_path / "other"
    OTHERS[case](path, calibration.read_bytes())
    done = hvdc("compile", watched_checkpoint, "--lora-alpha", 8, "-o", tmp_path / "a.hvdc", "--calibration", path)
    assert done.status == 3, done.err
    assert "calibration file" in done.err
    assert f"where:     {path}" in done.err
    assert "hvdc calibrate CHECKPOINT" in done.err
    assert "unexpected" not in done.err
    assert not (tmp_path / "a.hvdc.partial").exists()


def test_prompts_and_calibration_mixed_up(watched_checkpoint, embeds, calibration, tmp_path) -> None:
    given = ("compile", watched_checkpoint, "--lora-alpha", 8, "--set", "text_tokens=6", "-o", tmp_path / "a.hvdc")
    done = hvdc(*given, "--calibration", embeds)
    assert (done.status, "this is not a calibration file" in done.err) == (3, True), done.err
    done = hvdc(*given, "--prompts", calibration)
    assert (done.status, "prompt_embeds" in done.err) == (3, True), done.err
    assert not list(tmp_path.iterdir())


def test_it_holds_nothing_of_its_machine(watched_checkpoint, embeds, calibration) -> None:
    data = calibration.read_bytes()
    for private in (str(watched_checkpoint.parent), str(embeds), "torch"):
        assert private.encode() not in data


def test_other_weights_give_another_identity(embeds, calibration, tmp_path) -> None:
    other = calibrated(write_model(tmp_path / "model", seed=1), embeds, tmp_path / "other.safetensors")
    a, b = read_calibration(calibration).provenance, read_calibration(other).provenance
    assert a.tensors_sha256 != b.tensors_sha256
    assert a.statistics_sha256 != b.statistics_sha256
    assert asdict(geometry_of(a)) == asdict(geometry_of(b))
    assert a.prompts_sha256 == b.prompts_sha256
