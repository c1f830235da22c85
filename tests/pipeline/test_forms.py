"""One model in every form of the world compiles to the same bytes: data files, manifest and index."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from exporters.model import Geometry, canonical_tensors
from tests.commands import compiled, hvdc, model_tree, tree
from tests.conftest import RAGGED
from tests.exporters.models import (
    Values,
    base_of,
    factors_of,
    kohya,
    merged_of,
    own_of,
    spelled,
    torch_state,
    write,
    write_shards,
)

ALPHA = RAGGED.rank * RAGGED.alpha_over_rank
Form = Callable[[Path, Values], list[object]]
"""Writes a model into a folder; returns the arguments that make hvdc read it."""


def on_a_grid(geometry: Geometry) -> Values:
    """Multiples of 1/1024 below 1/8: fp32, bf16 and fp16 hold them alike."""
    rng = np.random.default_rng(3)
    return {
        name: rng.integers(-127, 128, shape).astype(np.float32) / np.float32(1024)
        for name, shape in canonical_tensors(geometry).items()
    }


@pytest.fixture(scope="module")
def model() -> Values:
    return on_a_grid(RAGGED)


@pytest.fixture(scope="module")
def canonical(model: Values, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the artifact of DCM's single fp32 file."""
    folder = tmp_path_factory.mktemp("canonical")
    return tree(compiled(write(folder / "model.safetensors", spelled(model, "dcm")), folder / "a.hvdc"))


def lora(model: Values) -> Values:
    """The detail expert as a file of its own, in canonical names."""
    return {**factors_of(model), **own_of(model)}


def kohya_lora(model: Values, *, dots: bool) -> Values:
    return {k: np.float32(ALPHA) if k.endswith(".alpha") else v for k, v in kohya(model, dots=dots).items()}


def peft(model: Values) -> Values:
    """PEFT's state dict: a prefix, an adapter name, and saved modules under the base's names."""
    factors = {f"base_model.model.{n.replace('.weight', '.default.weight')}": v for n, v in factors_of(model).items()}
    return factors | {f"base_model.model.{n.replace('_lora.', '.', 1)}": v for n, v in own_of(model).items()}


def single(layout: str, dtype: torch.dtype = torch.float32, prefix: str = "") -> Form:
    def form(folder: Path, model: Values) -> list[object]:
        keys = {prefix + k: v for k, v in spelled(model, layout).items()}  # type: ignore[arg-type]
        alpha = [] if layout == "dcm" else ["--lora-alpha", ALPHA]
        return [write(folder / "weights.bin", keys, dtype), *alpha]

    return form


def with_adapter(layout: str, adapter: Callable[[Values], Values], *, alpha: bool, **metadata: str) -> Form:
    def form(folder: Path, model: Values) -> list[object]:
        base = write(folder / "base.safetensors", spelled(base_of(model), layout))  # type: ignore[arg-type]
        extra = write(folder / "adapter.safetensors", adapter(model), **metadata)
        return [base, "--adapter", extra, *(["--lora-alpha", ALPHA] if alpha else [])]

    return form


def config_beside(name: str, content: dict[str, object]) -> Form:
    def form(folder: Path, model: Values) -> list[object]:
        base = write(folder / "base.safetensors", spelled(base_of(model), "wan"))
        (folder / "lora").mkdir()
        write(folder / "lora" / "adapter_model.safetensors", peft(model))
        (folder / "lora" / name).write_text(json.dumps(content))
        return [base, "--adapter", folder / "lora"]

    return form


def shards(folder: Path, model: Values) -> list[object]:
    return [write_shards(folder / "model", spelled(model, "dcm"))]


def shard_index(folder: Path, model: Values) -> list[object]:
    return [next(write_shards(folder / "model", spelled(model, "dcm")).glob("*.index.json"))]


def pipeline_folder(folder: Path, model: Values) -> list[object]:
    (folder / "pipe").mkdir()
    (folder / "pipe" / "model_index.json").write_text("{}")
    transformer = write_shards(folder / "pipe" / "transformer", spelled(model, "dcm"))
    config = {"_class_name": "WanTransformer3DModel", "num_attention_heads": 1, "attention_head_dim": RAGGED.width}
    config |= {"num_layers": RAGGED.layers, "ffn_dim": RAGGED.ffn_width, "in_channels": 16, "eps": 1e-6}
    (transformer / "config.json").write_text(json.dumps(config))
    return [folder / "pipe"]


def pickled(folder: Path, model: Values) -> list[object]:
    torch.save({"state_dict": torch_state(spelled(model, "dcm"))}, folder / "model.pth")
    return [folder / "model.pth"]


FORMS: dict[str, Form] = {
    "DCM's file in bf16": single("dcm", torch.bfloat16),
    "DCM's file in fp16": single("dcm", torch.float16),
    "DCM's file with a prefix": single("dcm", prefix="model.diffusion_model."),
    "official names, one file": single("wan"),
    "diffusers names, one file": single("diffusers"),
    "diffusers names with a prefix, bf16": single("diffusers", torch.bfloat16, prefix="transformer."),
    "official names + PEFT": with_adapter("wan", peft, alpha=True),
    "official names + canonical factors": with_adapter("wan", lora, alpha=True),
    "official names + diffusers' LoRA": with_adapter(
        "wan", lambda m: {f"transformer.{n}": v for n, v in lora(m).items()}, alpha=True
    ),
    "official names + kohya's LoRA": with_adapter("wan", lambda m: kohya_lora(m, dots=False), alpha=False),
    "official names + kohya's LoRA with dots": with_adapter("wan", lambda m: kohya_lora(m, dots=True), alpha=False),
    "diffusers names + kohya's LoRA": with_adapter("diffusers", lambda m: kohya_lora(m, dots=False), alpha=False),
    "diffusers names + PEFT": with_adapter("diffusers", peft, alpha=True),
    "alpha in the metadata": with_adapter("wan", lora, alpha=False, ss_network_alpha=str(ALPHA), ss_network_dim="5"),
    "alpha in adapter_config.json": config_beside("adapter_config.json", {"lora_alpha": ALPHA, "r": RAGGED.rank}),
    "alpha in lora_config.json": config_beside("lora_config.json", {"lora_params": {"lora_alpha": ALPHA}}),
    "sharded directory": shards,
    "index of shards": shard_index,
    "diffusers pipeline folder": pipeline_folder,
    "pickle": pickled,
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_gives_the_same_bytes(
    form: Form, model: Values, canonical: dict[str, bytes], tmp_path: Path
) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    checkpoint, *more = form(inputs, model)
    artifact = compiled(Path(str(checkpoint)), tmp_path / "other name.hvdc", *more)
    assert tree(artifact) == canonical


def test_another_value_or_another_alpha_gives_other_bytes(
    model: Values, canonical: dict[str, bytes], tmp_path: Path
) -> None:
    """Without this, the test above could compare constants."""
    changed = {**model, "blocks.1.ffn.net.2.bias": model["blocks.1.ffn.net.2.bias"] + np.float32(2.0**-20)}
    checkpoint = write(tmp_path / "w", spelled(changed, "dcm"))
    names = {n for n, data in model_tree(compiled(checkpoint, tmp_path / "a.hvdc")).items() if data != canonical[n]}
    assert names == {"regions/block-001.bin", "manifest.json", "index.bin"}
    checkpoint = write(tmp_path / "v", spelled(model, "dcm"))
    artifact = compiled(checkpoint, tmp_path / "b.hvdc", "--lora-alpha", 7)
    names = {n for n, data in model_tree(artifact).items() if data != canonical[n]}
    assert names == {"adapters/detail-000.bin", "manifest.json", "index.bin"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_file_that_was_rounded_compiles_to_the_rounded_values(tmp_path: Path, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    model = {n: rng.standard_normal(s).astype(np.float32) for n, s in canonical_tensors(RAGGED).items()}
    rounded = {n: torch.from_numpy(v).to(dtype).float().numpy() for n, v in model.items()}
    one = compiled(write(tmp_path / "narrow", spelled(model, "dcm"), dtype), tmp_path / "narrow.hvdc")
    other = compiled(write(tmp_path / "wide", spelled(rounded, "dcm")), tmp_path / "wide.hvdc")
    assert tree(one) == tree(other)


def test_one_expert_compiles_and_says_so(model: Values, tmp_path: Path) -> None:
    """A distilled Wan without a detail expert: no adapter, one head, every step semantic."""
    checkpoint = write(tmp_path / "wan.safetensors", spelled(base_of(model), "wan"))
    done = hvdc("compile", checkpoint, "-o", tmp_path / "one.hvdc", "--height", 64, "--width", 64)
    assert done.status == 0
    assert "no detail expert: this is a one-expert model" in done.err
    facts = hvdc("inspect", tmp_path / "one.hvdc", "--json").json()
    assert facts["experts"] == ["semantic"]
    assert {step["expert"] for step in facts["steps"]} == {"semantic"}
    assert facts["totals"]["adapter_bytes"] == 0
    assert {f["path"] for f in facts["files"]} == {
        "regions/block-000.bin", "regions/block-001.bin", "host/shared.bin", "host/semantic.bin", "schedule/tables.bin",
    }  # fmt: skip
    validated = hvdc("validate", tmp_path / "one.hvdc", "--deep", "--against", checkpoint, "-q")
    assert validated.status == 0, validated.out


def test_a_merged_checkpoint_is_split_and_validates_against_its_two_sources(tmp_path: Path) -> None:
    """‖BA − B'A'‖ is bounded in tests/exporters; here: compile, reported energy, and validation of that route."""
    rng = np.random.default_rng(1)
    model = {n: (rng.standard_normal(s) * 0.05).astype(np.float32) for n, s in canonical_tensors(RAGGED).items()}
    base = write(tmp_path / "base", spelled(base_of(model), "wan"))
    merged = write(tmp_path / "merged", spelled(merged_of(model), "diffusers"))
    done = hvdc("compile", base, "--adapter", merged, "--rank", 5, "-o", tmp_path / "m.hvdc", "-q")
    assert done.status == 0, done.err
    source = json.loads((tmp_path / "m.hvdc" / "manifest.json").read_text())["source"]
    assert len(source["left_out_energy"]) == 8 * RAGGED.layers
    assert max(source["left_out_energy"].values()) < 1e-6
    validated = hvdc("validate", tmp_path / "m.hvdc", "--deep", "--against", base, "--adapter", merged, "-q")
    assert validated.status == 0, validated.out + validated.err
    refused = hvdc("compile", base, "--adapter", merged, "--rank", 1, "-o", tmp_path / "n.hvdc", "-q")
    assert refused.status == 3
    assert "rank 1 leaves out too much" in refused.err
    assert not (tmp_path / "n.hvdc").exists()


def test_alphas_and_ranks_that_differ_between_linears_validate_too(model: Values, tmp_path: Path) -> None:
    """The recorded alpha is the largest one: a comparison must take each linear's own from the files."""
    factors = kohya_lora(model, dots=False)
    stem = "lora_unet_blocks_1_self_attn_q"
    factors[f"{stem}.alpha"] = np.float32(3)
    for part, cut in (("down", np.s_[:2]), ("up", np.s_[:, :2])):
        factors[f"{stem}.lora_{part}.weight"] = factors[f"{stem}.lora_{part}.weight"][cut]
    base = write(tmp_path / "base", spelled(base_of(model), "wan"))
    lora_file = write(tmp_path / "lora", factors)
    artifact = compiled(base, tmp_path / "a.hvdc", "--adapter", lora_file)
    done = hvdc("validate", artifact, "--deep", "--against", base, "--adapter", lora_file, "-q")
    assert done.status == 0, done.out + done.err


def test_validation_takes_alpha_from_the_files_and_else_from_the_record(model: Values, tmp_path: Path) -> None:
    base = write(tmp_path / "base", spelled(base_of(model), "wan"))
    bare = write(tmp_path / "bare", lora(model))  # no alpha anywhere
    silent = compiled(base, tmp_path / "a.hvdc", "--adapter", bare, "--lora-alpha", ALPHA)
    assert hvdc("validate", silent, "--against", base, "--adapter", bare, "-q").status == 0
    dcm = write(tmp_path / "dcm", spelled(model, "dcm"))
    other = compiled(dcm, tmp_path / "b.hvdc", "--lora-alpha", 7)
    done = hvdc("validate", other, "--against", dcm, "-q")
    assert done.status == 4
    assert "--lora-alpha" in done.out
    assert hvdc("validate", other, "--against", dcm, "--lora-alpha", 7, "-q").status == 0
    done = hvdc("validate", silent, "--against", base, "-q")
    assert done.status == 4
    assert "--adapter" in done.out


def test_a_negative_alpha_is_refused_because_scales_are_positive(model: Values, tmp_path: Path) -> None:
    factors = {k: np.float32(-4) if k.endswith(".alpha") else v for k, v in kohya(model).items()}
    base = write(tmp_path / "base", spelled(base_of(model), "wan"))
    done = hvdc("compile", base, "--adapter", write(tmp_path / "lora", factors), "-o", tmp_path / "a.hvdc", "-q")
    assert done.status == 3, done.out
    assert "alpha" in done.err


def test_the_geometry_is_the_checkpoints_own(ragged_artifact: Path) -> None:
    recorded = json.loads((ragged_artifact / "manifest.json").read_text())["geometry"]
    expected = replace(RAGGED, text_tokens=512)
    assert {k: tuple(v) if isinstance(v, list) else v for k, v in recorded.items()} == {
        **expected.__dict__,
        "rope_axis_dims": expected.rope_axis_dims,
    }
