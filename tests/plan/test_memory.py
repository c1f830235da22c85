"""What does a clip need: the paper's figures to the digit that it prints, and verdicts at their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hvdc.artifact.manifest import Manifest
from hvdc.config import FRAMES_MAX
from hvdc.errors import UsageError
from hvdc.plan.memory import GIB, MIB
from hvdc.plan.memory_plan import Check, MemoryPlan, plan_memory
from hvdc.plan.working_memory import (
    ClipSizes,
    gpu_engine,
    gpu_largest_bytes,
    npu_engine,
    slot_bytes,
    total_bytes,
    working_buffers,
)
from tests import artifacts
from tests.artifacts import Spec
from tests.hollow import full_size_manifest


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return full_size_manifest()


@pytest.fixture(scope="module")
def plan(manifest: Manifest) -> MemoryPlan:
    return plan_memory(manifest)


def test_the_papers_table_3(plan: MemoryPlan) -> None:
    assert [f"{row.total_bytes / GIB:.2f}" for row in plan.weights] == ["1.39", "1.47", "2.83", "3.71", "5.25"]
    two = next(row for row in plan.weights if row.name == "two engines, one copy")
    assert f"{two.base_bytes / MIB:.1f}" == "1331.5"
    assert f"{two.adapter_bytes / MIB:.1f}" == "91.5"
    assert two.transient_bytes / MIB == 52.5 + 26.25
    for row in plan.weights:
        assert row.total_bytes == row.base_bytes + row.adapter_bytes + row.transient_bytes
        assert row.copy_bytes * row.copies == row.weight_bytes


def test_the_papers_working_buffers(plan: MemoryPlan) -> None:
    """Section 6.3: two carriers of 59.4 MiB, 178 MiB of scores, 130 MB handed off, about 0.4 GiB in all; and the keys
    and values of a prompt's text, 90 MiB for each live expert, which it does not count."""
    first, second, scores, handoff, text = plan.working
    assert f"{first.bytes / MIB:.1f}" == f"{second.bytes / MIB:.1f}" == "59.4"
    assert f"{scores.bytes / MIB:.0f}" == "178"
    assert f"{handoff.bytes / 1e6:.1f}" == "129.8"
    assert text.bytes == 2 * 90 * MIB
    working = first.bytes + second.bytes + scores.bytes + handoff.bytes
    assert f"{working / GIB:.1f}" == "0.4"
    shared = next(row for row in plan.weights if row.name == "two engines, one copy")
    assert f"{(shared.total_bytes + working) / GIB:.1f}" == "1.9", "what the paper needs at steady state"


@pytest.mark.parametrize(("frames", "tokens"), [(49, 20_280), (33, 14_040), (25, 10_920), (17, 7_800)])
def test_another_length_of_clip_is_planned_from_the_same_artifact(manifest: Manifest, frames: int, tokens: int) -> None:
    plan = plan_memory(manifest, frames)
    assert (plan.frames, plan.sizes.tokens) == (frames, tokens)
    assert plan.sizes == ClipSizes.of(full_size_manifest(frames))
    own = plan_memory(full_size_manifest(frames))
    assert [c.resident.needed_bytes for c in plan.configurations] == [
        c.resident.needed_bytes for c in own.configurations
    ]


@pytest.mark.parametrize("frames", [0, -3, 2, 48, 50])
def test_a_length_that_no_latent_has_is_refused(manifest: Manifest, frames: int) -> None:
    with pytest.raises(UsageError, match="no latent of so many frames"):
        plan_memory(manifest, frames)


def test_everything_fits_the_phone_and_its_limits_are_the_targets(plan: MemoryPlan) -> None:
    assert all(c.fits for c in plan.configurations)
    assert all(limit.fits for limit in plan.limits)
    for c in plan.configurations:
        assert c.resident.limit_bytes == plan.target.usable_memory_bytes.value
        assert c.mapped.limit_bytes == plan.target.mapping_budget_bytes.value
        assert c.resident.needed_bytes == sum(part.bytes for part in c.parts)
    assert [limit.limit_bytes for limit in plan.limits] == [511 * MIB, 1024 * MIB]


def test_a_verdict_turns_at_the_limit() -> None:
    for needed, fits in ((99, True), (100, True), (101, False)):
        check = Check("memory", needed, 100, "measured today")
        assert (check.fits, check.spare_bytes) == (fits, 100 - needed)


def test_longer_clips_stop_fitting_and_say_by_how_much(manifest: Manifest) -> None:
    """Working memory grows with the tokens: at some length a mode no longer fits, and stays so."""
    fits = []
    for frames in range(49, FRAMES_MAX + 1, 64):
        hetero = next(c for c in plan_memory(manifest, frames).modes if c.name == "hetero")
        fits.append(hetero.fits)
        assert hetero.resident.spare_bytes == hetero.resident.limit_bytes - hetero.resident.needed_bytes
    assert fits[0]
    assert not fits[-1]
    assert fits == sorted(fits, reverse=True)


def test_more_of_anything_needs_no_less(plan: MemoryPlan) -> None:
    sizes = plan.sizes
    for name in ("tokens", "text_tokens", "width", "ffn_width", "layers", "rank", "experts"):
        more = replace(sizes, **{name: 2 * getattr(sizes, name)})
        for buffers in (working_buffers, npu_engine, gpu_engine):
            assert total_bytes(buffers(more)) >= total_bytes(buffers(sizes)), name


def test_no_buffer_of_the_gpu_is_larger_than_the_largest(plan: MemoryPlan) -> None:
    assert 0 < gpu_largest_bytes(plan.sizes) <= max(buffer.bytes for buffer in plan.gpu_buffers)


def test_a_decoder_is_counted_as_its_compiler_predicted_it() -> None:
    phone = full_size_manifest().target
    with_one, without = (
        artifacts.make(spec)[0].model_copy(update={"target": phone}) for spec in (Spec(decoder="qnn"), Spec())
    )
    assert with_one.decoder is not None
    due = sum(b.predicted_graph_bytes for b in with_one.decoder.binaries)
    files = {t.name: t.bytes for _, t in with_one.tensors()}
    due += sum(files[b.binary] for b in with_one.decoder.binaries)
    assert due > 0
    for planned, expected in ((plan_memory(with_one), due), (plan_memory(without), 0)):
        for mode in planned.modes:
            assert {part.name: part.bytes for part in mode.parts}["decoder"] == expected
        assert planned.has_decoder == (expected > 0)


def test_a_session_maps_shared_weights_places_of_videos_tables_and_rotations(
    manifest: Manifest, plan: MemoryPlan
) -> None:
    """docs/HEXAGON.md; what else an executor needs is in its heap. Of the other rows: one engine's copy."""
    clip = ClipSizes.of(manifest)
    by_kind = {
        kind: sum(f.bytes for f in manifest.files if f.kind == kind) for kind in {f.kind for f in manifest.files}
    }
    weights = by_kind["region"] + by_kind["adapter"] + by_kind["schedule"]
    rotations = 20_280 * 128 * 4
    slots = {"npu": 1, "gpu": 2, "hetero": 2, "dp": 3, "hetero-tensor": 1}
    assert {c.name: c.mapped.needed_bytes for c in plan.modes} == {
        mode: weights + rotations + count * slot_bytes(clip) for mode, count in slots.items()
    }
    assert [c.mapped.needed_bytes for c in plan.verdicts] == [row.weight_bytes // row.copies for row in plan.weights]
