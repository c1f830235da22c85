"""One model in every form of the world: each opens to the same canonical float32 tensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from exporters.checkpoint import open_checkpoint
from exporters.errors import CheckpointError
from exporters.model import TINY, base_tensors
from exporters.names import LAYOUTS, spell
from exporters.tensor import check_finite, from_array
from tests.exporters.models import (
    ALPHA,
    GEOMETRY,
    assert_holds,
    base_of,
    one_expert,
    spelled,
    torch_state,
    values,
    write,
    write_shards,
)


@pytest.fixture(scope="module")
def model():
    return values()


def _alpha(layout):
    return None if layout == "dcm" else ALPHA


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_file(tmp_path, model, layout):
    with open_checkpoint(write(tmp_path / "weights", spelled(model, layout)), lora_alpha=_alpha(layout)) as c:
        assert_holds(c, model)
        assert c.report.layout == layout
        assert c.report.stored_dtypes == {"F32": len(model)}
        assert c.report.ignored == ()
        assert set(c.report.experts) == {"semantic", "detail"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sharded_directory_and_its_index(tmp_path, model, layout):
    folder = write_shards(tmp_path / "model", spelled(model, layout))
    index = next(folder.glob("*.index.json"))
    for path in (folder, index):
        with open_checkpoint(path, lora_alpha=_alpha(layout)) as c:
            assert_holds(c, model)
            assert c.report.container == "3 shards with an index"


@pytest.mark.parametrize("layout", ["dcm", "diffusers"])
def test_diffusers_pipeline_folder(tmp_path, model, layout):
    (tmp_path / "model_index.json").write_text("{}")
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "config.json").write_text("{}")
    folder = write_shards(tmp_path / "transformer", spelled(model, layout))
    config = {"_class_name": "WanTransformer3DModel", "num_attention_heads": 1, "attention_head_dim": 128, "eps": 1e-5}
    config |= {
        "num_layers": 2,
        "ffn_dim": 192,
        "in_channels": 16,
        "qk_norm": "rms_norm_across_heads",
        "image_dim": None,
    }
    (folder / "config.json").write_text(json.dumps(config))
    with open_checkpoint(tmp_path, lora_alpha=_alpha(layout)) as c:
        assert_holds(c, model, replace(GEOMETRY, eps=1e-5))
        assert any("config.json" in note for note in c.report.notes)


def test_official_repository_folder(tmp_path, model):
    """Wan-AI/Wan2.1-T2V-1.3B keeps text encoder and VAE beside the transformer."""
    write(tmp_path / "diffusion_pytorch_model.safetensors", spelled(base_of(model), "wan"))
    torch.save({"encoder.conv1.weight": torch.zeros(2)}, tmp_path / "Wan2.1_VAE.pth")
    torch.save({"token_embedding.weight": torch.zeros(2)}, tmp_path / "models_t5_umt5-xxl-enc-bf16.pth")
    config = {"_class_name": "WanModel", "model_type": "t2v", "num_heads": 1, "dim": 128, "text_len": 16, "eps": 1e-6}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "README.md").write_text("# Wan2.1")
    with open_checkpoint(tmp_path) as c:
        assert_holds(c, model, replace(one_expert(), text_tokens=16))
        assert any("not read" in n and "Wan2.1_VAE.pth" in n for n in c.report.notes)


def test_the_one_transformer_is_found_by_content_not_by_name(tmp_path, model):
    write(tmp_path / "a.safetensors", {"decoder.conv1.weight": np.zeros(4, np.float32)})
    write(tmp_path / "b.bin", spelled(base_of(model), "wan"))
    with open_checkpoint(tmp_path) as c:
        assert_holds(c, model, one_expert())


@pytest.mark.parametrize("wrap", [None, "state_dict", "model", "module"])
@pytest.mark.parametrize("zipped", [True, False])
def test_torch_files(tmp_path, model, wrap, zipped):
    state = torch_state(spelled(model, "dcm"))
    content = {wrap: state, "step": 7} if wrap else state
    torch.save(content, tmp_path / "model.safetensors", _use_new_zipfile_serialization=zipped)
    with open_checkpoint(tmp_path / "model.safetensors") as c:
        assert_holds(c, model)
        assert [i.name for i in c.report.ignored] == (["step"] if wrap else [])


@pytest.mark.parametrize(
    "prefix",
    [
        "model.diffusion_model.",
        "diffusion_model.",
        "transformer.",
        "model.",
        "module.",
        "_orig_mod.",
        "module._orig_mod.model.",
    ],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_prefixes(tmp_path, model, prefix, layout):
    keys = {prefix + k: v for k, v in spelled(model, layout).items()}
    with open_checkpoint(write(tmp_path / "w", keys), lora_alpha=_alpha(layout)) as c:
        assert_holds(c, model)
        assert c.report.prefixes == (prefix,)


def test_a_bundle_says_what_it_left_out(tmp_path, model):
    keys = {f"model.diffusion_model.{k}": v for k, v in spelled(base_of(model), "wan").items()}
    keys["vae.decoder.conv1.weight"] = keys["text_encoders.umt5.shared.weight"] = np.zeros(3, np.float32)
    with open_checkpoint(write(tmp_path / "w", keys)) as c:
        assert_holds(c, model, one_expert())
        assert {i.name for i in c.report.ignored} == {"vae.decoder.conv1.weight", "text_encoders.umt5.shared.weight"}
        assert all(i.reason for i in c.report.ignored)
        assert (
            "ignored (VAE of a bundled file; not part of the transformer): vae.decoder.conv1.weight" in c.report.lines()
        )


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)])
def test_rounded_dtypes_stay_within_their_bound(tmp_path, model, dtype, bound):
    with open_checkpoint(write(tmp_path / "w", spelled(model, "dcm"), dtype)) as c:
        assert set(c.report.stored_dtypes) == {{torch.float16: "F16", torch.bfloat16: "BF16"}[dtype]}
        for name, tensor in c.tensors.items():
            got = tensor.read()
            np.testing.assert_array_equal(got, torch.from_numpy(model[name]).to(dtype).float().numpy())
            assert np.all(np.abs(got - model[name]) <= np.abs(model[name]) * bound + 2.0**-25)


def _fp8(model, layout, spelling, dtype):
    """Matrices in blocks as scaled fp8, the rest bf16, as the published fp8 files are."""
    from safetensors.torch import save_file

    tensors, expected = {}, {}
    top = torch.finfo(dtype).max
    for name, value in model.items():
        weight = torch.from_numpy(np.array(value))
        key = spell(name, layout)
        if value.ndim == 2 and ".lora_" not in name and name.startswith("blocks."):
            scale = (weight.abs().max() / top).to(torch.float32)
            quantised = (weight / scale).to(dtype)
            expected[name] = (quantised.float() * scale).numpy()
            tensors[key] = quantised
            suffix = {"scale_weight": ".scale_weight", "weight_scale": ".weight_scale"}[spelling]
            tensors[key.removesuffix(".weight") + suffix] = scale if spelling == "weight_scale" else scale.reshape(1)
            extra = ".scale_input" if spelling == "scale_weight" else ".input_scale"
            tensors[key.removesuffix(".weight") + extra] = torch.ones(1)
        else:
            tensors[key] = weight.to(torch.bfloat16)
            expected[name] = tensors[key].float().numpy()
    if spelling == "scale_weight":
        tensors["scaled_fp8"] = torch.zeros(2, dtype=dtype)
    return tensors, expected, save_file


@pytest.mark.parametrize("spelling", ["scale_weight", "weight_scale"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("layout", ["dcm", "wan"])
def test_fp8_with_scales(tmp_path, model, spelling, dtype, layout):
    tensors, expected, save_file = _fp8(model, layout, spelling, dtype)
    save_file(tensors, tmp_path / "w")
    with open_checkpoint(tmp_path / "w", lora_alpha=_alpha(layout)) as c:
        assert_holds(c, expected)
        step = 2.0**-4 if dtype == torch.float8_e4m3fn else 2.0**-3
        for name in expected:
            if name.endswith("to_q.weight"):
                floor = np.abs(model[name]).max() * 2.0**-16
                assert np.all(np.abs(expected[name] - model[name]) <= np.abs(model[name]) * step + floor)
        inputs = [i for i in c.report.ignored if "calibrates its own" in i.reason]
        assert len(inputs) == 20
        assert ("scaled_fp8" in {i.name for i in c.report.ignored}) == (spelling == "scale_weight")


def test_a_plain_cast_to_fp8_needs_no_scales(tmp_path, model):
    path = write(tmp_path / "w", spelled(model, "dcm"), torch.float8_e4m3fn)
    expected = {n: torch.from_numpy(v).to(torch.float8_e4m3fn).float().numpy() for n, v in model.items()}
    with open_checkpoint(path) as c:
        assert_holds(c, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("blocks.0.self_attn.q.scale_weight"), "1 fp8 tensors have no scale although others have one"),
        (lambda t: t.pop("blocks.0.self_attn.q.weight"), "1 scales have no weight beside them"),
        (
            lambda t: t.update({"blocks.0.self_attn.q.scale_weight": torch.tensor([0.0])}),
            "not a positive finite number",
        ),
        (lambda t: t.update({"blocks.0.self_attn.q.scale_weight": torch.ones(128)}), "is not one number"),
        (lambda t: t.update({"blocks.0.self_attn.q.weight_scale": torch.ones(1)}), "has two scales"),
        (lambda t: t.update({"blocks.0.norm3.scale_weight": torch.ones(1) * 2}), "although it isn't stored in fp8"),
    ],
)
def test_fp8_scales_that_do_not_add_up(tmp_path, model, change, message):
    tensors, _, save_file = _fp8(base_of(model), "wan", "scale_weight", torch.float8_e4m3fn)
    change(tensors)
    save_file(tensors, tmp_path / "w")
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path / "w")


def test_rows_are_the_whole_tensor_in_parts(tmp_path, model):
    for dtype in (torch.float32, torch.bfloat16):
        with open_checkpoint(write(tmp_path / "w", spelled(model, "dcm"), dtype)) as c:
            tensor = c.tensors["blocks.1.ffn.net.2.weight"]
            parts = [tensor.rows(a, min(a + 50, 128)) for a in range(0, 128, 50)]
            np.testing.assert_array_equal(np.concatenate(parts), tensor.read())
            assert tensor.rows(5, 5).shape == (0, 192)


def test_several_threads_read_at_once(tmp_path, model):
    with open_checkpoint(write(tmp_path / "w", spelled(model, "dcm"), torch.bfloat16)) as c:
        expected = {n: t.read() for n, t in c.tensors.items()}
        wrong = []

        def work():
            wrong.extend(n for n, t in c.tensors.items() if not np.array_equal(t.read(), expected[n]))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert wrong == []


def test_reads_larger_than_the_scratch_buffer(tmp_path):
    from exporters.safetensors_file import SafetensorsFile

    big = np.random.default_rng(0).standard_normal((1500, 1501)).astype(np.float32)
    file = SafetensorsFile(write(tmp_path / "w", {"x": big}, torch.float16))
    np.testing.assert_array_equal(file.tensors["x"].read(), big.astype(np.float16).astype(np.float32))
    file.close()


def test_a_closed_checkpoint_reads_no_more(tmp_path, model):
    checkpoint = open_checkpoint(write(tmp_path / "w", spelled(model, "dcm")))
    checkpoint.close()
    with pytest.raises(ValueError, match="closed file"):
        checkpoint.tensors["proj_out.weight"].read()


def test_one_expert(tmp_path, model):
    with open_checkpoint(write(tmp_path / "w", spelled(base_of(model), "wan"))) as c:
        assert_holds(c, model, one_expert())
        assert c.geometry.experts == ("semantic",)
        assert "note: no detail expert: this is a one-expert model" in c.report.lines()


def test_a_model_without_the_cross_attention_norm(tmp_path, model):
    geometry = replace(one_expert(), cross_attn_norm=False)
    keys = {spell(n, "wan"): model[n] for n in base_tensors(geometry)}
    with open_checkpoint(write(tmp_path / "w", keys)) as c:
        assert_holds(c, model, geometry)


def test_the_shared_tiny_preset_opens(tmp_path):
    model = values(TINY)
    with open_checkpoint(write(tmp_path / "w", spelled(model, "dcm")), text_tokens=16) as c:
        assert_holds(c, model, TINY)


def test_heads_come_from_argument_then_config_then_128_channels(tmp_path, model):
    path = write(tmp_path / "w", spelled(base_of(model), "wan"))
    with open_checkpoint(path) as c:
        assert c.geometry.heads == 1
        assert any("no configuration gives the number of heads" in n for n in c.report.notes)
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "WanModel", "num_heads": 4}))
    with open_checkpoint(path) as c:
        assert c.geometry.heads == 4
    with open_checkpoint(path, heads=2, text_tokens=77, eps=1e-5) as c:
        assert (c.geometry.heads, c.geometry.text_tokens, c.geometry.eps) == (2, 77, 1e-5)


def test_another_programs_config_is_not_this_models(tmp_path, model):
    (tmp_path / "config.json").write_text(json.dumps({"theme": "dark", "num_layers": 99}))
    with open_checkpoint(write(tmp_path / "w", spelled(base_of(model), "wan"))) as c:
        assert_holds(c, model, one_expert())


def _sparse(path, shapes, dtype="F32"):
    """A safetensors file of the given shapes whose data take no disk: only the header is written."""
    size = {"F32": 4, "BF16": 2}[dtype]
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + int(np.prod(shape, dtype=np.int64)) * size
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return path


def test_a_14b_model_opens_by_its_header(tmp_path):
    geometry = replace(one_expert(), layers=40, width=5120, ffn_width=13824, heads=40, text_width=4096, freq_dim=256)
    path = _sparse(tmp_path / "w", {spell(n, "wan"): s for n, s in base_tensors(geometry).items()})
    assert path.stat().st_size > 50e9
    with open_checkpoint(path) as c:
        assert c.geometry == geometry
        assert np.all(c.tensors["blocks.39.ffn.net.2.weight"].rows(5119, 5120) == 0)


def test_opening_needs_neither_torch_nor_memory(tmp_path):
    geometry = replace(
        GEOMETRY, layers=30, width=1536, ffn_width=8960, heads=12, text_width=4096, freq_dim=256, rank=128
    )
    from exporters.model import canonical_tensors

    path = _sparse(tmp_path / "w", {spell(n, "dcm"): s for n, s in canonical_tensors(geometry).items()})
    code = (
        "import re, sys\n"
        "from exporters.checkpoint import open_checkpoint\n"
        "with open_checkpoint(sys.argv[1]) as c:\n"
        "    for t in list(c.tensors.values())[::10]:\n"
        "        for row in range(0, t.shape[0], 4096):\n"
        "            t.rows(row, min(row + 64, t.shape[0]))\n"
        "assert len(c.tensors) == 1317\n"
        "assert 'torch' not in sys.modules\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read()).group(1)) // 1024)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 200, "MiB of resident memory"


def test_finite_check_names_the_first_bad_index():
    weight = from_array("w", np.ones((20, 3), np.float32), "file: key")
    rows = np.ones((4, 3), np.float32)
    assert check_finite(weight, rows, 10) is rows
    check_finite(weight, np.empty((0, 3), np.float32))
    rows[2, 1], rows[3, 0] = np.nan, np.inf
    with pytest.raises(CheckpointError, match=r"'w' holds nan at \[12, 1\]") as caught:
        check_finite(weight, rows, 10)
    assert (caught.value.where, caught.value.found) == ("file: key", "nan")
    with pytest.raises(CheckpointError, match=r"holds -inf at \[1\]"):
        check_finite(weight, np.float32([0, -np.inf]))


def test_files_of_a_folder_that_cannot_be_used_are_named_with_what_they_are(tmp_path, model):
    """An adapter that was never pulled must not turn into a one-expert model without a word."""
    whole = write(tmp_path / "a.safetensors", spelled(base_of(model), "diffusers"))
    (tmp_path / "cut.safetensors").write_bytes(whole.read_bytes()[:-100])
    (tmp_path / "lora.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    (tmp_path / "README.md").write_text("a model")
    with open_checkpoint(tmp_path) as checkpoint:
        notes = "\n".join(checkpoint.report.notes)
    assert "'cut.safetensors': the file is cut off" in notes
    assert notes.count("cut.safetensors") == 1
    assert "'lora.safetensors': this is a Git-LFS pointer" in notes
    assert "README" not in notes
