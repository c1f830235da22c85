"""Folded time embeddings against diffusers' own modules, and RoPE frequencies."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from exporters.adaln import fold_tables, rope_frequencies, time_sinusoid
from exporters.errors import CheckpointError
from exporters.model import DCM_WAN21_1_3B, TINY, Geometry
from exporters.schedule import DCM_TIMESTEPS, make_schedule
from exporters.tensor import Tensor, from_array

torch = pytest.importorskip("torch")

SCHEDULES = [DCM_TIMESTEPS, (999.0, 979.0, 978.0, 700.0, 333.3, 20.0, 1.0)]

# Torch without MKL has another float32 exp, so other frequencies in the last place (see adaln's docstring).
BOUND = 1e-6 if torch.backends.mkl.is_available() else 1e-5


@dataclass(frozen=True)
class Model:
    """Two diffusers models that share all but the embedder, which is how DCM's two experts differ."""

    geometry: Geometry
    experts: dict[str, Any]
    tensors: dict[str, Tensor]


def build(geometry: Geometry) -> Model:
    from diffusers import WanTransformer3DModel

    torch.manual_seed(11)
    experts = {
        expert: WanTransformer3DModel(
            patch_size=geometry.patch,
            num_attention_heads=geometry.heads,
            attention_head_dim=geometry.head_dim,
            text_dim=geometry.text_width,
            freq_dim=geometry.freq_dim,
            ffn_dim=geometry.ffn_width,
            num_layers=geometry.layers,
            rope_max_seq_len=geometry.rope_max_positions,
        ).eval()
        for expert in geometry.experts
    }
    shared = {k: v for k, v in experts["semantic"].state_dict().items() if "scale_shift_table" in k}
    tensors: dict[str, Any] = dict(shared)
    for expert, prefix in (("semantic", "condition_embedder"), ("detail", "condition_embedder_lora")):
        experts[expert].load_state_dict(shared, strict=False)
        for key, value in experts[expert].condition_embedder.state_dict().items():
            tensors[f"{prefix}.{key}"] = value
    return Model(geometry, experts, {k: from_array(k, v.numpy().copy()) for k, v in tensors.items()})


@pytest.fixture(scope="module")
def tiny() -> Model:
    return build(TINY)


@pytest.fixture(scope="module")
def wide() -> Model:
    return build(replace(DCM_WAN21_1_3B, layers=1, ffn_width=64, text_width=8))


def reference(model: Model, timesteps: tuple[float, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """``(adaln, head)`` as diffusers' `WanTransformer3DModel.forward` forms them, with its modules in ``dtype``."""
    adaln_rows, head_rows = [], []
    for step in make_schedule(timesteps):
        net = model.experts[step.expert]
        embedder = net.condition_embedder.to(dtype)
        text = torch.zeros(1, 1, model.geometry.text_width, dtype=dtype)
        with torch.no_grad():
            temb, proj, _, _ = embedder(torch.tensor([step.timestep]), text)
            proj = proj.unflatten(1, (6, -1))
            adaln_rows.append(torch.cat([block.scale_shift_table.to(dtype) + proj for block in net.blocks]))
            head_rows.append((net.scale_shift_table.to(dtype) + temb.unsqueeze(1))[0])
        embedder.float()
    return torch.stack(adaln_rows).numpy(), torch.stack(head_rows).numpy()


def relative(got: np.ndarray, expected: np.ndarray) -> float:
    """max|Δ| / max|ref|."""
    assert got.shape == expected.shape
    return float(np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("timesteps", SCHEDULES, ids=["dcm", "other"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("size", ["tiny", "wide"])
def test_tables_match_diffusers_modules(
    request: pytest.FixtureRequest, size: str, dtype: Any, timesteps: tuple[float, ...]
) -> None:
    model: Model = request.getfixturevalue(size)
    tables = fold_tables(model.geometry, model.tensors, make_schedule(timesteps))
    expected_adaln, expected_head = reference(model, timesteps, dtype)
    assert tables.adaln.dtype == tables.head.dtype == np.float32
    assert relative(tables.adaln, expected_adaln) <= BOUND
    assert relative(tables.head, expected_head) <= BOUND


class Constant(torch.nn.Module):  # type: ignore[name-defined, misc]
    """Stands in for a module: remembers its first input, and fills its output with one value."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.seen: Any = None

    def forward(self, x: Any, *_: Any) -> Any:
        self.seen = x
        return torch.full_like(x, self.value)


def probe(model: Model, timestep: float, norm: float) -> dict[str, np.ndarray]:
    """Run the whole diffusers model with every norm replaced by ``norm``, so that the modulation shows."""
    net = copy.deepcopy(model.experts["semantic"])
    for block in net.blocks:
        block.norm1, block.norm2, block.norm3 = Constant(norm), Constant(norm), Constant(norm)
        block.attn1, block.attn2, block.ffn = Constant(1.0), Constant(0.0), Constant(1.0)
    net.norm_out = Constant(norm)
    seen: dict[str, np.ndarray] = {}
    net.proj_out.register_forward_pre_hook(lambda _, args: seen.update(head=args[0][0, 0].numpy()))
    net.patch_embedding.weight.data.zero_()
    net.patch_embedding.bias.data.zero_()
    with torch.no_grad():
        net(
            hidden_states=torch.zeros(1, 16, 1, 2, 2),
            timestep=torch.tensor([timestep]),
            encoder_hidden_states=torch.zeros(1, 1, model.geometry.text_width),
        )
    first, second = net.blocks
    seen["attention"] = first.attn1.seen[0, 0].numpy()
    seen["feed-forward"] = first.ffn.seen[0, 0].numpy()
    seen["after attention"] = first.norm2.seen[0, 0].numpy()
    seen["after feed-forward"] = second.norm1.seen[0, 0].numpy()
    return seen


def test_rows_are_shift_scale_gate_in_the_order_in_which_the_model_applies_them(tiny: Model) -> None:
    """norm·(1 + scale) + shift with norm 0 shows the shift, with norm 1 the scale too; x + gate·1 the gate."""
    tables = fold_tables(TINY, tiny.tensors, make_schedule([1000.0]))
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = tables.adaln[0, 0]
    head_shift, head_scale = tables.head[0]
    at_zero, at_one = probe(tiny, 1000.0, 0.0), probe(tiny, 1000.0, 1.0)
    bound = 1e-6 * 2  # values near 1 + scale + shift
    for place, (a, b) in {
        "attention": (shift, scale),
        "feed-forward": (ffn_shift, ffn_scale),
        "head": (head_shift, head_scale),
    }.items():
        assert np.abs(at_zero[place] - a).max() <= bound, place
        assert np.abs(at_one[place] - (1 + b + a)).max() <= bound, place
    assert np.abs(at_zero["after attention"] - gate).max() <= bound
    assert np.abs(at_zero["after feed-forward"] - (gate + ffn_gate)).max() <= bound


def test_each_step_goes_through_its_own_experts_embedder(tiny: Model) -> None:
    tables = {
        boundary: fold_tables(TINY, tiny.tensors, make_schedule([990.0, 500.0], boundary=boundary))
        for boundary in (978, 995, 400)
    }
    only_detail, only_semantic = tables[995], tables[400]
    assert not np.array_equal(only_detail.adaln, only_semantic.adaln)
    for name in ("adaln", "head"):
        mixed = getattr(tables[978], name)
        assert np.array_equal(mixed[0], getattr(only_semantic, name)[0])
        assert np.array_equal(mixed[1], getattr(only_detail, name)[1])


def test_a_step_does_not_depend_on_the_other_steps(tiny: Model) -> None:
    together = fold_tables(TINY, tiny.tensors, make_schedule())
    alone = fold_tables(TINY, tiny.tensors, make_schedule([905.0]))
    assert np.array_equal(together.adaln[4], alone.adaln[0])
    assert np.array_equal(together.head[4], alone.head[0])


def test_a_model_with_one_expert_needs_no_detail_embedder(tiny: Model) -> None:
    geometry = replace(TINY, rank=0, alpha_over_rank=0.0)
    tensors = {k: v for k, v in tiny.tensors.items() if "_lora" not in k}
    tables = fold_tables(geometry, tensors, make_schedule(experts=geometry.experts))
    assert tables.adaln.shape == (6, 2, 6, 256)
    with pytest.raises(CheckpointError, match="expert that this model doesn't have"):
        fold_tables(geometry, tensors, make_schedule())


def test_frequencies_are_torchs_in_float32() -> None:
    """The only float32 rounding that is copied: where torch's differs from correct rounding, data says so."""
    if not torch.backends.mkl.is_available():
        pytest.skip("torch is built without MKL: its float32 exp rounds differently")
    from diffusers.models.embeddings import Timesteps

    embed = Timesteps(256, flip_sin_to_cos=True, downscale_freq_shift=0)
    timesteps = [*DCM_TIMESTEPS, 1.0, 333.3]
    expected = embed(torch.tensor(timesteps)).numpy()
    # A frequency that is off by one unit moves an entry by up to 3e-5.
    assert np.abs(time_sinusoid(timesteps, 256) - expected).max() <= 1.2e-7


@pytest.mark.parametrize("freq_dim", [0, 255])
def test_an_odd_sinusoid_is_refused(freq_dim: int) -> None:
    with pytest.raises(CheckpointError, match="even number"):
        time_sinusoid([1.0], freq_dim)


@pytest.mark.parametrize("head_dim", [128, 64, 96])
def test_rope_frequencies_turn_pairs_as_diffusers_does(head_dim: int) -> None:
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    geometry = replace(TINY, width=2 * head_dim)
    rope = WanRotaryPosEmbed(head_dim, (1, 2, 2), 1024)
    assert geometry.rope_axis_dims == (rope.t_dim, rope.h_dim, rope.w_dim)
    frequencies = rope_frequencies(geometry)
    assert [2 * len(f) for f in frequencies] == list(geometry.rope_axis_dims)
    angles = np.concatenate([np.outer(np.arange(1024), f).repeat(2, axis=1) for f in frequencies], axis=1)
    # Both round the same float64 cosine to float32; half a unit in the last place of 1 is 6e-8.
    assert np.abs(np.cos(angles) - rope.freqs_cos.numpy()).max() <= 6.1e-8
    assert np.abs(np.sin(angles) - rope.freqs_sin.numpy()).max() <= 6.1e-8


def test_rope_axes_of_the_published_model() -> None:
    assert DCM_WAN21_1_3B.rope_axis_dims == (44, 42, 42)
    frame, row, column = rope_frequencies(DCM_WAN21_1_3B)
    assert (len(frame), len(row), len(column)) == (22, 21, 21)
    assert frame.dtype == np.float64
    assert frame[0] == row[0] == 1.0
    assert frame[11] == 0.01  # 10000^(-22/44)


def test_an_embedder_that_is_missing_is_named(tiny: Model) -> None:
    tensors = {k: v for k, v in tiny.tensors.items() if k != "condition_embedder_lora.time_proj.bias"}
    with pytest.raises(CheckpointError, match=r"'condition_embedder_lora\.time_proj\.bias' is missing") as caught:
        fold_tables(TINY, tensors, make_schedule())
    assert caught.value.expected == "shape [1536]"


def test_a_table_of_another_width_is_named(tiny: Model) -> None:
    other = from_array("blocks.1.scale_shift_table", np.zeros((1, 6, 128), np.float32), origin="big.safetensors")
    with pytest.raises(CheckpointError, match=r"'blocks\.1\.scale_shift_table' has a shape") as caught:
        fold_tables(TINY, {**tiny.tensors, "blocks.1.scale_shift_table": other}, make_schedule())
    assert (caught.value.where, caught.value.found) == ("big.safetensors", "[1, 6, 128]")


def test_a_table_that_is_not_finite_is_named(tiny: Model) -> None:
    values = tiny.tensors["scale_shift_table"].read().copy()
    values[0, 1, 7] = np.nan
    with pytest.raises(CheckpointError, match=r"'scale_shift_table' holds nan at \[0, 1, 7\]"):
        fold_tables(
            TINY,
            {**tiny.tensors, "scale_shift_table": from_array("scale_shift_table", values)},
            make_schedule(),
        )


def test_no_steps_no_tables(tiny: Model) -> None:
    with pytest.raises(CheckpointError, match="no steps"):
        fold_tables(TINY, tiny.tensors, [])
