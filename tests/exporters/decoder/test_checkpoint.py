"""Opening a decoder: every form gives the same tensors, and whatever does not fit is refused with what and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from exporters.decoder.checkpoint import DecoderCheckpoint, open_decoder
from exporters.decoder.config import LATENTS_MEAN, LATENTS_STD
from exporters.decoder.geometry import DecoderGeometry, tensor_shapes
from exporters.decoder.graphs import later_graph
from exporters.errors import CheckpointError
from tests.exporters.decoder.vaes import (
    GEOMETRY,
    MEAN,
    OTHERS,
    STD,
    State,
    config,
    decoder_state,
    official,
    state,
    write_file,
    write_folder,
)

WIDE = DecoderGeometry(8, 16, (1, 2, 4, 4), 1, (True, True, False))
"""The small decoder with Wan 2.1's sixteen latent channels, whose statistics are known without a configuration."""


def assert_holds(decoder: DecoderCheckpoint, geometry: DecoderGeometry = GEOMETRY) -> None:
    """Geometry, names, order and every bit of every tensor."""
    assert decoder.geometry == geometry
    assert list(decoder.weights.tensors) == list(tensor_shapes(geometry))
    for name, value in decoder_state(geometry).items():
        np.testing.assert_array_equal(decoder.weights.read(name), value.numpy(), err_msg=name)


# ---- forms ----


def test_a_diffusers_folder(tmp_path: Path) -> None:
    with open_decoder(write_folder(tmp_path / "vae", state(), config())) as decoder:
        assert_holds(decoder)
        assert (decoder.layout, decoder.weights.mean, decoder.weights.std) == ("diffusers", MEAN, STD)
        encoder = [name for name in state() if name.startswith(("encoder.", "quant_conv."))]
        assert sorted(i.name for i in decoder.ignored) == sorted(encoder)
        assert {i.reason for i in decoder.ignored} == {
            "the encoder's half of the autoencoder; only the decoder is exported"
        }
        assert any("config.json" in line for line in decoder.lines())


def test_a_pipeline_s_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "vae", state(), config())
    with open_decoder(tmp_path) as decoder:
        assert_holds(decoder)


def test_a_file_beside_its_configuration(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, decoder_state(), config())
    with open_decoder(folder / "diffusion_pytorch_model.safetensors") as decoder:
        assert_holds(decoder)
        assert decoder.ignored == ()


def test_shards_with_an_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config()))
    names = list(state())
    for i in range(2):
        write_file(tmp_path / f"part{i}.safetensors", {n: state()[n] for n in names[i::2]})
    weight_map = {n: f"part{i % 2}.safetensors" for i, n in enumerate(names)}
    index = tmp_path / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with open_decoder(tmp_path) as decoder:
        assert_holds(decoder)


@pytest.mark.parametrize("name", ["small", *OTHERS])
def test_official_names_are_the_same_decoder(tmp_path: Path, name: str) -> None:
    geometry = GEOMETRY if name == "small" else OTHERS[name]
    with open_decoder(write_folder(tmp_path, official(geometry), config(geometry))) as decoder:
        assert_holds(decoder, geometry)
        assert decoder.layout == "wan"
        assert sorted(i.name for i in decoder.ignored) == ["conv1.bias", "encoder.conv1.weight"]


def test_the_official_folder_without_a_configuration(tmp_path: Path) -> None:
    """Wan's own folder: the autoencoder's pickle lies beside the transformer, whose configuration is there."""
    torch.save(official(WIDE), tmp_path / "Wan2.1_VAE.pth")
    write_file(tmp_path / "diffusion_pytorch_model.safetensors", {"blocks.0.ffn.0.bias": torch.zeros(1)})
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "WanModel", "dim": 1536}))
    with open_decoder(tmp_path) as decoder:
        assert_holds(decoder, WIDE)
        assert (decoder.weights.mean, decoder.weights.std) == (LATENTS_MEAN, LATENTS_STD)
        assert "release" in decoder.statistics


def test_the_constants_are_diffusers_defaults() -> None:
    import inspect

    from diffusers import AutoencoderKLWan

    defaults = {n: p.default for n, p in inspect.signature(AutoencoderKLWan.__init__).parameters.items()}
    assert (list(LATENTS_MEAN), list(LATENTS_STD)) == (defaults["latents_mean"], defaults["latents_std"])


@pytest.mark.parametrize("name", ["small", *OTHERS])
def test_the_geometry_follows_from_the_shapes(tmp_path: Path, name: str) -> None:
    geometry = WIDE if name == "small" else OTHERS[name].__class__(**(vars(OTHERS[name]) | {"z_dim": 16}))
    with open_decoder(write_file(tmp_path / "weights", official(geometry))) as decoder:
        if name == "one_stage":  # of one stage, base and multiple are one number
            assert (decoder.geometry.widths, decoder.geometry.base_dim) == (geometry.widths, 16)
        else:
            assert_holds(decoder, geometry)


@pytest.mark.parametrize("prefix", ["first_stage_model.", "vae.", "module.", "model.", "_orig_mod."])
def test_prefixes(tmp_path: Path, prefix: str) -> None:
    values = {prefix + name: value for name, value in official(WIDE).items()}
    with open_decoder(write_file(tmp_path / "weights", values)) as decoder:
        assert_holds(decoder, WIDE)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_stored_dtypes_become_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    values = {name: value.to(dtype) for name, value in state().items()}
    with open_decoder(write_folder(tmp_path, values, config())) as decoder:
        for name in tensor_shapes(GEOMETRY):
            np.testing.assert_array_equal(decoder.weights.read(name), values[name].float().numpy(), err_msg=name)


def test_both_layouts_give_the_same_graph_bytes(tmp_path: Path) -> None:
    folders = [
        write_folder(tmp_path / "diffusers", state(), config()),
        write_folder(tmp_path / "official", official(), config()),
    ]
    for folder in folders:
        with open_decoder(folder) as decoder:
            later_graph(decoder, 3, 4).write(folder / "later.onnx")
    assert (folders[0] / "later.onnx").read_bytes() == (folders[1] / "later.onnx").read_bytes()


# ---- refusals ----


def refused(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_decoder(path)
    error = caught.value
    assert error.where, error
    assert error.fix, error
    return error


def changed(folder: Path, change: Callable[[State], None], **settings: object) -> CheckpointError:
    values = state()
    change(values)
    return refused(write_folder(folder, values, config(**settings)))


NAME = "decoder.up_blocks.1.resnets.0.conv1.weight"


def test_a_missing_tensor(tmp_path: Path) -> None:
    error = changed(tmp_path, lambda v: v.pop(NAME))  # type: ignore[arg-type, return-value]
    assert error.what == "1 tensors of the decoder are missing"
    assert NAME in error.found


def test_a_missing_tensor_without_a_configuration(tmp_path: Path) -> None:
    values = official(WIDE)
    del values["decoder.conv1.weight"]
    assert "decoder.conv_in.weight" in refused(write_file(tmp_path / "weights", values)).found


@pytest.mark.parametrize(
    "name", ["decoder.up_blocks.0.resnets.0.gate", "extra.weight", "decoder.up_blocks.9.x", "conv1.w"]
)
def test_an_unknown_tensor(tmp_path: Path, name: str) -> None:
    error = changed(tmp_path, lambda v: v.update({name: torch.zeros(1)}))
    assert "belong to no part" in error.what
    assert name in error.found


@pytest.mark.parametrize("name", ["decoder.upsamples.0.gate", "decoder.middle.1.relative", "decoder.tail.weight"])
def test_an_unknown_official_tensor(tmp_path: Path, name: str) -> None:
    values = official() | {name: torch.zeros(1)}
    assert name.rpartition(".")[2] in refused(write_folder(tmp_path, values, config())).found


def test_a_tensor_of_another_shape(tmp_path: Path) -> None:
    error = changed(tmp_path, lambda v: v.update({NAME: v[NAME][:, :-1].clone()}))
    assert NAME in error.what
    assert NAME in error.where
    assert error.expected.startswith("[32, 16, 3, 3, 3], by ")
    assert error.found == "[32, 15, 3, 3, 3]"


def test_another_configuration_than_the_weights(tmp_path: Path) -> None:
    assert "missing" in changed(tmp_path, lambda v: None, num_res_blocks=2).what
    assert "another shape" in changed(tmp_path, lambda v: None, base_dim=16).what
    assert "belong to no part" in changed(tmp_path, lambda v: None, temperal_downsample=[False, False, True]).what


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite(tmp_path: Path, value: float) -> None:
    def spoil(values: State) -> None:
        values[NAME][1, 2, 0, 1, 2] = value

    error = changed(tmp_path, spoil)
    assert NAME in error.what
    assert "[1, 2, 0, 1, 2]" in error.what
    assert error.found == str(value)


def test_a_value_of_the_encoder_that_is_not_finite_is_not_looked_at(tmp_path: Path) -> None:
    values = state()
    values["encoder.conv_in.bias"][0] = float("nan")
    with open_decoder(write_folder(tmp_path, values, config())) as decoder:
        assert_holds(decoder)


def test_integers_are_no_weights(tmp_path: Path) -> None:
    assert "no floating-point number" in changed(tmp_path, lambda v: v.update({NAME: v[NAME].to(torch.int32)})).what


def test_mixed_layouts(tmp_path: Path) -> None:
    error = changed(tmp_path, lambda v: v.update({"decoder.conv1.bias": torch.zeros(32)}))
    assert "mixes official Wan names and diffusers names" in error.what


def test_one_tensor_twice(tmp_path: Path) -> None:
    error = changed(tmp_path, lambda v: v.update({f"model.{NAME}": v[NAME].clone()}))
    assert f"model.{NAME}" in error.found


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"blocks.0.self_attn.q.weight": torch.zeros(1)}, "holds a Wan transformer"),
        ({"blocks.0.attn1.to_q.lora_A.weight": torch.zeros(1)}, "holds an adapter"),
        ({"shared.weight": torch.zeros(1)}, "holds a T5 text encoder"),
        ({"encoder.conv_in.weight": torch.zeros(1)}, "not the decoder"),
        ({"something": torch.zeros(1)}, "holds no model that hvdc knows"),
        ({}, "holds no tensors"),
    ],
)
def test_another_model(tmp_path: Path, values: State, what: str) -> None:
    assert what in refused(write_file(tmp_path / "weights", values)).what


@pytest.mark.parametrize(
    "name", ["decoder.upsamples.0.upsamples.0.residual.0.gamma", "decoder.up_blocks.0.upsampler.resample.1.bias"]
)
def test_wan_2_2_s_autoencoder_is_named(tmp_path: Path, name: str) -> None:
    assert "Wan 2.2" in refused(write_file(tmp_path / "weights", {name: torch.zeros(1)})).what


def test_wan_2_2_s_frames_are_named(tmp_path: Path) -> None:
    values = official(WIDE) | {"decoder.head.2.weight": torch.zeros(12, 8, 3, 3, 3)}
    assert "Wan 2.2" in refused(write_file(tmp_path / "weights", values)).what


def test_shapes_that_make_no_decoder(tmp_path: Path) -> None:
    values = official(WIDE)
    values["decoder.head.2.weight"] = torch.zeros(3, 7, 3, 3, 3)
    assert "make no decoder" in refused(write_file(tmp_path / "a", values)).what
    values["decoder.head.2.weight"] = torch.zeros(3, 8)
    assert "another shape" in refused(write_file(tmp_path / "b", values)).what


def test_no_configuration_and_other_latents(tmp_path: Path) -> None:
    error = refused(write_file(tmp_path / "weights", official()))
    assert "no config.json" in error.what
    assert error.found == "4 latent channels"


@pytest.mark.parametrize(
    ("setting", "value", "what"),
    [
        ("is_residual", True, "Wan 2.2"),
        ("patch_size", 2, "Wan 2.2"),
        ("out_channels", 12, "not RGB"),
        ("latents_mean", [0.0], "latents_mean cannot be used"),
        ("latents_mean", [0.0, 0.0, 0.0, "0"], "latents_mean cannot be used"),
        ("latents_std", [1.0, 1.0, 0.0, 1.0], "latents_std cannot be used"),
        ("z_dim", 0, "z_dim cannot be used"),
        ("base_dim", True, "base_dim cannot be used"),
        ("decoder_base_dim", "8", "decoder_base_dim cannot be used"),
        ("dim_mult", [1, 2.5], "dim_mult cannot be used"),
        ("dim_mult", [1, 2], "temporal upsampling flags"),
        ("temperal_downsample", [0, 1, 1], "temperal_downsample cannot be used"),
        ("clip_output", False, "not known here"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, setting: str, value: object, what: str) -> None:
    error = changed(tmp_path, lambda v: None, **{setting: value})
    assert what in error.what
    assert error.where == str(tmp_path / "config.json")


def test_another_autoencoder_s_configuration(tmp_path: Path) -> None:
    error = changed(tmp_path, lambda v: None, _class_name="AutoencoderKL")
    assert "not the autoencoder of Wan 2.1" in error.what


def test_the_decoder_s_own_width(tmp_path: Path) -> None:
    with open_decoder(write_folder(tmp_path, decoder_state(), config(base_dim=4, decoder_base_dim=8))) as decoder:
        assert_holds(decoder)


def test_settings_without_effect_on_the_decoder(tmp_path: Path) -> None:
    more = config(attn_scales=[0.5], dropout=0.1, scale_factor_spatial=8, scale_factor_temporal=4, in_channels=3)
    with open_decoder(write_folder(tmp_path, state(), more)) as decoder:
        assert_holds(decoder)


def test_nothing_there(tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path / "nowhere").what
    assert "holds no autoencoder" in refused(tmp_path).what
    (tmp_path / "config.json").write_text("{}")
    assert "config.json" in refused(tmp_path).found


def test_several_files_of_weights(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_file(tmp_path / f"{name}.safetensors", decoder_state())
    assert "several files" in refused(tmp_path).what


def test_a_pointer_instead_of_weights(tmp_path: Path) -> None:
    (tmp_path / "Wan2.1_VAE.pth").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "Git-LFS pointer" in refused(tmp_path).what
