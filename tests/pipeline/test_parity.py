"""An artifact's own weights and tables, put into diffusers' model, compute what the checkpoint's do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from exporters.checkpoint import open_checkpoint
from exporters.model import ATTENTION_LINEARS, EMBEDDER, HEAD, TINY, canonical_tensors
from hvdc.artifact.reader import Artifact, open_artifact
from tests.commands import compiled
from tests.exporters.models import Values, spelled, write

if TYPE_CHECKING:  # it takes seconds, which only the process that runs these tests has to spend
    from diffusers import WanTransformer3DModel

BOUND = 0.05
"""‖Δ‖ / ‖ref‖ of the output. Each INT8 linear is at 35 dB here (heavy-tailed columns): 1.8 % of noise, independent
from linear to linear. Two blocks of ten linears add up to a few times that, damped by the residual stream."""


def transformer() -> WanTransformer3DModel:
    from diffusers import WanTransformer3DModel

    model = WanTransformer3DModel(
        patch_size=TINY.patch, num_attention_heads=TINY.heads, attention_head_dim=TINY.head_dim,
        in_channels=TINY.in_channels, out_channels=TINY.out_channels, text_dim=TINY.text_width, freq_dim=TINY.freq_dim,
        ffn_dim=TINY.ffn_width, num_layers=TINY.layers,
    )  # fmt: skip
    return model.eval()


def loaded(tensors: Mapping[str, np.ndarray], expert: str, ratio: float) -> WanTransformer3DModel:
    """diffusers' model of one expert: detail's factors are merged, its embedder and head take the base's place."""
    state = {n: torch.from_numpy(np.array(v)) for n, v in tensors.items() if "lora" not in n}
    if expert == "detail":
        for name, value in tensors.items():
            for own, base in ((EMBEDDER["detail"], EMBEDDER["semantic"]), (HEAD["detail"], HEAD["semantic"])):
                if name.startswith(f"{own}."):
                    state[name.replace(own, base)] = torch.from_numpy(np.array(value))
        for block in range(TINY.layers):
            for linear in ATTENTION_LINEARS:
                stem = f"blocks.{block}.{linear}"
                a, b = (torch.from_numpy(np.array(tensors[f"{stem}.lora_{p}.weight"])) for p in "AB")
                state[f"{stem}.weight"] = state[f"{stem}.weight"] + ratio * (b @ a)
    model = transformer()
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("time" in n or "scale_shift" in n for n in missing)
    return model


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    latent = torch.randn(1, TINY.in_channels, 2, 6, 10, generator=generator)
    return latent, torch.randn(1, 7, TINY.text_width, generator=generator)


@torch.no_grad()
def reference(tensors: Mapping[str, np.ndarray], expert: str, timestep: float) -> torch.Tensor:
    latent, text = inputs()
    model = loaded(tensors, expert, TINY.alpha_over_rank)
    output: torch.Tensor = model(latent, torch.tensor([timestep]), text, return_dict=False)[0]
    return output


@torch.no_grad()
def from_artifact(artifact: Artifact, step: int) -> torch.Tensor:
    """Nothing but the artifact: weights dequantised, modulation from its tables, the time embedder put out of work."""
    latent, text = inputs()
    tensors = {n: artifact.dequantized(n) for n in artifact if not n.endswith("_scale") and "schedule" not in n}
    # alpha / r is in the stored scales of B already.
    model = loaded(tensors, artifact.manifest.steps[step].expert, 1.0)
    for module in (model.condition_embedder.time_embedder.linear_2, model.condition_embedder.time_proj):
        module.weight.zero_()
        module.bias.zero_()
    adaln, head = artifact.tensor("schedule.adaln"), artifact.tensor("schedule.head")
    for layer, block in enumerate(model.blocks):
        block.scale_shift_table.copy_(torch.from_numpy(np.array(adaln[step, layer]))[None])
    model.scale_shift_table.copy_(torch.from_numpy(np.array(head[step]))[None])
    output: torch.Tensor = model(latent, torch.tensor([0.0]), text, return_dict=False)[0]
    return output


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("step", "expert"), [(0, "semantic"), (2, "semantic"), (3, "detail"), (5, "detail")])
def test_output_of_the_compiled_model(step: int, expert: str, tiny_checkpoint: Path, tiny_artifact: Path) -> None:
    with open_checkpoint(tiny_checkpoint) as checkpoint, open_artifact(tiny_artifact) as artifact:
        tensors = {name: tensor.read() for name, tensor in checkpoint.tensors.items()}
        assert artifact.manifest.steps[step].expert == expert
        expected = reference(tensors, expert, artifact.manifest.steps[step].timestep)
        found = from_artifact(artifact, step)
        assert 1e-4 < error(found, expected) < BOUND, "INT8 costs something, and not much"
        others = [s for s in range(6) if artifact.manifest.steps[s].expert != expert]
        assert error(from_artifact(artifact, others[0]), expected) > BOUND, "the experts differ by more than the bound"


def on_the_int8_grid() -> Values:
    """Columns q · 2⁻⁹ with |q| up to 127 in each: the scale is exactly 2⁻⁹, so quantising loses nothing."""
    rng = np.random.default_rng(5)
    model = {}
    for name, shape in canonical_tensors(TINY).items():
        q = rng.integers(-126, 127, shape).astype(np.float32)
        if q.ndim == 2:
            q[:, 0] = 127 * rng.choice([-1, 1], shape[0])
        model[name] = q / np.float32(512)
    return model


def test_weights_on_the_int8_grid_are_kept_exactly(tmp_path: Path) -> None:
    model = on_the_int8_grid()
    path = compiled(write(tmp_path / "w", spelled(model, "dcm")), tmp_path / "a.hvdc")
    with open_artifact(path) as artifact:
        held = {n: artifact.dequantized(n) for n in artifact if not n.endswith("_scale") and "schedule" not in n}
        for name, value in held.items():
            times = TINY.alpha_over_rank if ".lora_B." in name else 1.0
            np.testing.assert_array_equal(value, model[name] * np.float32(times), err_msg=name)
        # The same weights in the same model: equal to the bit, and the tables add only their rounding to float32.
        rest = {n: v for n, v in model.items() if n not in held}
        unscaled = {n: v / np.float32(TINY.alpha_over_rank) if ".lora_B." in n else v for n, v in held.items()}
        for step, expert in ((1, "semantic"), (4, "detail")):
            timestep = artifact.manifest.steps[step].timestep
            expected = reference(model, expert, timestep)
            assert torch.equal(reference({**unscaled, **rest}, expert, timestep), expected)
            assert error(from_artifact(artifact, step), expected) < 1e-5


def test_the_geometry_is_the_presets(tiny_artifact: Path) -> None:
    with open_artifact(tiny_artifact) as artifact:
        found = artifact.manifest.geometry
    expected = replace(TINY, text_tokens=512)
    assert all(getattr(found, name) == value for name, value in expected.__dict__.items())
