"""Steps, experts and the folded tables of a compiled artifact; the reference is diffusers, not hvdc."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from exporters.checkpoint import open_checkpoint
from exporters.model import EMBEDDER, TINY
from hvdc.artifact.reader import open_artifact
from tests.commands import SMALL_VIDEO, compiled, hvdc

if TYPE_CHECKING:  # it takes seconds, which only the process that runs these tests has to spend
    from diffusers.models.transformers.transformer_wan import WanTimeTextImageEmbedding

DCM = [(1000, "semantic"), (992, "semantic"), (982, "semantic"), (949, "detail"), (905, "detail"), (810, "detail")]
BOUND = 1e-6
"""Of max|Δ| / max|ref|, as specified. diffusers' modules run in float64 here, so the bound is the tables' own."""


def relative(found: np.ndarray, reference: np.ndarray) -> float:
    return float(np.abs(found - reference).max() / np.abs(reference).max())


def embedder(tensors: dict[str, np.ndarray], expert: str) -> WanTimeTextImageEmbedding:
    from diffusers.models.transformers.transformer_wan import WanTimeTextImageEmbedding

    module = WanTimeTextImageEmbedding(TINY.width, TINY.freq_dim, 6 * TINY.width, TINY.text_width)
    prefix = f"{EMBEDDER[expert]}."
    state = {n.removeprefix(prefix): torch.from_numpy(v.copy()) for n, v in tensors.items() if n.startswith(prefix)}
    module.load_state_dict(state)
    return module.double()


@pytest.mark.parametrize("times", [None, [1000.0, 979.0, 978.9, 500.25, 1.0]], ids=["DCM's six", "others"])
def test_tables_match_diffusers_modules(
    times: list[float] | None, tiny_checkpoint: Path, tiny_artifact: Path, tmp_path: Path
) -> None:
    if times is not None:
        tiny_artifact = compiled(tiny_checkpoint, tmp_path / "a.hvdc", "--set", f"timesteps={times}")
    with open_checkpoint(tiny_checkpoint) as checkpoint:
        tensors = {
            n: t.read() for n, t in checkpoint.tensors.items() if "time" in n or "scale_shift" in n or "text" in n
        }
    with open_artifact(tiny_artifact) as artifact, torch.no_grad():
        steps = artifact.manifest.steps
        adaln, head = artifact.tensor("schedule.adaln"), artifact.tensor("schedule.head")
        assert adaln.shape == (len(steps), TINY.layers, 6, TINY.width)
        assert head.shape == (len(steps), 2, TINY.width)
        assert adaln.dtype == head.dtype == np.float32
        for i, step in enumerate(steps):
            module = embedder(tensors, step.expert)
            text = torch.zeros(1, 4, TINY.text_width, dtype=torch.float64)
            temb, proj, *_ = module(torch.tensor([step.timestep]), text)
            for layer in range(TINY.layers):
                reference = tensors[f"blocks.{layer}.scale_shift_table"] + proj.unflatten(1, (6, -1)).numpy()
                assert relative(adaln[i, layer], reference[0]) <= BOUND
            reference = tensors["scale_shift_table"] + temb.unsqueeze(1).numpy()
            assert relative(head[i], reference[0]) <= BOUND


def test_rope_frequencies_turn_as_diffusers_does(tiny_artifact: Path) -> None:
    """Angles of frame 4, row 3, column 2 from the stored frequencies, against diffusers' tables of cos and sin."""
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed

    rope = WanRotaryPosEmbed(TINY.width // TINY.heads, (1, 2, 2), 1024)
    cos, sin = rope(torch.zeros(1, 16, 5, 8, 8))
    at = (4 * 4 + 3) * 4 + 2
    with open_artifact(tiny_artifact) as artifact:
        frequencies = [artifact.tensor(f"schedule.rope_freqs_{axis}") for axis in ("frame", "row", "col")]
    assert [len(f) for f in frequencies] == [22, 21, 21]
    angles = np.concatenate([f * p for f, p in zip(frequencies, (4, 3, 2), strict=True)]).repeat(2)
    np.testing.assert_allclose(np.cos(angles), cos[0, at, 0].numpy(), atol=1e-6)
    np.testing.assert_allclose(np.sin(angles), sin[0, at, 0].numpy(), atol=1e-6)


def test_the_default_is_dcms(tiny_artifact: Path) -> None:
    steps = hvdc("inspect", tiny_artifact, "--json").json()["steps"]
    assert [(s["timestep"], s["expert"]) for s in steps] == DCM
    sigmas = [float(np.float32(t) / np.float32(1000)) for t, _ in DCM] + [0.0]
    assert [s["sigma"] for s in steps] == sigmas[:-1]
    assert [s["sigma_next"] for s in steps] == sigmas[1:]
    for step in steps:
        assert step["step_size"] == float(np.float32(step["sigma_next"]) - np.float32(step["sigma"])) < 0


def routed(checkpoint: Path, *settings: str) -> tuple[list[str], list[str]]:
    """The experts of the steps, and the notes of the plan."""
    more = [word for setting in settings for word in ("--set", setting)]
    done = hvdc("compile", checkpoint, "--dry-run", "--json", *SMALL_VIDEO, *more)
    assert done.status == 0, done.err
    return [s["expert"][0] for s in done.json()["steps"]], done.json()["notes"]


def test_other_timesteps_change_the_routing(tiny_checkpoint: Path) -> None:
    """int(t) ≤ 978 is the detail expert's: 978.9 is, 979 is not."""
    assert routed(tiny_checkpoint, "timesteps=[1000, 979, 978.9, 978, 1]") == (list("ssddd"), [])
    assert routed(tiny_checkpoint, "timesteps=[999.5, 900]") == (list("sd"), [])
    assert routed(tiny_checkpoint, "expert_boundary=985") == (list("ssdddd"), [])
    assert routed(tiny_checkpoint, "timesteps=[900, 800]", "expert_boundary=850") == (list("sd"), [])


def test_an_expert_that_no_step_uses_is_said(tiny_checkpoint: Path, tmp_path: Path) -> None:
    experts, notes = routed(tiny_checkpoint, "timesteps=[1000, 990]")
    assert experts == list("ss")
    assert any("the detail expert is not used" in note for note in notes)
    experts, notes = routed(tiny_checkpoint, "timesteps=[900, 800]")
    assert experts == list("dd")
    assert any("the semantic expert is not used" in note for note in notes)
    done = hvdc("compile", tiny_checkpoint, "-o", tmp_path / "a.hvdc", *SMALL_VIDEO, "--set", "timesteps=[900]")
    assert done.status == 0
    assert "the semantic expert is not used" in done.err


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ("[]", "timesteps"),
        ("[992, 1000]", "descend"),
        ("[1000, 1000]", "descend"),
        ("[1001]", "out of range"),
        ("[1000, 0]", "out of range"),
        ("[1000, -5]", "out of range"),
        ("[nan]", "timesteps"),
        ("['a']", "timesteps"),
        ("1000", "timesteps"),
    ],
)
def test_impossible_timesteps_are_a_usage_error(times: str, says: str, tiny_checkpoint: Path) -> None:
    done = hvdc("compile", tiny_checkpoint, "--dry-run", "--set", f"timesteps={times}")
    assert done.status == 2, done.err
    assert says in done.err
    assert "unexpected" not in done.err
