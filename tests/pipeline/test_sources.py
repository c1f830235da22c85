"""An artifact holds the numbers of its checkpoint: codes, scales and tables to the bit, so paths over both agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from exporters.checkpoint import Checkpoint, open_checkpoint
from exporters.model import TINY
from exporters.schedule import make_schedule
from hvdc.artifact.calibration import Clip, GemmInput
from hvdc.artifact.reader import Artifact, open_artifact
from hvdc.config import CompileConfig
from hvdc.pipeline.activation_scales import ActivationScales
from hvdc.pipeline.build import build
from hvdc.pipeline.prepare import Request, prepare
from hvdc.pipeline.sources import ArtifactSource, CheckpointSource
from hvdc.progress import Silent
from quant.calibration.modes import activation_scales
from quant.calibration.statistics import Statistics
from quant.gemms import LINEARS, gemm_inputs
from quant.paths.trajectory import fp32, gpu, hetero, npu
from quant.paths.weights import Weights
from quant.scales import Scales
from quant.smooth import Rescaling, rescaled_statistics, sites
from tests.quant.models import calibrated, difference, drawn, generated, one_thread, prompt

LATENT = (2, 6, 8)
CONFIG = CompileConfig(frames=5, height=48, width=64, text_tokens=TINY.text_tokens)
PLAIN, SMOOTHED = "plain", "smoothed"


def factors() -> dict[str, np.ndarray]:
    """For every site, none a power of two; pairs of self-attention's queries have one."""
    rng = np.random.default_rng(0)
    found = {}
    for site in sites(TINY):
        s = np.exp2(rng.uniform(-2, 2, (TINY.layers, TINY.width))).astype(np.float32)
        found[site.name] = np.repeat(s[:, ::2], 2, axis=1) if site.paired else s
    return found


@dataclass(frozen=True)
class Pair:
    """A checkpoint and the artifact of it, as what the paths read, with the scales that were compiled in."""

    checkpoint: CheckpointSource
    artifact: ArtifactSource
    scales: Scales
    names: frozenset[str]
    """Tensors that both hold; what depends on the timestep alone is in the artifact's tables instead."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def opened(tiny_checkpoint: Path) -> Iterator[Checkpoint]:
    with open_checkpoint(tiny_checkpoint, text_tokens=TINY.text_tokens) as checkpoint:
        yield checkpoint


@pytest.fixture(scope="module")
def statistics(opened: Checkpoint) -> Statistics:
    return calibrated(Weights(CheckpointSource(opened, make_schedule())), prompt(), drawn())


def compiled(checkpoint: Path, output: Path, scales: Scales, smoothing: dict[str, np.ndarray]) -> Artifact:
    given = ActivationScales(
        table=scales.table,
        inputs=tuple(
            GemmInput.model_validate({"name": i.name, "per": i.per, "experts": i.experts}) for i in gemm_inputs(TINY)
        ),
        mode="per-step", statistics_sha256="5" * 64, prompts=1, seeds=(2,), video=Clip(frames=5, height=48, width=64),
        dtype="fp32", smoothing_strength=0.5 if smoothing else None, smoothing=smoothing,
    )  # fmt: skip
    prepared = prepare(Request(checkpoint, output, config=CONFIG, activations=given))
    with prepared.checkpoint:
        build(prepared, Silent())
    return open_artifact(output)


@pytest.fixture(scope="module", params=[PLAIN, SMOOTHED])
def pair(
    request: pytest.FixtureRequest, tiny_checkpoint: Path, opened: Checkpoint, statistics: Statistics,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:  # fmt: skip
    smoothing = factors() if request.param == SMOOTHED else {}
    rescaling = Rescaling(TINY, smoothing) if smoothing else None
    source = CheckpointSource(opened, make_schedule(), rescaling)
    seen = statistics if rescaling is None else rescaled_statistics(rescaling, statistics)
    scales = activation_scales(seen, source.steps, "per-step")
    output = tmp_path_factory.mktemp("sources") / "tiny.hvdc"
    with compiled(tiny_checkpoint, output, scales, smoothing) as artifact:
        yield Pair(source, ArtifactSource(artifact), scales, frozenset(artifact) & frozenset(opened.tensors))


def quantised_names() -> list[str]:
    """Weights of the blocks' linears and of their adapters."""
    names = []
    for block in range(TINY.layers):
        for linear in LINEARS:
            parts = ["weight"] + (["lora_A.weight", "lora_B.weight"] if linear.startswith("attn") else [])
            names += [f"blocks.{block}.{linear}.{part}" for part in parts]
    return names


def test_codes_and_scales_are_the_same_to_the_bit(pair: Pair) -> None:
    assert len(quantised_names()) == TINY.layers * (10 + 16)
    for name in quantised_names():
        for found, expected in zip(pair.artifact.quantized(name), pair.checkpoint.quantized(name), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected, err_msg=name)


def test_what_is_not_quantised_is_the_same_to_the_bit(pair: Pair) -> None:
    names = sorted(pair.names - set(quantised_names()))
    assert "blocks.1.norm2.bias" in names
    for name in ("patch_embedding.weight", "proj_out.weight", "proj_out_lora.bias", "blocks.0.attn1.to_q.bias",
                 "condition_embedder.text_embedder.linear_1.weight",
                 "condition_embedder_lora.text_embedder.linear_2.bias"):  # fmt: skip
        assert name in names
    for name in names:
        found = pair.artifact.values(name)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, pair.checkpoint.values(name), err_msg=name)


def test_a_weights_values_are_its_codes_times_scales_from_an_artifact_and_its_own_from_a_checkpoint(pair: Pair) -> None:
    for name in quantised_names():
        q, s = pair.artifact.quantized(name)
        found, own = pair.artifact.values(name), pair.checkpoint.values(name)
        np.testing.assert_array_equal(found, q.astype(np.float32) * s[:, None])
        assert (np.abs(found - own) <= 0.5001 * s[:, None]).all()
        assert not np.array_equal(found, own)


def test_values_of_b_come_multiplied_by_alpha_over_rank(opened: Checkpoint) -> None:
    source = CheckpointSource(opened, make_schedule())
    for name in quantised_names():
        times = np.float32(2 if ".lora_B." in name else 1)
        np.testing.assert_array_equal(source.values(name), opened.tensors[name].read() * times)


def test_tables_steps_and_sizes_are_the_same(pair: Pair) -> None:
    found, expected = pair.artifact.tables, pair.checkpoint.tables
    np.testing.assert_array_equal(found.adaln, expected.adaln)
    np.testing.assert_array_equal(found.head, expected.head)
    for a, b in zip(found.rope_frequencies, expected.rope_frequencies, strict=True):
        assert a.dtype == np.float64
        np.testing.assert_array_equal(a, b)
    assert pair.artifact.shape == pair.checkpoint.shape
    for a, b in zip(pair.artifact.steps, pair.checkpoint.steps, strict=True):
        assert (a.timestep, a.step_size, a.expert) == (b.timestep, b.step_size, b.expert)


def test_scales_are_those_that_were_compiled_in(pair: Pair) -> None:
    held = pair.artifact.scales
    assert held is not None
    assert held.inputs == pair.scales.inputs
    np.testing.assert_array_equal(held.table, pair.scales.table)


@pytest.mark.parametrize("name", ["npu", "gpu", "hetero"])
def test_a_path_over_the_artifact_is_the_path_over_the_checkpoint(name: str, pair: Pair) -> None:
    """To the bit: the same prompt and noise, the artifact's own scales."""
    held = pair.artifact.scales
    assert held is not None
    latents = []
    for source, scales in ((pair.artifact, held), (pair.checkpoint, pair.scales)):
        weights = Weights(source)
        path = {"npu": npu(weights), "gpu": gpu(weights, scales), "hetero": hetero(weights, scales, 5)}[name]
        latents.append(generated(path, prompt(), drawn()))
    assert torch.equal(*latents)


def test_paths_over_the_artifact_are_near_the_model_itself(pair: Pair, opened: Checkpoint) -> None:
    """Smoothed or not, it is the same function: INT8 costs some per cent."""
    expected = generated(fp32(Weights(CheckpointSource(opened, make_schedule()))), prompt(), drawn())
    weights, held = Weights(pair.artifact), pair.artifact.scales
    assert held is not None
    for path in (npu(weights), gpu(weights, held)):
        assert 1e-4 < difference(generated(path, prompt(), drawn()), expected) < 0.1


def test_an_uncalibrated_artifact_has_no_scales_and_runs_on_the_npu(tiny_artifact: Path, opened: Checkpoint) -> None:
    with open_artifact(tiny_artifact) as artifact:
        source = ArtifactSource(artifact)
        assert source.scales is None
        embeds = torch.randn(source.shape.text_tokens, TINY.text_width, generator=torch.Generator().manual_seed(0))
        found = generated(npu(Weights(source)), embeds, drawn())
        expected = generated(npu(Weights(CheckpointSource(opened, make_schedule()))), embeds, drawn())
    assert torch.equal(found, expected)


def test_smoothing_changes_codes_and_scales_of_both_kinds(opened: Checkpoint) -> None:
    plain = CheckpointSource(opened, make_schedule())
    other = CheckpointSource(opened, make_schedule(), Rescaling(TINY, factors()))
    for name in quantised_names():
        text_or_down = ("attn2.to_k.weight", "attn2.to_k.lora_A.weight", "attn2.to_k.lora_B.weight",
                        "attn2.to_v.lora_A.weight", "ffn.net.2.weight")  # fmt: skip
        q_and_k = ("to_q.lora_B.weight", "to_k.lora_B.weight", "to_out.0.lora_B.weight")
        same = np.array_equal(plain.quantized(name)[1], other.quantized(name)[1])
        assert same == name.endswith((*text_or_down, *q_and_k)), name
