"""Every wrong input gets a sentence that says what it is, and a next step."""

from __future__ import annotations

import json
import os
import zipfile

import numpy as np
import pytest
import torch

from exporters.checkpoint import open_checkpoint
from exporters.errors import CheckpointError
from exporters.names import LAYOUTS
from tests.exporters.models import (
    base_of,
    kohya,
    spelled,
    torch_state,
    values,
    without,
    write,
    write_safetensors,
    write_shards,
)


@pytest.fixture(scope="module")
def model():
    return values()


def refused(path, message, **arguments) -> CheckpointError:
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(path, **arguments)
    error = caught.value
    assert error.where, "an error says where"
    assert str(error).startswith(error.what)
    return error


# --- bytes that are no checkpoint -------------------------------------------------------------------------------

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5676070000\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (LFS, "Git-LFS pointer"),
        (
            b"<!DOCTYPE html><html><head><title>Sign in</title></head></html>",
            "web page saved under a checkpoint's name",
        ),
        (b"\n\n  <HTML lang='en'>", "web page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "web page"),
        (b"GGUF\x03\x00\x00\x00" + b"\x00" * 64, "GGUF file"),
        (b"\x1f\x8b\x08\x00" + b"x" * 64, "gzip archive"),
        (b"7z\xbc\xaf\x27\x1c" + b"x" * 64, "7z archive"),
        (b"\x93NUMPY\x01\x00" + b"x" * 64, "one NumPy array"),
        (b"x" * 257 + b"ustar" + b"x" * 64, "tar archive"),
        (b"\x00" * 8192, "starts with zeros"),
        (b"Access denied", "neither a safetensors file nor a PyTorch checkpoint"),
        (b'{"error": "Repository not found"}', "not weights and not an index"),
        (b"\x80\x02}q\x00.", "cut off or damaged"),
        (b"\x80\x04garbage", "needs more than tensors|cut off or damaged"),
    ],
)
def test_wrong_bytes(tmp_path, content, message):
    (tmp_path / "model.safetensors").write_bytes(content)
    error = refused(tmp_path / "model.safetensors", message)
    assert error.fix


@pytest.mark.parametrize("size", [5, 100, -1000, -1])
def test_truncated_download_says_how_much_is_missing(tmp_path, model, size):
    path = write(tmp_path / "w", spelled(model, "dcm"))
    data = path.read_bytes()
    path.write_bytes(data[:size])
    left = len(data[:size])
    if size == 5:
        refused(path, "neither a safetensors file|cut off")
        return
    error = refused(path, "the file is cut off")
    assert f"{left:,} bytes" in error.found
    assert "missing" in error.found
    if size < 0:
        assert f"{len(data):,} bytes" in error.expected


def _entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "data", "length", "message"),
    [
        ({}, b"", 10**9, "header is too large"),
        ({}, b"", 2**63, "header is too large"),
        (b"{not json", b"", None, "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000, b"", None, "not valid JSON"),
        (b'{"\xff": 1}', b"", None, "not valid JSON"),
        (b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":1}', b"0000", None, "appears twice"),
        ({"a": 1}, b"", None, "malformed"),
        ({"a": _entry(offsets=(0, -8))}, b"", None, "malformed"),
        ({"a": _entry(shape=(2.5,))}, b"", None, "malformed"),
        ({"a": _entry(shape=(True,))}, b"", None, "malformed"),
        ({"a": _entry(shape=(3,))}, b"00000000", None, "wrong number of bytes"),
        ({"a": _entry(shape=(2**62, 4), offsets=(0, 0))}, b"", None, "wrong number of bytes"),
        ({"a": _entry(offsets=(4, 12))}, b"0" * 12, None, "leaves a hole"),
        ({"a": _entry(), "b": _entry(offsets=(4, 12))}, b"0" * 12, None, "leaves a hole before it or overlaps"),
        ({"a": _entry()}, b"0" * 9, None, "bytes follow the last tensor"),
        ({"a": _entry(dtype="Q4")}, b"0" * 8, None, "the safetensors library refuses"),
        ({"__metadata__": 3}, b"", None, "__metadata__"),
        ({}, b"", None, "holds no tensors"),
    ],
)
def test_malformedwrite_safetensors(tmp_path, header, data, length, message):
    refused(write_safetensors(tmp_path / "w", header, data, length), message)


def test_a_zip_that_is_no_torch_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "w", "w") as archive:
        archive.writestr("readme.txt", "unpack me")
    assert "'readme.txt'" in refused(tmp_path / "w", "a zip archive, but not a PyTorch checkpoint").found


def test_a_truncated_torch_file(tmp_path, model):
    torch.save(torch_state(spelled(model, "wan")), tmp_path / "w")
    (tmp_path / "w").write_bytes((tmp_path / "w").read_bytes()[:-500])
    refused(tmp_path / "w", "its end is missing")


class _Payload:
    def __reduce__(self):
        return (print, ("this pickle ran code",))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_needs_code_is_refused_and_runs_nothing(tmp_path, capsys, zipped):
    torch.save({"state_dict": _Payload()}, tmp_path / "w", _use_new_zipfile_serialization=zipped)
    error = refused(tmp_path / "w", "this pickle needs more than tensors to load")
    assert "print" in error.found
    assert "this pickle ran code" not in capsys.readouterr().out


def test_a_torchscript_program(tmp_path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "w")
    refused(tmp_path / "w", "TorchScript program")


# --- other models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        (["encoder.conv1.weight", "decoder.middle.0.residual.0.gamma", "conv2.weight"], "a VAE"),
        (["decoder.up_blocks.0.resnets.0.conv1.weight", "post_quant_conv.weight", "encoder.conv_in.weight"], "a VAE"),
        (["first_stage_model.decoder.conv_in.weight"], "a VAE"),
        (["encoder.block.0.layer.0.SelfAttention.q.weight", "shared.weight"], "a T5 text encoder"),
        (["token_embedding.weight", "blocks.0.attn.q.weight", "blocks.0.ffn.gate.0.weight"], "a T5 text encoder"),
        (["text_model.encoder.layers.0.mlp.fc1.weight"], "a CLIP encoder"),
        (["model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"], "a language model"),
        (["double_blocks.0.img_attn.qkv.weight"], "a Flux or HunyuanVideo transformer"),
        (["transformer_blocks.0.attn1.to_q.weight"], "another kind of diffusion transformer"),
        (["model.diffusion_model.input_blocks.0.0.weight"], "a U-Net"),
        (["weight"], "no model that hvdc knows"),
    ],
)
def test_other_models(tmp_path, keys, what):
    path = write(tmp_path / "w", {k: np.zeros((2, 2), np.float32) for k in keys})
    error = refused(path, f"this file holds {what}, .*not the Wan transformer|this file holds {what}")
    assert "transformer" in error.fix


def test_an_adapter_given_as_the_checkpoint(tmp_path, model):
    assert "--adapter" in refused(write(tmp_path / "w", kohya(model)), "holds an adapter").fix


def test_a_vae_given_as_the_adapter(tmp_path, model):
    base = write(tmp_path / "base", spelled(base_of(model), "wan"))
    vae = write(tmp_path / "vae", {"decoder.conv1.weight": np.zeros(2, np.float32)})
    refused(base, "holds a VAE", adapter=vae)


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        (36, "image-to-video model: its patch embedding takes 36 channels"),
        (33, "33-channel patch embedding"),
        (20, "takes 20 channels but the head makes 16"),
    ],
)
def test_patch_embeddings_that_take_more_than_the_latent(tmp_path, model, channels, message):
    keys = spelled(base_of(model), "wan")
    keys["patch_embedding.weight"] = np.zeros((128, channels, 1, 2, 2), np.float32)
    assert str(channels) in refused(write(tmp_path / "w", keys), message).found


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("blocks.0.cross_attn.k_img.weight", "image-to-video model: it has an image branch"),
        ("img_emb.proj.0.weight", "image-to-video model"),
        ("vace_blocks.0.before_proj.weight", "VACE"),
        ("blocks.0.self_attn.qkv.weight", "fused into one matrix"),
        ("audio_proj.audio_proj_glob_1.layer.weight", "speech or audio"),
        ("blocks.0.ffn.0.weight.absmax", "already quantised"),
        ("blocks.0.mystery.weight", r"1 tensors of this file belong to no part of the model"),
        # official norm2 has no parameters: the key is diffusers' name of another norm
        ("blocks.0.norm2.weight", "mixes official Wan names and diffusers names"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_variants_are_named(tmp_path, model, key, message, prefix):
    keys = {prefix + k: v for k, v in spelled(base_of(model), "wan").items()}
    keys[prefix + key] = np.zeros((2, 2), np.float32)
    refused(write(tmp_path / "w", keys), message)


def test_fused_projections_in_place_of_q_k_v(tmp_path, model):
    keys = spelled(base_of(model), "diffusers")
    keys = {k: v for k, v in keys.items() if ".attn1.to_" not in k}
    keys["blocks.0.attn1.to_qkv.weight"] = np.zeros((384, 128), np.float32)
    assert "split the fused projections" in refused(write(tmp_path / "w", keys), "q, k and v projections fused").fix


def test_integer_weights(tmp_path, model):
    from safetensors.torch import save_file

    state = torch_state(spelled(base_of(model), "wan"))
    state["blocks.0.ffn.0.weight"] = state["blocks.0.ffn.0.weight"].to(torch.int8)
    save_file(state, tmp_path / "w")
    refused(tmp_path / "w", "stored as I8: the checkpoint is already quantised")


# --- nothing is dropped or made up without a word ---------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_missing_base_tensor_is_named(tmp_path, model, layout):
    keys = spelled(base_of(model), layout)
    for index, key in enumerate(list(keys)):
        error = refused(write(tmp_path / f"{index}", without(keys, [key])), "lacks|missing|not fit")
        assert "whole model" in error.fix or "fit" in error.what


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_extra_tensor_is_named(tmp_path, model, layout):
    keys = spelled(base_of(model), layout)
    extra = {f"blocks.0.extra_{i}": np.zeros(1, np.float32) for i in range(11)}
    error = refused(write(tmp_path / "w", {**keys, **extra}), "11 tensors of this file belong to no part")
    assert "'blocks.0.extra_0'" in error.found
    assert error.found.endswith("and 3 more")


def test_each_wrong_shape_is_named(tmp_path, model):
    keys = spelled(base_of(model), "wan")
    for name in ("blocks.1.norm3.weight", "blocks.1.self_attn.q.weight", "time_projection.1.bias", "head.modulation"):
        wrong = {**keys, name: np.zeros((3, *keys[name].shape[1:]), np.float32)}
        error = refused(write(tmp_path / name, wrong), "a shape that does not fit")
        assert name in error.where
        assert "[3" in error.found


def test_a_gap_between_blocks(tmp_path, model):
    keys = spelled(base_of(model), "wan")
    keys = {k.replace("blocks.1.", "blocks.3."): v for k, v in keys.items()}
    assert "block 1, 2" in refused(write(tmp_path / "w", keys), "2 blocks are missing in between").found


def test_the_same_tensor_under_two_prefixes(tmp_path, model):
    keys = spelled(base_of(model), "wan")
    keys["model.head.head.bias"] = keys["head.head.bias"]
    refused(write(tmp_path / "w", keys), "two keys of this file mean the same tensor, 'head.head.bias'")


# --- folders ----------------------------------------------------------------------------------------------------


def test_missing_path(tmp_path):
    refused(tmp_path / "nowhere", "no such file or folder")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file")
    assert "broken symbolic link" in refused(tmp_path / "link", "no such file or folder").fix


def test_folders_without_weights(tmp_path):
    assert refused(tmp_path, "holds no weights").found == "an empty folder"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README.md").write_text("# A model")
    assert "'README.md'" in refused(tmp_path, "holds no weights").found
    (tmp_path / "model.safetensors").write_bytes(LFS)
    refused(tmp_path, "Git-LFS pointer")


def test_a_folder_with_several_transformers(tmp_path, model):
    for name in ("high_noise", "low_noise"):
        write(tmp_path / name, spelled(base_of(model), "wan"))
    assert "'high_noise'" in refused(tmp_path, "several transformers").found


def test_a_pipeline_with_two_transformers(tmp_path, model):
    for name in ("transformer", "transformer_2"):
        write_shards(tmp_path / name, spelled(base_of(model), "diffusers"))
    error = refused(tmp_path, "this pipeline holds several transformers")
    assert "--adapter" in error.fix


def test_a_missing_shard(tmp_path, model):
    folder = write_shards(tmp_path / "m", spelled(model, "dcm"))
    next(folder.glob("*-00002-*.safetensors")).unlink()
    assert "-00002-of-00003" in refused(folder, "1 of the 3 shards that the index names are not there").found


def test_an_index_that_names_tensors_its_shard_lacks(tmp_path, model):
    folder = write_shards(tmp_path / "m", spelled(model, "dcm"))
    index = next(folder.glob("*.index.json"))
    content = json.loads(index.read_text())
    content["weight_map"]["blocks.0.nothing"] = next(iter(content["weight_map"].values()))
    index.write_text(json.dumps(content))
    assert "'blocks.0.nothing'" in refused(folder, "the index promises 1 tensors").found


def test_a_tensor_in_two_shards(tmp_path, model):
    folder = write_shards(tmp_path / "m", spelled(model, "dcm"))
    shards = sorted(folder.glob("*.safetensors"))
    from safetensors.numpy import load_file

    first = load_file(shards[0])
    name = next(iter(first))
    write(shards[1], {**load_file(shards[1]), name: first[name]})
    refused(folder, "is in two files")


@pytest.mark.parametrize("shard", ["../w.safetensors", "/etc/passwd", 7, ""])
def test_an_index_that_leaves_its_folder(tmp_path, model, shard):
    folder = write_shards(tmp_path / "m", spelled(model, "dcm"))
    index = next(folder.glob("*.index.json"))
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    refused(folder, "outside its folder")


def test_several_indexes(tmp_path, model):
    folder = write_shards(tmp_path / "m", spelled(model, "dcm"))
    (folder / "other.fp16.index.json").write_text("{}")
    refused(folder, "several indexes")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_layers": 30}, "describes another model"),
        ({"ffn_dim": 8960}, "describes another model"),
        ({"num_attention_heads": 7}, "7 heads do not divide 128 channels"),
        ({"attention_head_dim": 96}, "do not divide 128 channels"),
        ({"qk_norm": "layer_norm"}, "something that hvdc doesn't compute"),
        ({"image_dim": 1280}, "something that hvdc doesn't compute"),
        ({"model_type": "i2v"}, "something that hvdc doesn't compute"),
        ({"eps": "small"}, "a value that cannot be"),
        ({"num_layers": 1.5}, "a fraction"),
    ],
)
def test_configurations_that_do_not_fit(tmp_path, model, config, message):
    path = write(tmp_path / "w", spelled(base_of(model), "wan"))
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "WanTransformer3DModel", **config}))
    refused(path, message)


@pytest.mark.parametrize("text", ["{", "[]", "\xff", "[" * 100_000])
def test_configurations_that_are_no_json_object(tmp_path, model, text):
    path = write(tmp_path / "w", spelled(base_of(model), "wan"))
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    refused(path, r"config\.json cannot be used")
