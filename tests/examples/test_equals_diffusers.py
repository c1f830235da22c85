"""The training code computes what diffusers' classes compute, and loads into them name by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from examples.moving_shapes.dit import DETAIL, TRANSFORMER_CONFIG, MovingShapesTransformer
from examples.moving_shapes.vae import VAE_CONFIG, VideoVae


def arguments(config: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in config.items() if name not in {"_class_name", "text_len"}}


def shake(module: nn.Module) -> None:
    """Norms' gains start at 1 and factors at 0, where a forgotten one would not be noticed."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name or "gamma" in name or "lora_B" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))


def relative(out: Tensor, reference: Tensor) -> float:
    return float((out - reference).norm() / reference.norm())


@pytest.mark.parametrize("frames", [1, 5, 17])
@torch.no_grad()
def test_vae(frames: int) -> None:
    from diffusers import AutoencoderKLWan

    vae = VideoVae()
    shake(vae)
    reference = AutoencoderKLWan(**arguments(VAE_CONFIG))
    reference.load_state_dict(vae.state_dict(), strict=True)
    clip = torch.rand(2, 3, frames, 48, 32) * 2 - 1
    mean, log_variance = vae.encode(clip)
    posterior = reference.encode(clip).latent_dist
    torch.testing.assert_close(mean, posterior.mean, atol=1e-4, rtol=0)
    torch.testing.assert_close(log_variance, posterior.logvar, atol=1e-4, rtol=0)
    z = torch.randn_like(mean)
    decoded = reference.decode(z).sample
    assert decoded.shape == clip.shape
    torch.testing.assert_close(vae.decode(z).clamp(-1, 1), decoded, atol=1e-4, rtol=0)


@torch.no_grad()
def test_semantic_expert() -> None:
    from diffusers import WanTransformer3DModel

    model = MovingShapesTransformer()
    shake(model)
    base = {n.replace(".base_layer", ""): v for n, v in model.state_dict().items() if "lora" not in n}
    reference = WanTransformer3DModel(**arguments(TRANSFORMER_CONFIG))
    reference.load_state_dict(base, strict=True)
    x, t, text = torch.randn(2, 16, 5, 16, 16), torch.tensor([1000.0, 810.0]), torch.randn(2, 16, 64)
    assert relative(model(x, t, text), reference(x, t, text).sample) < 1e-5


@torch.no_grad()
def test_detail_expert() -> None:
    """Against diffusers with the factors merged, and the expert's own embedder and head put in."""
    from diffusers import WanTransformer3DModel

    model = MovingShapesTransformer()
    shake(model)
    state = model.state_dict()
    merged = {n: v for n, v in state.items() if "lora" not in n}
    for name in [n for n in state if ".lora_A." in n]:
        a, b = state[name], state[name.replace("lora_A", "lora_B")]
        stem = name.partition(".lora_A.")[0]
        merged[f"{stem}.base_layer.weight"] = state[f"{stem}.base_layer.weight"] + DETAIL.adapter_scale * b @ a
    for stem in ("condition_embedder", "proj_out"):
        merged |= {n.replace(f"{stem}_lora", stem): v for n, v in state.items() if n.startswith(f"{stem}_lora.")}
    reference = WanTransformer3DModel(**arguments(TRANSFORMER_CONFIG))
    reference.load_state_dict({n.replace(".base_layer", ""): v for n, v in merged.items()}, strict=True)
    x, t, text = torch.randn(1, 16, 3, 8, 12), torch.tensor([949.0]), torch.randn(1, 16, 64)
    assert relative(model(x, t, text, DETAIL), reference(x, t, text).sample) < 1e-5


def test_the_detail_expert_begins_as_the_semantic_one() -> None:
    model = MovingShapesTransformer()
    shake(model)
    model.start_detail_expert()
    x, t, text = torch.randn(1, 16, 2, 4, 4), torch.tensor([905.0]), torch.randn(1, 16, 64)
    with torch.no_grad():
        assert torch.equal(model(x, t, text), model(x, t, text, DETAIL))
