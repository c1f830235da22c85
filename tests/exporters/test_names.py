"""Every spelling of every tensor, against the published lists and the libraries that define them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from exporters.errors import CheckpointError
from exporters.lora_keys import parse_factor
from exporters.model import DCM_WAN21_1_3B, TINY, base_tensors, canonical_tensors
from exporters.names import LAYOUTS, canonical, canonical_stem, detect_layout, spell, strip_prefixes, unflatten

DATA = Path(__file__).parent / "data"


def _published() -> dict[str, tuple[int, ...]]:
    """Names and shapes of DCM's file, from its own classes (diffusers 0.33.1 and peft 0.13.2)."""
    lines = gzip.decompress((DATA / "dcm-wan2.1-tensors.txt.gz").read_bytes()).decode().splitlines()
    return {name: tuple(map(int, shape.split("x"))) for name, shape in (line.split() for line in lines)}


def test_the_full_size_model_has_exactly_the_published_tensors():
    ours = {spell(name, "dcm"): shape for name, shape in canonical_tensors(DCM_WAN21_1_3B).items()}
    assert len(ours) == 1317
    assert ours == _published()


def test_canonical_base_names_are_diffusers_own():
    torch = pytest.importorskip("torch")
    diffusers = pytest.importorskip("diffusers")
    with torch.device("meta"):
        model = diffusers.WanTransformer3DModel(
            patch_size=TINY.patch, num_attention_heads=TINY.heads, attention_head_dim=TINY.head_dim,
            in_channels=TINY.in_channels, out_channels=TINY.out_channels, text_dim=TINY.text_width,
            freq_dim=TINY.freq_dim, ffn_dim=TINY.ffn_width, num_layers=TINY.layers, cross_attn_norm=True,
        )  # fmt: skip
    theirs = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert theirs == base_tensors(TINY)


def test_dcm_spelling_is_what_peft_writes():
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    diffusers = pytest.importorskip("diffusers")
    with torch.device("meta"):
        model = diffusers.WanTransformer3DModel(
            num_attention_heads=1, attention_head_dim=128, text_dim=32, freq_dim=64, ffn_dim=192, num_layers=1
        )
        targets = ["to_q", "to_k", "to_v", "to_out.0"]
        model.add_adapter(peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets), adapter_name="lora1")
    theirs = set(model.state_dict())
    ours = {spell(n, "dcm") for n in canonical_tensors(DCM_WAN21_1_3B) if "_lora." not in n}
    assert theirs == {n for n in ours if not n.startswith("blocks.") or n.startswith("blocks.0.")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reading_undoes_spelling(layout):
    names = canonical_tensors(TINY)
    keys = [spell(n, layout) for n in names]
    assert len(set(keys)) == len(names)
    for name, key in zip(names, keys, strict=True):
        if ".lora_" in name:
            factor = parse_factor(key)
            assert factor is not None
            assert f"{factor.stem}.{factor.part}.weight" == name
        else:
            assert canonical(key, layout) == name
    assert detect_layout(k for k in keys if ".lora_" not in k) == layout


def test_the_one_affine_norm_of_a_block_changes_its_number():
    assert spell("blocks.7.norm2.weight", "wan") == "blocks.7.norm3.weight"
    assert spell("blocks.7.norm2.weight", "dcm") == "blocks.7.norm2.weight"
    assert canonical("blocks.7.norm3.bias", "wan") == "blocks.7.norm2.bias"
    # official norm1, norm2 and diffusers norm1, norm3 have no parameters: such a key is unknown, not a norm
    assert canonical("blocks.7.norm2.bias", "wan") is None
    assert canonical("blocks.7.norm3.bias", "diffusers") is None
    assert canonical("blocks.7.norm1.weight", "wan") is None


@pytest.mark.parametrize(
    ("key", "prefix", "rest"),
    [
        ("blocks.0.ffn.0.bias", "", "blocks.0.ffn.0.bias"),
        ("model.diffusion_model.head.head.weight", "model.diffusion_model.", "head.head.weight"),
        ("module._orig_mod.model.head.head.weight", "module._orig_mod.model.", "head.head.weight"),
        ("base_model.model.transformer.proj_out.bias", "base_model.model.transformer.", "proj_out.bias"),
        ("blocks.0._orig_mod.ffn.0.bias", "", "blocks.0.ffn.0.bias"),
        (
            "_fsdp_wrapped_module.blocks.1._fsdp_wrapped_module.ffn.0.bias",
            "_fsdp_wrapped_module.",
            "blocks.1.ffn.0.bias",
        ),
        ("model.", "", "model."),
    ],
)
def test_prefixes_stack(key, prefix, rest):
    assert strip_prefixes(key) == (prefix, rest)


def test_two_naming_schemes_in_one_file_are_refused():
    with pytest.raises(CheckpointError, match="mixes official Wan names and diffusers names"):
        detect_layout(["blocks.0.self_attn.q.weight", "blocks.0.attn1.to_q.weight"])


def test_keys_of_other_models_have_no_layout():
    assert detect_layout(["decoder.conv1.weight", "encoder.conv1.weight"]) is None
    assert detect_layout([]) is None


@pytest.mark.parametrize(
    "name", ["blocks.0.attn3.to_q.weight", "blocks.0.ffn.0.weight", "nonsense", "blocks.0.ffn.net.2.lora_A.weight"]
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_canonical_names_are_spelled(name, layout):
    with pytest.raises(CheckpointError, match="not a canonical tensor name"):
        spell(name, layout)


def test_kohya_underscores_are_unambiguous():
    assert unflatten("blocks_12_self_attn_q") == "blocks.12.self_attn.q"
    assert unflatten("blocks_0_attn1_to_out_0") == "blocks.0.attn1.to_out.0"
    assert unflatten("blocks_0_ffn_net_0_proj") == "blocks.0.ffn.net.0.proj"
    assert unflatten("time_projection_1") == "time_projection.1"
    assert unflatten("double_blocks_0_img_attn") is None
    assert canonical_stem("blocks.3.cross_attn.o") == "blocks.3.attn2.to_out.0"


@pytest.mark.parametrize(
    ("key", "stem", "part", "adapter"),
    [
        ("base_model.model.blocks.0.attn1.to_q.lora_A.default.weight", "blocks.0.attn1.to_q", "lora_A", "default"),
        ("transformer.blocks.0.attn2.to_out.0.lora_B.weight", "blocks.0.attn2.to_out.0", "lora_B", ""),
        ("diffusion_model.blocks.3.cross_attn.v.lora_up.weight", "blocks.3.attn2.to_v", "lora_B", ""),
        ("blocks.3.self_attn.o.lora.down.weight", "blocks.3.attn1.to_out.0", "lora_A", ""),
        ("lora_unet_blocks_9_self_attn_k.lora_down.weight", "blocks.9.attn1.to_k", "lora_A", ""),
        ("lora_unet_blocks_9_self_attn_k.alpha", "blocks.9.attn1.to_k", "alpha", ""),
        ("lora_transformer_blocks_9_attn2_to_v.lora_up.weight", "blocks.9.attn2.to_v", "lora_B", ""),
        ("blocks.0.ffn.2.lora_down.weight", "blocks.0.ffn.net.2", "lora_A", ""),
    ],
)
def test_adapter_keys_come_apart(key, stem, part, adapter):
    factor = parse_factor(key)
    assert factor is not None
    assert factor.known
    assert (factor.stem, factor.part, factor.adapter) == (stem, part, adapter)
