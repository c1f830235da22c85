"""The detail expert as a file of its own, in the spelling of every trainer; nothing of it is dropped silently."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from exporters.checkpoint import open_checkpoint
from exporters.errors import CheckpointError
from exporters.names import LAYOUTS, spell
from tests.exporters.models import (
    ALPHA,
    GEOMETRY,
    assert_holds,
    base_of,
    factors_of,
    kohya,
    linears,
    own_of,
    spelled,
    values,
    without,
    write,
)


@pytest.fixture(scope="module")
def model():
    return values()


@pytest.fixture(params=LAYOUTS)
def base(request, tmp_path, model):
    return write(tmp_path / "base", spelled(base_of(model), request.param))


@pytest.fixture
def wan_base(tmp_path, model):
    return write(tmp_path / "base", spelled(base_of(model), "wan"))


def _peft(model):
    """`save_pretrained` of a PEFT model: one prefix, no adapter name; saved modules under the base's names."""
    out = {f"base_model.model.{n}": v for n, v in factors_of(model).items()}
    return out | {f"base_model.model.{n.replace('_lora.', '.', 1)}": v for n, v in own_of(model).items()}


SPELLINGS = {
    "canonical": lambda m: {**factors_of(m), **own_of(m)},
    "PEFT": _peft,
    "PEFT state dict": lambda m: (
        {f"base_model.model.{n.replace('.weight', '.default.weight')}": v for n, v in factors_of(m).items()}
        | {n.replace("_lora.", ".modules_to_save.default.", 1): v for n, v in own_of(m).items()}
    ),
    "DCM": lambda m: spelled({**factors_of(m), **own_of(m)}, "dcm"),
    "diffusers": lambda m: {f"transformer.{n}": v for n, v in {**factors_of(m), **own_of(m)}.items()},
    "diffusers, lora.down": lambda m: (
        {n.replace("lora_A", "lora.down").replace("lora_B", "lora.up"): v for n, v in factors_of(m).items()} | own_of(m)
    ),
    "official names": lambda m: {
        f"diffusion_model.{k}": v for k, v in spelled({**factors_of(m), **own_of(m)}, "wan").items()
    },
    "official embedder": lambda m: {
        **factors_of(m),
        **{spell(n.replace("_lora.", ".", 1), "wan"): v for n, v in own_of(m).items()},
    },
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_with_alpha_as_an_argument(tmp_path, model, base, spelling):
    adapter = write(tmp_path / "adapter", SPELLINGS[spelling](model))
    with open_checkpoint(base, adapter=adapter, lora_alpha=ALPHA) as c:
        assert_holds(c, model)
        assert c.report.alpha_source == f"the argument: alpha {ALPHA:g}"
        assert c.report.experts["detail"] == str(adapter)


@pytest.mark.parametrize("names", ["wan", "diffusers"])
@pytest.mark.parametrize("dots", [False, True])
def test_kohya_spelling_brings_its_alpha(tmp_path, model, base, names, dots):
    adapter = write(tmp_path / "adapter", kohya(model, names, dots))
    with open_checkpoint(base, adapter=adapter) as c:
        assert_holds(c, model)
        assert c.report.alpha_source == "alpha tensors in the file"


def test_torch_adapter_files(tmp_path, model, wan_base):
    torch.save({k: torch.from_numpy(np.array(v)) for k, v in kohya(model).items()}, tmp_path / "adapter")
    with open_checkpoint(wan_base, adapter=tmp_path / "adapter") as c:
        assert_holds(c, model)


def _folder(tmp_path, model, **config):
    folder = tmp_path / "adapter"
    folder.mkdir()
    write(folder / "adapter_model.safetensors", _peft(model))
    for name, content in config.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    torch.save({"lr": 1}, folder / "optimizer.pt")
    return folder


@pytest.mark.parametrize(
    ("config", "ratio"),
    [
        ({"adapter_config": {"r": 4, "lora_alpha": 8, "use_rslora": False, "use_dora": False, "bias": "none"}}, 2.0),
        ({"adapter_config": {"r": 4, "lora_alpha": 8, "use_rslora": True}}, 4.0),
        ({"lora_config": {"lora_params": {"lora_rank": 4, "lora_alpha": 6}}}, 1.5),
    ],
)
def test_alpha_from_a_configuration_file(tmp_path, model, wan_base, config, ratio):
    with open_checkpoint(wan_base, adapter=_folder(tmp_path, model, **config)) as c:
        assert_holds(c, model, replace(GEOMETRY, alpha_over_rank=ratio))
        assert f"{next(iter(config))}.json" in c.report.alpha_source
        assert any("not read: 'optimizer.pt'" in n for n in c.report.notes)


def test_an_explicit_alpha_leaves_a_rank_stabilised_adapter_stabilised(tmp_path, model, wan_base):
    folder = _folder(tmp_path, model, adapter_config={"r": 4, "lora_alpha": 8, "use_rslora": True})
    with open_checkpoint(wan_base, adapter=folder, lora_alpha=6) as c:
        assert c.geometry.alpha_over_rank == 3.0
        assert c.report.alpha_source == "the argument: alpha 6, rank-stabilised"


@pytest.mark.parametrize(
    "metadata",
    [
        {"ss_network_alpha": "8", "ss_network_dim": "4"},
        {"lora_adapter_metadata": json.dumps({"transformer.r": 4, "transformer.lora_alpha": 8})},
    ],
)
def test_alpha_from_the_files_metadata(tmp_path, model, wan_base, metadata):
    adapter = write(tmp_path / "adapter", SPELLINGS["canonical"](model), **metadata)
    with open_checkpoint(wan_base, adapter=adapter) as c:
        assert_holds(c, model)
        assert "metadata" in c.report.alpha_source


def test_factors_and_embedder_may_lie_side_by_side(tmp_path, model, wan_base):
    (tmp_path / "adapter").mkdir()
    write(tmp_path / "adapter" / "factors", kohya(factors_of(model)))
    write(tmp_path / "adapter" / "embedder", own_of(model))
    with open_checkpoint(wan_base, adapter=tmp_path / "adapter") as c:
        assert_holds(c, model)


def test_the_base_may_hold_the_embedder_and_the_adapter_only_factors(tmp_path, model):
    base = write(tmp_path / "base", spelled({**base_of(model), **own_of(model)}, "wan"))
    adapter = write(tmp_path / "adapter", kohya(factors_of(model)))
    with open_checkpoint(base, adapter=adapter) as c:
        assert_holds(c, model)


def test_dcms_file_has_a_documented_default(tmp_path, model):
    path = write(tmp_path / "w", spelled(model, "dcm"))
    with open_checkpoint(path) as c:
        assert c.geometry.alpha_over_rank == 2.0
        assert "DCM's default 2" in c.report.alpha_source
        assert any("alpha / rank: 2, from DCM's default" in line for line in c.report.lines())
    with open_checkpoint(path, lora_alpha=4) as c:
        assert c.geometry.alpha_over_rank == 1.0
    (tmp_path / "lora_config.json").write_text(json.dumps({"lora_params": {"lora_rank": 4, "lora_alpha": 12}}))
    with open_checkpoint(path) as c:
        assert c.geometry.alpha_over_rank == 3.0


@pytest.mark.parametrize("layout", ["wan", "diffusers"])
def test_other_layouts_without_alpha_are_refused(tmp_path, model, layout):
    with pytest.raises(CheckpointError, match="there is no alpha in the file or beside it") as caught:
        open_checkpoint(write(tmp_path / "w", spelled(model, layout)))
    assert "--lora-alpha" in caught.value.fix


def test_absent_pairs_become_zeros_and_are_listed(tmp_path, model, wan_base):
    absent = ["blocks.0.attn2.to_k", "blocks.1.attn1.to_out.0"]
    drop = [f"{stem}.lora_{part}.weight" for stem in absent for part in "AB"]
    adapter = write(tmp_path / "adapter", SPELLINGS["canonical"](without(model, drop)))
    expected = model | {n: np.zeros_like(model[n]) for n in drop}
    with open_checkpoint(wan_base, adapter=adapter, lora_alpha=ALPHA) as c:
        assert_holds(c, expected)
        assert f"2 of 16 linears have no factors and get zeros: '{absent[0]}', '{absent[1]}'" in c.report.notes


def test_smaller_ranks_are_padded_exactly(tmp_path, model, wan_base):
    keys = kohya(model)
    small = "blocks.1.attn2.to_v"
    stem = "lora_unet_blocks_1_cross_attn_v"
    keys[f"{stem}.lora_down.weight"] = keys[f"{stem}.lora_down.weight"][:3]
    keys[f"{stem}.lora_up.weight"] = keys[f"{stem}.lora_up.weight"][:, :3]
    keys[f"{stem}.alpha"] = np.float32(3 * GEOMETRY.alpha_over_rank)
    expected = dict(model)
    for part, index in (("A", np.s_[3:]), ("B", np.s_[:, 3:])):
        expected[f"{small}.lora_{part}.weight"] = model[f"{small}.lora_{part}.weight"].copy()
        expected[f"{small}.lora_{part}.weight"][index] = 0
    with open_checkpoint(wan_base, adapter=write(tmp_path / "adapter", keys)) as c:
        assert_holds(c, expected)
        assert "ranks differ (1 of rank 3, 15 of rank 4): padded with zeros to 4" in c.report.notes
        assert np.all(c.tensors[f"{small}.lora_A.weight"].rows(2, 4)[1] == 0)


def test_differing_alphas_move_into_b(tmp_path, model, wan_base):
    keys = kohya(model)
    keys["lora_unet_blocks_0_self_attn_q.alpha"] = np.float32(ALPHA / 4)
    name = "blocks.0.attn1.to_q.lora_B.weight"
    with open_checkpoint(wan_base, adapter=write(tmp_path / "adapter", keys)) as c:
        assert_holds(c, model | {name: model[name] / 4})
        assert any("alpha / rank differs between linears: 2 is kept" in n for n in c.report.notes)


def _extra(name, shape=(4, 128)):
    return lambda keys: keys.update({name: np.ones(shape, np.float32)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_extra("lora_unet_blocks_0_ffn_0.lora_down.weight"), r"adapts 'blocks\.0\.ffn\.net\.0\.proj'"),
        (_extra("lora_unet_time_projection_1.lora_down.weight"), r"adapts 'condition_embedder\.time_proj'"),
        (_extra("diffusion_model.blocks.0.self_attn.q.diff_b", (128,)), "weight or bias difference"),
        (_extra("diffusion_model.blocks.0.norm3.diff", (128,)), "weight or bias difference"),
        (_extra("lora_unet_blocks_0_self_attn_q.dora_scale", (128,)), "DoRA"),
        (_extra("blocks.0.attn1.to_q.lora_magnitude_vector.default.weight", (128,)), "DoRA"),
        (_extra("diffusion_model.blocks.0.cross_attn.norm_k_img.diff", (128,)), "image-to-video"),
        (_extra("diffusion_model.blocks.0.cross_attn.k_img.lora_down.weight"), "image-to-video"),
        (_extra("lora_unet_blocks_0_self_attn_q.lokr_w1"), "another kind of adapter"),
        (_extra("lora_unet_blocks_0_self_attn_q.hada_w1_a"), "another kind of adapter"),
        (_extra("blocks.0.self_attn.q_loras.down.weight"), "Stand-In"),
        (_extra("lora_te1_text_model_encoder_layers_0.lora_down.weight"), "text encoder"),
        (_extra("blocks.0.attn1.to_q.lora_B.bias", (128,)), "a bias inside an adapter"),
        (_extra("lora_unet_double_blocks_0_img_attn.lora_down.weight"), "no module of a Wan block"),
        (_extra("something.else"), "belong to no part of the model"),
        (_extra("lora_unet_blocks_7_self_attn_q.alpha", ()), "1 alphas belong to linears without factors"),
        (lambda k: k.pop("lora_unet_blocks_0_self_attn_q.alpha"), "1 adapted linears have no alpha"),
        (lambda k: k.pop("lora_unet_blocks_0_self_attn_q.lora_up.weight"), "1 factors lack their other half"),
        (_extra("blocks.0.attn1.to_q.lora_A.weight"), "is there twice"),
        (lambda k: k.update({n: np.float32(0) for n in k if n.endswith("alpha")}), "alpha is 0"),
        (lambda k: k.update({n: np.float32(np.nan) for n in k if n.endswith("alpha")}), "alpha is not a finite number"),
        (
            lambda k: k.update(
                {"lora_unet_blocks_0_self_attn_q.lora_down.weight": np.ones((4, 128, 1, 1), np.float32)}
            ),
            "do not fit each other",
        ),
    ],
)
def test_what_the_detail_expert_cannot_express_is_refused(tmp_path, model, wan_base, change, message):
    keys = kohya(model)
    change(keys)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(wan_base, adapter=write(tmp_path / "adapter", keys))
    assert re.search(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("dropped", "lacks"),
    [
        (lambda n: "_lora." in n, "embedding block and head are missing"),
        (lambda n: n.startswith("proj_out_lora."), "own head is missing"),
        (lambda n: n == "condition_embedder_lora.time_proj.bias", "own embedding block is missing"),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
def test_the_experts_own_embedder_and_head_are_required(tmp_path, model, wan_base, dropped, lacks, inside):
    keys = without(model, [n for n in model if dropped(n)])
    adapter = None if inside else write(tmp_path / "adapter", {**factors_of(keys), **own_of(keys)})
    path = write(tmp_path / "w", spelled(keys, "dcm")) if inside else wan_base
    with pytest.raises(CheckpointError, match=lacks) as caught:
        open_checkpoint(path, adapter=adapter, lora_alpha=ALPHA)
    assert "condition_embedder_lora.*" in caught.value.expected
    assert caught.value.fix


def test_an_embedder_without_factors_is_no_detail_expert(tmp_path, model, wan_base):
    with pytest.raises(CheckpointError, match="holds no factors of a low-rank adapter"):
        open_checkpoint(write(tmp_path / "w", spelled({**base_of(model), **own_of(model)}, "wan")))
    with pytest.raises(CheckpointError, match="holds no factors of a low-rank adapter"):
        open_checkpoint(wan_base, adapter=write(tmp_path / "adapter", own_of(model)))


def test_two_adapters_in_one_file(tmp_path, model):
    keys = spelled(model, "dcm")
    keys = {k.replace(".lora1.", ".other.") if "blocks.1" in k else k: v for k, v in keys.items()}
    with pytest.raises(CheckpointError, match="several adapters") as caught:
        open_checkpoint(write(tmp_path / "w", keys))
    assert "'lora1', 'other'" in caught.value.found


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"r": 4, "lora_alpha": 8, "use_dora": True}, "uses DoRA"),
        ({"r": 4, "lora_alpha": 8, "alpha_pattern": {"to_q": 4}}, "an alpha for each layer"),
        ({"r": 8, "lora_alpha": 8}, "another rank than its factors"),
        ({"r": 4, "lora_alpha": "eight"}, "a value that cannot be"),
        ({"r": 4, "lora_alpha": -8}, "a value that cannot be"),
        ({"r": 4.5, "lora_alpha": 8}, "a fraction"),
    ],
)
def test_configurations_that_cannot_be_followed(tmp_path, model, wan_base, config, message):
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(wan_base, adapter=_folder(tmp_path, model, adapter_config=config))


def test_a_14b_adapter_on_this_base(tmp_path, wan_base):
    keys = {f"blocks.{b}.self_attn.q.lora_down.weight": np.ones((4, 5120), np.float32) for b in range(2)}
    keys |= {f"blocks.{b}.self_attn.q.lora_up.weight": np.ones((5120, 4), np.float32) for b in range(2)}
    with pytest.raises(
        CheckpointError, match=r"trained for Wan 14B \(5120 channels\), but the base is this model"
    ) as e:
        open_checkpoint(wan_base, adapter=write(tmp_path / "adapter", keys), lora_alpha=4)
    assert "[4, 5120]" in e.value.found


def test_an_adapter_of_a_deeper_model(tmp_path, model, wan_base):
    keys = kohya(model)
    keys |= {k.replace("blocks_1_", "blocks_39_"): v for k, v in keys.items() if "blocks_1_" in k}
    with pytest.raises(CheckpointError, match="deeper model than this base") as caught:
        open_checkpoint(wan_base, adapter=write(tmp_path / "adapter", keys))
    assert caught.value.found == "blocks up to 39"


def test_arguments_that_would_do_nothing_are_refused(tmp_path, model, wan_base):
    whole = write(tmp_path / "w", spelled(model, "dcm"))
    adapter = write(tmp_path / "adapter", kohya(model))
    with pytest.raises(CheckpointError, match="an adapter alpha was given"):
        open_checkpoint(wan_base, lora_alpha=8)
    with pytest.raises(CheckpointError, match="an adapter rank was given"):
        open_checkpoint(wan_base, rank=8)
    with pytest.raises(CheckpointError, match="already holds a detail expert"):
        open_checkpoint(whole, adapter=adapter)
    with pytest.raises(CheckpointError, match="a whole model with two experts"):
        open_checkpoint(wan_base, adapter=whole)
    with pytest.raises(CheckpointError, match="another rank than asked for"):
        open_checkpoint(whole, rank=8)
    with open_checkpoint(whole, rank=4) as c:
        assert_holds(c, model)


def test_every_linear_is_covered():
    assert len(linears()) == 16
